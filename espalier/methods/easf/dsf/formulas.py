"""The paper's equations and algorithms about structure, as pure functions.

Eq. (9) elects the first central nodes, Eq. (1) picks a cluster's central node, Eq. (8) with Algorithms 1 and 2 says
which members clusters exchange and which cluster a newcomer joins.

The accuracy after a short training on a device's own data stands for its data's distribution, which nobody may look
at: a cluster whose mean is near the mean of all holds data like all. Here it is one number of a *statistic*, a tuple:
what stands for the data may have several (recall by class, label shares), and distances are sums over them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

Delays = NDArray[np.float64]
#: what stands for a device's data: a pre-training accuracy, or several numbers
Statistic = tuple[float, ...]
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


# -- balance of data: Eq. (8), Algorithms 1 and 2 ------------------------------------------------------------


def distance(one: Statistic, other: Statistic) -> float:
    """Return the sum of absolute differences: |a - b| of accuracies, twice the total variation of label shares."""
    return sum(abs(a - b) for a, b in zip_longest(one, other, fillvalue=0.0))


def gain(old: Statistic, new: Statistic, target: Statistic) -> float:
    """Return by how much a cluster's mean statistic comes closer to the target, Eq. (8); negative if it goes away."""
    return distance(old, target) - distance(new, target)


@dataclass(frozen=True, slots=True)
class Tally:
    """A cluster's size and the sum of its members' statistics."""

    size: int
    total: Statistic

    @property
    def mean(self) -> Statistic:
        """The mean statistic (of nobody: nothing)."""
        return tuple(v / self.size for v in self.total) if self.size else ()

    def gain_if_joined(self, statistic: Statistic, target: Statistic) -> float:
        """Return Eq. (8) for a device that joins."""
        return gain(self.mean, pooled([self, Tally(1, statistic)]).mean, target)

    def gain_if_left(self, statistic: Statistic, target: Statistic) -> float:
        """Return Eq. (8) for a member that leaves; a cluster of one has nothing to compare with."""
        left = pooled([self, Tally(-1, tuple(-v for v in statistic))])
        return gain(self.mean, left.mean, target) if self.size > 1 else 0.0


def pooled(tallies: Iterable[Tally]) -> Tally:
    """Return the tally of several clusters together."""
    several = list(tallies)
    total = tuple(map(sum, zip_longest(*(t.total for t in several), fillvalue=0.0)))
    return Tally(sum(t.size for t in several), total)


def mean_nearby_size(sizes: Mapping[int, int]) -> float | None:
    """Return the mean size of the clusters of nearby central nodes, one's own not among them (None: no others)."""
    return sum(sizes.values()) / len(sizes) if sizes else None


def nodes_to_offer(
    statistics: Mapping[int, Statistic], hops: Mapping[int, float], centre: int, target: Statistic, usual: float,
    excess: float,
) -> tuple[list[int], set[int]]:  # fmt: skip
    """Return which members a central node would let go, and which of them only because it has too many: Algorithm 1.

    Members whose leaving brings the mean closer to the target come first, in ascending order. If the cluster has
    more than ``excess`` times the usual size, the farthest members follow until half of the cluster is listed.

    Args:
        statistics: Statistic of every member, the central node's own included.
        hops: Hops between the central node and each member.
        centre: The central node, which stays.
        target: Mean statistic of all devices.
        usual: Mean size of nearby clusters.
        excess: The rate rho_e > 1.
    """
    tally = pooled(Tally(1, s) for s in statistics.values())
    others = sorted(m for m in statistics if m != centre)
    listed = [m for m in others if tally.gain_if_left(statistics[m], target) > 0]
    forced: set[int] = set()
    if tally.size > excess * usual:
        farthest = sorted((m for m in others if m not in listed), key=lambda m: (-hops[m], m))
        while len(listed) < tally.size / 2 and farthest:
            forced.add(farthest[0])
            listed.append(farthest.pop(0))
    return listed, forced


def node_to_request(
    offered: Mapping[int, tuple[Statistic, float]], own: Tally, target: Statistic, limit: int, small: bool
) -> int | None:
    """Return which offered node a central node asks for, if any.

    The one whose joining helps most (Eq. 8 above 0) within the hop limit; a cluster that is far too small takes
    the nearest instead of none. Equal ones go to the smaller number.

    Args:
        offered: Statistic and hops from this central node, by node.
        own: The cluster as it is.
        target: Mean statistic of all devices.
        limit: The hop limit.
        small: Whether the cluster is far smaller than those nearby.
    """
    gains = {n: own.gain_if_joined(statistic, target) for n, (statistic, hops) in offered.items() if hops <= limit}
    best = max(gains, key=lambda n: (gains[n], -n), default=None)
    if best is not None and gains[best] > 0:
        return best
    return min(offered, key=lambda n: (offered[n][1], n)) if small and offered else None


def is_far_too_small(size: int, usual: float, excess: float) -> bool:
    """Tell whether a cluster is so small that it takes whom it can get: below ``usual / excess``."""
    return size < usual / excess


def may_release(
    own: Tally, statistic: Statistic, target: Statistic, forced: bool, usual: float, excess: float, other: int
) -> bool:
    """Tell whether a central node lets a listed node go that another, whose cluster has ``other`` members, asks for.

    It keeps at least two members and ``usual / excess`` of them. The leaving must help (Eq. 8 above 0), unless the
    node was listed because the cluster is too large: else such nodes would be listed and never given. Then the other
    cluster must not end up larger than this one: else the node would be given back and forth.
    """
    if own.size - 1 < max(2, usual / excess):
        return False
    return own.gain_if_left(statistic, target) > 0 or (forced and other + 1 <= own.size - 1)


def choose_cluster(clusters: Mapping[int, Tally], statistic: Statistic, target: Statistic) -> int:
    """Return the cluster (there is at least one) that gains most by a newcomer, Algorithm 2.

    Also when all lose by it: the newcomer goes where it harms least. Equal ones go to the smaller number.
    """
    gains = {name: clusters[name].gain_if_joined(statistic, target) for name in clusters}
    return max(gains, key=lambda name: (gains[name], -name))
