"""Eq. (8), Algorithms 1 and 2, and the rules of exchange, with numbers worked by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.methods.easf.dsf.balance import (
    Tally,
    choose_cluster,
    far_too_small,
    gain,
    nearby_size,
    releases,
    transferable,
    wished,
)


def test_gain_is_how_much_closer_the_mean_comes() -> None:
    assert gain(0.9, 0.7, 0.5) == pytest.approx(0.2)  # .4 away, then .2
    assert gain(0.5, 0.7, 0.5) == pytest.approx(-0.2)  # there already
    assert gain(0.4, 0.6, 0.5) == pytest.approx(0.0)  # as far on the other side


def test_gain_of_joining_and_leaving() -> None:
    # members .2, .4, .9: mean .5; with .1: 1.6/4 = .4; without .9: .6/2 = .3
    tally = Tally(3, 1.5)
    assert tally.mean == pytest.approx(0.5)
    assert tally.gain_with(0.1, 0.4) == pytest.approx(0.1)
    assert tally.gain_without(0.9, 0.4) == pytest.approx(0.1 - 0.1)
    assert Tally(1, 0.3).gain_without(0.3, 0.5) == 0.0
    assert Tally(0, 0.0).mean == 0.0


def test_nearby_size_leaves_oneself_out() -> None:
    # sizes 6, 2, 4: the one of 6 sees the mean of 2 and 4
    assert nearby_size({1: 2, 2: 4}) == 3.0
    assert nearby_size({}) is None


class TestAlgorithm1:
    def test_lists_whose_leaving_helps(self) -> None:
        # .5, .5, .9, .1, .5 with target .5: mean .5 exactly, nobody's leaving helps
        # .5, .5, .9 with target .5: mean .6333; without 2: .5 (gain .1333); without 0 or 1: .7 (gain -.0667)
        listed, forced = transferable({0: 0.5, 1: 0.5, 2: 0.9}, {0: 0, 1: 1, 2: 1}, 0, 0.5, usual=2.9, excess=1.2)
        assert (listed, forced) == ([2], set())

    def test_the_centre_stays_even_if_its_leaving_would_help(self) -> None:
        listed, _ = transferable({0: 0.9, 1: 0.5, 2: 0.5}, {0: 0, 1: 1, 2: 1}, 0, 0.5, usual=2.9, excess=1.2)
        assert listed == []

    def test_a_cluster_that_is_too_large_lists_its_farthest(self) -> None:
        # all at the target: nobody's leaving helps; 6 > 1.2 · 3 = 3.6, so half of the cluster (3) is listed,
        # the farthest first: 5 (3 hops), then 3 and 4 (2 hops) in ascending order
        accuracies = dict.fromkeys(range(6), 0.5)
        hops = {0: 0, 1: 1, 2: 1, 3: 2, 4: 2, 5: 3}
        assert transferable(accuracies, hops, 0, 0.5, usual=3.0, excess=1.2) == ([5, 3, 4], {3, 4, 5})
        # 6 = 1.2 · 5: not exceeded
        assert transferable(accuracies, hops, 0, 0.5, usual=5.0, excess=1.2) == ([], set())

    def test_who_helps_counts_towards_the_half(self) -> None:
        # mean (5·.5 + .9)/6 = .5667; only 4's leaving helps; then 2 more, the farthest
        accuracies = {0: 0.5, 1: 0.5, 2: 0.5, 3: 0.5, 4: 0.9, 5: 0.5}
        hops = {0: 0, 1: 1, 2: 1, 3: 2, 4: 1, 5: 3}
        assert transferable(accuracies, hops, 0, 0.5, usual=3.0, excess=1.2) == ([4, 5, 3], {3, 5})

    def test_a_cluster_of_two_lists_at_most_its_other_member(self) -> None:
        assert transferable({0: 0.5, 1: 0.5}, {0: 0, 1: 1}, 0, 0.5, usual=1.0, excess=1.2) == ([1], {1})

    @given(
        st.dictionaries(st.integers(1, 20), st.floats(0, 1), max_size=12),
        st.floats(0, 1),
        st.floats(0.5, 10),
    )
    def test_lists_no_one_twice_and_never_the_centre(
        self, others: dict[int, float], target: float, usual: float
    ) -> None:
        accuracies = {0: 0.5, **others}
        listed, forced = transferable(accuracies, dict.fromkeys(accuracies, 1.0), 0, target, usual, 1.2)
        assert len(set(listed)) == len(listed) and 0 not in listed and forced <= set(listed) <= set(others)


class TestExchange:
    def test_asks_for_the_node_that_helps_most(self) -> None:
        # own mean .8 of 2, target .5: with .2 → 1.8/3 = .6 (gain .2); with .5 → .7 (gain .1)
        own = Tally(2, 1.6)
        assert wished({7: (0.5, 1), 8: (0.2, 2)}, own, 0.5, limit=3, small=False) == 8

    def test_not_beyond_the_hop_limit(self) -> None:
        own = Tally(2, 1.6)
        assert wished({7: (0.5, 1), 8: (0.2, 4)}, own, 0.5, limit=3, small=False) == 7

    def test_asks_for_none_that_does_not_help_unless_it_is_far_too_small(self) -> None:
        own = Tally(2, 1.0)  # mean .5, the target: every other value takes it away
        assert wished({7: (0.9, 2), 8: (0.8, 3)}, own, 0.5, limit=3, small=False) is None
        assert wished({7: (0.9, 2), 8: (0.8, 3)}, own, 0.5, limit=3, small=True) == 7  # fewest hops
        assert wished({}, own, 0.5, limit=3, small=True) is None

    def test_far_too_small_is_below_the_usual_size_by_the_excess_rate(self) -> None:
        assert far_too_small(2, usual=3.0, excess=1.2)  # 2 < 2.5
        assert not far_too_small(3, usual=3.0, excess=1.2)

    def test_the_source_lets_go_who_helps_or_was_forced(self) -> None:
        own = Tally(4, 2.4)  # mean .6; without .9: 1.5/3 = .5 (gain .1); without .5: 1.9/3 = .6333 (gain -.0333)
        assert releases(own, 0.9, 0.5, forced=False, usual=3.0, excess=1.2, other=3)
        assert not releases(own, 0.5, 0.5, forced=False, usual=3.0, excess=1.2, other=2)
        assert releases(own, 0.5, 0.5, forced=True, usual=3.0, excess=1.2, other=2)

    def test_a_forced_node_is_not_given_back_and_forth(self) -> None:
        # 4 and 3 would become 3 and 4, and then the other way round
        assert not releases(Tally(4, 2.0), 0.5, 0.5, forced=True, usual=3.0, excess=1.2, other=3)

    def test_the_source_keeps_enough_members(self) -> None:
        # 3 - 1 = 2 < 3/1.2 = 2.5; and never below two, however small the others are
        assert not releases(Tally(3, 1.5), 0.5, 0.5, forced=True, usual=3.0, excess=1.2, other=1)
        assert not releases(Tally(2, 1.0), 0.5, 0.5, forced=True, usual=1.0, excess=1.2, other=1)


class TestAlgorithm2:
    def test_joins_where_it_helps_most(self) -> None:
        # accuracy .1, target .5. Cluster 1: mean .8 of 3 → 2.5/4 = .625: gain .3 - .125 = .175
        # cluster 2: mean .6 of 1 → .35: gain .1 - .15 = -.05
        assert choose_cluster({1: Tally(3, 2.4), 2: Tally(1, 0.6)}, 0.1, 0.5) == 1

    def test_joins_the_least_harmed_when_all_lose(self) -> None:
        # both at .5, the target; the larger one moves less: 2.9/5 = .58 (-.08) against 1.9/3 = .6333 (-.1333)
        assert choose_cluster({1: Tally(2, 1.0), 2: Tally(4, 2.0)}, 0.9, 0.5) == 2

    def test_no_cluster_at_all(self) -> None:
        assert choose_cluster({}, 0.5, 0.5) is None
