"""A paper's table or figure as a study: which runs it takes, what is read off them, what was published.

    TABLE1 = Study(
        name="csahfl/table1", title="Accuracy of eight methods", cells=cells,
        measures={"accuracy": Metric("accuracy (%)", lambda run: 100 * last(run, "acc_device"))},
        published=published(__package__, "table1"),  # of published.toml beside it
    )
    register(TABLE1)

A study runs at three scales: ``full`` is the paper's setting, ``small`` keeps everything but sizes, rounds and
seeds, ``smoke`` runs on embedded data within seconds. Runs are kept in a directory and reused.
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np

from espalier.core.errors import ConfigError, nearest
from espalier.core.method import load_methods
from espalier.experiment import Experiment, MethodEntry
from espalier.record.run import Run, slug

#: figures by row, column and measure
Figures = Mapping[str, Mapping[str, Mapping[str, float]]]

Scale = Literal["smoke", "small", "full"]
SCALES: tuple[Scale, ...] = ("smoke", "small", "full")


@dataclass(frozen=True)
class Metric:
    """What is read off a finished run, how it is headed, and whether small is good (or, not ``ranked``, neither is).

    ``never`` is for times to a target: the fact (``seconds``, ``rounds``) which such a time exceeds where it is NaN;
    ``scales`` are those at which the target is the paper's, so that claims may be judged and its figures stand beside.
    """

    title: str
    read: Callable[[Run], float]
    lower: bool = False
    digits: int = 2
    ranked: bool = True
    never: Literal["", "seconds", "rounds"] = ""
    scales: tuple[Scale, ...] = SCALES


@dataclass(frozen=True)
class Cell:
    """The runs of one row under one condition: an experiment of one method, over its seeds.

    ``until`` names another cell (row, column): the runs stop at the virtual time which that cell's run of the same
    seed needed (for asynchronous methods, whose rounds cannot be compared).
    """

    row: str
    column: str
    experiment: Experiment
    until: tuple[str, str] | None = None

    @staticmethod
    def of(
        row: str,
        column: str,
        setting: Mapping[str, Any],
        method: Mapping[str, Any],
        until: tuple[str, str] | None = None,
    ) -> Cell:
        """Return the runs of a method, labelled as its row, in a setting: an experiment's table but for the methods."""
        return Cell(row, column, Experiment.build({**setting, "methods": [{"label": row, **method}]}), until)


@dataclass(frozen=True)
class Study:
    """One table or figure of a paper.

    Attributes:
        name: ``paper/table1``.
        title: What it shows.
        cells: Returns the runs of a scale.
        measures: What is read off each run, by name.
        published: The paper's figures: row → column → measure → value.
        notes: What differs from the paper, per scale or in general; printed with every result.
        comment: Says in words what the figures show, from the results.
        curves: Metrics that a figure draws over rounds and time (their curves are in the report and in a CSV).
        facts: What else is kept of each run, as plain data, for the comment.
        shown_facts: Those of the facts that stand beside what the methods did, with their heading: numbers, or tables
            of them.
        runs_of: The study whose runs these are (another table of the same runs); empty: its own.
        sources: Whether it is also measured how devices do with each source's model (a training per device).
    """

    name: str
    title: str
    cells: Callable[[Scale], Sequence[Cell]]
    measures: Mapping[str, Metric]
    published: Figures = field(default_factory=dict)
    notes: Sequence[str] = ()
    comment: Callable[[Any], Sequence[str]] = lambda results: ()
    curves: Sequence[str] = ()
    facts: Mapping[str, Callable[[Run], Any]] = field(default_factory=dict)
    shown_facts: Mapping[str, str] = field(default_factory=dict)
    runs_of: str = ""
    sources: bool = True

    @property
    def paper(self) -> str:
        """The name's first part."""
        return self.name.split("/")[0]

    def reread(self, name: str, title: str, **other: Any) -> Study:
        """Return another table or figure of the same runs; what is kept of each run beside is this one's alone."""
        given = {"facts": {}, "shown_facts": {}, "comment": Study.comment, "runs_of": self.name, **other}
        return replace(self, name=f"{self.paper}/{name}", title=title, **given)


