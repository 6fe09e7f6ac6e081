"""Cutting dendrograms of devices, and giving the clusters places so that few devices move.

How alike devices are, as a method measured it, in the run's record: reports draw it as a heatmap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import squareform

from espalier.core.address import Address
from espalier.core.view import View

#: devices of one recorded matrix at most; of more, every k-th is recorded
MOST_RECORDED_DEVICES = 250


def note_similarity(view: View, devices: Sequence[Address], matrix: ArrayLike, what: str) -> None:
    """Record a matrix ``[n, n]`` over n devices (if there are two); ``what`` says what it measures, with its unit."""
    if len(devices) < 2:
        return
    kept = np.unique(np.linspace(0, len(devices) - 1, min(len(devices), MOST_RECORDED_DEVICES)).round().astype(int))
    values = np.asarray(matrix, dtype=np.float64)[np.ix_(kept, kept)]
    view.note("similarity", what=what, devices=[devices[i] for i in kept.tolist()], matrix=values.round(3))


Floats = NDArray[np.float64]
Clusters = list[list[int]]
Linkage = Literal["average", "complete", "single"]
#: where a cluster lives: an edge, or a name
Place = TypeVar("Place", int, str)


def dendrogram_cut(distances: Floats, count: int, method: Linkage = "average") -> Clusters:
    """Cut the dendrogram of pairwise distances ``[N, N]`` into exactly ``count`` clusters (fewer if N is)."""
    n = len(distances)
    if count >= n:
        return [[i] for i in range(n)]
    if count <= 1:
        return [list(range(n))]
    apart = np.maximum((distances + distances.T) / 2, 0.0)
    np.fill_diagonal(apart, 0.0)
    tree = linkage(squareform(apart, checks=False), method)
    return undo_merges(tree, count)


def undo_merges(tree: Floats, count: int) -> Clusters:
    """Undo the last ``count - 1`` merges of a linkage ``tree``: exactly ``count`` clusters, also among ties."""
    n = len(tree) + 1
    members: dict[int, list[int]] = {i: [i] for i in range(n)}
    for step in range(n - count):
        left, right = int(tree[step, 0]), int(tree[step, 1])
        members[n + step] = members.pop(left) + members.pop(right)
    return sorted((sorted(c) for c in members.values()), key=lambda c: c[0])


def cut_at(tree: Floats, threshold: float) -> Clusters:
    """Cut a linkage ``tree`` at a distance."""
    labels = fcluster(tree, threshold, criterion="distance")
    found = [np.flatnonzero(labels == k).tolist() for k in np.unique(labels)]
    return sorted(found, key=lambda c: c[0])


def match(clusters: Sequence[Sequence[int]], current: Mapping[int, Place], places: Sequence[Place]) -> dict[int, Place]:
    """Give each cluster a place so that as few devices as possible move: place by device.

    Args:
        clusters: At most as many clusters as places.
        current: Where each device is now.
        places: The places.
    """
    where = {place: i for i, place in enumerate(places)}
    overlap = np.zeros((len(clusters), len(places)))
    for k, members in enumerate(clusters):
        for device in members:
            if device in current and current[device] in where:
                overlap[k, where[current[device]]] += 1
    chosen, at = linear_sum_assignment(-overlap)
    return {device: places[p] for k, p in zip(chosen.tolist(), at.tolist(), strict=True) for device in clusters[k]}
