"""Which devices lead at first: the two-hop return probability of the network's graph (EASF, Eq. 9)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def two_hop_probability(degree: int, neighbour_degrees: Iterable[int]) -> float:
    """Return the probability that a random walk is back after two hops, Eq. (9).

    ``sum over neighbours j of 1 / (Deg(i) * Deg(j))``. Few-linked neighbours make it large: they have nobody
    else to pass a message on to.
    """
    return sum(1.0 / (degree * other) for other in neighbour_degrees)


def leads(me: int, mine: float, others: Mapping[int, float]) -> bool:
    """Tell whether a device is a central node: its probability exceeds that of every neighbour.

    Equal probabilities go to the smaller number. By the strict comparison of the paper a regular graph, where
    all are equal, would have no central node at all.

    Args:
        me: The device.
        mine: Its two-hop return probability.
        others: Those of its neighbours, by device.
    """
    return all((mine, -me) > (value, -other) for other, value in others.items())
