"""Algorithms 2 and 3: swap search for clusters that learn in the fleet's direction and finish fast.

Each trial takes two clusters, evaluates every exchange between them (a swap of two devices, or one
device moving over where the sizes allow it, in both directions: D5), keeps the valid ones by the
solution's rule and applies one of them: a random one as in the paper, or the best (D3).

The paper allows a metric to worsen by a share α if another improves by at least z·α, "and vice-versa",
and gives α no value. We read α as existential (D1): with r = μ'/μ − 1, an exchange is valid if one
metric improves and the other worsens by at most 1/z of that share. Both improving is valid, standing
still is not.

All exchanges of a pair are evaluated together, from the Gram matrix and the arrival times, in time
proportional to their number. A trial recomputes its two clusters from those tables, so no error builds
up over a long search.

The search begins at random (line 1 of Algorithm 2) or at `reverse_spectral_start`, which the paper proposes for large
fleets, "clustering dissimilar clients together", without saying how. Spectral clustering on dissimilarities, read
literally, needs one eigenvector per cluster, returns clusters of any size, and its clusters are further from the
fleet's direction than random ones. We group *alike* devices by a spectral embedding instead and deal each group out
over the clusters like a suit of cards: every cluster gets its share of every kind, sizes differ by at most one, and a
handful of eigenvectors is enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import LinearOperator, eigsh

from espalier.methods.d2d.alignment import Alignment
from espalier.methods.d2d.clusters import Clusters, Floats, Ints, Sizes
from espalier.methods.d2d.spectral import k_means, unit_rows
from espalier.methods.d2d.timing import exchange_times, head_and_time

Solution = Literal["1.1", "1.2", "2", "3"]

SOLUTIONS: dict[Solution, float] = {"1.1": 1.05, "1.2": 1.05, "2": 1.05, "3": 1.8}
"""The published solutions and the z that the paper's grid search chose for each."""

#: keeps a cluster without round time from dividing by zero
_TINY = 1e-12
#: relative changes below this count as none
_STILL = 1e-9


@dataclass(frozen=True, eq=False)
class PairMetrics:
    """Divergence and round time of two clusters: scalars, or arrays with one entry per exchange.

    Attributes:
        angle1: Divergence of the first cluster: radians, or label skew.
        time1: Round time of the first cluster in seconds; may be infinite.
        angle2: Divergence of the second cluster.
        time2: Round time of the second cluster.
    """

    angle1: Floats | float
    time1: Floats | float
    angle2: Floats | float
    time2: Floats | float


def ratio(angle: ArrayLike, time: ArrayLike) -> Floats:
    """Metric θ/T. A cluster that cannot finish a round is the worst by this metric too (D4)."""
    seconds = np.asarray(time, dtype=np.float64)
    return np.where(np.isinf(seconds), np.inf, np.asarray(angle, dtype=np.float64) / (seconds + _TINY))


def change(before: ArrayLike, after: ArrayLike) -> Floats:
    """Relative change r = μ'/μ − 1 of a metric; negative is better.

    From infinite to finite is −1, infinite to infinite 0, finite to infinite +inf (D4). Changes below
    1e-9 are rounding and count as none.
    """
    old, new = np.broadcast_arrays(np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64))
    finite = np.isfinite(old)
    base = np.where(finite, old, 0.0)
    r = np.where(finite, (new - base) / (base + _TINY), np.where(np.isinf(new), 0.0, -1.0))
    return np.where(np.abs(r) < _STILL, 0.0, r)


def acceptable(first: ArrayLike, second: ArrayLike, z: float) -> NDArray[np.bool_]:
    """Whether two relative changes together are worth making (D1)."""
    r1, r2 = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    return np.asarray(((r2 < 0) & (z * r1 <= -r2)) | ((r1 < 0) & (z * r2 <= -r1)))


