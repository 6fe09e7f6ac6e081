"""The adjusted Rand index."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from espalier.record.measures import adjusted_rand

LABELS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12)


def test_by_hand() -> None:
    # {0,1},{2,3} against {0,1,2},{3}: pairs together in both 1, in the first 2, in the second 3, of 6 pairs.
    # Expected 2 * 3 / 6 = 1, greatest (2 + 3) / 2 = 2.5: (1 - 1) / (2.5 - 1) = 0.
    assert adjusted_rand([0, 0, 1, 1], [0, 0, 0, 1]) == 0.0
    assert adjusted_rand(["a", "a", "b"], [7, 7, 5]) == 1.0


@given(LABELS)
def test_it_is_the_usual_one(pairs: list[tuple[int, int]]) -> None:
    a, b = zip(*pairs, strict=True)
    assert adjusted_rand(a, b) == pytest.approx(adjusted_rand_score(a, b))
    assert adjusted_rand(a, b) == pytest.approx(adjusted_rand(b, a))
