"""When a run has converged: by its own best, or by a target."""

from __future__ import annotations

import numpy as np

from espalier.record.run import Run


def convergence_time(run: Run, score: str = "acc_device", within: float = 0.01, over: int = 5) -> float:
    """Return the virtual seconds until the mean of ``over`` evaluations is within ``within`` of the run's best mean.

    NaN if there are fewer evaluations. The best is that of the same running mean: a single lucky evaluation does not
    set the mark.
    """
    frame = run.frame()
    if score not in frame:
        return float("nan")
    known = frame[frame["round"] > 0].dropna(subset=[score])
    if len(known) < over:
        return float("nan")
    means = known[score].rolling(over).mean().to_numpy()
    reached = np.flatnonzero(means >= np.nanmax(means) - within)
    return float(known["time"].iloc[int(reached[0])])
