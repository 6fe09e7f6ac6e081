"""A paper's claims as data, and what our runs say of each: a computed verdict, never a written one.

A claim names the study, the measure, the row that is said to be better, the rows it is said to beat and the columns in
which. For every pair and column the paired differences over the seeds give a mean and an interval (Student's t).

=================  ======================================================================================
holds              every interval lies on the claimed side of zero
holds in part      some do, none on the other side, or both sides occur
opposed            at least one interval lies on the other side, none on the claimed one
cannot be told     every interval has zero in it, or there are fewer than two seeds in common
not tested         the regime is not the paper's (our baselines are too far from its), a part that the claim is about
                   never acted, or nothing was run
=================  ======================================================================================
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from espalier.core.errors import ConfigError

Verdict = Literal["holds", "holds in part", "opposed", "cannot be told", "not tested"]
#: the share of intervals that contain the true difference
CONFIDENCE = 0.95
#: points between our baselines and the published ones up to which the regime counts as the paper's
NEAR_POINTS = 10.0


class Figures(Protocol):
    """The figures of a study's finished runs."""

    rows: list[str]
    columns: list[str]

    def by_seed(self, row: str, column: str, measure: str) -> Mapping[int, float]:
        """Return one figure per seed (NaN where a run has none)."""
        ...

    def mean(self, row: str, column: str, measure: str) -> float:
        """Return the mean over the seeds that have a figure (NaN where none has)."""
        ...

    def published(self, row: str, column: str, measure: str) -> float:
        """Return the paper's figure (NaN where it gives none)."""
        ...

    def lower(self, measure: str) -> bool:
        """Tell whether small is good."""
        ...


@dataclass(frozen=True)
class Claim:
    """One claim of a paper.

    Attributes:
        name: Short, unique within the paper.
        text: As the paper puts it, in a sentence.
        where: Section, table or figure of the paper.
        study: The study that tests it.
        measure: Of that study.
        better: The row that is said to be better.
        than: The rows it is said to beat; empty: all others.
        columns: In which; empty: all.
        size: The claimed difference in the measure's unit, if the paper names one: for the reader, not for the verdict.
        anchors: Baseline rows whose distance from the published figures says whether the regime is the paper's; empty:
            all rows of ``than``.
        near: Up to which mean distance it is; None: the measure has no level of its own (a count, a ratio).
        acts: Names of deeds that must have happened in the better row's runs, or the part was not tested.
    """

    name: str
    text: str
    where: str
    study: str
    measure: str
    better: str
    than: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    size: str = ""
    anchors: tuple[str, ...] = ()
    near: float | None = NEAR_POINTS
    acts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Interval:
    """A mean of paired differences and its interval; positive is what the claim says."""

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def side(self) -> int:
        """1 or −1 if the interval lies on one side of zero, else 0."""
        return 1 if self.low > 0 else -1 if self.high < 0 else 0


@dataclass(frozen=True)
class Judgement:
    """A claim's verdict, why, how far our level is from the published, and the differences behind it."""

    claim: Claim
    verdict: Verdict
    why: str
    #: mean of |ours − published| over the anchors (NaN: not known)
    distance: float = math.nan
    differences: Mapping[tuple[str, str], Interval] = field(default_factory=dict)


def interval(differences: Sequence[float] | NDArray[np.float64], confidence: float = CONFIDENCE) -> Interval:
    """Return the mean of paired differences with Student's interval; of fewer than two it is endless."""
    found = np.asarray(differences, dtype=float)
    count = len(found)
    mean = float(found.mean()) if count else math.nan
    if count < 2:
        return Interval(mean, -math.inf, math.inf, count)
    half = float(t.ppf((1 + confidence) / 2, count - 1) * found.std(ddof=1) / math.sqrt(count))
    return Interval(mean, mean - half, mean + half, count)


def difference(figures: Figures, claim: Claim, other: str, column: str) -> Interval:
    """Return by how much the better row leads another in one column, over the seeds that both have."""
    mine, theirs = (figures.by_seed(row, column, claim.measure) for row in (claim.better, other))
    sign = -1.0 if figures.lower(claim.measure) else 1.0
    seeds = sorted(s for s in mine if s in theirs and math.isfinite(mine[s]) and math.isfinite(theirs[s]))
    return interval([sign * (mine[s] - theirs[s]) for s in seeds])


def judge(claim: Claim, figures: Figures | None, deeds: Mapping[str, int] | None = None) -> Judgement:
    """Judge a claim by the figures of its study (None: it was not run) and what the better row's runs did."""
    if figures is None:
        return Judgement(claim, "not tested", "The study was not run.")
    columns = [c for c in figures.columns if not claim.columns or c in claim.columns]
    others = [r for r in figures.rows if r != claim.better and (not claim.than or r in claim.than)]
    missing = {claim.better, *claim.than} - set(figures.rows) | set(claim.columns) - set(figures.columns)
    if claim.better not in figures.rows or not others or not columns:
        return Judgement(claim, "not tested", f"Not run: {', '.join(sorted(missing)) or 'anything to compare with'}.")
    idle = [part for part in claim.acts if not (deeds or {}).get(part)]
    if idle:
        return Judgement(claim, "not tested", f"{', '.join(idle)} never happened in {claim.better}'s runs.")
    apart = _distance(figures, claim, list(claim.anchors) or others, columns)
    found = {(o, c): difference(figures, claim, o, c) for o in others for c in columns}
    found = {pair: d for pair, d in found.items() if d.seeds}
    if claim.near is not None and apart > claim.near:
        why = f"Our baselines are {apart:.1f} from the published on average; the regime is not the paper's."
        return Judgement(claim, "not tested", why, apart, found)
    return Judgement(claim, *_weigh(list(found.values())), apart, found)


def _distance(figures: Figures, claim: Claim, rows: Sequence[str], columns: Sequence[str]) -> float:
    gaps = [
        abs(figures.mean(r, c, claim.measure) - figures.published(r, c, claim.measure)) for r in rows for c in columns
    ]
    known = [g for g in gaps if math.isfinite(g)]
    return float(np.mean(known)) if known else math.nan


def _weigh(found: Sequence[Interval]) -> tuple[Verdict, str]:
    if not found:
        return "not tested", "No pair of runs shares a seed."
    most = max(d.seeds for d in found)
    if most < 2:
        return "cannot be told", "One seed gives no verdict."
    sides = [d.side for d in found]
    yes, no = sides.count(1), sides.count(-1)
    why = f"Of {len(found)} differences over up to {most} seeds, {yes} are as claimed, {no} the other way round."
    if yes == len(found):
        return "holds", why
    if yes:
        return "holds in part", why
    return ("opposed" if no else "cannot be told"), why


def read_claims(path: Path) -> list[Claim]:
    """Read a paper's claims from its TOML file (tables ``[[claim]]``)."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    found = []
    for entry in table.get("claim", ()):
        known = Claim.__dataclass_fields__
        for key in entry:
            if key not in known:
                raise ConfigError(f"{path.name}: claim {entry.get('name', '?')!r} has an unknown key {key!r}.")
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
        found.append(Claim(**fields))
    return found
