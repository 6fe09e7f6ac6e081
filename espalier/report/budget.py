"""Equal budgets: runs stop at different times, so they are compared by what each had reached with equal means.

A budget is what every run got to: the least virtual time, local steps, bytes or rounds at which one of them ended. A
run that ended early of itself (it diverged, or its devices all left) sets no limit to the others; it is compared by
what it had when it ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from espalier.record.measures import human_bytes, human_seconds
from espalier.report.reading import Reading

#: what may be held equal, the plainest first: column of a run's frame → how it is called
BUDGETS = {"time": "virtual time", "steps": "local steps", "bytes": "bytes sent", "round": "rounds"}


def called(kind: str, real: bool) -> str:
    """Return what a budget is called; on a ``real`` fleet time is not virtual."""
    return "time" if real and kind == "time" else BUDGETS[kind]


@dataclass(frozen=True)
class Budget:
    """An amount that is held equal, in seconds (virtual, or of a real fleet), mini-batch steps, bytes or rounds."""

    kind: str
    amount: float
    real: bool = False

    @property
    def text(self) -> str:
        """The amount in words; without limit: nothing was used up that could be held equal."""
        if self.amount == float("inf"):
            return "all that was done"
        if self.kind == "round":
            return f"{self.amount:.0f} {'round' if self.amount == 1 else 'rounds'}"
        return {
            "time": human_seconds(self.amount) + ("" if self.real else " of virtual time"),
            "steps": f"{self.amount:,.0f} local steps",
            "bytes": f"{human_bytes(self.amount)} sent",
        }[self.kind]

    def row(self, reading: Reading) -> int | None:
        """Return the place of a run's last evaluation within the budget; None if it has none."""
        spent = reading.columns.get(self.kind)
        if spent is None:
            return None
        within = np.flatnonzero(spent <= self.amount * (1 + 1e-9))
        return int(within[-1]) if len(within) else None

    def value(self, reading: Reading, name: str) -> float:
        """Return a metric of a run within the budget (NaN: that evaluation has none)."""
        row = self.row(reading)
        if row is None or name not in reading.columns:
            return float("nan")
        return float(reading.columns[name][row])


def reached(reading: Reading, kind: str) -> float:
    """Return how much of something a run has used by its last evaluation (NaN: it does not say)."""
    used = reading.columns.get(kind)
    return float("nan") if used is None or not len(used) else float(used[-1])


def budgets(readings: Sequence[Reading]) -> dict[str, Budget]:
    """Return the budgets that runs can be compared at, the one that their experiment limits first.

    Only what every run counts and some run used up is a budget: in a world that costs nothing, time is none.
    """
    shown = [r for r in readings if len(r.frame)]
    lasting = [r for r in shown if not r.stalled] or shown
    found = {}
    for kind in BUDGETS:
        least = min((reached(r, kind) for r in lasting), default=float("nan"))
        if least > 0 and all(reached(r, kind) == reached(r, kind) for r in shown):
            found[kind] = Budget(kind, least, any(r.deployed for r in shown))
    stop = shown[0].experiment.get("stop", {}) if shown else {}
    limited = [kind for kind in ("steps", "bytes") if stop.get(kind) and kind in found and not stop.get("seconds")]
    return {kind: found[kind] for kind in [*limited, *(k for k in found if k not in limited)]}
