"""Equal budgets: runs stop at different times, so they are compared by what each had reached with equal means.

A budget is what every run of a seed got to: the least virtual time, local steps, bytes or rounds at which one of them
ended. Seeds meet different worlds, in which the same work takes other times, and runs are compared in pairs of a seed.
A run that ended early of itself (it diverged, or its devices all left) sets no limit to the others; it is compared by
what it had when it ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    """An amount that is held equal, in seconds (virtual, or of a real fleet), mini-batch steps, bytes or rounds.

    ``amount`` is the least; where it is not the same for all seeds, ``by_seed`` has each one's.
    """

    kind: str
    amount: float
    real: bool = False
    by_seed: Mapping[int, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The amount in words; without limit: nothing was used up that could be held equal."""
        if self.amount == float("inf"):
            return "all that was done"
        said = list(dict.fromkeys(_amount(self.kind, most) for most in sorted({self.amount, *self.by_seed.values()})))
        unit = {"time": "" if self.real else " of virtual time", "steps": " local steps", "bytes": " sent"}
        rounds = " round" if said == ["1"] else " rounds"
        return f"{' to '.join(dict.fromkeys((said[0], said[-1])))}{unit.get(self.kind, rounds)}"

    def row(self, reading: Reading) -> int | None:
        """Return the place of a run's last evaluation within the budget; None if it has none."""
        spent = reading.columns.get(self.kind)
        if spent is None:
            return None
        within = np.flatnonzero(spent <= self.by_seed.get(reading.seed, self.amount) * (1 + 1e-9))
        return int(within[-1]) if len(within) else None

    def value(self, reading: Reading, name: str) -> float:
        """Return a metric of a run within the budget (NaN: that evaluation has none)."""
        row = self.row(reading)
        if row is None or name not in reading.columns:
            return float("nan")
        return float(reading.columns[name][row])


def _amount(kind: str, most: float) -> str:
    return {"time": human_seconds, "bytes": human_bytes}.get(kind, "{:,.0f}".format)(most)


def reached(reading: Reading, kind: str) -> float:
    """Return how much of something a run has used by its last evaluation (NaN: it does not say)."""
    used = reading.columns.get(kind)
    return float("nan") if used is None or not len(used) else float(used[-1])


def _by_seed(readings: Sequence[Reading], kind: str) -> dict[int, float]:
    """Return the least that a seed's runs used, of seeds that as many ran under as any (empty: all alike)."""
    counts = Counter(r.seed for r in readings)
    shared = [seed for seed, count in counts.items() if count == max(counts.values())]
    found = {seed: min(reached(r, kind) for r in readings if r.seed == seed) for seed in shared}
    return found if len(set(found.values())) > 1 else {}


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
            found[kind] = Budget(kind, least, any(r.deployed for r in shown), _by_seed(lasting, kind))
    stop = shown[0].experiment.get("stop", {}) if shown else {}
    limited = [kind for kind in ("steps", "bytes") if stop.get(kind) and kind in found and not stop.get("seconds")]
    return {kind: found[kind] for kind in [*limited, *(k for k in found if k not in limited)]}
