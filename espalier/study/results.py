"""The figures of a study's finished runs: read off the runs, kept as data, and read back without them.

One file per study and scale holds, per cell and seed, the measures and what the run did (rounds reached, virtual time,
trainings, how often each part of the method acted), with the command that made it. Pages are rendered from these files.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import kendalltau

from espalier.core.errors import RunError
from espalier.record.run import Run
from espalier.study.base import Scale, Study, cell_directory, final_time, has_ended, last

#: version of the files that keep figures
FORMAT = 1
#: whose model a device may be judged by, and how it is headed
SOURCES = {
    "global": "global model",
    "edge": "its edge's (there its cluster's)",
    "cluster": "its cluster's at the cloud",
    "own": "its own after local training",
}


@dataclass(frozen=True)
class Finished:
    """One finished run of a study.

    Attributes:
        measures: The study's measures (NaN: the run has none).
        facts: What the run did: ``rounds``, ``seconds`` (virtual), ``trainings``, ``versions``, ``cpu_seconds``, how
            often each kind of event was recorded (``deeds``), how its clusters were last arranged (``clusters``), and
            devices' accuracy with each source's model (``by_source``).
    """

    measures: Mapping[str, float]
    facts: Mapping[str, Any] = field(default_factory=dict)


def finished(study: Study, run: Run) -> Finished:
    """Read a study's measures and what a run did off the run."""
    measures = {name: float(measure.read(run)) for name, measure in study.measures.items()}
    deeds = dict(run.query("SELECT kind, count(*) FROM events GROUP BY kind ORDER BY kind"))
    arranged = [e for e in run.events("arranged") if "clusters" in e]
    status = run.status
    facts = {
        "rounds": run.rounds,
        "seconds": final_time(run),
        "trainings": _count(last(run, "jobs_ordered")),
        "groups": _count(last(run, "groups")),
        "versions": _versions(run),
        "cpu_seconds": run.meta("cpu_seconds"),
        "deeds": deeds,
        "clusters": arrangement(arranged[-1]) if arranged else {},
        "by_source": {s: v for s in SOURCES if not math.isnan(v := last(run, f"acc_device_{s}"))},
        **({"ended": status["stalled"]} if status.get("stalled") else {}),
        **{name: read(run) for name, read in study.facts.items()},
    }
    return Finished(measures, {k: v for k, v in facts.items() if v not in (None, {})})