def changes(solution: Solution, before: PairMetrics, after: PairMetrics) -> list[tuple[Floats, Floats]]:
    """Relative changes that a solution looks at: pairs to be acceptable, one or (1.2) one per cluster.

    Solution 1.1 sums θ and T over the two clusters, 2 sums θ and θ/T, 3 sums T and θ/T; 1.2 looks at θ
    and T of each cluster by itself (D2).
    """
    if solution == "1.2":
        return [
            (change(before.angle1, after.angle1), change(before.time1, after.time1)),
            (change(before.angle2, after.angle2), change(before.time2, after.time2)),
        ]
    angle = change(before.angle1 + before.angle2, after.angle1 + after.angle2)
    time = change(before.time1 + before.time2, after.time1 + after.time2)
    if solution == "1.1":
        return [(angle, time)]
    both = change(
        ratio(before.angle1, before.time1) + ratio(before.angle2, before.time2),
        ratio(after.angle1, after.time1) + ratio(after.angle2, after.time2),
    )
    return [(angle, both)] if solution == "2" else [(time, both)]


def judge(solution: Solution, z: float, before: PairMetrics, after: PairMetrics) -> tuple[NDArray[np.bool_], Floats]:
    """Whether each exchange is valid, and its score: the sum of the changes, lower is better (D3)."""
    pairs = changes(solution, before, after)
    valid = np.logical_and.reduce([acceptable(r1, r2, z) for r1, r2 in pairs])
    return valid, np.add.reduce([r1 + r2 for r1, r2 in pairs])


def random_start(n_devices: int, n_clusters: int, rng: np.random.Generator) -> Clusters:
    """Split the fleet at random into clusters whose sizes differ by at most one."""
    return _dealt(rng.permutation(n_devices), n_clusters)


def reverse_spectral_start(cosines: Floats, n_clusters: int, rng: np.random.Generator, n_kinds: int = 10) -> Clusters:
    """Split the fleet so that every cluster mixes devices of different directions.

    Args:
        cosines: ``[N, N]`` cosines between features (`espalier.methods.d2d.alignment.cosines`).
        n_clusters: Number of clusters.
        rng: Draws the k-means seeds and the order inside a kind.
        n_kinds: Kinds of devices to tell apart; about the number of labels serves well.

    Returns:
        Clusters whose sizes differ by at most one.
    """
    order = rng.permutation(len(cosines))
    kinds = min(n_kinds, len(cosines) - 1)
    if kinds > 1:
        kind = k_means(_embedding(cosines, kinds, rng), kinds, rng)
        order = order[np.argsort(kind[order], kind="stable")]
    return _dealt(order, n_clusters)


def _dealt(order: Ints, n_clusters: int) -> Clusters:
    """Give the devices, in this order, to the clusters in turn."""
    return Clusters.of(order[at::n_clusters] for at in range(n_clusters))


def _embedding(cosines: Floats, dimensions: int, rng: np.random.Generator) -> Floats:
    """Leading eigenvectors ``[N, dimensions]`` of the normalised similarity (1 + cos)/2, rows of length 1.

    The operator is applied without forming the matrix: at 5,000 devices every copy is 200 MB.
    """
    n = len(cosines)
    scale = 1.0 / np.sqrt(0.5 * (n + cosines.sum(axis=1)))

    def apply(vector: Floats) -> Floats:
        scaled = scale * vector.ravel()
        product: Floats = scale * 0.5 * (scaled.sum() + cosines @ scaled)
        return product

    operator = LinearOperator((n, n), matvec=apply, dtype=np.float64)
    _, vectors = eigsh(operator, k=dimensions, which="LA", v0=rng.standard_normal(n))
    return unit_rows(np.asarray(vectors, dtype=np.float64))


@dataclass(frozen=True, eq=False)
class Configuration:
    """Clusters and what they are worth.

    Attributes:
        clusters: Who is with whom.
        heads: ``[U]`` device that merges, by Eq. (5).
        times: ``[U]`` round time in seconds, by Eq. (4); infinite where no head hears every member.
        angles: ``[U]`` divergence: radians by Eq. (3), or label skew.
    """

    clusters: Clusters
    heads: Ints
    times: Floats
    angles: Floats


