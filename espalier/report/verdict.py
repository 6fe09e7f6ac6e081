"""The verdict: methods × measures at the end of the runs, over seeds, the best of each column and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import stats

from espalier.record.measures import lower_is_better
from espalier.record.table import human_bytes, human_seconds
from espalier.report.groups import Comparison, Group, describe
from espalier.report.reading import Reading

Kind = Literal["score", "seconds", "bytes"]

#: differences that chance makes more often than this are no differences
SIGNIFICANCE = 0.05
_SIZES = {"s": 1.0, "min": 60.0, "h": 3600.0, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


@dataclass(frozen=True)
class Column:
    """A column: its key, its heading, what its numbers are, and whether small is good."""

    key: str
    title: str
    kind: Kind
    lower: bool

    @property
    def unit(self) -> str:
        """The unit of raw values."""
        return {"seconds": "s", "bytes": "B"}.get(self.kind, "1")

    def text(self, value: float) -> str:
        """Write a value with its unit."""
        if self.kind == "bytes":
            return human_bytes(value)
        if value != value:
            return "never" if self.kind == "seconds" else "–"
        return human_seconds(value) if self.kind == "seconds" else f"{value:.3f}"

    def pair(self, mean: float, std: float) -> str:
        """Write a mean and a standard deviation, both in the unit that suits the mean."""
        if self.kind == "score":
            return f"{mean:.3f} ± {std:.3f}"
        number, unit = self.text(mean).split(" ")
        return f"{number} ± {std / _SIZES[unit]:.1f} {unit}"


@dataclass(frozen=True)
class Standing:
    """One method's figure: a value per seed (NaN: there is none), and how it compares.

    Attributes:
        values: By seed.
        best: Whether it is the best of its column.
        p: The adjusted p-value of the difference to the best (None: it is the best itself, or cannot be tested).
        untested: Whether there are seeds, but too few in common with the best for a test.
    """

    values: dict[int, float]
    best: bool = False
    p: float | None = None
    untested: bool = False

    @property
    def known(self) -> list[float]:
        """The values there are."""
        return [v for v in self.values.values() if v == v]

    @property
    def mean(self) -> float:
        """The mean over the seeds that have a value."""
        return float(np.mean(self.known)) if self.known else float("nan")

    @property
    def std(self) -> float:
        """The standard deviation over seeds (0 for one)."""
        return float(np.std(self.known, ddof=1)) if len(self.known) > 1 else 0.0

    @property
    def mark(self) -> str:
        """``≈`` if it cannot be told from the best, ``°`` if that could not be tested."""
        return "≈" if self.p is not None and self.p >= SIGNIFICANCE else "°" if self.untested else ""

    def text(self, measure: Column) -> str:
        """Write mean ± std, and how many of the seeds have a value where not all do."""
        out = measure.pair(self.mean, self.std) if self.std > 0 else measure.text(self.mean)
        if 0 < len(self.known) < len(self.values):
            out += f" ({len(self.known)}/{len(self.values)})"
        return out


@dataclass(frozen=True)
class Verdict:
    """The table and what must be said with it."""

    measures: tuple[Column, ...]
    rows: tuple[tuple[Group, tuple[Standing, ...]], ...]
    lines: tuple[str, ...]


def verdict(comparison: Comparison) -> Verdict:
    """Judge the methods of a comparison."""
    groups = [g for g in comparison.groups if any(len(r.frame) for r in g.readings)]
    measures, readers = [], []
    for measure, reader in _columns(comparison):
        if any(v == v for g in groups for v in _values(g, reader).values()):
            measures.append(measure)
            readers.append(reader)
    columns = []
    for measure, reader in zip(measures, readers, strict=True):
        cells = [Standing(_values(g, reader)) for g in groups]
        for setting in range(len(comparison.settings)):
            here = [i for i, g in enumerate(groups) if g.setting == setting]
            for i, cell in zip(here, _judged([cells[i] for i in here], measure.lower), strict=True):
                cells[i] = cell
        columns.append(cells)
    rows = tuple((g, tuple(column[i] for column in columns)) for i, g in enumerate(groups))
    return Verdict(tuple(measures), rows, tuple(_lines(comparison, groups)))


def _values(group: Group, reader: Callable[[Reading], float]) -> dict[int, float]:
    return {r.seed: reader(r) for r in group.readings if len(r.frame)}


def _judged(cells: list[Standing], lower: bool) -> list[Standing]:
    """Mark the best of a column and test the others against it.

    A method that has a value under every seed is better than one that has not (it never got there).
    """
    sign = 1.0 if lower else -1.0
    ranked = [(len(c.values) - len(c.known), sign * c.mean, i) for i, c in enumerate(cells) if c.known]
    if len(ranked) < 2:
        return cells
    best = min(ranked)[2]
    raw = [None if i == best else paired_p(c.values, cells[best].values) for i, c in enumerate(cells)]
    many = len(cells[best].known) > 1
    out = []
    for i, (cell, p) in enumerate(zip(cells, holm(raw), strict=True)):
        untested = i != best and p is None and bool(cell.known) and (many or len(cell.known) > 1)
        out.append(replace(cell, best=i == best, p=p, untested=untested))
    return out


def _columns(comparison: Comparison) -> list[tuple[Column, Callable[[Reading], float]]]:
    main, lower = comparison.score, comparison.lower
    found: list[tuple[Column, Callable[[Reading], float]]] = []
    for scope, title in (("global", "global"), ("edge", "edge"), ("device", "device"), ("device_worst", "worst tenth")):
        name = f"{main}_{scope}"
        found.append((Column(name, f"{main} {title}", "score", lower), lambda r, n=name: final(r, n)))  # type: ignore[misc]
    targets = {(s.experiment.get("task", {}).get("target"), s.experiment.get("task", {}).get("score", "acc_device"))
               for s in comparison.settings}  # fmt: skip
    if any(t is not None for t, _ in targets):
        title = "time to target"
        if len(targets) == 1:
            goal, score = next(iter(targets))
            title = f"time to {score} {goal:g}"
        found.append((Column("time_to_target", title, "seconds", True), time_to_target))
    found.append((Column("time", "virtual time", "seconds", True), lambda r: final(r, "time")))
    tiers = sorted({c for r in comparison.readings for c in r.frame.columns if c.startswith("bytes_")})
    for tier in tiers:
        measure = Column(tier, f"bytes {tier.removeprefix('bytes_')}", "bytes", True)
        found.append((measure, lambda r, n=tier: final(r, n) if n in r.frame else 0.0))  # type: ignore[misc]
    return found


def final(reading: Reading, name: str) -> float:
    """Return a metric at a run's last evaluation (NaN: it has none; an earlier one's is another model's)."""
    if name not in reading.frame or not len(reading.frame):
        return float("nan")
    return float(reading.frame[name].iloc[-1])


