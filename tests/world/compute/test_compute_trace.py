"""Measured speeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from espalier.core.errors import WorldError
from espalier.world import Shape
from espalier.world.compute import Trace


def write(folder: Path, text: str) -> Path:
    file = folder / "speeds.csv"
    file.write_text(text)
    return file


def test_a_value_holds_until_the_next(tmp_path: Path) -> None:
    text = "device,time,seconds_per_batch\n1,0,4\n0,10,1\n0,0,2\n"
    bound = Trace(write(tmp_path, text)).bind(Shape(2, 1, 0))
    # Device 0: 2 s per batch until 10, then 1. From t=6: 2 batches until 10, 3 more until 13.
    assert bound.duration(0, 5, 6.0, 0) == 7.0
    assert bound.duration(1, 5, 6.0, 0) == 20.0
    assert bound.nominal(0, 1, 9.99) == 2.0 and bound.nominal(0, 1, 10.0) == 1.0
    assert bound.units().tolist() == [2.0, 4.0]


def test_before_its_first_time_a_device_has_its_first_value(tmp_path: Path) -> None:
    bound = Trace(write(tmp_path, "device,time,seconds_per_batch\n0,10,3\n0,20,1\n")).bind(Shape(1, 1, 0))
    assert bound.nominal(0, 1, 0.0) == 3.0
    # 18 s until 20 do 6 batches at 3 s each.
    assert bound.duration(0, 7, 2.0, 0) == 19.0


def test_cycle_lets_few_stand_for_many(tmp_path: Path) -> None:
    text = "device,time,seconds_per_batch\n40,0,2\n7,0,1\n"
    bound = Trace(write(tmp_path, text), cycle=True).bind(Shape(5, 1, 0))
    assert bound.units().tolist() == [1.0, 2.0, 1.0, 2.0, 1.0]
    assert bound.duration(3, 2, 0.0, 0) == 4.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no column 'device'"),
        ("device,time,seconds\n0,0,1\n", "has no column 'seconds_per_batch'"),
        ("device,time,seconds_per_batch\n", "has no rows"),
        ("device,time,seconds_per_batch\n0,0,x\n", "line 2: seconds_per_batch = 'x'"),
        ("device,time,seconds_per_batch\n0,0,1\n0,nan,1\n", "line 3: time = 'nan'"),
        ("device,time,seconds_per_batch\n9,0,1\n", "number of a device, 0 … 1"),
        ("device,time,seconds_per_batch\n0,0,-1\n", "≥ 0"),
        ("device,time,seconds_per_batch\n0,0\n", "the line is too short"),
        ("device,time,seconds_per_batch\n0,0,1\n", "no row for device 1"),
        ("device,time,seconds_per_batch\n0,0,1\n1,0,1\n0,0,2\n", "two rows for time 0"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(WorldError) as error:
        Trace(write(tmp_path, text)).bind(Shape(2, 1, 0))
    assert says in str(error.value) and "speeds.csv" in str(error.value)


def test_no_file_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="cannot be read"):
        Trace(tmp_path / "none.csv").bind(Shape(2, 1, 0))
    binary = tmp_path / "b.csv"
    binary.write_bytes(b"\xff\xfe\x00\x81device")
    with pytest.raises(WorldError, match=r"not a CSV text file|has no column"):
        Trace(binary).bind(Shape(2, 1, 0))
