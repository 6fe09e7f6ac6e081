from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from espalier.core.errors import WorldError
from espalier.methods.d2d.timing import arrivals, exchange_times, head_and_time, intra_rounds

from . import reference

INF = np.inf


def test_round_time_and_head_by_hand():
    # D10: t' = (2,4,3), links 1–2: 1, 1–3: 5, 2–3: 2.
    # Head 1 waits for max(2, 4+1, 3+5) = 8, head 2 for max(2+1, 4, 3+2) = 5, head 3 for max(2+5, 4+2, 3) = 7.
    times = arrivals([2, 4, 3], [[0, 1, 5], [1, 0, 2], [5, 2, 0]])
    assert head_and_time(times, np.array([0, 1, 2])) == (1, 5.0)
    # The head of a pair: at 1 max(2, 3+5) = 8, at 3 max(2+5, 3) = 7.
    assert head_and_time(times, np.array([0, 2])) == (2, 7.0)
    assert head_and_time(times, np.array([1])) == (1, 4.0)


def test_direction_of_a_link_matters():
    # 0 sends to 1 in 9, 1 sends to 0 in 1: with 0 as head max(1, 1+1) = 2.
    times = arrivals([1, 1], [[0, 9], [1, 0]])
    assert head_and_time(times, np.array([0, 1])) == (0, 2.0)


def test_absent_links_leave_only_the_head_that_hears_everybody():
    # 1–2 are not linked; only 0 hears both.
    times = arrivals([1, 1, 1], [[0, 4, 4], [4, 0, INF], [4, INF, 0]])
    assert head_and_time(times, np.array([0, 1, 2])) == (0, 5.0)
    assert head_and_time(times, np.array([1, 2])) == (1, INF)


def test_ties_go_to_the_lowest_number():
    times = arrivals([1, 1, 1], np.full((3, 3), 2.0))
    assert head_and_time(times, np.array([0, 1, 2])) == (0, 3.0)


def test_intra_rounds():
    # D7: T_g = 100 and T_c = 101 give no round; an unreachable cluster neither; 0.3/0.1 is 3 rounds.
    assert intra_rounds(100, [101, 100, 50, 34, INF]).tolist() == [0, 1, 2, 2, 0]
    assert intra_rounds(0.3, [0.1]).tolist() == [3]


@pytest.mark.parametrize(
    ("compute", "links"),
    [([1, np.nan], [[0, 1], [1, 0]]), ([1, 2], [[0, -9], [1, 0]])],
)
def test_times_that_make_no_sense_are_refused(compute, links):
    with pytest.raises(WorldError):
        arrivals(compute, links)


def test_the_diagonal_is_not_read():
    assert arrivals([1, 2], [[INF, 3], [4, np.nan]]).tolist() == [[1, 4], [6, 2]]


@given(
    st.integers(2, 10).flatmap(
        lambda n: st.tuples(
            hnp.arrays(np.float64, n, elements=st.integers(1, 6).map(float)),
            hnp.arrays(np.float64, (n, n), elements=st.sampled_from([1.0, 2.0, 3.0, 5.0, 8.0, 13.0, INF])),
            st.integers(1, n - 1),
            st.integers(0, n - 1),
        )
    )
)
def test_exchange_times_equal_trying_every_head(case):
    compute, links, cut, out = case
    times = arrivals(compute, links)
    first, second = np.arange(cut), np.arange(cut, len(compute))
    if second.size > 1:
        second = np.delete(second, out % second.size)
    after1, after2 = exchange_times(times, first, second)
    assert after1.shape == after2.shape == (first.size + 1, second.size + 1)
    for i, j, new1, new2 in reference.exchanges(first, second):
        assert after1[i, j] == reference.round_time(times, new1)
        assert after2[i, j] == reference.round_time(times, new2)