def last(run: Run, name: str) -> float:
    """Return a metric at the last evaluation (NaN: that evaluation has none; what an earlier one had is another's)."""
    rows = run.query(
        "SELECT value FROM metrics WHERE name = ? AND rowid >= (SELECT min(rowid) FROM metrics WHERE (time, round) = "
        "(SELECT time, round FROM metrics ORDER BY rowid DESC LIMIT 1))",
        name,
    )
    return float(rows[-1][0]) if rows and rows[-1][0] is not None else float("nan")


def tail(run: Run, name: str, over: int = 5) -> float:
    """Return the mean of a metric's last evaluations (NaN if there is none)."""
    rows = run.query(
        "SELECT value FROM metrics WHERE name = ? AND value IS NOT NULL AND round > 0 ORDER BY rowid DESC LIMIT ?",
        name,
        over,
    )
    return float(np.mean([r[0] for r in rows])) if rows else float("nan")


def reached(run: Run, target: float, name: str) -> float:
    """Return the virtual time at which a metric first was as good as a target (NaN: never, or it has no such one)."""
    found = run.time_to(target, name) if run.query("SELECT 1 FROM metrics WHERE name = ? LIMIT 1", name) else None
    return float("nan") if found is None else found


def best(run: Run, name: str) -> float:
    """Return a metric's largest value."""
    rows = run.query("SELECT max(value) FROM metrics WHERE name = ? AND round > 0", name)
    return float("nan") if rows[0][0] is None else float(rows[0][0])


def final_time(run: Run) -> float:
    """Return the virtual seconds of a run."""
    return float(run.query("SELECT coalesce(max(time), 0) FROM metrics")[0][0])


def has_ended(directory: Path) -> bool:
    """Tell whether a directory holds a run that is finished."""
    return (directory / "run.sqlite").is_file() and Run(directory).status["state"] == "finished"


def with_time(experiment: Experiment, seconds: float) -> Experiment:
    """Return an experiment that stops at a virtual time instead of after rounds."""
    stop = replace(experiment.stop, rounds=None, seconds=seconds)
    every = max(seconds / max(1, experiment.stop.rounds or 50), 1e-9)
    return replace(experiment, stop=stop, evaluate=replace(experiment.evaluate, seconds=every))


@cache
def _read(package: str, name: str) -> dict[str, Any]:
    return tomllib.loads((resources.files(package) / name).read_text(encoding="utf-8"))


def notes(package: str, which: str = "notes") -> tuple[str, ...]:
    """Return what is printed with a study's results: a list of ``notes.toml``, which lies beside it."""
    return tuple(_read(package, "notes.toml")[which])


