"""Eq. (1), and the further levels, on lines and grids of nodes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from espalier.methods.easf.dsf.central import Delays, central, levels


def line(*places: float) -> Delays:
    at = np.array(places)
    return np.abs(at[:, None] - at[None])


def test_the_smallest_sum_of_delays_wins() -> None:
    # at 0, 1, 5: sums 6, 5, 9
    assert central([10, 20, 30], line(0, 1, 5), [True] * 3) == 20


def test_who_may_not_aggregate_is_passed_over() -> None:
    assert central([10, 20, 30], line(0, 1, 5), [True, False, True]) == 10
    assert central([10, 20, 30], line(0, 1, 5), [False, False, True]) == 30
    assert central([10, 20, 30], line(0, 1, 5), [False] * 3) is None


def test_equal_sums_go_to_the_smaller_number() -> None:
    # at 0, 1, 2, 3: sums 6, 4, 4, 6
    assert central([3, 9, 4, 1], line(0, 1, 2, 3), [True] * 4) == 4


def test_few_central_nodes_are_one_cluster() -> None:
    assert levels([1, 2, 3], line(0, 1, 5), {1: {2}, 2: {3}}, width=3) == [{2: [1, 2, 3]}]


def test_many_are_clustered_once_more() -> None:
    # Nodes 0-8 in a row, each adjoining the next. Two-hop probabilities: the ends 1/2, their neighbours 1 and 7
    # 1/2 + 1/4, the inner ones 1/4 + 1/4. So 1 and 7 lead; of the equal inner ones each is beaten by the one before.
    # Joined by delay: 0-4 to 1 (4 is 3 away from both: the smaller number), 5-8 to 7.
    # Eq. 1 within: {0..4} → 2; {5..8} → 6 (sums 6, 4, 4, 6). Root among 2 and 6: equal sums, 2.
    near = {i: {i + 1} for i in range(8)}
    found = levels(list(range(9)), line(*range(9)), near, width=4)
    assert found == [{2: [0, 1, 2, 3, 4], 6: [5, 6, 7, 8]}, {2: [2, 6]}]


def test_without_adjoining_nodes_there_is_one_level() -> None:
    assert levels([1, 2, 3], line(0, 1, 5), {}, width=2) == [{2: [1, 2, 3]}]


@given(st.integers(2, 60), st.integers(2, 8), st.integers(0, 5))
def test_levels_make_one_tree(n: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.random((n, 2))
    delays = np.linalg.norm(points[:, None] - points[None], axis=2)
    # everybody adjoins its two nearest: connected or not, the result must be a tree
    near = {i: set(np.argsort(delays[i])[1:3].tolist()) for i in range(n)}
    at = set(range(n))
    for level in levels(list(range(n)), delays, near, width):
        members = [m for cluster in level.values() for m in cluster]
        assert sorted(members) == sorted(at)  # each once
        assert all(centre in cluster for centre, cluster in level.items())
        at = set(level)
    assert len(at) == 1
