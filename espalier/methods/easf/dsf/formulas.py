"""The paper's equations and algorithms about structure, as pure functions.

Eq. (9) elects the first central nodes, Eq. (1) picks a cluster's central node, Eq. (8) with Algorithms 1 and 2 says
which members clusters exchange and which cluster a newcomer joins.

The accuracy after a short training on a device's own data stands for its data's distribution, which nobody may look
at: a cluster whose mean is near the mean of all holds data like all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Delays = NDArray[np.float64]
#: one level of a tree: the members of each cluster, by its central node
TreeLevel = dict[int, list[int]]

# -- the first central nodes: Eq. (9) ----------------------------------------------------------------------------


def two_hop_probability(degree: int, neighbour_degrees: Iterable[int]) -> float:
    """Return the probability that a random walk is back after two hops, Eq. (9).

    ``sum over neighbours j of 1 / (Deg(i) * Deg(j))``. Few-linked neighbours make it large: they have nobody
    else to pass a message on to.
    """
    return sum(1.0 / (degree * other) for other in neighbour_degrees)


def is_first_centre(me: int, mine: float, others: Mapping[int, float]) -> bool:
    """Tell whether a device is a central node: its probability exceeds that of every neighbour.

    Equal probabilities go to the smaller number. By the strict comparison of the paper a regular graph, where
    all are equal, would have no central node at all.

    Args:
        me: The device.
        mine: Its two-hop return probability.
        others: Those of its neighbours, by device.
    """
    return all((mine, -me) > (value, -other) for other, value in others.items())


# -- the central node of a cluster: Eq. (1) ----------------------------------------------------------------------


def central_node(members: Sequence[int], delays: Delays, may: Sequence[bool]) -> int | None:
    """Return the member with the smallest sum of delays to the others, Eq. (1).

    ``argmin_j sum_{i != j} d_ij`` among those that may aggregate; equal sums go to the smaller number. None if
    nobody may.

    Args:
        members: The cluster's devices.
        delays: Seconds between each pair of them, ``[n, n]``, 0 on the diagonal.
        may: Which of them may aggregate.
    """
    sums = np.asarray(delays, dtype=np.float64).sum(axis=1)
    able = [(float(s), m) for s, m, fit in zip(sums, members, may, strict=True) if fit]
    return min(able)[1] if able else None


def cluster_levels(members: Sequence[int], delays: Delays, near: Mapping[int, set[int]], width: int) -> list[TreeLevel]:
    """Return the levels of clusters over central nodes, the root's cluster last.

    Up to ``width`` central nodes are one cluster. More are clustered as devices are (two-hop probability over who
    is near whom, the least delay, Eq. 1), data playing no part, and so on up.

    Args:
        members: The central nodes (all may aggregate).
        delays: Seconds between each pair, ``[n, n]``.
        near: For each, which of the others adjoin it.
        width: The most children that a root should have.
    """
    found: list[TreeLevel] = []
    place = {m: i for i, m in enumerate(members)}
    at, links = list(members), {m: set(near.get(m, ())) & set(members) for m in members}
    for a, others in links.items():
        for b in others:
            links[b].add(a)
    while len(at) > width:
        level = _cluster(at, delays, place, links)
        if len(level) == len(at):
            break  # nobody adjoins anybody: there is no way to cluster further
        found.append(level)
        of = {m: centre for centre, cluster in level.items() for m in cluster}
        links = {c: {of[b] for m in cluster for b in links[m]} - {c} for c, cluster in level.items()}
        at = sorted(level)
    rows = [place[m] for m in at]
    root = central_node(at, delays[np.ix_(rows, rows)], [True] * len(at))
    assert root is not None
    return [*found, {root: at}]


def _cluster(at: Sequence[int], delays: Delays, place: Mapping[int, int], links: Mapping[int, set[int]]) -> TreeLevel:
    probability = {m: two_hop_probability(len(links[m]), (len(links[o]) for o in links[m])) for m in at}
    first = [m for m in at if is_first_centre(m, probability[m], {o: probability[o] for o in links[m]})]
    joined: TreeLevel = {m: [] for m in first}
    for m in at:
        joined[m if m in joined else min(first, key=lambda c: (delays[place[m], place[c]], c))].append(m)
    level: TreeLevel = {}
    for cluster in joined.values():
        rows = [place[m] for m in cluster]
        centre = central_node(cluster, delays[np.ix_(rows, rows)], [True] * len(cluster))
        assert centre is not None
        level[centre] = cluster
    return level


# -- balance of accuracy: Eq. (8), Algorithms 1 and 2 ------------------------------------------------------------


def gain(old: float, new: float, target: float) -> float:
    """Return by how much a cluster's mean accuracy comes closer to the target, Eq. (8); negative if it goes away."""
    return abs(old - target) - abs(new - target)


