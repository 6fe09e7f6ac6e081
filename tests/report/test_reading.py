from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from espalier.core.errors import RunError
from espalier.record.database import Recorder
from espalier.report.reading import held, opened, read, read_all, state_of
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
