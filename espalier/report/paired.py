"""Is a difference between two methods more than the seeds' chance? A paired test over the seeds both ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import ttest_rel

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
    if np.ptp(differences) == 0.0:  # the t statistic is 0/0 or ±∞ here
        return 1.0 if differences[0] == 0.0 else 0.0
    return float(ttest_rel(a, b).pvalue)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values of one family for their number (Holm's step-down method); None stays None."""
    known = sorted((p, i) for i, p in enumerate(values) if p is not None)
    adjusted: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        adjusted[i] = largest
    return adjusted
