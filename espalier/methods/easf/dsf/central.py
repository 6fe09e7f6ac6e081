"""The central node of a cluster (EASF, Eq. 1), and further levels where there are many clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from espalier.methods.easf.dsf.thp import leads, two_hop_probability

Delays = NDArray[np.float64]
#: one level of a tree: the members of each cluster, by its central node
Level = dict[int, list[int]]


def central(members: Sequence[int], delays: Delays, may: Sequence[bool]) -> int | None:
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


def levels(members: Sequence[int], delays: Delays, near: Mapping[int, set[int]], width: int) -> list[Level]:
    """Return the levels of clusters over central nodes, the root's cluster last.

    Up to ``width`` central nodes are one cluster. More are clustered as devices are (two-hop probability over who
    is near whom, the least delay, Eq. 1), data playing no part, and so on up.

    Args:
        members: The central nodes (all may aggregate).
        delays: Seconds between each pair, ``[n, n]``.
        near: For each, which of the others adjoin it.
        width: The most children that a root should have.
    """
    found: list[Level] = []
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
    root = central(at, delays[np.ix_(rows, rows)], [True] * len(at))
    assert root is not None
    return [*found, {root: at}]


def _cluster(at: Sequence[int], delays: Delays, place: Mapping[int, int], links: Mapping[int, set[int]]) -> Level:
    probability = {m: two_hop_probability(len(links[m]), (len(links[o]) for o in links[m])) for m in at}
    first = [m for m in at if leads(m, probability[m], {o: probability[o] for o in links[m]})]
    joined: Level = {m: [] for m in first}
    for m in at:
        joined[m if m in joined else min(first, key=lambda c: (delays[place[m], place[c]], c))].append(m)
    level: Level = {}
    for cluster in joined.values():
        rows = [place[m] for m in cluster]
        centre = central(cluster, delays[np.ix_(rows, rows)], [True] * len(cluster))
        assert centre is not None
        level[centre] = cluster
    return level
