"""Eq. (9) and who leads by it, on graphs worked by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.methods.easf.dsf.thp import leads, two_hop_probability

Graph = dict[int, set[int]]

STAR: Graph = {0: {1, 2, 3}, 1: {0}, 2: {0}, 3: {0}}
PATH: Graph = {0: {1}, 1: {0, 2}, 2: {1, 3}, 3: {2}}
RING: Graph = {i: {(i - 1) % 4, (i + 1) % 4} for i in range(4)}


def probabilities(graph: Graph) -> dict[int, float]:
    return {v: two_hop_probability(len(n), [len(graph[u]) for u in n]) for v, n in graph.items()}


def centres(graph: Graph) -> list[int]:
    p = probabilities(graph)
    return [v for v in graph if leads(v, p[v], {u: p[u] for u in graph[v]})]


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
