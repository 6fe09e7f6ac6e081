"""What is kept of all studies: their figures at each scale, what is still to be run at which cost, and the verdicts."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from espalier.core.errors import ConfigError
from espalier.study.base import Scale, Study, papers, studies
from espalier.study.claims import Claim, Judgement, claimed_leads, judge, read_claims
from espalier.study.results import Results, kept

#: scales whose figures a paper's claims are judged by, the paper's own first
JUDGED: tuple[Scale, ...] = ("full", "small")
SECONDS_PER_MINUTE = 60


@dataclass(frozen=True)
class State:
    """How much of a study was run at a scale.

    Attributes:
        runs: Cells × seeds that it has.
        done: Those that are kept.
        seeds: Under which something is kept.
        minutes: Core minutes of all runs: what the kept ones took, the rest by the mean of their column, or as the
            paper's ``claims.toml`` has it (NaN: not known).
        left_minutes: Of those that are missing.
        guessed: Whether some are of no column that was run.
    """

    study: Study
    scale: Scale
    runs: int
    done: int
    seeds: tuple[int, ...]
    minutes: float
    left_minutes: float
    guessed: bool

    @property
    def command(self) -> str:
        """What makes the missing runs and keeps their figures (run where the folder of the data is)."""
        return f"espalier reproduce {self.study.name} --scale {self.scale}"


class Archive:
    """The figures of all studies, in a folder of data files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._found: dict[tuple[str, Scale], Results | None] = {}

    def results(self, study: Study, scale: Scale) -> Results | None:
        """Return a study's figures at a scale (None: there are none)."""
        at = (study.name, scale)
        if at not in self._found:
            self._found[at] = kept(study, scale, self.folder)
        return self._found[at]

    def state(self, study: Study, scale: Scale) -> State:
        """Tell how much of a study is kept, and what the rest costs."""
        results = self.results(study, scale)
        planned = {(c.row, c.column, seed) for c in study.cells(scale) for seed in c.experiment.seeds}
        cells = results.cells if results else {}
        found = {(*at, seed): run for at, by_seed in cells.items() for seed, run in by_seed.items()}
        spent: dict[str, list[float]] = {}
        for (_, column, _), run in found.items():
            if "cpu_seconds" in run.facts:
                spent.setdefault(column, []).append(run.facts["cpu_seconds"] / SECONDS_PER_MINUTE)
        means = {column: float(np.mean(minutes)) for column, minutes in spent.items()}
        guess = {c: means.get(c, guessed_minutes(study, scale, c)) for c in {column for _, column, _ in planned}}
        left = sum(guess[column] for _, column, _ in planned - found.keys())
        done = sum(guess[column] for _, column, _ in planned & found.keys())
        seeds = tuple(sorted({seed for *_, seed in found}))
        guessed = any(column not in means for _, column, _ in planned)
        return State(study, scale, len(planned), len(planned & found.keys()), seeds, done + left, left, guessed)

    def judgements(self, paper: str) -> list[Judgement]:
        """Judge a paper's claims by the largest scale that decides, else that was a test, else that was run."""
        claims = read_claims(resources.files(papers()[paper]) / "claims.toml")
        return [self._judge(claim) for claim in claims]

    def _judge(self, claim: Claim) -> Judgement:
        known = studies()
        if claim.study not in known:
            raise ConfigError(f"The claim {claim.name!r} is about {claim.study}, which is no study.")
        study = known[claim.study]
        if claim.measure not in study.measures:
            raise ConfigError(
                f"The claim {claim.name!r} is about {claim.measure!r}, which {study.name} does not measure."
            )
        found, planned = [], _planned(study)
        for scale in JUDGED:
            results = self.results(study, scale)
            if results is not None and scale in study.measures[claim.measure].scales:
                found.append(judge(claim, results, scale, planned.cells.keys()))
        tested = [j for j in found if j.verdict != "not tested"]
        decided = [j for j in tested if j.verdict != "cannot be told"]
        first = (decided or tested or found or [judge(claim, planned)])[0]
        other = [f"At `{j.scale}`: {j.verdict} ({' / '.join(map(str, j.sides()))})." for j in tested if j is not first]
        return replace(first, why=" ".join([first.why, *other]))

    def claimed(self, claim: Claim) -> list[float]:
        """Return the leads that the paper prints figures of, in all its settings."""
        return list(claimed_leads(claim, _planned(studies()[claim.study])).values())


def guessed_minutes(study: Study, scale: Scale, column: str) -> float:
    """Return about how many core minutes a run takes, as the paper's ``claims.toml`` has it (NaN: it does not).

    Its table ``minutes`` has a number for a scale, or several by a part of the study's name or of the column's: the
    longest that fits counts.
    """
    found = _minutes(papers()[study.paper]).get(scale, float("nan"))
    if isinstance(found, dict):
        fitting = [key for key in found if key in f"{study.name} {column}"]
        found = found[max(fitting, key=len)] if fitting else float("nan")
    return float(found)


@cache
def _minutes(package: str) -> dict[str, Any]:
    path = resources.files(package) / "claims.toml"
    found: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return dict(found.get("minutes", {}))


def _planned(study: Study) -> Results:
    """Return a study's results in the paper's setting before anything is run."""
    return Results(study, "full", {(cell.row, cell.column): {} for cell in study.cells("full")})


def of_paper(paper: str) -> list[Study]:
    """Return a paper's studies: tables first, then figures, then the rest, each by number."""

    def order(study: Study) -> tuple[int, int, str]:
        name = study.name.split("/")[1]
        digits = "".join(c for c in name if c.isdigit())
        kind = 0 if name.startswith("table") else 1 if name.startswith("fig") else 2
        return kind, int(digits or 0), name

    return sorted((s for s in studies().values() if s.paper == paper), key=order)
