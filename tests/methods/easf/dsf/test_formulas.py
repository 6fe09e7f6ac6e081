"""Eq. (1), (8) and (9), Algorithms 1 and 2, the rules of exchange and the further levels, worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.methods.easf.dsf.formulas import (
    Delays,
    Tally,
    central_node,
    choose_cluster,
    cluster_levels,
    distance,
    gain,
    is_far_too_small,
    is_first_centre,
    may_release,
    mean_nearby_size,
    node_to_request,
    nodes_to_offer,
    pooled,
    two_hop_probability,
)

# -- Eq. (9): graphs worked by hand ------------------------------------------------------------------------------

Graph = dict[int, set[int]]

STAR: Graph = {0: {1, 2, 3}, 1: {0}, 2: {0}, 3: {0}}
PATH: Graph = {0: {1}, 1: {0, 2}, 2: {1, 3}, 3: {2}}
RING: Graph = {i: {(i - 1) % 4, (i + 1) % 4} for i in range(4)}


def probabilities(graph: Graph) -> dict[int, float]:
    return {v: two_hop_probability(len(n), [len(graph[u]) for u in n]) for v, n in graph.items()}


def centres(graph: Graph) -> list[int]:
    p = probabilities(graph)
    return [v for v in graph if is_first_centre(v, p[v], {u: p[u] for u in graph[v]})]


@pytest.mark.parametrize(
    ("graph", "expected", "who"),
    [
        # hub: 3 · 1/(3·1) = 1; a leaf: 1/(1·3)
        (STAR, [1, 1 / 3, 1 / 3, 1 / 3], [0]),
        # ends: 1/(1·2); 1 and 2: 1/(2·1) + 1/(2·2) = .75: a tie, the smaller number leads and keeps 2 from leading
        (PATH, [0.5, 0.75, 0.75, 0.5], [1]),
        # all: 2 · 1/(2·2) = .5: by the strict comparison nobody would lead
        (RING, [0.5] * 4, [0]),
    ],
)
def test_graphs_worked_by_hand(graph: Graph, expected: list[float], who: list[int]) -> None:
    assert list(probabilities(graph).values()) == pytest.approx(expected)
    assert centres(graph) == who


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    n = draw(st.integers(1, 12))
    pairs = [(a, b) for a in range(n) for b in range(a)]
    chosen = draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    graph: Graph = {v: set() for v in range(n)}
    for a, b in chosen:
        graph[a].add(b)
        graph[b].add(a)
    return graph


@given(graphs())
def test_it_is_a_probability(graph: Graph) -> None:
    # 1/deg(i) · sum of 1/deg(j): a mean of numbers in (0, 1]
    for v, p in probabilities(graph).items():
        assert 0 < p <= 1 + 1e-12 if graph[v] else p == 0


@given(graphs())
def test_every_graph_has_a_leader_and_no_two_leaders_are_neighbours(graph: Graph) -> None:
    who = centres(graph)
    assert who
    assert not any(b in graph[a] for a in who for b in who)


def test_it_is_the_two_step_return_of_a_random_walk() -> None:
    # from 1 on the path: to 0 (½), back (1); to 2 (½), back (½): ½ + ¼
    assert math.isclose(probabilities(PATH)[1], 0.5 * 1 + 0.5 * 0.5)


# -- Eq. (1), and further levels: lines and grids of nodes -------------------------------------------------------


def line(*places: float) -> Delays:
    at = np.array(places)
    return np.abs(at[:, None] - at[None])


def test_the_smallest_sum_of_delays_wins() -> None:
    # at 0, 1, 5: sums 6, 5, 9
    assert central_node([10, 20, 30], line(0, 1, 5), [True] * 3) == 20


def test_who_may_not_aggregate_is_passed_over() -> None:
    assert central_node([10, 20, 30], line(0, 1, 5), [True, False, True]) == 10
    assert central_node([10, 20, 30], line(0, 1, 5), [False, False, True]) == 30
    assert central_node([10, 20, 30], line(0, 1, 5), [False] * 3) is None


def test_equal_sums_go_to_the_smaller_number() -> None:
    # at 0, 1, 2, 3: sums 6, 4, 4, 6
    assert central_node([3, 9, 4, 1], line(0, 1, 2, 3), [True] * 4) == 4


def test_few_central_nodes_are_one_cluster() -> None:
    assert cluster_levels([1, 2, 3], line(0, 1, 5), {1: {2}, 2: {3}}, width=3) == [{2: [1, 2, 3]}]


def test_many_are_clustered_once_more() -> None:
    # Nodes 0-8 in a row, each adjoining the next. Two-hop probabilities: the ends 1/2, their neighbours 1 and 7
    # 1/2 + 1/4, the inner ones 1/4 + 1/4. So 1 and 7 lead; of the equal inner ones each is beaten by the one before.
    # Joined by delay: 0-4 to 1 (4 is 3 away from both: the smaller number), 5-8 to 7.
    # Eq. 1 within: {0..4} → 2; {5..8} → 6 (sums 6, 4, 4, 6). Root among 2 and 6: equal sums, 2.
    near = {i: {i + 1} for i in range(8)}
    found = cluster_levels(list(range(9)), line(*range(9)), near, width=4)
    assert found == [{2: [0, 1, 2, 3, 4], 6: [5, 6, 7, 8]}, {2: [2, 6]}]


def test_without_adjoining_nodes_there_is_one_level() -> None:
    assert cluster_levels([1, 2, 3], line(0, 1, 5), {}, width=2) == [{2: [1, 2, 3]}]


@given(st.integers(2, 60), st.integers(2, 8), st.integers(0, 5))
def test_levels_make_one_tree(n: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.random((n, 2))
    delays = np.linalg.norm(points[:, None] - points[None], axis=2)
    # everybody adjoins its two nearest: connected or not, the result must be a tree
    near = {i: set(np.argsort(delays[i])[1:3].tolist()) for i in range(n)}
    at = set(range(n))
    for level in cluster_levels(list(range(n)), delays, near, width):
        members = [m for cluster in level.values() for m in cluster]
        assert sorted(members) == sorted(at)  # each once
        assert all(centre in cluster for centre, cluster in level.items())
        at = set(level)
    assert len(at) == 1


# -- Eq. (8), Algorithms 1 and 2 ---------------------------------------------------------------------------------


def test_gain_is_how_much_closer_the_mean_comes() -> None:
    assert gain((0.9,), (0.7,), (0.5,)) == pytest.approx(0.2)  # .4 away, then .2
    assert gain((0.5,), (0.7,), (0.5,)) == pytest.approx(-0.2)  # there already
    assert gain((0.4,), (0.6,), (0.5,)) == pytest.approx(0.0)  # as far on the other side


def test_gain_of_joining_and_leaving() -> None:
    # members .2, .4, .9: mean .5; with .1: 1.6/4 = .4; without .9: .6/2 = .3
    tally = Tally(3, (1.5,))
    assert tally.mean == pytest.approx((0.5,))
    assert tally.gain_if_joined((0.1,), (0.4,)) == pytest.approx(0.1)
    assert tally.gain_if_left((0.9,), (0.4,)) == pytest.approx(0.1 - 0.1)
    assert Tally(1, (0.3,)).gain_if_left((0.3,), (0.5,)) == 0.0
    assert Tally(0, ()).mean == ()


def test_nearby_size_leaves_oneself_out() -> None:
    # sizes 6, 2, 4: the one of 6 sees the mean of 2 and 4
    assert mean_nearby_size({1: 2, 2: 4}) == 3.0
    assert mean_nearby_size({}) is None


class TestAlgorithm1:
    def test_lists_whose_leaving_helps(self) -> None:
        # .5, .5, .9, .1, .5 with target .5: mean .5 exactly, nobody's leaving helps
        # .5, .5, .9 with target .5: mean .6333; without 2: .5 (gain .1333); without 0 or 1: .7 (gain -.0667)
        listed, forced = nodes_to_offer(
            {0: (0.5,), 1: (0.5,), 2: (0.9,)}, {0: 0, 1: 1, 2: 1}, 0, (0.5,), usual=2.9, excess=1.2
        )
        assert (listed, forced) == ([2], set())

    def test_the_centre_stays_even_if_its_leaving_would_help(self) -> None:
        listed, _ = nodes_to_offer(
            {0: (0.9,), 1: (0.5,), 2: (0.5,)}, {0: 0, 1: 1, 2: 1}, 0, (0.5,), usual=2.9, excess=1.2
        )
        assert listed == []

    def test_a_cluster_that_is_too_large_lists_its_farthest(self) -> None:
        # all at the target: nobody's leaving helps; 6 > 1.2 · 3 = 3.6, so half of the cluster (3) is listed,
        # the farthest first: 5 (3 hops), then 3 and 4 (2 hops) in ascending order
        accuracies = dict.fromkeys(range(6), (0.5,))
        hops = {0: 0, 1: 1, 2: 1, 3: 2, 4: 2, 5: 3}
        assert nodes_to_offer(accuracies, hops, 0, (0.5,), usual=3.0, excess=1.2) == ([5, 3, 4], {3, 4, 5})
        # 6 = 1.2 · 5: not exceeded
        assert nodes_to_offer(accuracies, hops, 0, (0.5,), usual=5.0, excess=1.2) == ([], set())

    def test_who_helps_counts_towards_the_half(self) -> None:
        # mean (5·.5 + .9)/6 = .5667; only 4's leaving helps; then 2 more, the farthest
        accuracies = {n: (0.9,) if n == 4 else (0.5,) for n in range(6)}
        hops = {0: 0, 1: 1, 2: 1, 3: 2, 4: 1, 5: 3}
        assert nodes_to_offer(accuracies, hops, 0, (0.5,), usual=3.0, excess=1.2) == ([4, 5, 3], {3, 5})

    def test_a_cluster_of_two_lists_at_most_its_other_member(self) -> None:
        assert nodes_to_offer({0: (0.5,), 1: (0.5,)}, {0: 0, 1: 1}, 0, (0.5,), usual=1.0, excess=1.2) == ([1], {1})

    @given(
        st.dictionaries(st.integers(1, 20), st.floats(0, 1), max_size=12),
        st.floats(0, 1),
        st.floats(0.5, 10),
    )
    def test_lists_no_one_twice_and_never_the_centre(
        self, others: dict[int, float], target: float, usual: float
    ) -> None:
        accuracies = {0: (0.5,), **{n: (value,) for n, value in others.items()}}
        listed, forced = nodes_to_offer(accuracies, dict.fromkeys(accuracies, 1.0), 0, (target,), usual, 1.2)
        assert len(set(listed)) == len(listed) and 0 not in listed and forced <= set(listed) <= set(others)


class TestExchange:
    def test_asks_for_the_node_that_helps_most(self) -> None:
        # own mean .8 of 2, target .5: with .2 → 1.8/3 = .6 (gain .2); with .5 → .7 (gain .1)
        own = Tally(2, (1.6,))
        assert node_to_request({7: ((0.5,), 1), 8: ((0.2,), 2)}, own, (0.5,), limit=3, small=False) == 8

    def test_not_beyond_the_hop_limit(self) -> None:
        own = Tally(2, (1.6,))
        assert node_to_request({7: ((0.5,), 1), 8: ((0.2,), 4)}, own, (0.5,), limit=3, small=False) == 7

    def test_asks_for_none_that_does_not_help_unless_it_is_far_too_small(self) -> None:
        own = Tally(2, (1.0,))  # mean .5, the target: every other value takes it away
        assert node_to_request({7: ((0.9,), 2), 8: ((0.8,), 3)}, own, (0.5,), limit=3, small=False) is None
        assert node_to_request({7: ((0.9,), 2), 8: ((0.8,), 3)}, own, (0.5,), limit=3, small=True) == 7  # fewest hops
        assert node_to_request({}, own, (0.5,), limit=3, small=True) is None

    def test_far_too_small_is_below_the_usual_size_by_the_excess_rate(self) -> None:
        assert is_far_too_small(2, usual=3.0, excess=1.2)  # 2 < 2.5
        assert not is_far_too_small(3, usual=3.0, excess=1.2)

    def test_the_source_lets_go_who_helps_or_was_forced(self) -> None:
        own = Tally(4, (2.4,))  # mean .6; without .9: 1.5/3 = .5 (gain .1); without .5: 1.9/3 = .6333 (gain -.0333)
        assert may_release(own, (0.9,), (0.5,), forced=False, usual=3.0, excess=1.2, other=3)
        assert not may_release(own, (0.5,), (0.5,), forced=False, usual=3.0, excess=1.2, other=2)
        assert may_release(own, (0.5,), (0.5,), forced=True, usual=3.0, excess=1.2, other=2)

    def test_a_forced_node_is_not_given_back_and_forth(self) -> None:
        # 4 and 3 would become 3 and 4, and then the other way round
        assert not may_release(Tally(4, (2.0,)), (0.5,), (0.5,), forced=True, usual=3.0, excess=1.2, other=3)

    def test_the_source_keeps_enough_members(self) -> None:
        # 3 - 1 = 2 < 3/1.2 = 2.5; and never below two, however small the others are
        assert not may_release(Tally(3, (1.5,)), (0.5,), (0.5,), forced=True, usual=3.0, excess=1.2, other=1)
        assert not may_release(Tally(2, (1.0,)), (0.5,), (0.5,), forced=True, usual=1.0, excess=1.2, other=1)


class TestAlgorithm2:
    def test_joins_where_it_helps_most(self) -> None:
        # accuracy .1, target .5. Cluster 1: mean .8 of 3 → 2.5/4 = .625: gain .3 - .125 = .175
        # cluster 2: mean .6 of 1 → .35: gain .1 - .15 = -.05
        assert choose_cluster({1: Tally(3, (2.4,)), 2: Tally(1, (0.6,))}, (0.1,), (0.5,)) == 1

    def test_joins_the_least_harmed_when_all_lose(self) -> None:
        # both at .5, the target; the larger one moves less: 2.9/5 = .58 (-.08) against 1.9/3 = .6333 (-.1333)
        assert choose_cluster({1: Tally(2, (1.0,)), 2: Tally(4, (2.0,))}, (0.9,), (0.5,)) == 2

    def test_equal_ones_go_to_the_smaller_number(self) -> None:
        assert choose_cluster({3: Tally(2, (1.0,)), 0: Tally(2, (1.0,))}, (0.9,), (0.5,)) == 0


def test_a_statistic_of_several_numbers_is_as_far_as_their_differences_together() -> None:
    # label shares (.5, .5, 0) and (.2, .3, .5): |.3| + |.2| + |.5| = 1, twice the total variation
    assert distance((0.5, 0.5, 0.0), (0.2, 0.3, 0.5)) == pytest.approx(1.0)
    # two devices of label 0 and one of label 1, everybody (.5, .5): (2/3, 1/3) is 1/3 away, with another 1 it is there
    assert Tally(3, (2.0, 1.0)).gain_if_joined((0.0, 1.0), (0.5, 0.5)) == pytest.approx(1 / 3)
    # an accuracy alone would not tell the two labels apart
    assert pooled([Tally(2, (2.0, 0.0)), Tally(1, (0.0, 1.0))]) == Tally(3, (2.0, 1.0))
