"""KMA: k-medoids by delay, balance by accuracy, levels; worked on six nodes in a row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.methods.easf.kma import Imbalance, balanced, kma, medoids

PLACES = np.array([0.0, 1, 2, 10, 11, 12])
DELAYS = np.abs(PLACES[:, None] - PLACES[None])
ABLE = np.ones(6, dtype=bool)
ACCURACIES = np.array([0.2] * 3 + [0.8] * 3)
#: {0, 1, 2} around 1 and {10, 11, 12} around 11, by row
APART = np.array([1, 1, 1, 4, 4, 4])
SWAPPED = np.array([1, 1, 4, 1, 4, 4])


@pytest.mark.parametrize("seed", range(5))
def test_medoids_of_two_groups(seed: int) -> None:
    assert medoids(DELAYS, ABLE, 2, np.random.default_rng(seed), 20).tolist() == APART.tolist()


def test_medoids_may_lead(seed: int = 0) -> None:
    able = np.array([True, False, True, True, True, False])
    of = medoids(DELAYS, able, 2, np.random.default_rng(seed), 20)
    # without 1 the first group's sums are 3 (at 0) and 3 (at 2): the smaller row
    assert of.tolist() == [0, 0, 0, 4, 4, 4]


@pytest.mark.parametrize(
    ("weight", "before", "after"),
    [
        # apart: |.2-.5| + |.8-.5| = .6, over .5: 1.2; delays 4 of 4: + weight.
        # 2 and 10 swapped: means .4 and .6: .2/.5 = .4; delays 1 + 9 + 9 + 1 = 20 of 4: + 5 · weight.
        (0.5, 1.7, 2.9),
        (0.05, 1.25, 0.65),
    ],
)
def test_the_objective_weighs_balance_against_delay(weight: float, before: float, after: float) -> None:
    objective = Imbalance(DELAYS, ACCURACIES, 4.0, weight)
    assert objective(APART) == pytest.approx(before)
    assert objective(SWAPPED) == pytest.approx(after)


def test_changes_are_made_only_where_they_pay() -> None:
    assert balanced(APART, Imbalance(DELAYS, ACCURACIES, 4.0, 0.5)).tolist() == APART.tolist()
    cheap = Imbalance(DELAYS, ACCURACIES, 4.0, 0.05)
    assert cheap(balanced(APART, cheap)) <= cheap(SWAPPED)


def test_nodes_in_one_place_are_balanced_by_accuracy_alone() -> None:
    # no delays at all: D_0 = 0, the second term is nothing
    objective = Imbalance(np.zeros((6, 6)), ACCURACIES, 0.0, 0.5)
    assert objective(balanced(APART, objective)) == pytest.approx(0.0)


def test_the_tree() -> None:
    found = kma(
        range(6),
        DELAYS,
        dict(enumerate(ACCURACIES)),
        dict.fromkeys(range(6), True),
        np.random.default_rng(0),
        clusters=2,
    )
    # the central nodes 1 and 4 (at 1 and 11) have equal sums: the root is the smaller
    assert found == [{1: [0, 1, 2], 4: [3, 4, 5]}, {1: [1, 4]}]


def test_nobody_may_lead() -> None:
    assert kma([3], np.zeros((1, 1)), {3: 0.5}, {3: False}, np.random.default_rng(0)) == []


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 40), st.integers(0, 3), st.integers(2, 5), st.floats(0.3, 1))
def test_always_a_tree_whose_parents_may_lead(n: int, seed: int, width: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    points = rng.random((n, 2))
    delays = np.linalg.norm(points[:, None] - points[None], axis=2)
    able = {i: bool(rng.random() < share) or i == 0 for i in range(n)}
    accuracies = dict(enumerate(rng.random(n).tolist()))
    at = set(range(n))
    found = kma(range(n), delays, accuracies, able, rng, width=width, restarts=3)
    for level in found:
        assert sorted(m for cluster in level.values() for m in cluster) == sorted(at)
        assert all(able[c] and c in cluster for c, cluster in level.items())
        at = set(level)
    assert len(at) == 1 and len(found) >= 2
