"""Federated dynamic clustering: CFLHKD's sorted, threshold-based clustering by affinities (section 4.4).

Devices come in the order of Eq. (18); each joins the cluster whose centroid is nearest, if it is within ``delta`` of
the device's row of the affinity matrix, else it opens a new one. A cluster whose variance exceeds ``delta ** 2`` is
split by 2-means, and a half of it may join another cluster if their common variance stays within bounds.

The paper leaves open which entries of a row count in "dist". All of them (``rows``): distances grow with the fleet, so
that the paper's 0.7 opens a cluster per device among a hundred with Dirichlet labels, and the limit ``most`` decides.
Those of the cluster's members (``members``, the default): the distance says how differently a device and the cluster
stand to the cluster itself. On the paper's own check (0.3, 0.7 and 0.9 end with 8, 6 and 3 clusters; 40 and 100
devices, Dirichlet 0.5 on digits, updates after eight rounds, no limit) we found

=============================  ============  ==============
dist                           40 devices    100 devices
=============================  ============  ==============
rows                           40, 38, 32    100, 100, 98
rows, over the root of n       2, 1, 1       2, 1, 1
one minus mean affinity        24, 4, 1      40, 4, 1
members                        22, 5, 3      37, 11, 7
=============================  ============  ==============

and only ``members`` needs the control of the variance: a centroid that was near when a device joined may be far when
the cluster is complete.

What is known of a device is its label histogram and, once it has trained, something whose cosines are those of its
updates: :class:`AffinityRule` makes affinities of both (Eq. 17), and clusters over places (edges, or names at the
cloud).

The printed Eq. (17) adds a divergence (small is alike) to a similarity (large is alike). We turn the divergence
around: ``A = gamma (1 - JSD) + (1 - gamma) cos``, the divergence in bits so that it lies in [0, 1]. Identical
devices have affinity 1.

Cosines of updates are wanted where the updates are not: an edge has its devices' models, the cloud has none of them.
A :class:`Sketch` folds an update of any length into a few hundred numbers whose cosines are those of the
updates, up to about ``1 / sqrt(size)``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from espalier.core.address import Address
from espalier.core.errors import ConfigError
from espalier.policies.dendrogram import Clusters, Floats, Place, dendrogram_cut, match
from espalier.policies.update_clustering import cosines_of_gram


def distributions(histograms: ArrayLike) -> Floats:
    """Scale histograms ``[N, C]`` to sum one each (an empty one becomes uniform)."""
    counts = np.atleast_2d(np.asarray(histograms, dtype=np.float64))
    sums = counts.sum(1, keepdims=True)
    return np.where(sums > 0, counts / np.where(sums > 0, sums, 1.0), 1.0 / counts.shape[1])


def jensen_shannon(p: ArrayLike, q: ArrayLike) -> float:
    """Return the Jensen–Shannon divergence of two histograms ``[C]`` in bits: 0 alike, 1 disjoint."""
    return float(_divergences(distributions(p)[0], distributions(q))[0])


def jensen_shannon_matrix(histograms: ArrayLike) -> Floats:
    """Return the pairwise divergences ``[N, N]`` of histograms ``[N, C]`` in bits."""
    mixes = distributions(histograms)
    found = np.stack([_divergences(p, mixes) for p in mixes])
    np.fill_diagonal(found, 0.0)
    return (found + found.T) / 2


def _divergences(p: Floats, q: Floats) -> Floats:
    """Divergences of one distribution ``[C]`` from several ``[N, C]``: entropy of the mean less mean entropy."""
    found: Floats = _entropy((p + q) / 2) - (_entropy(p) + _entropy(q)) / 2
    return np.clip(found, 0.0, 1.0)


def _entropy(p: Floats) -> Floats:
    logs = np.log2(p, out=np.zeros_like(p), where=p > 0)
    found: Floats = -(p * logs).sum(-1)
    return found


def cosines(vectors: ArrayLike) -> Floats:
    """Return the pairwise cosines ``[N, N]`` of vectors ``[N, d]``; a zero vector is orthogonal to all others."""
    rows = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(rows, axis=1)
    return cosines_of_gram(rows @ rows.T, lengths)


def affinity(divergence: ArrayLike, cosine: ArrayLike, gamma: float = 0.5) -> Floats:
    """Eq. (17), the divergence turned around: ``gamma (1 - JSD) + (1 - gamma) cos``; 1 for identical devices."""
    found: Floats = gamma * (1.0 - np.asarray(divergence, dtype=np.float64))
    return found + (1.0 - gamma) * np.asarray(cosine, dtype=np.float64)


def ranking(affinities: Floats) -> list[int]:
    """Eq. (18): devices by the norm of their affinity row, largest first; ties by number."""
    norms = np.linalg.norm(affinities, axis=1)
    # Rounding must not decide between rows that are permutations of each other.
    return sorted(range(len(norms)), key=lambda i: (-round(float(norms[i]), 9), i))


class Sketch:
    """Folds vectors ``[n_params]`` into ``[size]`` numbers: every coordinate adds to one of them, up or down.

    Everybody who draws it from the same generator has the same folding. Inner products survive in expectation,
    with a standard deviation of about ``1 / sqrt(size)`` of the vectors' lengths.
    """

    def __init__(self, n_params: int, size: int, rng: np.random.Generator) -> None:
        if size < 1:
            raise ConfigError(f"A sketch of size {size} holds nothing; accepted: a number from 1.")
        self.size = size
        self._place = torch.from_numpy(rng.integers(0, size, n_params))
        self._sign = torch.from_numpy(rng.integers(0, 2, n_params) * 2.0 - 1.0)

    def fold(self, vectors: Tensor) -> NDArray[np.float32]:
        """Return the sketches ``[K, size]`` of vectors ``[K, n_params]``."""
        folded = torch.zeros(len(vectors), self.size, dtype=torch.float64)
        for row, vector in zip(folded, vectors, strict=True):
            row.index_add_(0, self._place, vector.double() * self._sign)
        return folded.numpy().astype(np.float32)


#: whose entries of an affinity row count in a distance
Distance = Literal["members", "rows"]
#: by how much a variance may exceed its bound: rounding must split nothing
_SLACK = 1e-12


@dataclass(frozen=True)
class Formed:
    """Clusters, and what decided them.

    Attributes:
        clusters: The devices of each.
        crowded: Devices that joined a cluster beyond ``delta`` because no further one may be opened.
        splits: How often a cluster was split because of its variance.
        cut: Whether there were too few, so that a dendrogram was cut instead.
    """

    clusters: Clusters
    crowded: int = 0
    splits: int = 0
    cut: bool = False


def assign(
    rows: Floats,
    order: Sequence[int],
    delta: float,
    most: int,
    start: Sequence[Sequence[int]] = (),
    distance: Distance = "members",
) -> Formed:
    """Give each device of ``order`` to the nearest cluster within ``delta``, or to a new one.

    Args:
        rows: Affinity rows ``[N, N]``.
        order: The devices to place.
        delta: Greatest distance to a centroid.
        most: Greatest number of clusters; when they are full the nearest takes everybody.
        start: Clusters that exist; an empty one takes nobody until it is opened again.
        distance: Whose entries count.

    Returns:
        The clusters: those of ``start`` first and in their order, then new ones.
    """
    clusters: Clusters = [list(c) for c in start]
    sums = [rows[c].sum(0) if c else np.zeros(rows.shape[1]) for c in clusters]
    crowded = 0
    for device in order:
        open_ones = [k for k, c in enumerate(clusters) if c]
        gaps = [rows[device] - sums[k] / len(clusters[k]) for k in open_ones]
        if distance == "members":
            gaps = [gap[clusters[k]] for k, gap in zip(open_ones, gaps, strict=True)]
        away = [float(np.linalg.norm(gap)) for gap in gaps]
        best = int(np.argmin(away)) if away else -1
        if best >= 0 and (away[best] <= delta or len(open_ones) >= most):
            crowded += away[best] > delta
            clusters[open_ones[best]].append(device)
            sums[open_ones[best]] += rows[device]
            continue
        empty = [k for k, c in enumerate(clusters) if not c]
        if empty:
            clusters[empty[0]], sums[empty[0]] = [device], rows[device].copy()
        else:
            clusters.append([device])
            sums.append(rows[device].copy())
    return Formed([sorted(c) for c in clusters], crowded)


def _points(rows: Floats, members: Sequence[int], distance: Distance) -> Floats:
    """Return a cluster's rows ``[n, n]`` (or ``[n, N]``) as far as they count."""
    own = rows[list(members)]
    return own[:, list(members)] if distance == "members" else own


