"""Measured access links."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from espalier.core.errors import WorldError
from espalier.world import Shape
from espalier.world.links import PerTier, TierLink, Trace


def write(folder: Path, rows: str) -> Path:
    file = folder / "links.csv"
    file.write_text("device,time,bandwidth,latency\n" + rows)
    return file


def test_transfers_follow_the_bandwidth(tmp_path: Path) -> None:
    rows = "0,0,100,1\n0,10,0,1\n0,20,50,2\n1,0,10,0\n"
    bound = Trace(write(tmp_path, rows), access=PerTier(edge_cloud=TierLink(1000.0))).bind(Shape(2, 1, 0))
    # From t=4, 1 s latency: 500 B until 10 at 100 B/s, nothing until 20, 100 B more in 2 s: 18 s.
    assert bound.time(0, 2, 600, 4.0) == 18.0
    assert bound.time(2, 0, 600, 4.0) == 18.0
    # Beyond the edge: 600/1000 s more. Device 1 has a link of its own.
    assert bound.time(0, 3, 600, 4.0) == pytest.approx(18.6)
    assert bound.time(1, 2, 100, 4.0) == 10.0
    assert bound.time(0, 1, 10, 0.0) == math.inf and len(bound.neighbours(0)) == 0


def test_a_link_that_never_returns(tmp_path: Path) -> None:
    bound = Trace(write(tmp_path, "0,0,10,0\n0,5,0,0\n")).bind(Shape(1, 1, 0))
    assert bound.time(0, 1, 50, 0.0) == 5.0
    assert bound.time(0, 1, 51, 0.0) == math.inf


def test_cycle(tmp_path: Path) -> None:
    bound = Trace(write(tmp_path, "3,0,10,0\n8,0,20,0\n"), cycle=True).bind(Shape(4, 1, 0))
    assert [bound.time(d, 4, 20, 0.0) for d in range(4)] == [2.0, 1.0, 2.0, 1.0]


def test_bad_rows(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="line 2: bandwidth"):
        Trace(write(tmp_path, "0,0,-1,0\n")).bind(Shape(1, 1, 0))
