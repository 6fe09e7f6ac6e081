"""Is a difference more than the seeds' chance? Two methods under the same seeds meet the same worlds: pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtr, stdtrit

#: differences that chance makes more often than this are no differences
SIGNIFICANCE = 0.05
#: with fewer pairs a spread of differences is known so badly that no interval is given
FEWEST_PAIRS = 3


@dataclass(frozen=True)
class Difference:
    """How one method differs from another over the seeds that both ran.

    Attributes:
        mean: The mean difference.
        pairs: How many seeds both have.
        low, high: The 95 % interval of the mean by Student's t over pairs; None with fewer than three pairs.
        p: The two-sided p-value of the paired t-test; None with fewer than three pairs.
    """

    mean: float
    pairs: int
    low: float | None = None
    high: float | None = None
    p: float | None = None


def difference(one: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
    """Return how ``one`` differs from ``other``, values by seed; None if they have no seed in common."""
    seeds = [s for s in one if s in other and np.isfinite(one[s]) and np.isfinite(other[s])]
    if not seeds:
        return None
    a, b = np.array([one[s] for s in seeds]), np.array([other[s] for s in seeds])
    gaps = a - b
    mean, pairs = float(gaps.mean()), len(seeds)
    if pairs < FEWEST_PAIRS:
        return Difference(mean, pairs)
    size = float(max(np.abs(a).max(), np.abs(b).max()))
    if np.ptp(gaps) <= 1e-12 * size:  # but for rounding all the same: the t statistic would be 0/0 or ±∞
        return Difference(mean, pairs, mean, mean, 1.0 if abs(mean) <= 1e-12 * size else 0.0)
    error = float(gaps.std(ddof=1) / np.sqrt(pairs))
    half = float(stdtrit(pairs - 1, 1 - SIGNIFICANCE / 2)) * error  # Student's t, two-sided
    return Difference(mean, pairs, mean - half, mean + half, float(2 * stdtr(pairs - 1, -abs(mean) / error)))


def widened(gap: Difference, adjusted: float) -> Difference:
    """Widen an interval by what adjusting its p-value took, so that it reaches zero where the test does not reject.

    The level is 1 − 0.05 · p / adjusted: the interval leaves zero out if and only if the adjusted p is below 0.05.
    """
    if gap.low is None or gap.high is None or not gap.p or gap.pairs < FEWEST_PAIRS:
        return gap
    t, wide = (
        float(stdtrit(gap.pairs - 1, 1 - level / 2)) for level in (SIGNIFICANCE, SIGNIFICANCE * gap.p / adjusted)
    )
    return replace(
        gap, low=gap.mean - (gap.mean - gap.low) * wide / t, high=gap.mean + (gap.high - gap.mean) * wide / t
    )


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values of one family for their number (Holm's step-down method); None stays None."""
    known = sorted((p, i) for i, p in enumerate(values) if p is not None)
    adjusted: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        adjusted[i] = largest
    return adjusted