def variance(rows: Floats, members: Sequence[int], distance: Distance = "members") -> float:
    """Return ``Var_k``: the mean squared distance of a cluster's devices from their centroid."""
    own = _points(rows, members, distance)
    return float(((own - own.mean(0)) ** 2).sum(1).mean())


def halves(points: Floats) -> tuple[list[int], list[int]]:
    """Split points ``[n, d]`` by 2-means, started from the two that are farthest apart: their numbers."""
    gaps = np.linalg.norm(points[:, None] - points[None], axis=2)
    a, b = np.unravel_index(int(gaps.argmax()), gaps.shape)
    centres = points[[a, b]]
    side = np.zeros(len(points), dtype=bool)
    for _ in range(50):
        new = np.linalg.norm(points - centres[1], axis=1) < np.linalg.norm(points - centres[0], axis=1)
        if new.all() or not new.any() or np.array_equal(new, side):
            break
        side, centres = new, np.stack([points[~new].mean(0), points[new].mean(0)])
    return np.flatnonzero(~side).tolist(), np.flatnonzero(side).tolist()


def control(rows: Floats, clusters: Clusters, delta: float, most: int, distance: Distance = "members") -> Formed:
    """Split clusters whose variance exceeds ``delta ** 2``, the widest first, while there is room.

    A second call changes nothing. Every split leaves smaller clusters, and what a half joins stays within bounds, so
    that it ends.
    """
    done, splits = [sorted(c) for c in clusters if c], 0
    while len(done) < most:
        wide = {i: v for i, c in enumerate(done) if (v := variance(rows, c, distance)) > delta**2 + _SLACK}
        if not wide:
            break
        members = done.pop(max(wide, key=lambda i: wide[i]))
        parts = [[members[i] for i in half] for half in halves(_points(rows, members, distance))]
        for half in filter(None, parts):
            together = [variance(rows, half + c, distance) for c in done]
            if together and min(together) <= delta**2:
                partner = int(np.argmin(together))
                done[partner] = sorted(done[partner] + half)
            else:
                done.append(half)
        splits += 1
    return Formed(sorted(done, key=lambda c: c[0]), splits=splits)


