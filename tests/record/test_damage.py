"""A damaged page of a run's database is noticed before anything is read from it or written to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from espalier.core.errors import RunError
from espalier.record.database import FORMAT, Recorder
from espalier.record.run import Run

PAGE_BYTES = 4096


def made(folder: Path, state: str) -> Path:
    recorder = Recorder(folder / "run.sqlite", {"label": "x", "status": {"state": state}, "experiment": {}})
    for i in range(20_000):
        recorder.event(float(i), "noise", i, {"text": "some words to fill pages with"})
    recorder.commit()
    recorder.close()
    return folder / "run.sqlite"


def flip(path: Path) -> None:
    """Turn every bit of a page in the middle."""
    data = bytearray(path.read_bytes())
    middle = len(data) // 2 // PAGE_BYTES * PAGE_BYTES
    data[middle : middle + PAGE_BYTES] = bytes(255 - b for b in data[middle : middle + PAGE_BYTES])
    path.write_bytes(data)


def test_a_whole_database_is_read(tmp_path: Path) -> None:
    made(tmp_path, "finished")
    assert Run(tmp_path).meta("format") == FORMAT
    Recorder(tmp_path / "run.sqlite").close()


def test_a_damaged_page_is_noticed_on_reading(tmp_path: Path) -> None:
    flip(made(tmp_path, "finished"))
    with pytest.raises(RunError, match=r"run\.sqlite is damaged"):
        Run(tmp_path)


@pytest.mark.parametrize("state", ["running", "finished"])
def test_a_damaged_page_is_noticed_before_a_run_goes_on(tmp_path: Path, state: str) -> None:
    path = made(tmp_path, state)
    flip(path)
    with pytest.raises(RunError, match="damaged"):
        Recorder(path)