def arrangement(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return how devices were arranged: the number of clusters, their sizes, the cut (``beta``), and why there.

    Methods tell either how many clusters there are, with their ``sizes``, or who is in each.
    """
    clusters = event["clusters"]
    sizes = event.get("sizes", [])
    if isinstance(clusters, Mapping | list):
        members = list(clusters.values()) if isinstance(clusters, Mapping) else clusters
        sizes = sorted((m if isinstance(m, int) else len(m) for m in members), reverse=True)
        clusters = len(sizes)
    more = {k: event[k] for k in ("beta", "why") if event.get(k)}
    return {"clusters": clusters, **({"sizes": sizes} if sizes else {}), **more}


def _versions(run: Run) -> Any:
    """Return what a run was made with, as its description says."""
    path = None if run.directory is None else run.directory / "run.toml"
    if path is None or not path.is_file():
        return None
    return tomllib.loads(path.read_text(encoding="utf-8")).get("about", {}).get("versions")


def _count(value: float) -> int | None:
    return None if math.isnan(value) else int(value)


class Results:
    """The figures of a study's finished runs."""

    def __init__(
        self,
        study: Study,
        scale: Scale,
        cells: Mapping[tuple[str, str], Mapping[int, Finished]],
        commands: Sequence[str] = (),
        runs: Mapping[tuple[str, str], Sequence[Run]] | None = None,
    ) -> None:
        """Hold the finished runs of each (row, column) by seed; ``runs`` are at hand only where they were just made."""
        self.study, self.scale, self.cells, self.commands = study, scale, cells, tuple(commands)
        self.runs = runs or {}
        self.rows = list(dict.fromkeys(row for row, _ in cells))
        self.columns = list(dict.fromkeys(column for _, column in cells))

    @staticmethod
    def of_runs(
        study: Study, scale: Scale, runs: Mapping[tuple[str, str], Sequence[Run]], command: str = ""
    ) -> Results:
        """Read the figures off runs."""
        cells = {at: {run.seed: finished(study, run) for run in found} for at, found in runs.items()}
        return Results(study, scale, cells, [command] if command else [], runs)

    def by_seed(self, row: str, column: str, measure: str) -> dict[int, float]:
        """Return one figure per seed (NaN where a run has none)."""
        return {s: one.measures.get(measure, math.nan) for s, one in self.cells.get((row, column), {}).items()}

    def at_least(self, row: str, column: str, measure: str) -> dict[int, float]:
        """Return, for the seeds whose run never reached a target, what the figure is at least."""
        fact = self.study.measures[measure].never
        runs = self.cells.get((row, column), {}) if fact else {}
        never = {s: one for s, one in runs.items() if math.isnan(one.measures.get(measure, math.nan))}
        return {s: float(one.facts[fact]) for s, one in never.items() if fact in one.facts}

    def values(self, row: str, column: str, measure: str) -> np.ndarray:
        """Return one figure per seed."""
        return np.array(list(self.by_seed(row, column, measure).values()), dtype=float)

    def lower(self, measure: str) -> bool:
        """Tell whether small is good."""
        return self.study.measures[measure].lower

    def event_counts(self, row: str, column: str) -> dict[str, int]:
        """Return how often each kind of event was recorded in all runs of a row in a column.

        ``clusters`` counts the runs whose devices ended in more than one.
        """
        total: dict[str, int] = {}
        for one in self.cells.get((row, column), {}).values():
            found = one.facts.get("clusters", {}).get("clusters", one.facts.get("groups", 0))
            for kind, count in {**one.facts.get("deeds", {}), "clusters": int(found > 1)}.items():
                total[kind] = total.get(kind, 0) + count
        return total

    def known(self, row: str, column: str, measure: str) -> np.ndarray:
        """Return the figures of the seeds that have one (a target may never be reached)."""
        found = self.values(row, column, measure)
        return np.asarray(found[~np.isnan(found)])

    def mean(self, row: str, column: str, measure: str) -> float:
        """Return the mean over the seeds that have a figure (NaN where none has)."""
        known = self.known(row, column, measure)
        return float(known.mean()) if len(known) else float("nan")

    def std(self, row: str, column: str, measure: str) -> float:
        """Return the standard deviation over the seeds that have a figure."""
        known = self.known(row, column, measure)
        return float(known.std(ddof=1)) if len(known) > 1 else 0.0

    def published(self, row: str, column: str, measure: str) -> float:
        """Return the paper's figure (NaN where it gives none, or one of another target)."""
        if self.scale not in self.study.measures[measure].scales:
            return float("nan")
        return float(self.study.published.get(row, {}).get(column, {}).get(measure, float("nan")))

    def best(
        self, column: str, measure: str, rows: Sequence[str] | None = None, *, published: bool = False
    ) -> str | None:
        """Return the row (of all, or of some) with the best figure, if there is such a thing."""
        if not self.study.measures[measure].ranked:
            return None
        found = {r: self._standing(r, column, measure, published) for r in (self.rows if rows is None else rows)}
        known = {r: v for r, v in found.items() if v is not None}
        return min(known, key=lambda r: known[r]) if known else None

    def _standing(self, row: str, column: str, measure: str, published: bool) -> tuple[int, float] | None:
        """Return what rows are ordered by, the best the least: who has figures under more seeds comes first."""
        mean = (self.published if published else self.mean)(row, column, measure)
        if mean != mean:
            return None
        without = 0 if published else len(self.values(row, column, measure)) - len(self.known(row, column, measure))
        return without, mean if self.study.measures[measure].lower else -mean

    def agreement(self, column: str, measure: str) -> float:
        """Return Kendall's tau between our order of the rows and the paper's (NaN if it cannot be said)."""
        pairs = [tuple(self._standing(r, column, measure, p) for p in (False, True)) for r in self.rows]
        known = [pair for pair in pairs if None not in pair]
        if len(known) < 3:
            return float("nan")
        ours, theirs = ([sorted(set(side)).index(one) for one in side] for side in zip(*known, strict=True))
        return float(kendalltau(ours, theirs).statistic)

    def words(self) -> list[str]:
        """Say where the orders of the paper's rows agree and where they do not, then the study's own comment."""
        out = []
        for measure, what in self.study.measures.items():
            for column in self.columns:
                printed = [r for r in self.rows if not math.isnan(self.published(r, column, measure))]
                theirs = self.best(column, measure, printed, published=True)
                ours = self.best(column, measure, printed)
                if theirs is None or ours is None or len(printed) < 2:
                    continue
                tau = self.agreement(column, measure)
                order = "" if tau != tau else f" The orders agree to τ = {tau:+.2f}."
                if ours == theirs:
                    out.append(f"{column}, {what.title}: {ours} is best, as in the paper.{order}")
                else:
                    gap = abs(self.mean(ours, column, measure) - self.mean(theirs, column, measure))
                    far = "without a figure here" if gap != gap else f"here {gap:.{what.digits}f} apart"
                    out.append(f"{column}, {what.title}: {ours} is best here, {theirs} in the paper ({far}).{order}")
        return [*out, *self.study.comment(self)]


def read_results(of: Study, scale: Scale, directory: Path, command: str = "", *, unfinished: bool = False) -> Results:
    """Read the runs that a study has left in a directory: all of them, or (``unfinished``) those that have ended."""
    runs: dict[tuple[str, str], list[Run]] = {}
    for cell in of.cells(scale):
        for seed in cell.experiment.seeds:
            where = cell_directory(directory, cell, seed)
            if unfinished and not has_ended(where):
                continue
            if not (where / "run.sqlite").is_file():
                raise RunError(f"{where} has no run: `espalier reproduce {of.name} --scale {scale}` makes it.")
            runs.setdefault((cell.row, cell.column), []).append(Run(where))
    return Results.of_runs(of, scale, runs, command)


# -- figures as data -----------------------------------------------------------------------------------------


def data_file(folder: Path, study: str, scale: Scale) -> Path:
    """Return the file that holds a study's figures at a scale."""
    return folder / f"{study.replace('/', '-')}-{scale}.json"


def keep(results: Results, folder: Path) -> Path:
    """Write a study's figures into its file; runs that are kept there already and not among these stay."""
    path = data_file(folder, results.study.name, results.scale)
    table: dict[str, Any] = {"format": FORMAT, "study": results.study.name, "scale": results.scale, "runs": []}
    old = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.is_file() else []
    new = [
        {
            "row": row,
            "column": column,
            "seed": seed,
            "command": "; ".join(results.commands),
            "measures": {k: None if math.isnan(v) else v for k, v in one.measures.items()},
            "facts": dict(one.facts),
        }
        for (row, column), runs in results.cells.items()
        for seed, one in sorted(runs.items())
    ]
    made = {(r["row"], r["column"], r["seed"]) for r in new}
    table["runs"] = [r for r in old if (r["row"], r["column"], r["seed"]) not in made] + new
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return path


def kept(study: Study, scale: Scale, folder: Path) -> Results | None:
    """Read a study's figures from its file (None: there is none); rows and columns come in the study's own order."""
    path = data_file(folder, study.name, scale)
    if not path.is_file():
        return None
    table = json.loads(path.read_text(encoding="utf-8"))
    if table.get("format") != FORMAT:
        raise RunError(f"{path} has format {table.get('format')!r}; this version reads format {FORMAT}.")
    found: dict[tuple[str, str], dict[int, Finished]] = {}
    for run in table["runs"]:
        measures = {k: math.nan if v is None else float(v) for k, v in run["measures"].items()}
        found.setdefault((run["row"], run["column"]), {})[int(run["seed"])] = Finished(measures, run["facts"])
    order = [(c.row, c.column) for c in study.cells(scale)]
    cells = {at: found[at] for at in dict.fromkeys([*order, *found]) if at in found}
    commands = sorted({run["command"] for run in table["runs"]})
    return Results(study, scale, cells, commands)