def cluster(affinities: Floats, delta: float, most: int, *, least: int = 1, distance: Distance = "members") -> Formed:
    """Cluster devices by their affinities ``[N, N]``: assignment, then control of the variance.

    Fewer than ``least`` clusters are replaced by the cut of the average-linkage dendrogram of ``1 - A`` into
    ``least``.
    """
    given = assign(affinities, ranking(affinities), delta, most, distance=distance)
    found = control(affinities, given.clusters, delta, most, distance)
    least = min(least, most, len(affinities))
    if len(found.clusters) < least:
        return Formed(dendrogram_cut(1.0 - affinities, least), cut=True)
    return Formed(found.clusters, given.crowded, found.splits)


def at_rest(place: Mapping[Address, Place], norms: Mapping[Address, float], least: float) -> set[Place]:
    """Return the clusters whose devices' updates are shorter than ``least`` on average.

    The updates of a cluster that has learnt what it can are noise around zero; clustering by their directions would
    tear it apart.
    """
    found: dict[Place, list[float]] = {}
    for device, norm in norms.items():
        if device in place:
            found.setdefault(place[device], []).append(norm)
    return {p for p, inside in found.items() if np.mean(inside) < least}


@dataclass(frozen=True)
class AffinityRule:
    """How devices are clustered.

    Attributes:
        gamma: Share of the label distributions in an affinity; the rest is the updates'.
        delta: Greatest distance of a device's affinity row to its cluster's centroid.
        distance: Whose entries of a row count in it.
        most: Greatest number of clusters.
    """

    gamma: float = 0.5
    delta: float = 0.7
    distance: Distance = "members"
    most: int = 8

    def affinities(
        self, devices: Sequence[Address], histograms: Mapping[Address, Any], directions: Mapping[Address, Any]
    ) -> Floats:
        """Return affinities ``[n, n]``; a device that has not trained yet agrees with everybody's direction.

        Args:
            devices: The n devices.
            histograms: The label histogram ``[C]`` of each.
            directions: Vectors ``[d]`` of those that have trained.
        """
        cosine = np.ones((len(devices), len(devices)))
        if not devices:
            return cosine
        seen = [i for i, d in enumerate(devices) if d in directions]
        if seen:
            cosine[np.ix_(seen, seen)] = cosines(np.stack([directions[devices[i]] for i in seen]))
        apart = jensen_shannon_matrix(np.stack([histograms[d] for d in devices]))
        return affinity(apart, cosine, self.gamma)

    def form(
        self,
        devices: Sequence[Address],
        affinities: Floats,
        current: Mapping[Address, Place],
        places: Sequence[Place],
        *,
        most: int | None = None,
        least: int = 1,
    ) -> tuple[dict[Address, Place], Formed]:
        """Cluster everybody anew, into ``least`` to ``most`` clusters; return everybody's place, and what decided."""
        if not devices or not places:
            return {}, Formed([])
        most = max(1, min(self.most if most is None else most, len(places)))
        found = cluster(affinities, self.delta, most, least=least, distance=self.distance)
        return match([[devices[i] for i in c] for c in found.clusters], current, places), found

    def mend(
        self,
        devices: Sequence[Address],
        affinities: Floats,
        current: Mapping[Address, Place],
        places: Sequence[Place],
        loose: Collection[Address],
    ) -> dict[Address, Place]:
        """Find places for the loose devices, beside the others or at a free one; nobody else moves."""
        clusters = [[i for i, d in enumerate(devices) if d not in loose and current.get(d) == p] for p in places]
        order = [i for i in ranking(affinities) if devices[i] in loose]
        found = assign(affinities, order, self.delta, min(self.most, len(places)), clusters, self.distance)
        where = {devices[i]: place for place, members in zip(places, found.clusters, strict=True) for i in members}
        return {d: where[d] for d in loose}