def time_to_target(reading: Reading) -> float:
    """Return the virtual seconds until a run's score first reached its task's target (NaN: not yet)."""
    task = reading.experiment.get("task", {})
    target, score = task.get("target"), task.get("score", "acc_device")
    if target is None or score not in reading.frame:
        return float("nan")
    reached = reading.frame[score] <= target if lower_is_better(score) else reading.frame[score] >= target
    return float(reading.frame["time"][reached].iloc[0]) if reached.any() else float("nan")


def _lines(comparison: Comparison, groups: list[Group]) -> list[str]:
    seeds = sorted({s for g in groups for s in g.seeds})
    some = ", ".join(map(str, seeds)) if len(seeds) <= 10 else f"{seeds[0]} … {seeds[-1]}"
    lines = [f"{len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'} ({some})."]
    if len({g.seeds for g in groups}) > 1:
        lines[0] += " Not every method ran under all of them: " + "; ".join(
            f"{g.label} under {len(g.seeds)}" for g in groups
        ) + "."  # fmt: skip
    if len(seeds) > 1:
        lines.append(
            "Mean ± standard deviation over seeds at the end of the runs. Bold: best of its column. "
            f"≈: cannot be told from the best (paired t-test over the seeds both ran, Holm-adjusted, "
            f"{SIGNIFICANCE:.0%} level); °: fewer than two seeds in common, not tested."
        )
    else:
        lines.append("Figures at the end of the runs. Bold: best of its column; one seed allows no test.")
    for setting in comparison.settings:
        lines.append(
            f"{setting.name}: {describe(setting.experiment)}." if setting.name else describe(setting.experiment) + "."
        )
    going = [r for r in comparison.readings if r.state != "finished"]
    if going:
        lines.append(
            "Not finished, shown as far as they are: "
            + "; ".join(f"{r.title} ({r.state}, round {r.rounds})" for r in going)
            + "."
        )
    lines += [f"{r.title} ended early. {r.stalled}" for r in comparison.readings if r.stalled]
    lines += [f"{g.label} is a reconstruction: {g.reconstruction}" for g in groups if g.reconstruction]
    return [*lines, *comparison.notes]


# -- is a difference more than the seeds' chance? -------------------------------------------------------------


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
    return float(
        2 * stats.t.sf(abs(differences.mean()) / (differences.std(ddof=1) / np.sqrt(len(seeds))), len(seeds) - 1)
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