def published(package: str, table: str) -> dict[str, dict[str, dict[str, float]]]:
    """Return a table of a paper's ``published.toml``, which lies beside its study.

    A table is a list of blocks: ``columns``, ``measures`` and ``rows``. A row has one value per column, or one list
    per column with a value for each measure; ``nan`` stands where the paper prints none.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    for block in _read(package, "published.toml")[table]:
        for row, cells in block["rows"].items():
            for column, cell in zip(block["columns"], cells, strict=True):
                values = cell if isinstance(cell, list) else [cell]
                found.setdefault(row, {})[column] = dict(zip(block["measures"], values, strict=True))
    return found


#: makes further rows from a study's own cells
MoreRows = Callable[[Sequence[Cell]], Sequence[Cell]]
_STUDIES: dict[str, Study] = {}
_ROWS: dict[str, list[MoreRows]] = {}


def register(*found: Study) -> None:
    """Make studies known by their names. Their cells are made once per scale: pages and claims ask for them often."""
    _STUDIES.update((one.name, replace(one, cells=cache(one.cells))) for one in found)


def add_rows(name: str, more: MoreRows) -> None:
    """Let a study have further rows below its own wherever it is asked for by name: a method beside the published."""
    _ROWS.setdefault(name, []).append(more)


def with_rows(of: Study, *more: MoreRows) -> Study:
    """Return a study with further rows below its own."""

    def cells(scale: Scale) -> list[Cell]:
        own = list(of.cells(scale))
        return [*own, *(cell for make in more for cell in make(own))]

    return replace(of, cells=cells) if more else of


def method_row(entry: MethodEntry, on: str = "") -> MoreRows:
    """Return what makes a method's row: in every column, in the setting and until the end of another row's runs.

    That row is ``on``; without one it is HierFAVG's, or else the first that waits for no other.
    """

    def cells(own: Sequence[Cell]) -> list[Cell]:
        if entry.label in (c.row for c in own):
            raise ConfigError(f"The study has a row {entry.label!r} already: give the method another label.")
        lone = [c for c in own if c.until is None]
        found = [c for c in lone if (c.row == on if on else c.experiment.methods[0].method.kind == "hierfavg")]
        if on and not found:
            known = dict.fromkeys(c.row for c in lone)
            raise ConfigError(
                f"No row {on!r} lends its setting; those that do: {', '.join(known)}.{nearest(on, known)}"
            )
        lending = found or [c for c in lone if c.row == lone[0].row]
        return [Cell(entry.label, c.column, replace(c.experiment, methods=(entry,))) for c in lending]

    return cells


@cache
def papers() -> dict[str, str]:
    """Import the studies that packages announce; return the package of each paper.

    The module that a package names under the entry-point group ``espalier.methods`` lists those of its modules that
    register studies in ``STUDIES``; they are imported when somebody asks for studies, so that methods load quickly.
    Beside its study a paper's package has ``published.toml``, ``notes.toml``, ``claims.toml`` and ``page.md``. A paper
    is called as its package, or as the module's ``PAPER``.
    """
    modules = [m for announced in load_methods() for m in getattr(announced, "STUDIES", ())]
    packages = {}
    for module in modules:
        found = importlib.import_module(module)
        package = module.rpartition(".")[0]
        packages[getattr(found, "PAPER", package.rpartition(".")[2])] = package
    return packages


def studies() -> dict[str, Study]:
    """Return every study by name."""
    papers()
    return {name: with_rows(one, *_ROWS.get(name, ())) for name, one in sorted(_STUDIES.items())}


def study(name: str) -> Study:
    """Return a study by name."""
    found = studies()
    if name not in found:
        raise ConfigError(f"There is no study {name!r}; known: {', '.join(found)}.{nearest(name, found)}")
    return found[name]


def sharing(of: Study) -> list[Study]:
    """Return the other studies that read figures off a study's runs, each with its cells among these runs."""

    def among(other: Study) -> Study:
        def cells(scale: Scale) -> list[Cell]:
            there = {(c.row, c.column): c.experiment.seeds for c in of.cells(scale)}
            found = [c for c in other.cells(scale) if (c.row, c.column) in there]
            return [replace(c, experiment=replace(c.experiment, seeds=there[c.row, c.column])) for c in found]

        return replace(other, cells=cells)

    return [among(other) for other in studies().values() if other.runs_of == of.name]


def part(of: Study, only: Callable[[Cell], bool] = lambda cell: True, seeds: Sequence[int] = ()) -> Study:
    """Return a study's cells for which ``only`` holds, with those of its seeds that are named (none: all)."""

    def cells(scale: Scale) -> list[Cell]:
        found = []
        for cell in filter(only, of.cells(scale)):
            kept = tuple(s for s in cell.experiment.seeds if not seeds or s in seeds)
            if not kept:
                raise ConfigError(
                    f"{of.name} at {scale} has the seeds {list(cell.experiment.seeds)}, not {list(seeds)}."
                )
            found.append(replace(cell, experiment=replace(cell.experiment, seeds=kept)))
        return found

    return replace(of, cells=cells)


def cell_directory(directory: Path, cell: Cell, seed: int) -> Path:
    """Return where a cell's run of one seed is kept."""
    return directory / slug(cell.column) / slug(cell.row) / f"seed-{seed}"
