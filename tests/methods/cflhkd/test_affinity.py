"""Eq. (17), Eq. (18) and the sketch, against numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from espalier.core.errors import ConfigError
from espalier.methods.cflhkd.fdc import (
    Sketch,
    affinity,
    cosines,
    distributions,
    jensen_shannon,
    jensen_shannon_matrix,
    ranking,
)

COUNTS = hnp.arrays(np.float64, st.tuples(st.integers(1, 6), st.just(4)), elements=st.integers(0, 9))


def test_divergence_by_hand() -> None:
    # P = (1/2, 1/2), Q = (1, 0), M = (3/4, 1/4).
    # H(M) = -.75 lb .75 - .25 lb .25 = .811278; H(P) = 1; H(Q) = 0. JSD = .811278 - .5 = .311278 bits.
    assert jensen_shannon([1, 1], [3, 0]) == pytest.approx(0.311278, abs=1e-6)
    assert jensen_shannon([5, 0, 0], [0, 2, 2]) == pytest.approx(1.0)
    assert jensen_shannon([3, 1], [6, 2]) == 0.0


def test_affinity_by_hand() -> None:
    # .5 (1 - .311278) + .5 * .6 = .344361 + .3 = .644361
    assert affinity(jensen_shannon([1, 1], [1, 0]), 0.6) == pytest.approx(0.644361, abs=1e-6)
    assert affinity(0.0, 1.0) == 1.0
    assert affinity(1.0, 0.0) == 0.0
    # gamma 0 is the models alone, gamma 1 the data alone.
    assert affinity(0.3, 0.6, gamma=0.0) == pytest.approx(0.6)
    assert affinity(0.3, 0.6, gamma=1.0) == pytest.approx(0.7)


def test_an_empty_histogram_counts_as_uniform() -> None:
    np.testing.assert_allclose(distributions([[0, 0], [3, 1]]), [[0.5, 0.5], [0.75, 0.25]])


@given(COUNTS)
def test_divergences_are_a_symmetric_matrix_of_bits(counts: np.ndarray) -> None:
    found = jensen_shannon_matrix(counts)
    np.testing.assert_array_equal(found, found.T)
    assert (np.diag(found) == 0).all()
    assert (found >= 0).all() and (found <= 1).all()
    for i in range(len(counts)):
        assert found[0, i] == pytest.approx(jensen_shannon(counts[0], counts[i]), abs=1e-9)


def test_ranking_by_hand() -> None:
    # Row norms: sqrt(1 + .81 + .01) = 1.349, sqrt(.81 + 1 + .04) = 1.360, sqrt(.01 + .04 + 1) = 1.025.
    rows = np.array([[1, 0.9, 0.1], [0.9, 1, 0.2], [0.1, 0.2, 1]])
    assert ranking(rows) == [1, 0, 2]
    assert ranking(np.eye(3)) == [0, 1, 2]


def test_cosines_of_zero_and_of_opposites() -> None:
    found = cosines([[1, 0], [-2, 0], [0, 0]])
    np.testing.assert_allclose(found, [[1, -1, 0], [-1, 1, 0], [0, 0, 1]])


def test_a_sketch_by_hand() -> None:
    # One place: every coordinate is added or subtracted, so the sketch of w is the signed sum.
    sketch = Sketch(3, 1, np.random.default_rng(0))
    signs = np.sign(sketch.fold(torch.eye(3))).reshape(-1)
    assert sketch.fold(torch.tensor([[1.0, 10.0, 100.0]]))[0, 0] == signs @ [1, 10, 100]


def test_sketches_keep_cosines() -> None:
    rng = np.random.default_rng(3)
    common = rng.normal(size=5000)
    vectors = np.stack([common + rng.normal(size=5000) * s for s in (0.3, 0.5, 1.0, 2.0)])
    small = Sketch(5000, 512, np.random.default_rng(1)).fold(torch.from_numpy(vectors))
    assert small.shape == (4, 512)
    # The standard deviation is about 1/sqrt(512) = .044; four of them are allowed.
    assert np.abs(cosines(small) - cosines(vectors)).max() < 4 / math.sqrt(512)


@given(st.lists(st.floats(-5, 5), min_size=8, max_size=8), st.lists(st.floats(-5, 5), min_size=8, max_size=8))
def test_sketches_are_linear(a: list[float], b: list[float]) -> None:
    fold = Sketch(8, 3, np.random.default_rng(2)).fold
    x, y = torch.tensor([a]), torch.tensor([b])
    np.testing.assert_allclose(fold(x + y), fold(x) + fold(y), atol=1e-4)


def test_an_empty_sketch_is_refused() -> None:
    with pytest.raises(ConfigError, match="size 0"):
        Sketch(5, 0, np.random.default_rng(0))
