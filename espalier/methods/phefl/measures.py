"""PHE-FL's two measures of a curve, and what a run's edges chose: Acc_N, Drop_M, alpha over rounds.

A curve is the accuracy in percent after rounds 1, 2, …, averaged over the edges, each on its own test set.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from espalier.record.run import Run

WINDOW_ROUNDS = 10
"""Rounds in which a drop is looked for."""


def acc_n(curve: ArrayLike, rounds: int) -> float:
    """Acc_N: the highest accuracy of rounds 1 … N (of the mean over edges, not the mean of edges' highest)."""
    values = np.asarray(curve, dtype=np.float64)[:rounds]
    return float(values.max()) if len(values) else float("nan")


def drop_m(curve: ArrayLike, threshold: float, window: int = WINDOW_ROUNDS) -> float | None:
    """Drop_M: the largest max - min inside a window of rounds, from the first round at M % on.

    Every window that starts at or after that round counts; the last ones are shorter. As the paper words it, a
    rise counts as well as a fall. None if the curve never reaches M.
    """
    values = np.asarray(curve, dtype=np.float64)
    reached = np.flatnonzero(values >= threshold)
    if not len(reached):
        return None
    first = int(reached[0])
    # Windows that are cut short lie inside the last whole one, unless there is none.
    starts = range(first, max(first + 1, len(values) - window + 1))
    return float(max(np.ptp(values[s : s + window]) for s in starts))


def curve(run: Run, name: str = "acc_edge") -> NDArray[np.float64]:
    """Return a run's accuracy in percent after each round, the initial model left out."""
    rows = run.query("SELECT round, value FROM metrics WHERE name = ? AND round > 0 ORDER BY rowid", name)
    by_round = {int(r): float("nan") if v is None else 100.0 * float(v) for r, v in rows}
    return np.array([by_round[r] for r in sorted(by_round)])


def alphas(run: Run, what: str = "alpha") -> pd.DataFrame:
    """Return what each edge chose: one row per round, one column per edge.

    ``what`` is ``alpha`` (of the body, where the head has its own: ``head``), or the score of the ``own`` or the
    ``others``' model that it follows from.
    """
    fleet = run.meta("fleet")
    rows: dict[int, dict[int, float]] = {}
    for event in run.events("alpha"):
        edge = int(event["node"]) - int(fleet["devices"])
        if what in event["values"] and edge < int(fleet["edges"]):  # servers above the edges choose too
            rows.setdefault(int(event["round"]), {})[edge] = event["values"][what]
    frame = pd.DataFrame.from_dict(rows, orient="index").sort_index().rename_axis("round")
    return frame[sorted(frame.columns)]
