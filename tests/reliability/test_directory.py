"""A run directory has one writer, is never half-written, and says clearly why it cannot be used."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from espalier.core.errors import ConfigError, EspalierError, RunError
from espalier.record.database import Recorder, connect
from espalier.record.run import Run
from espalier.simulator import checkpoint
from espalier.simulator.runner import Stopped, resume
from tests.reliability.kills import contents
from tests.reliability.runs import DIGITS, experiment, runner, stop_after


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    runner(directory).run()
    return directory


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A run that was stopped after two of four rounds."""
    with pytest.raises(Stopped):
        stop_after(runner(tmp_path / "run"), 2)
    return tmp_path / "run"


def child(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script that has the small runs at hand."""
    text = "from tests.reliability.runs import *\nimport os, pathlib, resource, sys\n" + textwrap.dedent(code)
    command = [sys.executable, "-c", text, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


# -- one writer ----------------------------------------------------------------------------------------


def test_second_process_is_refused_with_the_first_ones_pid(begun: Path) -> None:
    holder = runner(begun)
    code = """
        from espalier.core.errors import RunError
        try:
            runner(pathlib.Path(sys.argv[1]))
        except RunError as error:
            print(error)
    """
    try:
        done = child(code, begun)
    finally:
        holder.close()
    assert f"in use by process {os.getpid()}" in done.stdout
    resume(begun, dataset=DIGITS).run()


def test_a_dead_process_holds_nothing(begun: Path) -> None:
    (begun / "run.pid").write_text("1")
    resume(begun, dataset=DIGITS).run()
    assert Run(begun).status == {"state": "finished"}


# -- stopping and going on -----------------------------------------------------------------------------


def test_stopped_run_goes_on_to_the_same_end(begun: Path, whole: Path) -> None:
    assert Run(begun).status == {"state": "stopped"}
    resume(begun, dataset=DIGITS).run()
    assert contents(begun) == contents(whole)


def test_finished_run_is_left_alone(whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    shutil.rmtree(copy / "checkpoints")  # as someone short of room might
    for _ in range(2):  # nor is it held
        runner(copy).run()
    assert contents(copy) == contents(whole)
    assert not (copy / "run.pid").exists()


def test_another_experiment_is_refused(begun: Path) -> None:
    with pytest.raises(RunError, match=r"another experiment: it differs in training.lr"):
        runner(begun, training={"batch_size": 10, "updates": 2, "lr": 0.2})
    # How often it is saved may change.
    runner(begun, record={"checkpoint_rounds": 3}).run()
    assert Run(begun).status["state"] == "finished"


def test_other_data_are_refused(begun: Path) -> None:
    import dataclasses

    other = dataclasses.replace(DIGITS, x_train=DIGITS.x_train.flip(0))
    with pytest.raises(RunError, match="not the one that the run began with"):
        resume(begun, dataset=other).run()


# -- damage --------------------------------------------------------------------------------------------


def states(directory: Path) -> list[Path]:
    return sorted((directory / "checkpoints").glob("state-*.safetensors"))


@pytest.mark.parametrize("damage", ["truncated", "altered", "empty", "no checkpoint at all"])
def test_damaged_checkpoint_is_passed_over(begun: Path, whole: Path, damage: str) -> None:
    first, last = states(begun)
    data = bytearray(last.read_bytes())
    match damage:
        case "truncated":
            last.write_bytes(data[: len(data) // 2])
        case "altered":
            data[-100] ^= 1
            last.write_bytes(data)
        case "empty":
            last.write_bytes(b"")
        case _:
            save_file({"x": torch.zeros(3)}, last)
    told: list[str] = []
    resume(begun, dataset=DIGITS, tell=told.append).run()
    assert last.name in told[0] and f"Going on from {first.name}" in told[0]
    assert contents(begun) == contents(whole)
    assert list((begun / "checkpoints").glob("*.damaged")) != []


def test_every_checkpoint_damaged(begun: Path) -> None:
    for path in states(begun):
        path.write_bytes(b"nothing")
    with pytest.raises(RunError, match="No checkpoint can be used") as caught:
        resume(begun, dataset=DIGITS).run()
    assert str(caught.value).count("cannot be read") == 2
    # Nothing was lost by trying: the rows are still there.
    assert Run(begun).rounds == 2


def test_checkpoint_of_another_version(begun: Path) -> None:
    for path in states(begun):
        with safe_open(str(path), framework="pt") as file:
            header = {**file.metadata(), "version": "0"}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        save_file(tensors, path, metadata=header)
    with pytest.raises(RunError, match=f"has version 0; this version of espalier reads version {checkpoint.VERSION}"):
        resume(begun, dataset=DIGITS).run()
    assert len(states(begun)) == 2


def test_directory_of_another_format(begun: Path) -> None:
    text = (begun / "run.toml").read_text()
    (begun / "run.toml").write_text(text.replace("format = 1", "format = 0"))
    with pytest.raises(RunError, match="has format 0, written by espalier"):
        resume(begun, dataset=DIGITS)
    (begun / "run.toml").write_text(text.replace("batch_size", "batchsize"))
    with pytest.raises(RunError, match=r"cannot be used here: .*batchsize"):
        resume(begun, dataset=DIGITS)
    (begun / "run.toml").write_text("not [ TOML")
    with pytest.raises(RunError, match="cannot be read"):
        resume(begun, dataset=DIGITS)


def test_database_of_another_format(begun: Path) -> None:
    connection = connect(begun / "run.sqlite")
    with connection:
        connection.execute("UPDATE meta SET value = '0' WHERE key = 'format'")
    connection.close()
    with pytest.raises(RunError, match="written in format 0"):
        resume(begun, dataset=DIGITS)


def test_damaged_database(begun: Path) -> None:
    (begun / "run.sqlite").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    with pytest.raises(RunError, match="damaged"):
        resume(begun, dataset=DIGITS)


def test_database_older_than_the_checkpoints(begun: Path) -> None:
    connection = sqlite3.connect(begun / "run.sqlite")
    with connection:
        connection.execute("DELETE FROM spans WHERE rowid > 3")
    connection.close()
    with pytest.raises(RunError, match="lacks rows of spans"):
        resume(begun, dataset=DIGITS).run()


def test_killed_while_the_database_was_made(tmp_path: Path, whole: Path) -> None:
    (tmp_path / "run.sqlite").write_bytes(b"")
    runner(tmp_path).run()
    assert contents(tmp_path) == contents(whole)


# -- disks and permissions -----------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [9_000, 20_000, 45_000])
def test_disk_full(tmp_path: Path, whole: Path, limit: int) -> None:
    # A file may not grow beyond the limit: the same errors as a full disk, at the checkpoint (whose files are
    # 10 to 30 kB) or in the database (40 kB and its log).
    code = """
        from espalier.core.errors import RunError
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
        try:
            runner(pathlib.Path(sys.argv[1])).run()
        except RunError as error:
            print("refused:", error)
    """
    done = child(code, tmp_path / "run", limit)
    assert done.returncode == 0, done.stderr
    assert "cannot be written" in done.stdout
    assert "Traceback" not in done.stderr
    runner(tmp_path / "run").run()
    assert contents(tmp_path / "run") == contents(whole)


def test_read_only_directory(tmp_path: Path, whole: Path) -> None:
    closed = Path(shutil.copytree(whole, tmp_path / "closed"))
    empty = tmp_path / "empty"
    empty.mkdir()
    code = """
        from espalier.core.errors import RunError
        from espalier.core.method import load_methods
        from espalier.record.run import Run
        # Whatever is imported late is imported now: another user may not read it.
        runner(None, stop={"rounds": 1}).run()
        Run(sys.argv[2]).frame()
        if os.getuid() == 0:
            os.setresuid(65534, 65534, 65534)
        try:
            runner(pathlib.Path(sys.argv[1]) / "new" / "run")
        except RunError as error:
            print("refused:", error)
        try:
            runner(pathlib.Path(sys.argv[2]))
        except RunError as error:
            print("refused:", error)
        print("read:", Run(sys.argv[2]).rounds)
    """
    for path in [tmp_path, *tmp_path.parents]:  # pytest's own directories, which are for one user only
        if Path(tempfile.gettempdir()) in path.parents:
            path.chmod(path.stat().st_mode | 0o055)
    for path in (closed, empty):
        path.chmod(0o555)
    try:
        done = child(code, empty, closed)
    finally:
        closed.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("cannot be written: Permission denied") == 2
    # A finished run can be read from a place where nothing can be written.
    assert "read: 4" in done.stdout


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunError, match="cannot be written"):
        runner(tmp_path / "file" / "run")


# -- nothing half-written ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"partition": {"kind": "two_level", "edge_fraction": 0.01, "device_fraction": 0.01}},
        {"task": {"dataset": "digits", "model": "mlp", "model_options": {"hiden": [3]}}},
        {"world": {"churn": {"kind": "scheduled", "events": [{"time": 1, "host": "edge:9", "event": "die"}]}}},
        {"world": {"compute": {"kind": "trace", "file": "/nowhere.csv"}}},
    ],
)
def test_a_mistake_leaves_no_directory(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises((EspalierError, ConfigError)):
        runner(tmp_path / "a" / "run", **changes)
    assert list(tmp_path.iterdir()) == []


def test_what_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(EspalierError):
        runner(tmp_path, task={"dataset": "digits", "model": "nothing"})
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_atomic_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    checkpoint.atomic_write(path, b"old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.atomic_write(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_record_never_holds_what_is_not_json(tmp_path: Path) -> None:
    record = Recorder(tmp_path / "run.sqlite")
    record.event(0.0, "weights", 1, {"values": [1.0, float("nan"), float("inf")], "s": {2, 1}})
    record.close()
    text = connect(tmp_path / "run.sqlite", readonly=True).execute("SELECT data FROM events").fetchone()[0]
    assert json.loads(text) == {"values": [1.0, None, None], "s": [1, 2]}


def test_run_directory_with_odd_characters(tmp_path: Path) -> None:
    directory = tmp_path / "50% of a?b#c é"
    runner(directory, stop={"rounds": 1}).run()
    assert Run(directory).rounds == 1
    assert experiment().stop.rounds == 4
