from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.report.curves import band


def test_mean_and_deviation_by_hand() -> None:
    # at x = 1 the first is 2, the second lies halfway between 2 and 6: mean (2 + 4)/2 = 3, s = √((1 + 1)/1) = √2
    one = (np.array([0.0, 1.0, 2.0]), np.array([0.0, 2.0, 4.0]))
    other = (np.array([0.0, 2.0, 9.0]), np.array([2.0, 6.0, 0.0]))
    found = band([one, other])
    assert found is not None
    assert found.x.tolist() == [0.0, 1.0, 2.0]
    assert found.mean.tolist() == [1.0, 3.0, 5.0]
    assert found.std == pytest.approx([np.sqrt(2)] * 3)


def test_one_seed_is_itself() -> None:
    found = band([(np.array([1.0, 3.0]), np.array([0.5, 0.7]))])
    assert found is not None and found.mean.tolist() == [0.5, 0.7] and found.std.tolist() == [0.0, 0.0]


def test_unknown_points_and_repeated_ones() -> None:
    x = np.array([0.0, 1.0, 1.0, 2.0])
    found = band([(x, np.array([0.1, 0.2, 0.3, np.nan]))])
    assert found is not None and found.x.tolist() == [0.0, 1.0] and found.mean.tolist() == [0.1, 0.3]


def test_nothing_in_common() -> None:
    assert band([(np.array([0.0]), np.array([1.0])), (np.array([5.0]), np.array([1.0]))]) is None
    assert band([]) is None
    assert band([(np.zeros(0), np.zeros(0))]) is None


curve = st.lists(st.tuples(st.floats(0, 100), st.floats(-5, 5)), min_size=1, max_size=30)


@given(st.lists(curve, min_size=1, max_size=4), st.integers(2, 12))
def test_a_band_lies_within_its_curves(curves: list[list[tuple[float, float]]], most: int) -> None:
    arrays = [(np.array(sorted(x for x, _ in c)), np.array([y for _, y in c])) for c in curves]
    found = band(arrays, most)
    if found is None:
        return
    assert len(found.x) <= most and (np.diff(found.x) > 0).all()
    assert found.x[0] >= max(x[0] for x, _ in arrays) and found.x[-1] <= min(x[-1] for x, _ in arrays)
    for row, (_, y) in zip(found.raw, arrays, strict=True):
        assert (row >= y.min() - 1e-9).all() and (row <= y.max() + 1e-9).all()
