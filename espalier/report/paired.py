"""Is a difference between two methods more than the seeds' chance? A paired test over the seeds both ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import t

#: differences that chance makes more often than this are no differences
LEVEL = 0.05


def paired_p(one: Mapping[int, float], other: Mapping[int, float]) -> float | None:
    """Return the two-sided p-value of Student's paired t-test over the seeds that both have.

    None where it cannot be said: fewer than two seeds in common.
    """
    seeds = [s for s in one if s in other and np.isfinite(one[s]) and np.isfinite(other[s])]
    if len(seeds) < 2:
        return None
    a, b = np.array([one[s] for s in seeds]), np.array([other[s] for s in seeds])
    differences = a - b
    size = float(max(np.abs(a).max(), np.abs(b).max()))
    if np.ptp(differences) <= 1e-12 * size:  # but for rounding all the same: the t statistic would be 0/0 or ±∞
        return 1.0 if abs(differences[0]) <= 1e-12 * size else 0.0
    return float(2 * t.sf(abs(differences.mean()) / (differences.std(ddof=1) / np.sqrt(len(seeds))), len(seeds) - 1))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values of one family for their number (Holm's step-down method); None stays None."""
    known = sorted((p, i) for i, p in enumerate(values) if p is not None)
    adjusted: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        adjusted[i] = largest
    return adjusted
