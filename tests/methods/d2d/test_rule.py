from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.methods.d2d.swap import PairMetrics, acceptable, change, changes, judge, ratio

INF = np.inf


@pytest.mark.parametrize(
    ("r1", "r2", "valid"),
    [
        (0.10, -0.11, True),  # 1.05·0.10 = 0.105 ≤ 0.11
        (0.10, -0.10, False),  # 0.105 > 0.10
        (-0.11, 0.10, True),  # and the other way round
        (-0.01, -0.01, True),
        (0.0, -0.01, True),
        (0.0, 0.0, False),
        (0.01, 0.0, False),
        (0.01, 0.01, False),
        (-1.0, INF, False),  # nothing pays for a cluster that cannot finish
        (-1.0, 0.95, True),  # 1.05·0.95 = 0.9975 ≤ 1
    ],
)
def test_validity_rule(r1, r2, valid):
    assert bool(acceptable(r1, r2, 1.05)) is valid


@given(st.floats(-1, 3), st.floats(-1, 3), st.floats(1, 3))
def test_valid_means_some_alpha_exists(r1, r2, z):
    # The paper's form: μ1' ≤ (1+α)μ1 and μ2' ≤ (1−zα)μ2 for some α > 0, or with the metrics exchanged.
    # The least α that the first allows is r1 (any α > 0 if r1 ≤ 0); the second then needs r2 ≤ −zα.
    def some_alpha(a: float, b: float) -> bool:
        return b < 0 if a <= 0 else b <= -z * a

    assert bool(acceptable(r1, r2, z)) is (some_alpha(r1, r2) or some_alpha(r2, r1))


def test_relative_change():
    assert change(10.0, 11.0) == pytest.approx(0.1)
    assert change(10.0, 5.0) == pytest.approx(-0.5)
    # D4: infinite metrics.
    assert change(INF, 5.0) == -1.0
    assert change(INF, INF) == 0.0
    assert change(5.0, INF) == INF
    # A metric of 0 that stays 0 has not changed; rounding is no change either.
    assert change(0.0, 0.0) == 0.0
    assert change(1.0, 1.0 + 1e-13) == 0.0
    assert change(0.0, 0.1) > 1e9


def test_ratio_of_an_unreachable_cluster_is_the_worst():
    assert ratio(0.5, 10.0) == pytest.approx(0.05)
    assert ratio(0.5, INF) == INF
    assert ratio(0.0, 10.0) == 0.0


BEFORE = PairMetrics(1.0, 10.0, 1.0, 10.0)


def valid(solution, after, z=1.05, before=BEFORE):
    return bool(judge(solution, z, before, after)[0])


def test_pairwise_and_individual_differ():
    # θ: (1,1) → (0.5,1.2): the sum falls by 15 %, T stands still: valid as a pair. The second cluster by
    # itself worsens by 20 % for nothing: invalid individually (D2).
    after = PairMetrics(0.5, 10.0, 1.2, 10.0)
    assert valid("1.1", after)
    assert not valid("1.2", after)


def test_individual_clusters_may_trade_in_opposite_directions():
    # First: θ −50 %, T +40 %: 1.05·0.4 = 0.42 ≤ 0.5. Second: θ +40 %, T −50 %. Each is worth it by itself;
    # summed, θ goes 2 → 1.9 and T 20 → 19: both improve.
    after = PairMetrics(0.5, 14.0, 1.4, 5.0)
    assert valid("1.2", after)
    assert valid("1.1", after)


def test_metrics_of_each_solution():
    after = PairMetrics(1.0, 20.0, 1.0, 20.0)
    # T doubles (+1), θ stands still (0), θ/T halves: 0.2 → 0.1 (−0.5).
    (angle, time), *_ = changes("1.1", BEFORE, after)
    assert (angle, time) == (0.0, pytest.approx(1.0))
    assert changes("2", BEFORE, after)[0] == (0.0, pytest.approx(-0.5))
    assert changes("3", BEFORE, after)[0] == (pytest.approx(1.0), pytest.approx(-0.5))
    # So solution 2 welcomes slower clusters, as §5.5.2 observes, and the others do not.
    assert valid("2", after)
    assert not valid("1.1", after)
    assert not valid("3", after)


def test_z_is_what_separates_solution_3():
    # T: 20 → 22 (+10 %). θ: (1,1) → (.95,.95), θ/T 0.2 → 2·0.95/11 = 0.172727 (−13.6 %).
    after = PairMetrics(0.95, 11.0, 0.95, 11.0)
    assert valid("3", after, z=1.05)  # 0.105 ≤ 0.136
    assert not valid("3", after, z=1.8)  # 0.18 > 0.136


def test_breaking_a_cluster_is_never_valid():
    broken = PairMetrics(0.1, INF, 0.1, 1.0)
    for solution in ("1.1", "1.2", "2", "3"):
        assert not valid(solution, broken)


def test_mending_a_cluster_is_valid():
    before = PairMetrics(1.0, INF, 1.0, 10.0)
    after = PairMetrics(1.2, 20.0, 1.0, 9.0)
    # θ +10 % as a pair (1.2: +20 % and 0), T −1: worth it by every solution.
    for solution in ("1.1", "1.2", "2", "3"):
        assert valid(solution, after, z=1.8 if solution == "3" else 1.05, before=before)


def test_score_is_the_sum_of_changes():
    after = PairMetrics(np.array([0.5, 1.0]), np.array([10.0, 5.0]), np.array([0.5, 1.0]), np.array([10.0, 9.0]))
    ok, score = judge("1.1", 1.05, BEFORE, after)
    assert ok.tolist() == [True, True]
    assert score.tolist() == [pytest.approx(-0.5), pytest.approx(-0.3)]  # θ 2→1; T 20→14
