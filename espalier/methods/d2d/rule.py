"""Which exchanges between two clusters are worth making: metrics, their relative change, validity.

The paper allows a metric to worsen by a share α if another improves by at least z·α, "and vice-versa",
and gives α no value. We read α as existential (D1): with r = μ'/μ − 1, an exchange is valid if one
metric improves and the other worsens by at most 1/z of that share. Both improving is valid, standing
still is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from espalier.methods.d2d.clusters import Floats

Solution = Literal["1.1", "1.2", "2", "3"]

SOLUTIONS: dict[Solution, float] = {"1.1": 1.05, "1.2": 1.05, "2": 1.05, "3": 1.8}
"""The published solutions and the z that the paper's grid search chose for each."""

_TINY = 1e-12
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
