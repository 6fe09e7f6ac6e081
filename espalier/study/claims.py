"""A paper's claims as data, and what our runs say of each: a computed verdict, never a written one.

A claim names the study, the measure, the row that is said to be better, the rows it is said to beat and the columns in
which. For every pair and column the paired differences over the seeds give a mean and an interval (Student's t).

=================  ======================================================================================
holds              every interval lies on the claimed side of zero, in all of the paper's settings
holds in part      some do, and no more on the other side; or some settings or rows were not run
opposed            more intervals lie on the other side than on the claimed one
cannot be told     every interval has zero in it, or there are fewer than two seeds in common
not tested         no setting is left
=================  ======================================================================================

Intervals are of 95 % each; :meth:`Judgement.firm` tells how many stay when there are as many as the claim has.

A setting (a column) is left out where the regime is not the paper's (our baselines are too far from its, or the data
stand in for others that it prints figures of) or where a part that the claim is about never acted. A claim that rows
are *alike* (``within``) holds where the whole interval lies within that distance of zero, and is opposed where it lies
outside.
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from espalier.core.errors import ConfigError
from espalier.study.results import Results

Verdict = Literal["holds", "holds in part", "opposed", "cannot be told", "not tested"]
#: the share of intervals that contain the true difference
CONFIDENCE = 0.95
#: points between our baselines and the published ones up to which the regime counts as the paper's
NEAR_POINTS = 10.0
#: stands for the others' worst among the rows of a pair
WORST = "the worst"


@dataclass(frozen=True)
class Claim:
    """One claim of a paper.

    Attributes:
        name: Short, unique within the paper.
        text: What is claimed, in a sentence, and of which model's accuracy.
        where: Section, table or figure of the paper.
        study: The study that tests it.
        measure: Of that study.
        better: The row that is said to be better.
        quote: The paper's own words.
        than: The rows it is said to beat; empty: all others.
        pairs: Instead of the two: rows that are said to be better, each with the one it is said to beat.
        columns: In which; empty: all.
        against: ``each`` of the others, or only the ``worst`` of them (it is never the worst).
        within: The rows are said to be alike: up to which difference.
        size: The claimed difference in words, where the paper prints no figures to take it from.
        anchors: Baseline rows whose distance from the published figures says whether the regime is the paper's; empty:
            all rows that are said to be beaten.
        near: Up to which mean distance it is; negative: the measure has no level of its own (a count, a ratio).
        acts: Kinds of events that must have been recorded in the better row's runs, or the part was not tested.
    """

    name: str
    text: str
    where: str
    study: str
    measure: str
    better: str = ""
    quote: str = ""
    than: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    columns: tuple[str, ...] = ()
    against: Literal["each", "worst"] = "each"
    within: float | None = None
    size: str = ""
    anchors: tuple[str, ...] = ()
    near: float = NEAR_POINTS
    acts: tuple[str, ...] = ()

    def compared(self, rows: Sequence[str]) -> list[tuple[str, str]]:
        """Return the pairs of rows that the claim is about, among those that there are."""
        others = self.than or tuple(r for r in rows if r != self.better)
        pairs = self.pairs or tuple((self.better, other) for other in others)
        return [(a, b) for a, b in pairs if a in rows and b in rows]

    @property
    def named(self) -> set[str]:
        """All rows that it names."""
        return {*self.than, *self.anchors, *(r for pair in self.pairs for r in pair), *filter(None, [self.better])}


@dataclass(frozen=True)
class Interval:
    """A mean of paired differences and its interval; positive is what the claim says."""

    mean: float
    low: float
    high: float
    seeds: int

    def level(self, within: float | None = None) -> float:
        """Return its p value: one minus the confidence at which its end would touch zero (the distance)."""
        away = abs(self.mean) if within is None else abs(within - abs(self.mean))
        half = self.high - self.mean
        if not half or math.isinf(half):
            return float(half > 0 or not away)
        factor = t.ppf((1 + CONFIDENCE) / 2, self.seeds - 1)
        return float(2 * t.sf(away * factor / half, self.seeds - 1))

    def side(self, within: float | None = None) -> int:
        """1 or −1 if the interval lies on the claimed or on the other side of zero (of the distance), else 0."""
        if within is not None:
            return 1 if max(-self.low, self.high) < within else -1 if self.low > within or self.high < -within else 0
        return 1 if self.low > 0 else -1 if self.high < 0 else 0


@dataclass(frozen=True)
class Judgement:
    """A claim's verdict, why, how far our level is from the published, and the differences behind it.

    Attributes:
        distance: Mean of |ours − published| over the anchors (NaN: not known).
        differences: Ours, by the two rows and the column.
        scale: Of the runs.
    """

    claim: Claim
    verdict: Verdict
    why: str
    distance: float = math.nan
    differences: Mapping[tuple[str, str, str], Interval] = field(default_factory=dict)
    scale: str = ""

    def sides(self) -> tuple[int, int, int]:
        """Return how many differences lie on the claimed side, on the other one, and on neither."""
        found = Counter(d.side(self.claim.within) for d in self.differences.values())
        return found[1], found[-1], found[0]

    def firm(self) -> tuple[int, int]:
        """Return how many on the claimed and on the other side stay by Holm's rule for this many differences.

        The p values, from the least, are held against 5 % over the number of those that are left.
        """
        within = self.claim.within
        found = sorted((d.level(within), d.side(within)) for d in self.differences.values())
        stays = [level <= (1 - CONFIDENCE) / (len(found) - place) for place, (level, _) in enumerate(found)]
        sides = [side for _, side in found[: [*stays, False].index(False)]]
        return sides.count(1), sides.count(-1)


def interval(differences: Sequence[float] | NDArray[np.float64], confidence: float = CONFIDENCE) -> Interval:
    """Return the mean of paired differences with Student's interval; of fewer than two it is endless."""
    found = np.asarray(differences, dtype=float)
    count = len(found)
    mean = float(found.mean()) if count else math.nan
    if count < 2:
        return Interval(mean, -math.inf, math.inf, count)
    half = float(t.ppf((1 + confidence) / 2, count - 1) * found.std(ddof=1) / math.sqrt(count))
    return Interval(mean, mean - half, mean + half, count)