@dataclass(frozen=True, eq=False)
class Step:
    """One accepted exchange.

    Attributes:
        trial: Number of the trial, from 0.
        pair: The two clusters.
        devices: Who left the first and who left the second; None where nobody did.
        valid: How many exchanges of the pair were valid.
        before: Metrics of the pair before.
        after: Metrics of the pair after.
    """

    trial: int
    pair: tuple[int, int]
    devices: tuple[int | None, int | None]
    valid: int
    before: PairMetrics
    after: PairMetrics


@dataclass(frozen=True, eq=False)
class Found:
    """Result of a search: where it began, where it ended, and every accepted step between."""

    start: Configuration
    end: Configuration
    trace: tuple[Step, ...]


def evaluate(clusters: Clusters, alignment: Alignment, times: Floats) -> Configuration:
    """Heads, round times and divergences of given clusters; every clustering is judged by this."""
    served = [head_and_time(times, members) for members in clusters.members]
    return Configuration(
        clusters,
        np.array([head for head, _ in served], dtype=np.int64),
        np.array([seconds for _, seconds in served]),
        np.array([alignment.of(members) for members in clusters.members]),
    )


def search(
    alignment: Alignment,
    times: Floats,
    sizes: Sizes,
    rng: np.random.Generator,
    *,
    solution: Solution = "1.1",
    z: float | None = None,
    n_swap: int = 80,
    pick: Literal["random", "best"] = "random",
    start: Clusters | None = None,
) -> Found:
    """Run Algorithm 2.

    Args:
        alignment: Divergence of clusters: `Angle` or `Skew`.
        times: ``[N, N]`` seconds from `arrivals`.
        sizes: How many clusters, and their bounds.
        rng: Draws the start (if none is given), the pairs and the picks.
        solution: Which metrics must improve.
        z: How many times larger the improvement must be than what is given up; by default the paper's.
        n_swap: Trials.
        pick: Which of the valid exchanges is made.
        start: Clusters to begin with, of these sizes.

    Returns:
        The start, the end and the trace. Sizes stay within their bounds and every device keeps a cluster.
    """
    begin = random_start(len(times), sizes.n_clusters, rng) if start is None else start
    members: list[Ints] = list(begin.members)
    trace: list[Step] = []
    for trial in range(n_swap if len(members) > 1 else 0):
        one, two = (int(c) for c in rng.choice(len(members), size=2, replace=False))
        first, second = members[one], members[two]
        angle1, angle2 = alignment.exchanges(first, second)
        time1, time2 = exchange_times(times, first, second)
        tables = angle1, time1, angle2, time2
        before = PairMetrics(*(float(table[-1, -1]) for table in tables))
        valid, score = judge(solution, z or SOLUTIONS[solution], before, PairMetrics(*tables))
        choices = np.flatnonzero(valid & _within(sizes, first.size, second.size))
        if choices.size == 0:
            continue
        chosen = score.ravel()[choices].argmin() if pick == "best" else rng.integers(choices.size)
        i, j = divmod(int(choices[chosen]), second.size + 1)
        after = PairMetrics(*(float(table[i, j]) for table in tables))
        out, back = first[i : i + 1], second[j : j + 1]
        devices = (int(out[0]) if out.size else None, int(back[0]) if back.size else None)
        trace.append(Step(trial, (one, two), devices, int(choices.size), before, after))
        members[one] = np.sort(np.concatenate([first[:i], first[i + 1 :], back]))
        members[two] = np.sort(np.concatenate([second[:j], second[j + 1 :], out]))
    return Found(
        evaluate(begin, alignment, times),
        evaluate(Clusters(tuple(members)), alignment, times),
        tuple(trace),
    )


def _within(sizes: Sizes, n1: int, n2: int) -> NDArray[np.bool_]:
    """Exchanges that keep both sizes: all swaps, and moves out of clusters that can spare a member."""
    allowed = np.ones((n1 + 1, n2 + 1), dtype=np.bool_)
    allowed[:, -1] = n1 > sizes.n_min and n2 < sizes.n_max
    allowed[-1, :] = n2 > sizes.n_min and n1 < sizes.n_max
    allowed[-1, -1] = False
    return allowed
