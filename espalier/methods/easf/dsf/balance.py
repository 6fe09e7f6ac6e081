"""Clusters whose mean pre-training accuracy is close to everybody's (EASF, Eq. 8, Algorithms 1 and 2).

The accuracy after a short training on a device's own data stands for its data's distribution, which nobody
may look at: a cluster whose mean is near the mean of all holds data like all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


def gain(old: float, new: float, target: float) -> float:
    """Return by how much a cluster's mean accuracy comes closer to the target, Eq. (8); negative if it goes away."""
    return abs(old - target) - abs(new - target)


@dataclass(frozen=True, slots=True)
class Tally:
    """A cluster's size and the sum of its members' accuracies."""

    size: int
    total: float

    @property
    def mean(self) -> float:
        """The mean accuracy (0 of nobody)."""
        return self.total / self.size if self.size else 0.0

    def gain_with(self, accuracy: float, target: float) -> float:
        """Return Eq. (8) for a device that joins."""
        return gain(self.mean, (self.total + accuracy) / (self.size + 1), target)

    def gain_without(self, accuracy: float, target: float) -> float:
        """Return Eq. (8) for a member that leaves; a cluster of one has nothing to compare with."""
        return gain(self.mean, (self.total - accuracy) / (self.size - 1), target) if self.size > 1 else 0.0


def nearby_size(sizes: Mapping[int, int]) -> float | None:
    """Return the mean size of the clusters of nearby central nodes, one's own not among them (None: no others)."""
    return sum(sizes.values()) / len(sizes) if sizes else None


def transferable(
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
    tally = Tally(len(accuracies), sum(accuracies.values()))
    others = sorted(m for m in accuracies if m != centre)
    listed = [m for m in others if tally.gain_without(accuracies[m], target) > 0]
    forced: set[int] = set()
    if tally.size > excess * usual:
        farthest = sorted((m for m in others if m not in listed), key=lambda m: (-hops[m], m))
        while len(listed) < tally.size / 2 and farthest:
            forced.add(farthest[0])
            listed.append(farthest.pop(0))
    return listed, forced


def wished(
    offered: Mapping[int, tuple[float, float]], own: Tally, target: float, limit: int, small: bool
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
    gains = {n: own.gain_with(accuracy, target) for n, (accuracy, hops) in offered.items() if hops <= limit}
    best = max(gains, key=lambda n: (gains[n], -n), default=None)
    if best is not None and gains[best] > 0:
        return best
    return min(offered, key=lambda n: (offered[n][1], n)) if small and offered else None


def far_too_small(size: int, usual: float, excess: float) -> bool:
    """Tell whether a cluster is so small that it takes whom it can get: below ``usual / excess``."""
    return size < usual / excess


def releases(own: Tally, accuracy: float, target: float, forced: bool, usual: float, excess: float, other: int) -> bool:
    """Tell whether a central node lets a listed node go that another, whose cluster has ``other`` members, asks for.

    It keeps at least two members and ``usual / excess`` of them. The leaving must help (Eq. 8 above 0), unless the
    node was listed because the cluster is too large: else such nodes would be listed and never given. Then the other
    cluster must not end up larger than this one: else the node would be given back and forth.
    """
    if own.size - 1 < max(2, usual / excess):
        return False
    return own.gain_without(accuracy, target) > 0 or (forced and other + 1 <= own.size - 1)


def choose_cluster(clusters: Mapping[int, Tally], accuracy: float, target: float) -> int | None:
    """Return the cluster that gains most by a newcomer, Algorithm 2 (None: there is no cluster).

    Also when all lose by it: the newcomer goes where it harms least. Equal ones go to the smaller number.
    """
    best, most = None, -100.0
    for name in sorted(clusters):
        found = clusters[name].gain_with(accuracy, target)
        if found > most:
            best, most = name, found
    return best
