"""Moves between edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.core.errors import ConfigError, WorldError
from espalier.world import Mobility, Shape
from espalier.world.mobility import EdgeGraph, Markov, Static, Waypoints

N = 10_000
DEVICES = np.arange(N)
SHAPE = Shape(N, 5, seed=0)


def walk(mobility: Mobility, steps: int, shape: Shape = SHAPE) -> list[np.ndarray[Any, Any]]:
    bound, trace = mobility.bind(shape), [np.arange(shape.n_devices) % shape.n_edges]
    for k in range(steps):
        trace.append(bound.moves(np.arange(shape.n_devices), np.full(shape.n_devices, k), trace[-1]))
    return trace


def test_certain_stay_is_a_constant_trace() -> None:
    for mobility in (Static(), Markov(stay=1.0)):
        trace = walk(mobility, 5)
        assert all((edges == trace[0]).all() for edges in trace)


def test_never_staying_moves_everybody() -> None:
    before, after = walk(Markov(stay=0.0), 1)
    assert (before != after).all()
    assert np.isin((after - before) % 5, (1, 4)).all()


def test_half_stay() -> None:
    # p_s = .5, 10⁴ draws: .50 ± .02 stay, each neighbour of the ring gets .25 ± .02.
    before, after = walk(Markov(stay=0.5), 1)
    turn = (after - before) % 5
    assert (turn == 0).mean() == pytest.approx(0.5, abs=0.02)
    assert (turn == 1).mean() == pytest.approx(0.25, abs=0.02)
    assert (turn == 4).mean() == pytest.approx(0.25, abs=0.02)


def test_stationary_distribution_is_uniform() -> None:
    bound, edges = Markov(stay=0.5).bind(SHAPE), np.zeros(N, dtype=np.int64)
    for k in range(60):
        edges = bound.moves(DEVICES, np.full(N, k), edges)
    assert np.bincount(edges, minlength=5) / N == pytest.approx(np.full(5, 0.2), abs=0.02)


def test_a_decision_is_the_device_s_own_whoever_asks() -> None:
    bound, rng = Markov(stay=0.3).bind(SHAPE), np.random.default_rng(0)
    devices, steps = rng.permutation(N)[:500], rng.integers(0, 50, 500)
    edges = rng.integers(0, 5, 500)
    together = bound.moves(devices, steps, edges)
    for i in range(0, 500, 50):
        alone = Markov(stay=0.3).bind(SHAPE).moves(devices[i : i + 1], steps[i : i + 1], edges[i : i + 1])
        assert alone[0] == together[i]


def test_none_at_all() -> None:
    empty = np.empty(0, dtype=np.int64)
    assert len(Markov().bind(SHAPE).moves(empty, empty, empty)) == 0


class TestGraphs:
    def lists(self, graph: EdgeGraph) -> list[list[int]]:
        rows = zip(graph.offsets, graph.offsets[1:], strict=False)
        return [graph.neighbours[a:b].tolist() for a, b in rows]

    def test_ring(self) -> None:
        assert self.lists(EdgeGraph.named("ring", 5))[0] == [1, 4]
        assert self.lists(EdgeGraph.named("ring", 2)) == [[1], [0]]
        assert self.lists(EdgeGraph.named("ring", 1)) == [[]]

    def test_grid(self) -> None:
        # 7 edges in rows of 3: 0 1 2 / 3 4 5 / 6.
        lists = self.lists(EdgeGraph.named("grid", 7))
        assert lists[0] == [1, 3] and lists[4] == [1, 3, 5] and lists[6] == [3] and lists[5] == [2, 4]

    def test_complete(self) -> None:
        assert self.lists(EdgeGraph.named("complete", 4))[2] == [0, 1, 3]

    @given(st.sampled_from(["ring", "grid", "complete"]), st.integers(1, 30))
    def test_neighbours_are_mutual(self, name: str, count: int) -> None:
        lists = self.lists(EdgeGraph.named(name, count))
        assert all(e in lists[other] for e, row in enumerate(lists) for other in row)

    def test_custom(self) -> None:
        # A one-way line 0 → 1 → 2; from 2 nobody can move.
        trace = walk(Markov(stay=0.0, graph="custom", neighbours=((1,), (2,), ())), 3, Shape(3, 3, 0))
        assert [edges.tolist() for edges in trace] == [[0, 1, 2], [1, 2, 2], [2, 2, 2], [2, 2, 2]]

    def test_one_edge_keeps_everybody(self) -> None:
        assert (walk(Markov(stay=0.0), 2, Shape(4, 1, 0))[-1] == 0).all()

    @pytest.mark.parametrize("lists", [((1,),), ((1,), (2,), (3,))])
    def test_custom_must_fit(self, lists: tuple[tuple[int, ...], ...]) -> None:
        with pytest.raises(ConfigError, match="neighbours"):
            Markov(graph="custom", neighbours=lists).bind(Shape(3, 3, 0))

    def test_refusals(self) -> None:
        with pytest.raises(ConfigError, match=r"mobility\.stay = 1\.5"):
            Markov(stay=1.5)
        with pytest.raises(ConfigError, match="neighbours"):
            Markov(graph="custom")
        with pytest.raises(ConfigError, match="neighbours"):
            Markov(neighbours=((1,), (0,)))


class TestWaypoints:
    def test_moves_at_their_times(self, tmp_path: Path) -> None:
        file = tmp_path / "moves.csv"
        file.write_text("device,time,edge\n2,7.5,1\n0,0,1\n1,3,0\n2,3,0\n")
        bound = Waypoints(file).bind(Shape(3, 2, 0))
        assert bound.when == "time"
        assert bound.start(np.array([0, 1, 1])).tolist() == [1, 1, 1]
        moves = bound.window(3.0, 7.5)
        assert (moves.time.tolist(), moves.device.tolist(), moves.edge.tolist()) == ([3, 3], [1, 2], [0, 0])
        assert bound.window(7.5, 100.0).edge.tolist() == [1]
        assert len(bound.window(8.0, 100.0).time) == 0

    @pytest.mark.parametrize(
        ("row", "says"), [("3,0,0", "0 … 2"), ("0,0,2", "edge, 0 … 1"), ("0,-1,0", "time"), ("0,1,1\n0,1,0", "two")]
    )
    def test_bad_rows(self, tmp_path: Path, row: str, says: str) -> None:
        file = tmp_path / "moves.csv"
        file.write_text(f"device,time,edge\n{row}\n")
        with pytest.raises(WorldError, match=says):
            Waypoints(file).bind(Shape(3, 2, 0))
