"""Clustering devices by what they learnt: the arithmetic of FL+HC, CFL and ICFL on updates.

An update is the difference between a device's trained model and the model it started from, parameters only: the running
statistics of normalisation layers say nothing of the direction of learning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import pdist, squareform
from torch import Tensor

from espalier.policies.dendrogram import Clusters, Floats, Linkage, cut_at, dendrogram_cut, undo_merges

Metric = Literal["l1", "l2", "cosine"]

#: parameters whose updates are computed on in double precision at once
_BLOCK = 1 << 16


def _blocks(updates: Tensor) -> Iterator[Floats]:
    """Cut updates ``[N, P]`` into double-precision column blocks: memory stays small however large the model is."""
    for at in range(0, updates.shape[1], _BLOCK):
        yield updates[:, at : at + _BLOCK].double().numpy()


def gram(updates: Tensor) -> Floats:
    """Return the inner products ``[N, N]`` of updates ``[N, P]``, in double precision."""
    total = np.zeros((len(updates), len(updates)))
    for block in _blocks(updates):
        total += block @ block.T
    return total


def cosines_of_gram(gram: Floats, lengths: Floats | None = None) -> Floats:
    """Return cosines ``[N, N]`` from inner products ``[N, N]``."""
    norms = np.sqrt(np.maximum(np.diag(gram), 0.0)) if lengths is None else lengths
    scale = np.outer(norms, norms)
    found: Floats = np.divide(gram, scale, out=np.zeros_like(gram), where=scale > 0)
    found = np.clip(found, -1.0, 1.0)
    np.fill_diagonal(found, 1.0)
    return found


def update_cosines(updates: Tensor) -> Floats:
    """Return the pairwise cosines ``[N, N]`` of updates ``[N, P]``."""
    return cosines_of_gram(gram(updates))


def distances(updates: Tensor, metric: Metric) -> Floats:
    """Return pairwise distances ``[N, N]``: city block, Euclidean, or one minus the cosine."""
    if metric == "cosine":
        return 1.0 - update_cosines(updates)
    total = np.zeros(len(updates) * (len(updates) - 1) // 2)
    for block in _blocks(updates):
        total += pdist(block, "cityblock" if metric == "l1" else "sqeuclidean")
    found: Floats = squareform(total if metric == "l1" else np.sqrt(total))
    return found


def hierarchical(
    apart: Floats, *, threshold: float | None = None, count: int | None = None, method: Linkage = "average"
) -> Clusters:
    """FL+HC: agglomerate devices by distances ``[N, N]`` and cut at a distance, or into ``count`` clusters."""
    if len(apart) < 2:
        return [list(range(len(apart)))]
    tree = linkage(squareform(apart, checks=False), method)
    if count is not None:
        return undo_merges(tree, min(count, len(apart)))
    return cut_at(tree, np.inf if threshold is None else threshold)


# -- CFL ---------------------------------------------------------------------------------------------------


def norms_of(products: Floats, weights: Floats) -> tuple[float, float]:
    """Return (norm of the weighted mean update, greatest norm of an update) from inner products ``[N, N]``."""
    share = weights / weights.sum()
    return float(np.sqrt(max(share @ products @ share, 0.0))), float(np.sqrt(max(np.diag(products).max(), 0.0)))


def may_split(mean: float, greatest: float, eps1: float, eps2: float) -> bool:
    """CFL's condition: the cluster as a whole has come to rest, some of its devices have not."""
    return mean < eps1 and greatest > eps2


def bipartition(cosine: Floats, most: float) -> tuple[list[int], list[int]] | None:
    """CFL's split: two sides by complete linkage on ``1 - cos``; none if the sides are too alike.

    Args:
        cosine: Cosines ``[n, n]`` among the devices of one cluster.
        most: The split holds only if no two devices of different sides have a cosine of this or more.

    Returns:
        Places *within the cluster*: the caller maps them back to devices.
    """
    if len(cosine) < 2:
        return None
    first, second = dendrogram_cut(1.0 - cosine, 2, "complete")
    return (first, second) if float(cosine[np.ix_(first, second)].max()) < most else None


# -- ICFL --------------------------------------------------------------------------------------------------


def incremental(
    connectivity: Floats,
    current: Mapping[int, int],
    threshold: float,
    most: int,
    margin: float = 0.05,
) -> dict[int, int]:
    """ICFL's first step: devices in order join the cluster they are best connected with.

    A device without a cluster joins the best one if its mean connectivity there is at least ``threshold``, else it
    opens a new one (or joins the best all the same if there are ``most``). A device that has one moves only to a
    cluster above the threshold and better by ``margin``; alone in its cluster, it has nothing there to lose.

    Args:
        connectivity: Cosines ``[N, N]``.
        current: Cluster by device, for those that have one.
        threshold: Least mean connectivity.
        most: Greatest number of clusters.
        margin: By how much another cluster must be better.

    Returns:
        Cluster by device, for all devices.
    """
    place = dict(current)
    for device in range(len(connectivity)):
        members: dict[int, list[int]] = {}
        for other, cluster in place.items():
            if other != device:
                members.setdefault(cluster, []).append(other)
        means = {c: float(connectivity[device, m].mean()) for c, m in members.items()}
        best = min(means, key=lambda c: (-means[c], c)) if means else None
        here = place.get(device)
        if here is None:
            if best is not None and (means[best] >= threshold or len(members) >= most):
                place[device] = best
            else:
                place[device] = max([*members, -1]) + 1
        elif best is not None and best != here and means[best] >= threshold:
            place[device] = best if here not in means or means[best] > means[here] + margin else here
    return place


def reconcile(
    connectivity: Floats,
    clusters: Clusters,
    threshold: float,
    most: int,
    norms: Floats | None = None,
    least: float = 0.0,
) -> Clusters:
    """ICFL's second step: merge the best connected pair while it is above the threshold, then split loose clusters.

    A cluster of more than two devices whose mean internal connectivity is below the threshold is split in two by
    complete linkage, if there are fewer than ``most`` and the mean of its devices' ``norms [N]`` is ``least`` or more:
    near the end of training only noise is left of a good cluster's updates, and halving it would go on for ever.
    """
    found = [list(c) for c in clusters if c]
    while len(found) > 1:
        pairs = [(i, j) for i in range(len(found)) for j in range(i + 1, len(found))]
        across = [float(connectivity[np.ix_(found[i], found[j])].mean()) for i, j in pairs]
        best = int(np.argmax(across))
        if across[best] < threshold:
            break
        i, j = pairs[best]
        found[i] = sorted(found[i] + found.pop(j))
    for members in list(found):
        moving = norms is None or float(norms[members].mean()) >= least
        if moving and len(members) > 2 and len(found) < most and internal(connectivity, members) < threshold:
            sides = dendrogram_cut(1.0 - connectivity[np.ix_(members, members)], 2, "complete")
            found.remove(members)
            found += [[members[i] for i in side] for side in sides]
    return sorted((sorted(c) for c in found), key=lambda c: c[0])


def internal(connectivity: Floats, members: Sequence[int]) -> float:
    """Return the mean connectivity among the devices of a cluster (1 for a single one)."""
    own = connectivity[np.ix_(members, members)]
    n = len(members)
    return 1.0 if n < 2 else float((own.sum() - np.trace(own)) / (n * (n - 1)))
