from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.report.standings import Difference, difference, holm, widened


def test_difference_by_hand() -> None:
    # differences .05, .02, .05: mean .04, deviations .01, −.02, .01, s = √(.0006/2) = .017320…, s/√3 = .01
    # t = .04/.01 = 4 with 2 degrees of freedom, where p = 1 − t/√(t² + 2) = 1 − 4/√18;
    # that p is .05 at t = .95·√(2/(1 − .95²)) = 4.30265, so the interval is .04 ± .0430265
    one, other = {0: 0.90, 1: 0.80, 2: 0.85}, {0: 0.85, 1: 0.78, 2: 0.80}
    found, back = difference(one, other), difference(other, one)
    assert found is not None and back is not None
    assert found.mean == pytest.approx(0.04) and found.pairs == 3
    assert found.p == back.p == pytest.approx(1 - 4 / math.sqrt(18))
    assert (found.low, found.high) == (pytest.approx(-0.00302653), pytest.approx(0.08302653))
    assert (back.low, back.high) == (pytest.approx(-0.08302653), pytest.approx(0.00302653))


def test_only_seeds_that_both_ran_count() -> None:
    one, other = {0: 0.90, 1: 0.80, 2: 0.85, 7: 0.1}, {0: 0.85, 1: 0.78, 2: 0.80, 9: 0.9, 8: float("nan")}
    found = difference(one, other)
    assert found is not None and found.pairs == 3 and found.p == pytest.approx(1 - 4 / math.sqrt(18))
    assert difference({0: 1.0, 1: 2.0}, {2: 0.5, 3: 0.1}) is None


def test_two_seeds_tell_nothing() -> None:
    """With one degree of freedom .156 of spread hides anything: no interval, no p-value, however far apart."""
    assert difference({0: 1.0}, {0: 0.5}) == Difference(0.5, 1)
    assert difference({0: 0.9, 1: 0.8}, {0: 0.2, 1: 0.1}) == Difference(pytest.approx(0.7), 2)


def test_equal_differences_need_no_statistic() -> None:
    same = difference({0: 0.5, 1: 0.7, 2: 0.1}, {0: 0.5, 1: 0.7, 2: 0.1})
    assert same == Difference(0.0, 3, 0.0, 0.0, 1.0)
    # .3 − .2 and .2 − .1 differ in the last bit only
    apart = difference({0: 0.3, 1: 0.2, 2: 0.4}, {0: 0.2, 1: 0.1, 2: 0.3})
    assert apart is not None and apart.p == 0.0 and apart.low == apart.high == pytest.approx(0.1)


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


@given(st.floats(1e-6, 0.9), st.floats(1.0, 40.0), st.integers(3, 12))
def test_a_widened_interval_has_zero_in_it_where_the_test_does_not_reject(
    mean: float, factor: float, pairs: int
) -> None:
    found = difference({s: mean + 0.1 * (-1) ** s * (s + 1) for s in range(pairs)}, dict.fromkeys(range(pairs), 0.0))
    assert found is not None and found.p is not None
    adjusted = min(1.0, factor * found.p)
    if abs(adjusted - 0.05) > 1e-6:
        wide = widened(found, adjusted)
        assert wide.low is not None and wide.high is not None and found.low is not None
        assert (wide.low <= 0 <= wide.high) == (adjusted >= 0.05) and wide.low <= found.low + 1e-12
