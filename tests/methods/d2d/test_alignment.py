from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from espalier.core.errors import DataError, TrainingError
from espalier.methods.d2d import alignment
from espalier.methods.d2d.alignment import Skew, cosines, gram

from . import reference


def members(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def test_angle_by_hand():
    # φ = (1,0), (0,1), (1,1) with |D| = 1, 1, 2: the fleet's sum is (1+2, 1+2) = (3,3), 45 degrees up.
    fleet = reference.angles(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), [1, 1, 2])
    assert fleet.of(members(0)) == pytest.approx(math.pi / 4)
    assert fleet.of(members(0, 1)) == 0.0  # (1,1) is parallel to (3,3)
    # {0, 2}, weighted (D12): (1,0) + 2·(1,1) = (3,2); cos = (3+2)/(√13·√2) = 0.980581 → 0.197396 rad.
    # Unweighted it would be (2,1): cos = 3/√10, 0.321751 rad.
    assert fleet.of(members(0, 2)) == pytest.approx(0.1973956, abs=1e-7)


def test_opposite_and_vanishing_directions():
    # Fleet sum (2,0). {0}: (3,0) → 0. {1}: (-1,0) → π. {2, 3}: (0,1)+(0,-1) = 0, no direction → π/2.
    features = np.array([[3.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    fleet = reference.angles(features, [1, 1, 1, 1])
    assert fleet.of(members(0)) == 0.0
    assert fleet.of(members(1)) == pytest.approx(math.pi)
    assert fleet.of(members(2, 3)) == pytest.approx(math.pi / 2)


def test_a_fleet_without_direction_is_right_angled_everywhere():
    fleet = reference.angles(np.array([[1.0, 0.0], [-1.0, 0.0]]), [1, 1])
    assert fleet.of(members(0)) == pytest.approx(math.pi / 2)
    assert reference.angles(np.zeros((3, 2)), [1, 1, 1]).of(members(0, 1)) == pytest.approx(math.pi / 2)


def test_neither_scale_of_features_nor_of_weights_matters():
    features, weights, _ = reference.fleet(12, 5)
    a = reference.angles(features, weights).of(members(1, 4, 7))
    b = reference.angles(features * np.float32(1024.0), weights * 10).of(members(1, 4, 7))
    assert a == pytest.approx(b, rel=1e-12)


def test_blocks_do_not_change_the_products(monkeypatch):
    features, weights, _ = reference.fleet(9, 50)
    whole = gram(features, weights)
    monkeypatch.setattr(alignment, "_GRAM_BLOCK", 9 * 7)
    np.testing.assert_allclose(gram(features, weights), whole, rtol=1e-12)


def test_cosines_by_hand():
    # (1,0)·(1,1)/√2 = 0.7071; a zero feature has cosine 0 with the others and 1 with itself.
    result = cosines(gram(np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]), [1, 5, 2]))
    h = math.sqrt(0.5)
    np.testing.assert_allclose(result, [[1, h, 0], [h, 1, 0], [0, 0, 1]], atol=1e-12)


def test_features_that_are_not_finite_are_named():
    with pytest.raises(TrainingError, match=r"devices \[1\]"):
        gram(np.array([[1.0, 2.0], [np.nan, 1.0], [0.0, 1.0]]), [1, 1, 1])


@st.composite
def fleets(draw):
    n, d = draw(st.integers(2, 9)), draw(st.integers(1, 3))
    features = draw(hnp.arrays(np.float64, (n, d), elements=st.integers(-3, 3).map(float)))
    weights = draw(hnp.arrays(np.int64, n, elements=st.integers(1, 4)))
    cut = draw(st.integers(1, n - 1))
    order = np.array(draw(st.permutations(range(n))), dtype=np.int64)
    end = draw(st.integers(cut + 1, n))
    return features, weights, np.sort(order[:cut]), np.sort(order[cut:end])


@given(fleets())
def test_exchanges_equal_the_plain_formula(case):
    features, weights, first, second = case
    fleet = reference.angles(features, weights)
    after1, after2 = fleet.exchanges(first, second)
    assert after1.shape == after2.shape == (first.size + 1, second.size + 1)
    for i, j, new1, new2 in reference.exchanges(first, second):
        assert after1[i, j] == pytest.approx(reference.angle(features, weights, new1), abs=2e-6)
        assert after2[i, j] == pytest.approx(reference.angle(features, weights, new2), abs=2e-6)
    assert after1[-1, -1] == pytest.approx(fleet.of(first), abs=2e-6)


def test_exchanges_of_long_single_precision_features():
    features, weights, _ = reference.fleet(16, 3000)
    first, second = members(*range(7)), members(*range(7, 16))
    after1, after2 = reference.angles(features, weights).exchanges(first, second)
    for i, j, new1, new2 in reference.exchanges(first, second):
        assert after1[i, j] == pytest.approx(reference.angle(features, weights, new1), abs=1e-9)
        assert after2[i, j] == pytest.approx(reference.angle(features, weights, new2), abs=1e-9)


def test_skew_by_hand():
    # Labels A,A | B,B: p_g = (½,½). {0,1} has (1,0): |1-½|+|0-½| = 1, no factor ½ (D15). {0,2}: 0.
    skew = Skew.from_counts(np.array([[5, 0], [5, 0], [0, 5], [0, 5]]))
    assert skew.of(np.array([0, 1])) == 1.0
    assert skew.of(np.array([0, 2])) == 0.0


def test_samples_count_not_devices():
    # Fleet (4, 4) → (½,½). {0, 2}: (3+0, 0+1) → (¾,¼): ¼+¼ = ½.
    skew = Skew.from_counts(np.array([[3, 0], [1, 3], [0, 1]]))
    assert skew.of(np.array([0, 2])) == pytest.approx(0.5)


def test_disjoint_mixes_are_two_apart():
    skew = Skew.from_counts(np.array([[1, 0, 0]] + [[0, 0, 1000]] * 1000))
    assert skew.of(np.array([0])) == pytest.approx(2.0, abs=1e-5)


@pytest.mark.parametrize("counts", [[[1, 2], [0, 0]], [[1, -1]], [[1, np.nan]], [1, 2]])
def test_bad_histograms_are_refused(counts):
    with pytest.raises(DataError, match="histograms"):
        Skew.from_counts(np.array(counts))


@given(
    hnp.arrays(np.int64, st.tuples(st.integers(3, 8), st.integers(1, 4)), elements=st.integers(0, 5)),
    st.data(),
)
def test_skews_after_exchanges_equal_the_plain_formula(counts, data):
    counts = counts + (counts.sum(axis=1, keepdims=True) == 0)
    cut = data.draw(st.integers(1, len(counts) - 1))
    first, second = np.arange(cut), np.arange(cut, len(counts))
    after1, after2 = Skew.from_counts(counts).exchanges(first, second)
    for i, j, new1, new2 in reference.exchanges(first, second):
        assert after1[i, j] == pytest.approx(reference.skew(counts, new1), abs=1e-12)
        assert after2[i, j] == pytest.approx(reference.skew(counts, new2), abs=1e-12)


def test_blocks_do_not_change_the_exchanges(monkeypatch):
    counts = np.arange(40).reshape(10, 4) % 7 + 1
    skew, first, second = Skew.from_counts(counts), np.arange(6), np.arange(6, 10)
    whole = skew.exchanges(first, second)
    monkeypatch.setattr(alignment, "_SKEW_BLOCK", 1)
    for part, expected in zip(skew.exchanges(first, second), whole, strict=True):
        np.testing.assert_array_equal(part, expected)
