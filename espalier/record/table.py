"""The table of a comparison: methods × measures, mean ± standard deviation over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from espalier.record.run import Run


@dataclass(frozen=True)
class Row:
    """One method's figures at the end of its runs, one entry per seed."""

    label: str
    seeds: tuple[int, ...]
    values: dict[str, list[float]]

    def mean(self, name: str) -> float:
        """Return the mean over seeds (NaN if any seed has none)."""
        return float(np.mean(self.values[name])) if self.values.get(name) else float("nan")

    def std(self, name: str) -> float:
        """Return the standard deviation over seeds (0 for one seed)."""
        found = self.values.get(name, [])
        return float(np.std(found, ddof=1)) if len(found) > 1 else 0.0


def rows(runs: Sequence[Run], target: float | None = None, score: str = "acc_device") -> list[Row]:
    """Collect the last evaluation of every run, by label in order of appearance."""
    found: dict[str, list[tuple[int, dict[str, float]]]] = {}
    for run in runs:
        frame = run.frame()
        if frame.empty:
            continue
        # what an earlier evaluation had and the last one has not is of a model that is gone
        last: pd.Series = frame.iloc[-1]
        figures = {str(k): float(v) for k, v in last.items() if isinstance(v, int | float | np.number)}
        if target is not None:
            reached = run.time_to(target, score)
            figures["time_to_target"] = float("nan") if reached is None else reached
        found.setdefault(run.label, []).append((run.seed, figures))
    out = []
    for label, seeds in found.items():
        names = [n for n in seeds[0][1] if all(n in f for _, f in seeds)]
        out.append(Row(label, tuple(s for s, _ in seeds), {n: [f[n] for _, f in seeds] for n in names}))
    return out


def human_bytes(value: float) -> str:
    """Write bytes with a unit."""
    if value != value:
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def human_seconds(value: float) -> str:
    """Write virtual seconds with a unit."""
    if value != value:
        return "never"
    if value < 600:
        return f"{value:.1f} s"
    return f"{value / 60:.1f} min" if value < 36000 else f"{value / 3600:.1f} h"
