from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.core.seeds import stream
from espalier.methods.d2d.defence import audit_links, throttling

INF = np.inf


def false_links(links, liars, factor):
    """Return link times as reported when the liars scale all of theirs."""
    reported = links.copy()
    reported[liars] *= factor
    return reported


def honest_links(n: int, seed: int = 0) -> np.ndarray:
    times = np.triu(stream(seed, "links", n).uniform(6, 30, (n, n)), 1)
    return times + times.T


def test_honest_reports_raise_no_dispute():
    links = honest_links(6)
    links[0, 3] = links[3, 0] = INF
    # Both ends measured, 2 % apart.
    found = audit_links(links * (1 + 0.02 * np.tri(6)))
    assert not found.disputed.any()
    assert found.liars.size == 0
    assert found.open_pairs.shape == (0, 2)
    assert found.links[0, 3] == INF


def test_one_liar_is_named_and_cut_off():
    # Device 2 claims links four times as fast: in dispute with all 4 others, more than the 2 that may lie.
    links = honest_links(5)
    found = audit_links(false_links(links, np.array([2]), 0.25))
    assert found.liars.tolist() == [2]
    assert found.disputed[2].tolist() == [True, True, False, True, True]
    assert np.isinf(np.delete(found.links[2], 2)).all()
    assert found.links[0, 1] == links[0, 1]
    assert found.open_pairs.shape == (0, 2)


def test_a_single_lie_stays_open_and_the_slower_claim_is_believed():
    # One link, two stories: nobody can tell who lies.
    links = honest_links(5)
    reports = links.copy()
    reports[1, 3] *= 0.1
    found = audit_links(reports)
    assert found.liars.size == 0
    assert found.open_pairs.tolist() == [[1, 3]]
    assert found.links[1, 3] == found.links[3, 1] == links[1, 3]


def test_a_claimed_link_that_the_other_end_does_not_have():
    links = honest_links(4)
    links[0, 1] = links[1, 0] = INF
    reports = links.copy()
    reports[0, 1] = 5.0
    found = audit_links(reports)
    assert found.disputed[0, 1]
    assert found.disputed[1, 0]
    assert found.links[0, 1] == INF


def test_fewer_possible_liars_name_sooner():
    # Device 0 lies to two of six peers. A minority of three could frame it; if at most one lies, it is the one.
    reports = honest_links(7)
    reports[0, [1, 2]] *= 0.5
    assert audit_links(reports).liars.size == 0
    assert audit_links(reports, most_liars=1).liars.tolist() == [0]


@pytest.mark.parametrize("nonsense", [np.nan, -1.0])
def test_claims_that_are_no_times_name_their_author(nonsense):
    reports = honest_links(5)
    reports[3, 1] = nonsense
    found = audit_links(reports)
    assert found.liars.tolist() == [3]
    assert np.isfinite(np.delete(np.delete(found.links, 3, 0), 3, 1)).all()


@given(st.integers(3, 12), st.integers(0, 30), st.data())
def test_a_minority_never_gets_an_honest_device_named(n, seed, data):
    liars = data.draw(st.sets(st.integers(0, n - 1), max_size=(n - 1) // 2))
    reports = honest_links(n, seed)
    for liar in liars:
        about = data.draw(st.sets(st.integers(0, n - 1)))
        reports[liar, list(about)] *= data.draw(st.sampled_from([0.1, 3.0]))
    found = audit_links(reports)
    assert set(found.liars.tolist()) <= liars
    # Every lie is at least recorded: a disputed link is either a named liar's or an open pair.
    for i, j in np.argwhere(np.triu(found.disputed)):
        assert {i, j} & set(found.liars.tolist()) or [i, j] in found.open_pairs.tolist()


@given(st.integers(3, 12), st.data())
def test_a_minority_that_lies_about_all_its_links_is_named(n, data):
    liars = data.draw(st.sets(st.integers(0, n - 1), max_size=(n - 1) // 2))
    reports = false_links(honest_links(n), np.array(sorted(liars), dtype=np.int64), 0.3)
    # Liars do not dispute each other when both lie by the same factor; the honest majority still does.
    assert set(audit_links(reports).liars.tolist()) == liars


def test_throttling_members_are_seen():
    # Due after 10, 20, 30 s. The second is 50 % late in every round, the third in one of three.
    due = [10, 20, 30]
    observed = [[10.5, 30, 30], [10, 31, 45], [11, 30, 31]]
    assert throttling(due, observed).tolist() == [False, True, False]
    assert throttling(due, [10, 20, INF]).tolist() == [False, False, True]
    # Early is no offence.
    assert throttling(due, [1, 2, 3]).tolist() == [False, False, False]


def test_false_timings_show_as_throttling():
    true = stream(0, "compute").uniform(5, 20, 10)
    claimed = true.copy()
    claimed[[4, 7]] *= 0.5
    assert np.flatnonzero(throttling(claimed, true)).tolist() == [4, 7]
