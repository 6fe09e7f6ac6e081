"""With whom clients share masks: the degree by hand, and graphs that are what they should be."""

from __future__ import annotations

from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.secure import degree, ring
from espalier.secure.graph import Degree


def test_the_degree_by_hand() -> None:
    # n = 6, one client of six may lie (γ = 1/6), nobody is lost, p = 0.5.
    # k = 2: those who are left hang together if 6 · (1/6)^1 = 1 ≤ p: no.
    # k = 4: 6 · (1/6)^2 = 1/6 ≤ p. X ~ Hypergeometric(5, 1, 4): P(X ≥ 1) = 4/5, P(X ≥ 2) = 0. Of five holders t = 3
    #        asks for 6 · P(X ≥ 2·3 − 5 = 1) = 4.8 ≤ p: no; t = 4 for 6 · P(X ≥ 3) = 0: yes.
    #        Good shares are left with 6 · P(5 − Y < 4) = 6 · P(Y ≥ 2) = 0.
    # k = 4 = n − 2 is smaller than the complete graph's 5.
    assert degree(6, 5, 0.0, 1 / 6, 0.5) == Degree(4, 4)
    # p = 0.1: 6 · (1/6)^2 is more than that. It is the complete graph, with its own threshold.
    assert degree(6, 5, 0.0, 1 / 6, 0.1) == Degree(5, 5)


@pytest.mark.parametrize(("clients", "dropouts", "liars"), [(100, 0.1, 0.05), (1000, 0.1, 0.05), (400, 0.05, 0.1)])
def test_the_degree_keeps_its_promises(clients: int, dropouts: float, liars: float) -> None:
    """The three conditions in whole numbers, and that two neighbours fewer break one of them."""
    failure = 1e-9

    def tail(bad: int, k: int, least: int) -> float:
        """P(X ≥ least) for X ~ Hypergeometric(n − 1, bad, k)."""
        ways = sum(comb(bad, x) * comb(clients - 1 - bad, k - x) for x in range(max(0, least), min(bad, k) + 1))
        return ways / comb(clients - 1, k)

    def holds(k: int, t: int) -> bool:
        lie, miss = -int(-liars * clients // 1), -int(-(liars + dropouts) * clients // 1)
        both = clients * tail(lie, k, 2 * t - k - 1) <= failure
        left = clients * tail(miss, k, k + 2 - t) <= failure
        return both and left and clients * (liars + dropouts) ** (k / 2) <= failure

    found = degree(clients, clients, dropouts, liars, failure)
    assert found.neighbours < clients - 1
    assert holds(found.neighbours, found.threshold)
    assert not any(holds(found.neighbours - 2, t) for t in range(found.neighbours + 1))


def test_small_groups_are_complete() -> None:
    for n in range(1, 26):
        assert degree(n, n // 2 + 1, 0.1, 0.05, 1e-9) == Degree(n - 1, n // 2 + 1)


@given(clients=st.integers(2, 40), half=st.integers(1, 8))
def test_everybody_has_as_many_neighbours(clients: int, half: int) -> None:
    graph = ring(range(clients), 2 * half)
    assert all({c for c in graph if n in graph[c]} == graph[n] for n in graph)
    assert {len(others) for others in graph.values()} == {min(2 * half, clients - 1)}
    assert all(n not in others for n, others in graph.items())


def test_a_ring_is_another_one_every_time() -> None:
    assert len({str(sorted(ring(range(50), 4).items())) for _ in range(5)}) == 5