def difference(figures: Results, measure: str, better: str, other: str, column: str) -> Interval:
    """Return by how much a row leads another in one column, over the seeds that both have.

    Where one of the two never reached a target, its time counts as the length of its run, if that is the longer one.
    """
    sign = -1.0 if figures.lower(measure) else 1.0
    mine, theirs = (figures.by_seed(row, column, measure) for row in (better, other))
    my_least, their_least = (figures.at_least(row, column, measure) for row in (better, other))
    found = []
    for seed in sorted(mine.keys() & theirs.keys()):
        a, b = mine[seed], theirs[seed]
        if math.isnan(a) and math.isfinite(b) and my_least.get(seed, -math.inf) > b:
            a = my_least[seed]
        elif math.isnan(b) and math.isfinite(a) and their_least.get(seed, -math.inf) > a:
            b = their_least[seed]
        if math.isfinite(a) and math.isfinite(b):
            found.append(sign * (a - b))
    return interval(found)


def _above_worst(figures: Results, measure: str, pairs: Sequence[tuple[str, str]], column: str) -> Interval:
    """Return by how much the row leads whichever of the others is the worst under each seed."""
    sign = -1.0 if figures.lower(measure) else 1.0
    mine, *theirs = (figures.by_seed(row, column, measure) for row in (pairs[0][0], *(other for _, other in pairs)))
    seeds = [s for s in sorted(mine) if all(math.isfinite(f.get(s, math.nan)) for f in (mine, *theirs))]
    return interval([sign * mine[s] - min(sign * f[s] for f in theirs) for s in seeds])


