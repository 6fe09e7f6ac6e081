from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from espalier.core.errors import DataError
from espalier.methods.d2d import skew as skew_module
from espalier.methods.d2d.skew import Skew

from . import reference


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
def test_exchanges_equal_the_plain_formula(counts, data):
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
    monkeypatch.setattr(skew_module, "_BLOCK", 1)
    for part, expected in zip(skew.exchanges(first, second), whole, strict=True):
        np.testing.assert_array_equal(part, expected)
