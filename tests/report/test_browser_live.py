"""The live page in a real Chromium: it follows a real run, for several viewers, and shows a killed run as dead."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from espalier.record.database import Recorder
from espalier.report.endpoint import listen
from espalier.report.page import write_report
from espalier.report.server import LivePage
from tests.report.made import Made, describe, evaluate, play_round, write_run

EXPERIMENT = """
name = "long"
methods = ["hierfavg"]
[task]
model_options = { hidden = [8] }
[fleet]
devices = 12
edges = 3
[world.compute]
kind = "truncated_normal"
mean = 20
std = 8
low = 2
high = 60
[stop]
rounds = 100000
"""


TONES = """() => {
    const tones = {};
    for (const head of document.querySelectorAll("tr[data-group] th")) {
        const name = head.textContent.trim(), tone = getComputedStyle(head.querySelector("i")).backgroundColor;
        tones[name] = [...new Set([...(tones[name] || []), tone])];
    }
    const [figure] = shown.get(byId("plot-curves")) || [{ data: [] }];
    for (const trace of figure.data) if (trace.name) tones[`line of ${trace.name}`] = [trace.line.color];
    return Object.fromEntries(Object.entries(tones).map(([name, all]) => [name, all.join(" ")]));
}"""


class Viewer:
    """A page that looks at a live server, and what it complained about."""

    def __init__(self, chromium: Any, url: str) -> None:
        self.context = chromium.new_context(viewport={"width": 1100, "height": 800})
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(m.text))
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.goto(url)

    def until(self, check: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + 60
        while not check():
            assert time.monotonic() < end, f"within a minute the page did not show {what}; {self.complaints}"
            self.page.wait_for_timeout(100)

    def row(self) -> str:
        rows = self.page.locator("#runs tbody tr")
        return str(rows.first.inner_text()) if rows.count() else ""

    def state(self) -> str:
        rows = self.page.locator("#runs tbody tr")
        return str(rows.first.get_attribute("data-state")) if rows.count() else ""

    def rounds(self) -> int:
        cells = self.page.locator("#runs tbody tr td:nth-child(4)")
        return int(cells.first.inner_text().split(" ")[0]) if cells.count() else -1

    def points(self) -> int:
        """How many evaluations the curve shows."""
        return int(self.page.evaluate("((shown.get(byId('plot-curves')) || [{data: [{x: []}]}])[0].data[0].x).length"))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    place = listen(port=0)
    page = LivePage([tmp_path / "runs"], place)
    yield tmp_path, place.url
    page.close()


def test_a_run_is_followed_and_its_death_is_shown(chromium: Any, served: tuple[Path, str]) -> None:
    root, url = served
    early = Viewer(chromium, url)
    early.until(lambda: "waiting for the first evaluation" in early.page.inner_text("#connection"), "that it waits")
    (root / "long.toml").write_text(EXPERIMENT)
    command = "from espalier.cli.main import main; main()"
    run = subprocess.Popen(
        [sys.executable, "-c", command, "run", str(root / "long.toml"), "--out", str(root / "runs"), "--quiet"],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True,
    )  # fmt: skip
    try:
        early.until(lambda: early.state() == "running" and early.rounds() >= 2, "two rounds")
        assert "of 100000" in early.row()
        rounds, points = early.rounds(), early.points()
        early.until(lambda: early.rounds() > rounds and early.points() > points, "another round")
        early.until(lambda: early.page.locator("#plot-tree .scatterlayer path").count() > 12, "the tree")
        early.until(lambda: early.page.locator("#plot-timeline .heatmaplayer image").count() == 1, "the timeline")
        late = Viewer(chromium, url)  # somebody else, who comes later, sees all of it
        late.until(lambda: late.rounds() >= rounds and late.points() >= points, "what there is")
        assert late.page.title() == "long · espalier"
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    for viewer in (early, late):
        viewer.until(lambda viewer=viewer: viewer.state() == "dead", "that the run is dead")  # type: ignore[misc]
        assert "its process has ended; go on with" in viewer.row() and "espalier resume" in viewer.row()
        assert viewer.page.inner_text("#connection") == "no run is going on: 1 dead"  # as the row says, never otherwise
        assert viewer.complaints == []
        viewer.context.close()


def test_colours_stay_while_others_begin_and_in_the_report(chromium: Any, served: tuple[Path, str]) -> None:
    root, url = served
    planned = ("HierFAVG", "CSAHFL", "Alone")
    viewer, seen = Viewer(chromium, url), []

    def colours() -> dict[str, str]:
        """Return the colours of each method's marks in tables, and of its line in the curves."""
        return dict(viewer.page.evaluate(TONES))

    for number, label in enumerate(("CSAHFL", "HierFAVG", "Alone"), 1):  # not in the plan's order, nor by name
        write_run(root / "runs" / label, label=label, planned=planned, rounds=3, devices=6, edges=2)
        viewer.until(lambda number=number: len(colours()) >= 2 * number, f"{number} methods")  # type: ignore[misc]
        seen.append(colours())
    write_report([root / "runs"], root / "report.html")
    viewer.page.goto((root / "report.html").as_uri())
    viewer.until(lambda: bool(viewer.page.evaluate("document.body.dataset.ready === 'yes'")), "the report")
    seen.append(colours())
    for before, after in itertools.pairwise(seen):
        assert before.items() <= after.items()
    assert len(seen[-1]) == 6 and len({seen[-1][label] for label in planned}) == 3
    assert viewer.complaints == []
    viewer.context.close()


def test_a_run_that_ends_and_a_server_that_goes(chromium: Any, tmp_path: Path) -> None:
    made = Made(rounds=3, devices=6, edges=2)
    where = tmp_path / "runs" / "a"
    where.mkdir(parents=True)
    place = listen(port=0)
    server = LivePage([tmp_path / "runs"], place)
    with FileLock(where / "run.lock"):
        recorder = Recorder(where / "run.sqlite")
        describe(recorder, made)
        evaluate(recorder, made, 0, 0.0)
        viewer = Viewer(chromium, place.url)
        viewer.until(lambda: viewer.state() == "running", "a run")
        slider = viewer.page.locator("#tree-time")
        time_ = play_round(recorder, made, 1, 0.0)
        viewer.until(lambda: viewer.rounds() == 1, "the first round")
        play_round(recorder, made, 2, time_)
        recorder.meta("status", {"state": "finished"})
        recorder.close()
    viewer.until(lambda: viewer.state() == "finished" and viewer.rounds() == 2, "that it has finished")
    assert viewer.page.inner_text("#connection") == "no run is going on: 1 finished"
    viewer.until(lambda: slider.input_value() == slider.get_attribute("max") != "0", "the newest tree")
    assert viewer.complaints == []
    server.close()
    viewer.until(lambda: "cannot be reached" in viewer.page.inner_text("#connection"), "that the watcher has gone")
    assert viewer.rounds() == 2 and viewer.points() == 3  # what was shown stays
    viewer.context.close()
