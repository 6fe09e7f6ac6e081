"""Federated dynamic clustering: CFLHKD's sorted, threshold-based clustering of affinity rows (section 4.4).

A device is its row of the affinity matrix. Devices come in the order of Eq. (18); each joins the cluster whose centroid
is within ``delta`` of its row, else opens a new one. A cluster whose variance exceeds ``delta ** 2`` is split.

The paper leaves open how far "dist" goes and what "merging or splitting" means. Distances are Euclidean between rows
(``scaled`` divides them by the square root of the number of devices); centroids run along; at most ``most`` clusters,
whoever finds no room joins the nearest. A cluster with too much variance is split in two by 2-means, and a half of it
may join another cluster if their common variance stays within bounds; clusters that were not split are left alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from espalier.methods.cflhkd.affinity import ranking
from espalier.policies.dendrogram import Clusters, Floats, dendrogram_cut


def scaled_rows(affinities: Floats, scaled: bool) -> Floats:
    """Return the rows between which distances are taken."""
    return affinities / np.sqrt(len(affinities)) if scaled else affinities


def assign(
    rows: Floats, order: Sequence[int], delta: float, most: int, start: Sequence[Sequence[int]] = ()
) -> Clusters:
    """Give each device of ``order`` to the nearest cluster within ``delta``, or to a new one.

    Args:
        rows: Affinity rows ``[N, N]``.
        order: The devices to place.
        delta: Greatest distance to a centroid.
        most: Greatest number of clusters; when they are full the nearest takes everybody.
        start: Clusters that exist; an empty one takes nobody until it is opened again.

    Returns:
        The clusters: those of ``start`` first and in their order, then new ones.
    """
    clusters: Clusters = [list(c) for c in start]
    sums = [rows[c].sum(0) if c else np.zeros(rows.shape[1]) for c in clusters]
    for device in order:
        open_ones = [k for k, c in enumerate(clusters) if c]
        away = [float(np.linalg.norm(rows[device] - sums[k] / len(clusters[k]))) for k in open_ones]
        best = int(np.argmin(away)) if away else -1
        if best >= 0 and (away[best] <= delta or len(open_ones) >= most):
            clusters[open_ones[best]].append(device)
            sums[open_ones[best]] += rows[device]
            continue
        empty = [k for k, c in enumerate(clusters) if not c]
        if empty:
            clusters[empty[0]], sums[empty[0]] = [device], rows[device].copy()
        else:
            clusters.append([device])
            sums.append(rows[device].copy())
    return [sorted(c) for c in clusters]


def variance(rows: Floats, members: Sequence[int]) -> float:
    """Return the mean squared distance of a cluster's rows from their centroid."""
    own = rows[list(members)]
    return float(((own - own.mean(0)) ** 2).sum(1).mean())


def halves(rows: Floats, members: Sequence[int]) -> tuple[list[int], list[int]]:
    """Split a cluster by 2-means, started from its two devices that are farthest apart."""
    own = rows[list(members)]
    gaps = np.linalg.norm(own[:, None] - own[None], axis=2)
    a, b = np.unravel_index(int(gaps.argmax()), gaps.shape)
    centres = own[[a, b]]
    side = np.zeros(len(own), dtype=bool)
    for _ in range(50):
        new = np.linalg.norm(own - centres[1], axis=1) < np.linalg.norm(own - centres[0], axis=1)
        if new.all() or not new.any() or np.array_equal(new, side):
            break
        side, centres = new, np.stack([own[~new].mean(0), own[new].mean(0)])
    first = [m for m, s in zip(members, side, strict=True) if not s]
    second = [m for m, s in zip(members, side, strict=True) if s]
    return first, second


def control(rows: Floats, clusters: Clusters, delta: float, most: int) -> Clusters:
    """Split clusters whose variance exceeds ``delta ** 2`` while there is room; a second call changes nothing."""
    done = [list(c) for c in clusters if c]
    todo = True
    while todo:
        todo = False
        for members in [c for c in done if len(c) > 1 and variance(rows, c) > delta**2]:
            if len(done) >= most:
                break
            first, second = halves(rows, members)
            if not first or not second:
                continue
            done.remove(members)
            done += [first, second]
            for half in (first, second):
                _join(rows, done, half, delta)
            todo = True
    return sorted((sorted(c) for c in done), key=lambda c: c[0])


def _join(rows: Floats, clusters: Clusters, half: list[int], delta: float) -> None:
    """Let a half of a split cluster join the cluster with which its variance is least, if it is within bounds."""
    others = [c for c in clusters if c is not half]
    together = [variance(rows, half + c) for c in others]
    if not together or min(together) > delta**2:
        return
    partner = others[int(np.argmin(together))]
    clusters.remove(half)
    clusters[clusters.index(partner)] = sorted(partner + half)


def cluster(affinities: Floats, delta: float, most: int, *, least: int = 1, scaled: bool = False) -> Clusters:
    """Cluster devices by their affinities ``[N, N]``: assignment, then variance control.

    Fewer than ``least`` clusters are replaced by the cut of the average-linkage dendrogram of ``1 - A`` into
    ``least``.
    """
    n = len(affinities)
    rows = scaled_rows(affinities, scaled)
    found = control(rows, assign(rows, ranking(affinities), delta, most), delta, most)
    least = min(least, most, n)
    return found if len(found) >= least else dendrogram_cut(1.0 - affinities, least)
