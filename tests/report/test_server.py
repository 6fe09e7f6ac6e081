"""The live page's server, asked over a real socket; what a browser sees of it is in test_browser_live.py."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from espalier.cli.report import LivePageProcess
from espalier.core.errors import RunError
from espalier.record.database import Recorder
from espalier.report.endpoint import Endpoint, is_loopback, listen
from espalier.report.live_parts import BUSY_SHARE, MOST_WAIT_SECONDS, LiveParts
from espalier.report.server import LivePage
from tests.report.made import Made, play_round, write_run


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Endpoint]:
    write_run(tmp_path / "a", rounds=3)
    place = listen(port=0)
    found = LivePage([tmp_path], place)
    yield place
    found.close()


def ask(url: str, path: str = "", host: str | None = None, method: str = "GET") -> tuple[int, bytes]:
    base, _, query = url.partition("?")
    joined = f"{base}{path}" + (("&" if "?" in path else "?") + query if query else "")
    request = urllib.request.Request(joined, headers={"Host": host} if host is not None else {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def first_news(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}events", timeout=60) as stream:
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        while not (line := stream.readline()).startswith(b"data: "):
            pass
    found: dict[str, Any] = json.loads(line[6:])
    return found


def test_page_news_and_parts(page: Endpoint) -> None:
    status, text = ask(page.url)
    assert (
        status == 200
        and b'"live": true' in text
        and b'role="status">loading' in text
        and b"data-part" not in text.split(b"<script>")[0]
    )
    news = first_news(page.url)
    names = list(news)
    assert sorted(n.split("/")[0] for n in names) == ["curves", "detail", "overview", "spread"]
    for name in names:
        status, text = ask(page.url, f"section/{name}")
        assert status == 200 and json.loads(text)
    key = next(n for n in names if n.startswith("detail/")).removeprefix("detail/")
    status, text = ask(page.url, f"section/timeline/{key}?start=10&stop=20")
    assert status == 200 and json.loads(text)["window"] == [10.0, 20.0]


def test_wrong_questions(page: Endpoint) -> None:
    first_news(page.url)
    assert ask(page.url, "section/nothing")[0] == 404
    assert ask(page.url, "section/detail/../../etc/passwd")[0] == 404
    assert ask(page.url, "section/timeline/nobody?start=0&stop=1")[0] == 404
    assert ask(page.url, "section/timeline/nobody?start=x&stop=1")[0] == 400
    assert ask(page.url, method="POST")[0] == 405


def test_loopback_answers_only_to_its_own_name(page: Endpoint) -> None:
    assert page.token is None and page.url.startswith("http://127.0.0.1:")
    assert ask(page.url, host="localhost")[0] == 200
    assert [ask(page.url, host=name)[0] for name in ("evil.example", "127.0.0.1.evil.example", "")] == [403] * 3
    assert [is_loopback(h) for h in ("::1", "[::1]", "127.8.8.8", "0.0.0.0", "192.168.1.4", "localhost.evil.com")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_elsewhere_a_token_is_needed(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rounds=1)
    place = listen(host="0.0.0.0", port=0)
    page = LivePage([tmp_path], place)
    try:
        base = place.url.split("?")[0].replace("0.0.0.0", "127.0.0.1")
        assert place.token is not None and len(place.token) >= 32
        for path in ("", "events", "section/overview", "?token=wrong", "?token="):
            assert ask(base, path)[0] == 403
        assert ask(f"{base}?token={place.token}")[0] == 200
    finally:
        page.close()


def test_a_taken_port_is_said_and_the_usual_one_is_not_insisted_on() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RunError, match=rf"cannot be served at 127.0.0.1:{port}: .*in use"):
            listen(port=port)
    with pytest.raises(RunError, match="Choose another --port, or a --host"):
        listen(host="203.0.113.7", port=0)
    first, second = listen(), listen()
    assert first.url != second.url
    first.socket.close()
    second.socket.close()


def test_the_board_follows_what_is_written(tmp_path: Path) -> None:
    board = LiveParts([tmp_path])
    empty = board.news()
    assert board.part("curves") is None
    overview = json.loads(board.part("overview") or b"")
    assert overview["state"] == "waiting for the first evaluation of a run" and overview["details"] == []
    made = Made(rounds=2, state="running", stop=10)
    write_run(tmp_path / "a", made)
    one = board.news()
    assert one["overview"] != empty["overview"]
    assert board.news() == one
    recorder = Recorder(tmp_path / "a" / "run.sqlite")
    play_round(recorder, made, 3, 500.0)
    two = board.news()
    assert all(two[n] != one[n] for n in one)
    name = next(n for n in two if n.startswith("detail/"))
    assert json.loads(board.part("curves") or b"")["figures"]["round/acc_device"]["data"][0]["x"][-1] == 3
    assert json.loads(board.part(name) or b"")["figures"]["tree"]
    recorder.meta("status", {"state": "finished"})
    recorder.close()
    board.news()
    overview = json.loads(board.part("overview") or b"")
    assert overview["state"] == "no run is going on: 1 finished" and 'data-state="finished"' in overview["runs"]


def test_methods_that_no_experiment_planned_keep_their_colours_while_others_come(tmp_path: Path) -> None:
    board, colours = LiveParts([tmp_path]), []
    for name in ("m", "z", "a"):
        write_run(tmp_path / name, label=name, rounds=2)
        board.news()
        colours.append({m["title"]: m["number"] for m in json.loads(board.part("overview") or b"")["methods"]})
        board._parts.clear()  # as if they had been shown long enough
    assert colours == [{"m": 0}, {"m": 0, "z": 1}, {"m": 0, "z": 1, "a": 2}]


def test_watching_takes_a_share_of_the_time_only(tmp_path: Path) -> None:
    made = Made(rounds=2)
    write_run(tmp_path / "a", made)
    board = LiveParts([tmp_path])
    one = board.news()
    for name in ("spread", "curves"):
        board.part(name)
        board._parts[name].cost = 3600.0 * BUSY_SHARE  # as if making it had taken long: it stays for an hour
    board._parts["curves"].since -= MOST_WAIT_SECONDS  # … but of what is seen first nobody waits that long
    recorder = Recorder(tmp_path / "a" / "run.sqlite")
    play_round(recorder, made, 3, 500.0)
    recorder.close()
    two = board.news()
    assert two["spread"] == one["spread"] and two["curves"] != one["curves"]


def test_a_damaged_run_does_not_hide_the_others(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rounds=1)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "run.sqlite").write_bytes(b"no database at all" * 100)
    board = LiveParts([tmp_path])
    board.news()
    (block,) = json.loads(board.part("overview") or b"")["verdicts"]["acc_device/time"]["blocks"]
    assert "HierFAVG" in block["table"] and "/b is not shown: " in block["table"]


def test_beside_a_command(tmp_path: Path) -> None:
    with LivePageProcess(tmp_path / "later", port=0) as page:
        assert list(first_news(page.url)) == ["overview"]
        write_run(tmp_path / "later" / "a", rounds=1)
        assert "curves" in first_news(page.url)
    start = time.monotonic()
    while time.monotonic() - start < 10:
        try:
            ask(page.url)
        except urllib.error.URLError:
            return
    pytest.fail("the page outlived its command")


def test_beside_says_why_it_cannot(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="Choose another --port, or a --host"):
        LivePageProcess(tmp_path, host="203.0.113.7")
