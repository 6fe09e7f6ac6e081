"""Arranging devices over edges: costs by hand, and what a search may and may not do."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.core.seeds import stream
from espalier.policies.association import EdgeSearch, greedy_start, imbalance, makespan, random_start

A, B = [1.0, 0.0], [0.0, 1.0]


def no_time(members: np.ndarray) -> float:
    return 0.0


def test_makespan() -> None:
    # 1+2 = 3; max(3, 2)+2 = 5; max(5, 6)+2 = 8
    assert makespan([1, 2, 6], [2, 2, 2], "time_shared") == 8.0
    # each a third of the rate: 6 + 3·2
    assert makespan([1, 2, 6], [2, 2, 2], "equal_share") == 12.0
    assert makespan([1, 2, 6], [2, 2, 2], "private") == 8.0
    assert makespan([6, 1, 2], [2, 2, 2], "time_shared") == 8.0
    assert makespan([], [], "time_shared") == 0.0


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 20)), min_size=1, max_size=5))
def test_whoever_is_ready_first_sends_first_ends_earliest(rows: list[tuple[float, float]]) -> None:
    def one_after_another(order: tuple[tuple[float, float], ...]) -> float:
        at = 0.0
        for ready, upload in order:
            at = max(at, ready) + upload
        return at

    ready, upload = (list(column) for column in zip(*rows, strict=True))
    assert makespan(ready, upload, "time_shared") <= min(map(one_after_another, itertools.permutations(rows))) + 1e-9


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 9)), min_size=1, max_size=8), st.randoms())
def test_no_order_beats_the_earliest_ready_first(jobs: list[tuple[float, float]], random: object) -> None:
    best = makespan([r for r, _ in jobs], [u for _, u in jobs], "time_shared")
    random.shuffle(jobs)  # type: ignore[attr-defined]
    finish = 0.0
    for ready, upload in jobs:
        finish = max(finish, ready) + upload
    assert best <= finish + 1e-9


def test_imbalance() -> None:
    whole = np.array([4.0, 4.0])
    # an edge of 4 with only the first label: |1 - ½| + |0 - ½| = 1, times 4/8
    assert imbalance(np.array([4.0, 0.0]), whole) == 0.5
    assert imbalance(np.array([2.0, 2.0]), whole) == 0.0
    assert imbalance(np.zeros(2), whole) == 0.0


def test_a_swap_that_mixes_the_labels_is_taken() -> None:
    search = EdgeSearch(np.array([0, 0, 1, 1]), np.array([A, A, B, B]), no_time, 0.5, 2)
    # each edge has one label of two: ½ · 1 each
    assert search.cost == 1.0
    assert search.improve(0, 1, 2)
    assert search.cost == 0.0
    assert not search.improve(1, 1, 0)
    assert search.place.tolist() == [1, 0, 0, 1]


def test_the_cost_that_is_kept_is_the_cost() -> None:
    rng = stream(0, "test")
    counts, times = rng.integers(0, 9, (20, 4)).astype(float), rng.random(20)
    place = rng.integers(0, 3, 20)
    search = EdgeSearch(place, counts, lambda m: float(times[m].max()), 0.5, 3)
    before = search.cost
    assert search.run(np.ones((20, 3), dtype=bool), rng, sizes=(2, 12)) > 0
    again = EdgeSearch(search.place, counts, lambda m: float(times[m].max()), 0.5, 3)
    assert search.cost == pytest.approx(again.cost)
    assert search.cost < before


@settings(max_examples=25, deadline=None)
@given(st.integers(4, 20), st.integers(2, 4), st.integers(0, 99), st.booleans())
def test_nobody_leaves_its_reach_and_sizes_hold(n: int, edges: int, seed: int, moves: bool) -> None:
    rng = stream(seed, "test")
    reach = rng.random((n, edges)) < 0.6
    reach[np.arange(n), rng.integers(0, edges, n)] = True
    place = random_start(reach, rng)
    assert reach[np.arange(n), place].all()
    counts = rng.integers(1, 5, (n, 3)).astype(float)
    search = EdgeSearch(place, counts, no_time, 0.5, edges)
    sizes = np.bincount(place, minlength=edges)
    bounds = (int(sizes.min()), int(sizes.max()))
    done = search.run(reach, rng, limit=7, sizes=bounds if moves else None)
    assert done <= 7
    assert reach[np.arange(n), search.place].all()
    after = np.bincount(search.place, minlength=edges)
    assert bounds[0] <= after.min() and after.max() <= bounds[1]
    if not moves:
        assert (after == sizes).all()


def test_greedy_start_fills_edges_and_prefers_mixed_labels() -> None:
    latency = np.array([1.0, 2.0, 3.0, 4.0])
    everywhere = np.ones((4, 2), dtype=bool)
    place = greedy_start(latency, np.array([A, A, B, B]), everywhere, 0.5, 2)
    assert np.bincount(place).tolist() == [2, 2]
    # Without time, the fastest first: A opens edge 0 (a cost of ¼ there or at edge 1: the first is taken). B mends it
    # to 0 there, or costs ¼ at edge 1. Edge 0 is full; A opens edge 1 and B mends it.
    assert greedy_start(latency, np.array([A, B, A, B]), everywhere, 0.0, 2).tolist() == [0, 0, 1, 1]


def test_where_every_edge_is_full_the_least_full_takes_one_more() -> None:
    only_first = np.array([[True, False]] * 3)
    assert greedy_start(np.ones(3), np.array([A, A, A]), only_first, 0.5, 2).tolist() == [0, 0, 0]


def test_a_random_start_is_balanced() -> None:
    place = random_start(np.ones((40, 5), dtype=bool), stream(0, "test"))
    assert np.bincount(place).tolist() == [8] * 5
