from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from espalier.core.errors import RunError
from espalier.record.database import Recorder
from espalier.record.run import Run
from espalier.report.curves import curves
from espalier.report.groups import compare
from espalier.report.heatmaps import labels_per_device, labels_per_edge
from espalier.report.page import dumps
from espalier.report.reading import Names, held, opened, read, read_all, state_of
from espalier.report.sections import Room, curve_section, detail
from espalier.report.spread import over_time
from espalier.report.timeline import timeline
from espalier.report.tree import tree
from tests.report.made import describe, write_run

HOLD = """
import sys, time
from filelock import FileLock
lock = FileLock(sys.argv[1])
lock.acquire()
print("held", flush=True)
time.sleep(60)
"""


def test_a_run_lives_as_long_as_its_process_holds_the_lock(tmp_path: Path) -> None:
    assert not held(tmp_path)
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "run.lock")], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        assert held(tmp_path) and held(tmp_path)
        assert state_of(tmp_path, "running") == "running"
        holder.send_signal(signal.SIGKILL)
        # nobody has collected the process yet: its number still exists, but it writes no more
        for _ in range(100):
            if not held(tmp_path):
                break
            signal.sigtimedwait([], 0.02)
        assert state_of(tmp_path, "running") == "dead"
    finally:
        holder.kill()
        holder.communicate()


def test_finished_runs_and_runs_in_memory(tmp_path: Path) -> None:
    assert state_of(tmp_path, "finished") == "finished"
    assert state_of(None, "running") == "running"


def test_a_lock_file_that_nobody_holds_is_no_life(tmp_path: Path) -> None:
    (tmp_path / "run.lock").touch()
    assert state_of(tmp_path, "running") == "dead"


def test_reading_again_costs_nothing_when_nothing_was_written(tmp_path: Path) -> None:
    with opened(write_run(tmp_path)) as run:
        first = read(run)
        assert read(run, first) is first
    recorder = Recorder(tmp_path / "run.sqlite")
    recorder.metric(1e4, 11, "acc_device", 0.9)
    recorder.close()
    with opened(tmp_path) as run:
        again = read(run, first)
    assert again is not None and first is not None and again.rounds == 11 and again.key == first.key


def test_a_run_that_is_just_being_made_is_not_there_yet(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    with opened(tmp_path) as run:
        assert read(run) is None
    from tests.report.made import Made

    describe(recorder, Made())
    with opened(tmp_path) as run:
        found = read(run)
    assert found is not None and found.rounds == 0 and found.time == 0.0 and found.frame.empty
    recorder.close()
    with pytest.raises(RunError, match="has been evaluated yet"):
        read_all([tmp_path])


def test_directories_without_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="There is no run at or below"):
        read_all([tmp_path / "nothing"])


def test_the_same_run_given_twice_is_read_once(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "b")
    assert len(read_all([tmp_path, tmp_path / "a", tmp_path / "a" / "b"])) == 1


OWN = {
    "names": {"devices": [f"shop <{i}>" for i in range(12)], "edges": ["north", "south", "west"]},
    "task": {"kind": "classification", "classes": [f"class-{k}" for k in range(10)]},
}


def test_nodes_and_labels_have_the_names_of_the_data(tmp_path: Path) -> None:
    run = Run(write_run(tmp_path / "a", devices=12, edges=3, classes=10, told=OWN))
    names = Names.of(run)
    assert names.name(3) == "shop &lt;3&gt;" and names.name(13) == "edge south" and names.label(2) == "class-2"
    assert labels_per_edge(run)["data"][0]["x"][:2] == ["class-0", "class-1"]  # type: ignore[index]
    assert labels_per_edge(run)["data"][0]["y"] == ["edge north", "edge south", "edge west"]  # type: ignore[index]
    assert "shop &lt;3&gt; (edge" in " ".join(labels_per_device(run)["data"][0]["y"])  # type: ignore[index]
    assert "edge north" in timeline(run)["data"][0]["y"]
    drawn = dumps(tree(run)).decode()
    assert "shop &lt;0&gt;, home edge" in drawn and "shop <" not in drawn
    assert not any(row.startswith("device") for row in detail(run, "acc", Room())["timeline"]["rows"])


def test_numbers_are_named_where_the_data_have_no_names(tmp_path: Path) -> None:
    names = Names.of(Run(write_run(tmp_path / "a", devices=12, edges=3)))
    assert (names.name(3), names.name(13), names.label(2)) == ("device 3", "edge 1", "label 2")
    numbered = Names(2, 1, 3, device_names=("17", "x9"))
    assert (numbered.device(0), numbered.device(1)) == ("owner 17", "x9")


def test_a_real_fleets_time_is_not_virtual(tmp_path: Path) -> None:
    for told, word in (({}, "virtual time"), ({"deployed": True}, "time")):
        run = Run(write_run(tmp_path / word, told=told))
        groups = compare(read_all([tmp_path / word]))
        titles = [f["layout"]["xaxis"]["title"]["text"] for f in (curves(groups), timeline(run), over_time(run, "acc"))]
        assert [title.split(" (")[0] for title in titles] == [word] * 3
        assert detail(run, "acc", Room())["timeline"]["clock"] == word
        assert {"key": "time", "title": word} in curve_section(groups)["axes"]