def judge(claim: Claim, figures: Results, scale: str = "", planned: Collection[tuple[str, str]] = ()) -> Judgement:
    """Judge a claim by the figures of its study (which may have none yet).

    ``planned`` are the rows and columns of the paper's own setting: a claim that was tested in some holds in part.
    """
    columns = [c for c in figures.columns if not claim.columns or c in claim.columns]
    pairs = claim.compared(figures.rows)
    lack = _lack(claim, figures, pairs, columns)
    if lack:
        return Judgement(claim, "not tested", lack, scale=scale)
    found = _differences(claim, figures, pairs, columns)
    unfit = _unfit(claim, figures, pairs, columns)
    anchors = list(claim.anchors) or [b for _, b in pairs]
    if found and not {at[2] for at in found} - unfit.keys():
        apart = _distance(figures, claim, anchors, columns)
        return Judgement(claim, "not tested", _why_not(unfit, apart), apart, found, scale)
    left = {at: d for at, d in found.items() if at[2] not in unfit}
    apart = _distance(figures, claim, anchors, [c for c in columns if c not in unfit])
    verdict, why = _weigh(list(left.values()), claim.within)
    rest = _missing(claim, figures.rows, found, planned)
    if unfit:
        rest.append(f"Left out: {_why_not(unfit)}")
    if verdict == "holds" and rest:
        verdict = "holds in part"
    return Judgement(claim, verdict, " ".join([why, *rest]), apart, left, scale)


def _differences(
    claim: Claim, figures: Results, pairs: Sequence[tuple[str, str]], columns: Sequence[str]
) -> dict[tuple[str, str, str], Interval]:
    if claim.against == "worst":
        found = {(pairs[0][0], WORST, c): _above_worst(figures, claim.measure, pairs, c) for c in columns}
    else:
        found = {(a, b, c): difference(figures, claim.measure, a, b, c) for a, b in pairs for c in columns}
    return {at: d for at, d in found.items() if d.seeds}


def _lack(claim: Claim, figures: Results, pairs: Sequence[tuple[str, str]], columns: Sequence[str]) -> str:
    """Say what a claim lacks to be tested: rows or columns, or runs ("": nothing)."""
    if not pairs or not columns:
        missing = claim.named - set(figures.rows) | set(claim.columns) - set(figures.columns)
        return f"Not run: {', '.join(sorted(missing)) or 'anything to compare with'}."
    better = dict.fromkeys(a for a, _ in pairs)
    if not any(figures.by_seed(row, column, claim.measure) for row in better for column in columns):
        return f"Not run: {', '.join(better)}."
    return ""


def _unfit(claim: Claim, figures: Results, pairs: Sequence[tuple[str, str]], columns: Sequence[str]) -> dict[str, str]:
    """Say of each column that tests nothing why: our level is not the paper's, or a part of the method never acted."""
    anchors = list(claim.anchors) or [b for _, b in pairs]
    better = dict.fromkeys(a for a, _ in pairs)
    # no level is below zero, and one that is not printed is not above it either
    printed = {c for c in (*claim.columns, *columns) for r in anchors if figures.published(r, c, claim.measure) >= 0}
    found = {}
    for column in columns:
        done = [figures.event_counts(row, column) for row in better if figures.by_seed(row, column, claim.measure)]
        idle = [part for part in claim.acts if done and not any(d.get(part) for d in done)]
        if 0 <= claim.near < _distance(figures, claim, anchors, [column]):
            found[column] = "the baselines are too far from the published"
        elif claim.near >= 0 and printed and column not in printed:
            found[column] = "the paper prints no figure of it"
        elif idle:
            found[column] = f"the runs of {', '.join(better)} have none of: {', '.join(idle)}"
    return found


