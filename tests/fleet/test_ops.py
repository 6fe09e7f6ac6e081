"""What an operator sees of a fleet: health, metrics, logs, the live page, a stop in good order, its commands."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from espalier._version import __version__
from espalier.cli.main import main
from espalier.fleet import certs
from espalier.fleet.certs import Bundle
from espalier.fleet.links.link import Link
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.links.transport import dial
from espalier.fleet.local import LocalFleet
from espalier.fleet.status import ask
from espalier.record.run import Run
from espalier.report.endpoint import listen
from espalier.report.server import LivePage
from tests.fleet import counting


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    """A fleet that goes on until it is stopped."""
    made = counting.experiment(3, 1, 100_000)
    with counting.fleet(made, tmp_path_factory.mktemp("ops")) as found:
        found.start()
        found.until("cloud", lambda s: s.get("round", 0) >= 2)
        yield found


def get(fleet: LocalFleet, name: str, path: str) -> tuple[int, str]:
    port = (fleet.directory / name / "ops").read_text()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def eventually(look: Callable[[], list[Any]]) -> list[Any]:
    """Look until something is there."""
    until = time.monotonic() + 30
    while not (found := look()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


def test_health(fleet: LocalFleet) -> None:
    code, text = get(fleet, "cloud", "/healthz")
    found = json.loads(text)
    assert code == 200
    assert (found["role"], found["devices"], found["children"], found["started"]) == ("cloud", 3, ["edge-0"], True)
    assert found["round"] >= 2
    assert get(fleet, "cloud", "/elsewhere")[0] == 404
    # what is no request gets no answer, and does no harm
    with socket.create_connection(("127.0.0.1", int((fleet.directory / "cloud" / "ops").read_text()))) as link:
        link.sendall(b"\x00" * 20_000)
        link.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert link.recv(100) == b""
    assert get(fleet, "cloud", "/healthz")[0] == 200


def test_metrics(fleet: LocalFleet) -> None:
    code, text = get(fleet, "cloud", "/metrics")
    assert code == 200
    found = {f.name: f for f in text_string_to_metric_families(text)}
    assert found["espalier_devices"].samples[0].value == 3
    assert found["espalier_round"].samples[0].value >= 2
    assert found["espalier_refused"].samples[0].value == 0
    members = {(s.labels["role"], s.labels["state"]): s.value for s in found["espalier_members"].samples}
    assert (members["edge", "linked"], members["device", "linked"], members["device", "gone"]) == (1, 3, 0)
    held = {s.labels["name"]: (s.labels["parent"], s.value) for s in found["espalier_member_samples"].samples}
    assert held["device-1"] == ("edge-0", 10)
    sent = {(s.labels["tier"], s.labels["direction"], s.labels["kind"]): s.value
            for s in found["espalier_sent_bytes"].samples}  # fmt: skip
    assert sent["edge-cloud", "down", "model"] >= 2 * 2600, "two rounds' models of 650 numbers"


def test_the_dashboard_asks_for_what_the_cloud_exports(fleet: LocalFleet) -> None:
    board = json.loads((Path(__file__).parents[2] / "examples" / "grafana" / "fleet.json").read_text())
    text = get(fleet, "cloud", "/metrics")[1]
    exported = {f.name for f in text_string_to_metric_families(text)}
    # counters are called NAME_total where they are asked for, also as long as they have no sample
    known = exported | {f"{name}_total" for name in exported}
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [v["query"]["query"] for v in board["templating"]["list"] if v["type"] == "query"]
    for query in queries:
        (pattern,) = re.findall(r'__name__=~"([^"]+)"', query) or [None]
        names = {n for n in exported if pattern and re.fullmatch(pattern, n)} or set(re.findall(r"espalier_\w+", query))
        assert names, query
        assert names <= known, query
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_the_control_socket_is_the_owners(fleet: LocalFleet) -> None:
    mode = (fleet.directory / "edge-0" / "control.sock").stat().st_mode
    assert stat.S_IMODE(mode) & 0o077 == 0
    answer = CliRunner().invoke(main, ["node", "status", str(fleet.directory / "edge-0")])
    assert json.loads(answer.output)["children"] == ["device-0", "device-1", "device-2"]
    wrong = CliRunner().invoke(main, ["node", "move", str(fleet.directory / "cloud"), "edge-0@127.0.0.1:1"])
    assert "The cloud has no parent to leave." in wrong.output
    nobody = CliRunner().invoke(main, ["node", "status", str(fleet.directory / "nobody")])
    assert "No node runs in" in nobody.output


def test_the_whole_fleet_as_its_cloud_knows_it(fleet: LocalFleet) -> None:
    answer = CliRunner().invoke(main, ["fleet", "status", str(fleet.directory / "cloud"), "--json"])
    found = json.loads(answer.output)
    assert (found["state"], found["rounds"], found["devices"], found["page"]) == ("running", 100_000, 3, "")
    assert found["round"] >= 2
    assert found["evaluations"][0]["round"] == 0
    members = {m["name"]: m for m in found["members"]}
    assert list(members) == ["cloud", "edge-0", "device-0", "device-1", "device-2"]
    assert {m["state"] for m in found["members"]} == {"linked"}
    assert {m["version"] for m in found["members"]} == {__version__}
    device, edge = members["device-2"], members["edge-0"]
    assert (device["parent"], device["reports_to"], edge["parent"], members["cloud"]["parent"]) == (
        "edge-0", "edge-0", "cloud", None,
    )  # fmt: skip
    assert (device["samples"], device["late"], device["refused"]) == (10, 0, 0)
    assert 0 < edge["last_report"] <= found["time"]
    shown = CliRunner().invoke(main, ["fleet", "status", str(fleet.directory / "cloud")]).output
    assert ", HierFAVG: running, round " in shown
    assert "\n     device-2 " in shown, "below its edge, which is below the cloud"
    wrong = CliRunner().invoke(main, ["fleet", "status", str(fleet.directory / "edge-0")])
    assert "Only the cloud of a fleet knows all of it" in wrong.output


def test_the_clouds_log_tells_of_rounds_scores_and_members(fleet: LocalFleet) -> None:
    lines = [json.loads(x) for x in (fleet.directory / "cloud" / "node.log").read_text().splitlines()]
    assert {x["level"] for x in lines if x["event"] in ("round closed", "evaluated", "member joined")} == {"info"}
    assert [x["round"] for x in lines if x["event"] == "round closed"][:2] == [1, 2]
    assert "acc_global" in next(x for x in lines if x["event"] == "evaluated")
    joined = {x["member"]: x["parent"] for x in lines if x["event"] == "member joined"}
    assert joined == {"edge-0": "cloud", **{f"device-{i}": "edge-0" for i in range(3)}}


def test_logs_are_json(fleet: LocalFleet) -> None:
    lines = [json.loads(x) for x in (fleet.directory / "edge-0" / "node.log").read_text().splitlines()]
    assert [x["event"] for x in lines[:2]] == ["starting", "listening"]
    assert all({"time", "level", "node", "event"} <= x.keys() and x["node"] == "edge-0" for x in lines)
    assert {x["child"] for x in lines if x["event"] == "joined"} == {"device-0", "device-1", "device-2"}


def test_the_live_page_shows_the_run_as_going_on(fleet: LocalFleet) -> None:
    place = listen(port=0)
    page = LivePage([fleet.directory / "cloud"], place)
    try:
        with urllib.request.urlopen(f"{place.url}events", timeout=60) as stream:
            while not (line := stream.readline()).startswith(b"data: "):
                pass
        with urllib.request.urlopen(f"{place.url}section/overview", timeout=60) as answer:
            overview = json.load(answer)
    finally:
        page.close()
    assert overview["state"] == "live: 1 running"
    assert any(name.startswith("curves") for name in json.loads(line[6:]))


def test_who_comes_with_another_authoritys_certificate_is_seen(fleet: LocalFleet, tmp_path: Path) -> None:
    # TLS refuses it before any code of ours runs: the log, the metrics and the record have it all the same
    certs.init(tmp_path / "ca")
    forged = replace(Bundle.read(certs.issue(tmp_path / "ca", "device-0", "device")), ca=fleet_ca(fleet))
    before = fleet.status("cloud")["refused"]

    async def knock() -> str:
        async def take(link: Link, frame: pb.Frame) -> None:
            raise AssertionError("it was let in")

        target = fleet.endpoint("cloud")
        return await dial(forged, target, "cloud", pb.Hello(version=1), take, connected=lambda link: None)

    assert asyncio.run(knock()).startswith("unavailable")
    fleet.until("cloud", lambda s: s["refused"] > before)
    found = eventually(
        lambda: [e for e in Run(fleet.directory / "cloud").events("refused") if "Handshake failed" in e["why"]]
    )
    assert found[0]["by"] == "cloud"


def test_a_parent_with_another_name_is_not_believed(fleet: LocalFleet) -> None:
    # who answers at edge 0's address shows a certificate of edge 0: a device that looks for edge 7 does not trust it
    fleet.kill("device-2", signal.SIGTERM)
    cloud = fleet.directory / "cloud"
    left = eventually(lambda: [m for m in ask(cloud, do="fleet")["members"] if m["state"] == "gone"])
    assert [m["name"] for m in left] == ["device-2"]
    assert '"event": "member left", "member": "device-2"' in (cloud / "node.log").read_text()
    target = fleet.endpoint("edge-0")
    fleet.launch("device-2", parents=(f"edge-7@{target}",))
    log = fleet.directory / "device-2" / "node.log"
    found = [json.loads(x) for x in eventually(lambda: [x for x in log.read_text().splitlines() if '"warning"' in x])]
    assert (found[0]["event"], found[0]["parent"]) == ("no link to parent", "edge-7")
    assert "device-2" not in fleet.status("edge-0")["children"]
    fleet.kill("device-2", signal.SIGTERM)
    fleet.launch("device-2")
    fleet.until("edge-0", lambda s: "device-2" in s["children"])


def fleet_ca(fleet: LocalFleet) -> bytes:
    return (fleet.directory / "ca" / "ca.pem").read_bytes()


def test_a_new_authority_takes_over_without_stopping_the_run(fleet: LocalFleet) -> None:
    ca, run = fleet.directory / "ca", fleet.status("cloud")["run"]

    def restart(*names: str) -> None:
        at = fleet.status("cloud")["round"]
        for name in names:
            fleet.kill(name, signal.SIGTERM)
        for name in names:
            fleet.launch(name)
        fleet.until("cloud", lambda s: s.get("round", 0) > at and s["devices"] == 3)

    restarted = ("cloud", "edge-0", "device-1")
    certs.rotate(ca)
    restart(*restarted)  # they trust both
    before = {name: Bundle.read(ca / name).identity for name in restarted}
    for name in ("edge-0", "device-1"):
        certs.renew(ca, name)
    # device-1 and its edge show the new authority's certificates; the cloud still has one of the old one's
    restart("edge-0", "device-1", "device-0", "device-2")
    after = {name: Bundle.read(ca / name).identity for name in restarted}
    assert {n for n in restarted if before[n].serial != after[n].serial} == {"edge-0", "device-1"}
    assert fleet.status("cloud")["run"] == run


def test_stopped_in_good_order_and_gone_on_with(fleet: LocalFleet) -> None:
    at = fleet.status("cloud")["round"]
    fleet.kill("cloud", signal.SIGTERM)
    assert fleet.processes["cloud"].exitcode == 0
    assert Run(fleet.directory / "cloud").status == {"state": "stopped"}
    # without the cloud the edge is up, but not well
    fleet.until("edge-0", lambda s: not s["linked"])
    fleet.launch("cloud")
    fleet.until("cloud", lambda s: s.get("round", 0) > at)
    assert Run(fleet.directory / "cloud").status == {"state": "running"}
