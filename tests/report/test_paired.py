from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.report.verdict import holm, paired_p


def test_p_value_by_hand() -> None:
    # differences .05, .02, .05: mean .04, deviations .01, −.02, .01, s = √(.0006/2) = .017320…
    # t = .04 / (s/√3) = .04/.01 = 4 with 2 degrees of freedom, where p = 1 − t/√(t² + 2) = 1 − 4/√18
    one, other = {0: 0.90, 1: 0.80, 2: 0.85}, {0: 0.85, 1: 0.78, 2: 0.80}
    assert paired_p(one, other) == pytest.approx(1 - 4 / math.sqrt(18))
    assert paired_p(other, one) == pytest.approx(1 - 4 / math.sqrt(18))


def test_only_seeds_that_both_ran_count() -> None:
    one, other = {0: 0.90, 1: 0.80, 2: 0.85, 7: 0.1}, {0: 0.85, 1: 0.78, 2: 0.80, 9: 0.9, 8: float("nan")}
    assert paired_p(one, other) == pytest.approx(1 - 4 / math.sqrt(18))
    assert paired_p({0: 1.0}, {0: 0.5}) is None
    assert paired_p({0: 1.0, 1: 2.0}, {2: 0.5, 3: 0.1}) is None


def test_equal_differences_need_no_statistic() -> None:
    assert paired_p({0: 0.5, 1: 0.7}, {0: 0.5, 1: 0.7}) == 1.0
    # .3 − .2 and .2 − .1 differ in the last bit only
    assert paired_p({0: 0.3, 1: 0.2}, {0: 0.2, 1: 0.1}) == 0.0


def test_holm_by_hand() -> None:
    # sorted .01, .03, .04: times 3, 2, 1 = .03, .06, .04; never smaller than the one before: .03, .06, .06
    assert holm([0.01, 0.04, None, 0.03]) == [pytest.approx(0.03), pytest.approx(0.06), None, pytest.approx(0.06)]


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=8))
def test_holm_never_lowers_nor_reorders(values: list[float | None]) -> None:
    found = holm(values)
    pairs = [(p, q) for p, q in zip(values, found, strict=True) if p is not None and q is not None]
    assert len(pairs) == sum(p is not None for p in values)
    assert all(p <= q <= 1 for p, q in pairs)
    assert [q for _, q in sorted(pairs)] == sorted(q for _, q in pairs)
