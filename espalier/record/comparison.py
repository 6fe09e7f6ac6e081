"""Runs that were made to be compared: what `espalier.compare` returns."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, overload

import pandas as pd

from espalier.record.run import Run


class Comparison(Sequence[Run]):
    """Several runs, in the order they were made; a notebook shows their verdict.

    ``Comparison(find_runs("runs/a", "runs/b"))`` compares what is in directories.
    """

    def __init__(self, runs: Iterable[Run]) -> None:
        self.runs = tuple(runs)

    def __len__(self) -> int:
        return len(self.runs)

    @overload
    def __getitem__(self, index: int) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> Comparison: ...
    def __getitem__(self, index: int | slice) -> Run | Comparison:
        return Comparison(self.runs[index]) if isinstance(index, slice) else self.runs[index]

    def __repr__(self) -> str:
        labels = ", ".join(dict.fromkeys(run.label for run in self.runs))
        return f"Comparison({len(self)} runs: {labels})"

    def _repr_html_(self) -> str:
        return str(_cards().comparison_html(self.runs))

    def frame(self) -> pd.DataFrame:
        """Return every evaluation of every run: ``method``, ``seed``, and the columns of :meth:`Run.frame`."""
        parts = [run.frame().assign(method=run.label, seed=run.seed) for run in self.runs]
        whole = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame({"method": [], "seed": []})
        return whole[["method", "seed", *(c for c in whole.columns if c not in ("method", "seed"))]]

    def verdict(self, measure: str | None = None, budget: str | None = None) -> str:
        """Say what leads at an equal budget, by how much, how sure that is, and what it costs.

        Args:
            measure: What is ranked by, such as ``acc_global``; by default the task's score.
            budget: What is held equal: ``time``, ``steps``, ``bytes`` or ``round``; by default virtual time.
        """
        return str(_cards().verdict_text(self.runs, measure, budget))

    def table(self, measure: str | None = None, budget: str | None = None) -> pd.DataFrame:
        """Return the ranking that :meth:`verdict` speaks of: a row per method, means and deviations over seeds."""
        found: pd.DataFrame = _cards().ranking(self.runs, measure, budget)
        return found

    def report(self, path: Path | str = "report.html") -> Path:
        """Write the whole report as one HTML page; return its path."""
        return Path(_cards().write(self.runs, Path(path)))


def _cards() -> Any:
    """Return what shows runs. A reader must not depend on the report, which is built on it: loaded when asked for."""
    return importlib.import_module("espalier.report.cards")
