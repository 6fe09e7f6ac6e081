"""Standings: figures of methods over seeds, the best of a column, and the rank of every method.

Is a difference more than the seeds' chance? Two methods under the same seeds meet the same worlds: pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.special import stdtr, stdtrit

from espalier.record.measures import human_bytes, human_seconds
from espalier.report.groups import Group

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


Kind = Literal["score", "count", "seconds", "bytes"]

_SIZES = {"s": 1.0, "min": 60.0, "h": 3600.0, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


@dataclass(frozen=True)
class Column:
    """A column: its key, its heading, what its numbers are, and whether small is good (None: it is no score)."""

    key: str
    title: str
    kind: Kind
    lower: bool | None = None

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
        if self.kind == "count":
            return f"{value:,.0f}"
        return human_seconds(value) if self.kind == "seconds" else f"{value:.3f}"

    def pair(self, mean: float, std: float) -> str:
        """Write a mean and a standard deviation, both in the unit that suits the mean."""
        if self.kind == "score":
            return f"{mean:.3f} ± {std:.3f}"
        if self.kind == "count":
            return f"{mean:,.0f} ± {std:,.0f}"
        number, unit = self.text(mean).split(" ")
        return f"{number} ± {std / _SIZES[unit]:.1f} {unit}"


@dataclass(frozen=True)
class Values:
    """A figure of one method under every seed (NaN: there is none), and whether it is the best of its column."""

    by_seed: dict[int, float]
    best: bool = False

    @property
    def known(self) -> list[float]:
        """The values there are."""
        return [v for v in self.by_seed.values() if v == v]

    @property
    def mean(self) -> float:
        """The mean over the seeds that have a value."""
        return float(np.mean(self.known)) if self.known else float("nan")

    @property
    def std(self) -> float:
        """The standard deviation over seeds (0 for one)."""
        return float(np.std(self.known, ddof=1)) if len(self.known) > 1 else 0.0

    def text(self, column: Column) -> str:
        """Write mean ± std, and how many of the seeds have a value where not all do."""
        out = column.pair(self.mean, self.std) if self.std > 0 else column.text(self.mean)
        if 0 < len(self.known) < len(self.by_seed):
            out += f" ({len(self.known)}/{len(self.by_seed)})"
        return out


@dataclass(frozen=True)
class Place:
    """One method's place.

    Attributes:
        group: The method.
        rank: Its rank by the measure's mean, from 1; equal means share one. None: it has no value.
        cells: A figure per column of the verdict.
        gap: How far it is behind the leader (positive: behind), over paired seeds; its interval is for
            by Holm's rule for all comparisons. None: it leads, or shares no seed.
        p: The gap's p-value, adjusted for the number of methods (Holm); None if there is no test.
        ended: How its runs ended that did not reach their limits.
    """

    group: Group
    rank: int | None
    cells: tuple[Values, ...]
    gap: Difference | None = None
    p: float | None = None
    ended: tuple[str, ...] = ()

    @property
    def tied(self) -> bool:
        """Whether a test was made and could not tell it from the leader."""
        return self.p is not None and self.p >= SIGNIFICANCE

    @property
    def mark(self) -> str:
        """``≈``: cannot be told from the leader; ``°``: too few seeds to say."""
        return "≈" if self.tied else "°" if self.gap is not None and self.p is None else ""


def marked(cells: list[Values], column: Column) -> list[Values]:
    """Mark the best of a column that is a score; who has a value under every seed is better than who has not."""
    keys = [k for k in (_key(c, column) for c in cells) if k is not None]
    if column.lower is None or len(keys) < 2:
        return cells
    return [replace(c, best=_key(c, column) == min(keys)) for c in cells]


def _key(cell: Values, column: Column) -> tuple[int, float] | None:
    """Return what sorts a cell: the best first."""
    sign = 1.0 if column.lower else -1.0
    return (len(cell.by_seed) - len(cell.known), sign * cell.mean) if cell.known else None


def ranked(groups: Sequence[Group], rows: Sequence[tuple[Values, ...]], column: Column) -> list[Place]:
    """Rank the methods by their first cell, test each against the leader, and put them in order."""
    keys = [_key(row[0], column) for row in rows]
    known = sorted(k for k in keys if k is not None)
    leader = next((i for i, k in enumerate(keys) if known and k == known[0]), None)
    sign = 1.0 if column.lower else -1.0
    gaps: list[Difference | None] = []
    for i, row in enumerate(rows):
        if leader is None or i == leader:
            gaps.append(None)
            continue
        ours, theirs = ({s: sign * v for s, v in cells[0].by_seed.items()} for cells in (row, rows[leader]))
        gaps.append(difference(ours, theirs))
    adjusted = holm([None if gap is None else gap.p for gap in gaps])
    places = []
    for group, row, key, gap, p in zip(groups, rows, keys, gaps, adjusted, strict=True):
        rank = None if key is None else known.index(key) + 1
        gap = gap if gap is None or p is None else widened(gap, p)
        places.append(Place(group, rank, row, gap, p, _ended(group)))
    return sorted(places, key=lambda place: (place.rank is None, place.rank or 0))


def _ended(group: Group) -> tuple[str, ...]:
    """Say why runs ended early, those of one reason together."""
    seeds: dict[str, list[str]] = {}
    for reading in group.readings:
        if reading.stalled:
            seeds.setdefault(reading.stalled, []).append(str(reading.seed))
    return tuple(f"{group.label}, seed{'s' * (len(s) > 1)} {', '.join(s)} ended early. {w}" for w, s in seeds.items())
