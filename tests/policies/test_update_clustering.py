"""FL+HC's, CFL's and ICFL's arithmetic on updates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.policies.update_clustering import (
    bipartition,
    distances,
    gram,
    hierarchical,
    incremental,
    internal,
    may_split,
    norms_of,
    reconcile,
    update_cosines,
)


def line(*points: float) -> torch.Tensor:
    return torch.tensor(points).reshape(-1, 1)


def test_agglomeration_by_hand() -> None:
    # 1-D updates 0, 1, 10, 11: pairs merge at 1, the two pairs at (10 + 11 + 9 + 10) / 4 = 10.
    apart = distances(line(0, 1, 10, 11), "l1")
    assert hierarchical(apart, threshold=3.0) == [[0, 1], [2, 3]]
    assert hierarchical(apart, threshold=10.5) == [[0, 1, 2, 3]]
    assert hierarchical(apart, threshold=None) == [[0, 1, 2, 3]]
    # "Depth 3": undo the last three merges, four clusters.
    assert hierarchical(apart, count=4) == [[0], [1], [2], [3]]
    assert hierarchical(apart, count=9) == [[0], [1], [2], [3]]
    assert hierarchical(np.zeros((1, 1)), count=3) == [[0]]


def test_distances_by_hand() -> None:
    updates = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 4.0]])
    assert distances(updates, "l1")[0].tolist() == [0, 7, 4]
    assert distances(updates, "l2")[0].tolist() == [0, 5, 4]
    # cos((3, 4), (0, 4)) = 16 / 20: the distance is .2, not the similarity .8.
    assert distances(updates, "cosine")[1, 2] == pytest.approx(0.2)


def test_cosine_is_a_distance_and_not_a_similarity() -> None:
    # Taking similarity for distance would put the opposite pairs together.
    updates = torch.tensor([[1.0, 0.0], [0.9, 0.1], [-1.0, 0.0], [-0.9, -0.1]])
    assert hierarchical(distances(updates, "cosine"), count=2) == [[0, 1], [2, 3]]


def test_blocks_of_columns_add_up() -> None:
    updates = torch.randn(5, 70_000, generator=torch.Generator().manual_seed(0))
    wide = updates.double().numpy()
    np.testing.assert_allclose(gram(updates), wide @ wide.T, rtol=1e-10)
    whole = np.abs(wide[:, None] - wide[None]).sum(2)
    np.testing.assert_allclose(distances(updates, "l1"), whole, rtol=1e-10)


def test_cfl_split_by_hand() -> None:
    # Mean of the four is (0, 0); the longest is 1. Across sides the largest cosine is that of (.9, .1) and (-1, 0):
    # -.9 / sqrt(.82) = -.9939.
    updates = torch.tensor([[1.0, 0.0], [0.9, 0.1], [-1.0, 0.0], [-0.9, -0.1]])
    mean, greatest = norms_of(gram(updates), np.ones(4))
    assert (mean, greatest) == (pytest.approx(0.0, abs=1e-7), pytest.approx(1.0))
    assert may_split(mean, greatest, 0.4, 0.5)
    assert not may_split(mean, greatest, 0.4, 1.6)
    assert not may_split(0.5, greatest, 0.4, 0.5)
    cosine = update_cosines(updates)
    assert cosine[1, 2] == pytest.approx(-0.9939, abs=1e-4)
    assert bipartition(cosine, 0.7) == ([0, 1], [2, 3])
    assert bipartition(cosine, -0.999) is None
    assert bipartition(np.ones((1, 1)), 0.7) is None


def test_weighted_mean_norm_by_hand() -> None:
    # (3 * 1 + 1 * (-1)) / 4 = .5
    assert norms_of(gram(line(1, -1)), np.array([3.0, 1.0]))[0] == pytest.approx(0.5)


def test_icfl_incremental_by_hand() -> None:
    # cos((1,0), (.8,.6)) = .8: the second joins. The third, (0,1), has cosines 0 and .6, mean .3 < .7: a new cluster.
    cosine = update_cosines(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]))
    assert incremental(cosine, {}, 0.7, 10) == {0: 0, 1: 0, 2: 1}
    # When clusters are full, it joins the best all the same.
    assert incremental(cosine, {}, 0.7, 1) == {0: 0, 1: 0, 2: 0}


def test_icfl_moves_only_for_a_clear_gain() -> None:
    # Device 0 sits with device 1 (cosine .72) and would be with device 2 at .75 (not .05 better) or .80 (better).
    def table(gain: float) -> np.ndarray:
        return np.array([[1, 0.72, gain], [0.72, 1, 0.0], [gain, 0.0, 1]])

    assert incremental(table(0.75), {0: 0, 1: 0, 2: 1}, 0.7, 10)[0] == 0
    assert incremental(table(0.80), {0: 0, 1: 0, 2: 1}, 0.7, 10)[0] == 1
    # Alone in its cluster, it moves as soon as another is above the threshold.
    assert incremental(table(0.75), {0: 5, 1: 7, 2: 1}, 0.7, 10)[0] == 1


def test_icfl_merges_and_splits() -> None:
    close = np.array([[1, 0.9], [0.9, 1]])
    assert reconcile(close, [[0], [1]], 0.7, 10) == [[0, 1]]
    assert reconcile(close, [[0], [1]], 0.95, 10) == [[0], [1]]
    # Two pairs of opposites in one cluster: mean connectivity (2 * 1 + 4 * (-1)) / 6 = -1/3 < .7.
    mixed = update_cosines(torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]]))
    assert internal(mixed, [0, 1, 2, 3]) == pytest.approx(-1 / 3)
    assert reconcile(mixed, [[0, 1, 2, 3]], 0.7, 10) == [[0, 1], [2, 3]]
    assert reconcile(mixed, [[0, 1, 2, 3]], 0.7, 1) == [[0, 1, 2, 3]]
    # Short updates are noise: nobody is torn apart for them.
    assert reconcile(mixed, [[0, 1, 2, 3]], 0.7, 10, np.full(4, 0.1), 0.2) == [[0, 1, 2, 3]]
    assert reconcile(mixed, [[0, 1, 2, 3]], 0.7, 10, np.full(4, 0.3), 0.2) == [[0, 1], [2, 3]]


def test_a_threshold_of_minus_one_keeps_everybody_together() -> None:
    cosine = update_cosines(torch.randn(7, 4, generator=torch.Generator().manual_seed(1)))
    joined = incremental(cosine, {}, -1.0, 10)
    assert set(joined.values()) == {0}
    assert reconcile(cosine, [list(joined)], -1.0, 10) == [list(range(7))]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 9999), st.integers(1, 10), st.floats(-1, 1), st.integers(1, 6))
def test_icfl_keeps_everybody_once_and_within_bounds(seed: int, n: int, threshold: float, most: int) -> None:
    cosine = update_cosines(torch.randn(n, 3, generator=torch.Generator().manual_seed(seed)))
    joined = incremental(cosine, {}, threshold, most)
    assert len(set(joined.values())) <= most
    steps = [[i for i, c in joined.items() if c == k] for k in set(joined.values())]
    final = reconcile(cosine, steps, threshold, most)
    assert sorted(i for c in final for i in c) == list(range(n))
    assert len(final) <= most