def _why_not(unfit: Mapping[str, str], apart: float = math.nan) -> str:
    """Say why columns test nothing; where none is left (``apart`` is known), how far the level is from the paper's."""
    whys = dict.fromkeys(unfit.values())
    if math.isnan(apart):
        return "; ".join(f"{', '.join(c for c, w in unfit.items() if w == why)} ({why})" for why in whys) + "."
    return f"Our baselines are {apart:,.4g} from the published on average. No setting is a test: {'; '.join(whys)}."


def _missing(
    claim: Claim, rows: Sequence[str], found: Collection[tuple[str, str, str]], planned: Collection[tuple[str, str]]
) -> list[str]:
    """Say in how many of the paper's settings a claim was run, and which rows that it is about were not."""
    if not found:
        return []
    pairs = claim.compared(list(dict.fromkeys([*rows, *(row for row, _ in planned)])))
    every = set(claim.columns) or {c for a, b in pairs for row, c in planned if row == a and (b, c) in planned}
    run = {column for *_, column in found}
    said = [f"Run in {len(run & every)} of {len(every)} settings."] if every - run else []
    there = {row for a, b, _ in found for row in (a, b)}
    lost = [] if claim.against == "worst" else [b for _, b in pairs if b not in there]
    return [*said, *([f"Not run: {', '.join(dict.fromkeys(lost))}."] if lost else [])]


def _distance(figures: Results, claim: Claim, rows: Sequence[str], columns: Sequence[str]) -> float:
    gaps = [
        abs(figures.mean(r, c, claim.measure) - figures.published(r, c, claim.measure)) for r in rows for c in columns
    ]
    known = [g for g in gaps if math.isfinite(g)]
    return float(np.mean(known)) if known else math.nan


def claimed_leads(claim: Claim, figures: Results) -> dict[tuple[str, str, str], float]:
    """Return the differences that the paper's own figures give, where they are printed."""
    columns = [c for c in figures.columns if not claim.columns or c in claim.columns]
    pairs = claim.compared(figures.rows)
    sign = -1.0 if figures.lower(claim.measure) else 1.0
    paper = {
        (a, b, c): sign * (figures.published(a, c, claim.measure) - figures.published(b, c, claim.measure))
        for a, b in pairs
        for c in columns
    }
    known = {at: d for at, d in paper.items() if math.isfinite(d)}
    if claim.against == "each":
        return known
    worst: dict[tuple[str, str, str], float] = {}
    for (a, _, c), lead in known.items():
        worst[a, WORST, c] = max(lead, worst.get((a, WORST, c), -math.inf))
    return worst


def _weigh(found: Sequence[Interval], within: float | None) -> tuple[Verdict, str]:
    if not found:
        return "not tested", "No pair of runs shares a seed."
    least, most = min(d.seeds for d in found), max(d.seeds for d in found)
    if most < 2:
        return "cannot be told", "One seed gives no verdict."
    sides = [d.side(within) for d in found]
    yes, no = sides.count(1), sides.count(-1)
    seeds = f"{most}" if least == most else f"{least} to {most}"
    why = f"Of {len(found)} differences over {seeds} seeds, {yes} are as claimed, {no} the other way round."
    if yes == len(found):
        return "holds", why
    if no > yes:
        return "opposed", why
    return ("holds in part" if yes else "cannot be told"), why


def read_claims(path: Path | Traversable) -> list[Claim]:
    """Read a paper's claims from its TOML file (tables ``[[claim]]``); there may be none."""
    if not path.is_file():
        return []
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    found: dict[str, Claim] = {}
    for entry in table.get("claim", ()):
        known = Claim.__dataclass_fields__
        for key in entry:
            if key not in known:
                raise ConfigError(f"{path.name}: claim {entry.get('name', '?')!r} has an unknown key {key!r}.")
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
        if "pairs" in fields:
            fields["pairs"] = tuple((str(a), str(b)) for a, b in fields["pairs"])
        claim = Claim(**fields)
        if claim.name in found:
            raise ConfigError(f"{path.name} has two claims named {claim.name!r}.")
        found[claim.name] = claim
    return list(found.values())