@dataclass(frozen=True, slots=True)
class AccuracyTally:
    """A cluster's size and the sum of its members' accuracies."""

    size: int
    total: float

    @property
    def mean(self) -> float:
        """The mean accuracy (0 of nobody)."""
        return self.total / self.size if self.size else 0.0

    def gain_if_joined(self, accuracy: float, target: float) -> float:
        """Return Eq. (8) for a device that joins."""
        return gain(self.mean, (self.total + accuracy) / (self.size + 1), target)

    def gain_if_left(self, accuracy: float, target: float) -> float:
        """Return Eq. (8) for a member that leaves; a cluster of one has nothing to compare with."""
        return gain(self.mean, (self.total - accuracy) / (self.size - 1), target) if self.size > 1 else 0.0


def mean_nearby_size(sizes: Mapping[int, int]) -> float | None:
    """Return the mean size of the clusters of nearby central nodes, one's own not among them (None: no others)."""
    return sum(sizes.values()) / len(sizes) if sizes else None


def nodes_to_offer(
    accuracies: Mapping[int, float], hops: Mapping[int, float], centre: int, target: float, usual: float, excess: float
) -> tuple[list[int], set[int]]:
    """Return which members a central node would let go, and which of them only because it has too many: Algorithm 1.

    Members whose leaving brings the mean closer to the target come first, in ascending order. If the cluster has
    more than ``excess`` times the usual size, the farthest members follow until half of the cluster is listed.

    Args:
        accuracies: Pre-training accuracy of every member, the central node's own included.
        hops: Hops between the central node and each member.
        centre: The central node, which stays.
        target: Mean pre-training accuracy of all devices.
        usual: Mean size of nearby clusters.
        excess: The rate rho_e > 1.
    """
    tally = AccuracyTally(len(accuracies), sum(accuracies.values()))
    others = sorted(m for m in accuracies if m != centre)
    listed = [m for m in others if tally.gain_if_left(accuracies[m], target) > 0]
    forced: set[int] = set()
    if tally.size > excess * usual:
        farthest = sorted((m for m in others if m not in listed), key=lambda m: (-hops[m], m))
        while len(listed) < tally.size / 2 and farthest:
            forced.add(farthest[0])
            listed.append(farthest.pop(0))
    return listed, forced


def node_to_request(
    offered: Mapping[int, tuple[float, float]], own: AccuracyTally, target: float, limit: int, small: bool
) -> int | None:
    """Return which offered node a central node asks for, if any.

    The one whose joining helps most (Eq. 8 above 0) within the hop limit; a cluster that is far too small takes
    the nearest instead of none. Equal ones go to the smaller number.

    Args:
        offered: Accuracy and hops from this central node, by node.
        own: The cluster as it is.
        target: Mean pre-training accuracy of all devices.
        limit: The hop limit.
        small: Whether the cluster is far smaller than those nearby.
    """
    gains = {n: own.gain_if_joined(accuracy, target) for n, (accuracy, hops) in offered.items() if hops <= limit}
    best = max(gains, key=lambda n: (gains[n], -n), default=None)
    if best is not None and gains[best] > 0:
        return best
    return min(offered, key=lambda n: (offered[n][1], n)) if small and offered else None


def is_far_too_small(size: int, usual: float, excess: float) -> bool:
    """Tell whether a cluster is so small that it takes whom it can get: below ``usual / excess``."""
    return size < usual / excess


def may_release(
    own: AccuracyTally, accuracy: float, target: float, forced: bool, usual: float, excess: float, other: int
) -> bool:
    """Tell whether a central node lets a listed node go that another, whose cluster has ``other`` members, asks for.

    It keeps at least two members and ``usual / excess`` of them. The leaving must help (Eq. 8 above 0), unless the
    node was listed because the cluster is too large: else such nodes would be listed and never given. Then the other
    cluster must not end up larger than this one: else the node would be given back and forth.
    """
    if own.size - 1 < max(2, usual / excess):
        return False
    return own.gain_if_left(accuracy, target) > 0 or (forced and other + 1 <= own.size - 1)


def choose_cluster(clusters: Mapping[int, AccuracyTally], accuracy: float, target: float) -> int | None:
    """Return the cluster that gains most by a newcomer, Algorithm 2 (None: there is no cluster).

    Also when all lose by it: the newcomer goes where it harms least. Equal ones go to the smaller number.
    """
    best, most = None, -100.0
    for name in sorted(clusters):
        found = clusters[name].gain_if_joined(accuracy, target)
        if found > most:
            best, most = name, found
    return best
