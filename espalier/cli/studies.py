"""The runs of a paper's studies: which are wanted, which are missing, and what becomes of their figures."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from espalier.cli import cards
from espalier.cli.pool import RunRequest, RunStatus, run_all
from espalier.core.errors import ConfigError, RunError, nearest
from espalier.experiment import Experiment, MethodEntry, value_of
from espalier.record.run import Run
from espalier.report.published import slopes_svg
from espalier.simulator.directory import differences, read_description
from espalier.study.archive import Archive
from espalier.study.base import (
    Cell,
    Scale,
    Study,
    cell_directory,
    final_time,
    has_ended,
    method_row,
    papers,
    part,
    sharing,
    study,
    with_rows,
    with_time,
)
from espalier.study.pages import SIZES, all_pages, claim_cells
from espalier.study.results import Results, keep, read_results

#: where the repository keeps the figures that its pages are made of
KEPT = Path("docs/results/data")
#: width of the list of claims where no terminal says its own
LIST_COLUMNS = 100


def write_pages(folder: Path) -> None:
    """Render the results pages in a folder from its data."""
    for path, text in all_pages(folder, slopes_svg).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    if folder.resolve() == cards.RESULTS:
        cards.renew()


def print_claims() -> None:
    """Print what the kept figures say of every claim of the papers."""
    if not KEPT.is_dir():  # a package that was installed has no figures, and those of nobody say nothing
        raise ConfigError(f"There is no folder {KEPT}, whose figures --claims judges: call it in a checkout.")
    archive = Archive(KEPT)
    title = f"What the papers claim, by the figures in {KEPT}"
    table = Table("paper", "claim", "verdict", *SIZES, "why", title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for paper in papers():
        for found in archive.judgements(paper):
            verdict, why, *sizes = claim_cells(archive, found)
            table.add_row(paper, escape(found.claim.text), f"[bold]{verdict}[/bold]", *map(escape, (*sizes, why)))
    Console(width=None if sys.stdout.isatty() else LIST_COLUMNS).print(table)


def wanted_part(
    name: str,
    scale: Scale,
    seeds: tuple[int, ...] = (),
    columns: tuple[str, ...] = (),
    rows: tuple[str, ...] = (),
    methods: tuple[str, ...] = (),
    lender: str = "",
) -> Study:
    """Return the part of a study that is asked for, with those rows whose time others of it end by.

    ``methods`` get rows of their own, in the setting of the row ``lender``.
    """
    more = [method_row(MethodEntry.build(value_of(text, f"--with {text!r}")), lender) for text in methods]
    whole = with_rows(study(name), *more)
    cells = list(whole.cells(scale))
    for what, asked, known in (
        ("column", columns, dict.fromkeys(c.column for c in cells)),
        ("row", rows, dict.fromkeys(c.row for c in cells)),
    ):
        for one in asked:
            if one not in known:
                raise ConfigError(f"{name} has no {what} {one!r}; known: {', '.join(known)}.{nearest(one, known)}")
    chosen = [c for c in cells if (not columns or c.column in columns) and (not rows or c.row in rows)]
    if not chosen:
        raise ConfigError(f"{name} at {scale} has no run of these rows in these columns.")
    needed = {(c.row, c.column) for c in chosen} | {c.until for c in chosen if c.until}
    return part(whole, lambda cell: (cell.row, cell.column) in needed, seeds)


def run_study(
    wanted: Study,
    scale: Scale,
    where: Path,
    jobs: int = 1,
    data_dir: Path | None = None,
    plugins: tuple[str, ...] = (),
    *,
    quiet: bool = False,
) -> None:
    """Do the runs of a study that are not there yet; those that depend on another's time come second."""
    cells = list(wanted.cells(scale))
    for runs in ([(c, c.experiment) for c in cells if c.until is None], None):
        todo = _missing(wanted, _timed(wanted, cells, where) if runs is None else runs, where, data_dir)
        _run_all([replace(request, plugins=plugins) for request in todo], jobs, quiet)


def check_study(wanted: Study, scale: Scale, where: Path) -> None:
    """Refuse runs of another setting among those that have ended."""
    cells = list(wanted.cells(scale))
    _missing(wanted, [(c, c.experiment) for c in cells if c.until is None], where, None)
    _missing(wanted, _timed(wanted, cells, where), where, None)


def keep_figures(results: Results, where: Path, folder: Path) -> None:
    """Write the figures of a study, and of those that share its runs, as data into a folder."""
    keep(results, folder)
    for other in sharing(results.study):
        shared = read_results(other, results.scale, where, *results.commands, unfinished=True)
        if shared.cells:
            keep(shared, folder)


def _timed(wanted: Study, cells: Sequence[Cell], where: Path) -> list[tuple[Cell, Experiment]]:
    """Return the cells that stop when another's run does, for the seeds under which that one has ended."""
    timed = []
    for cell in cells:
        if cell.until is None:
            continue
        reference = next((c for c in cells if c.until is None and (c.row, c.column) == cell.until), None)
        if reference is None:
            raise RunError(f"{wanted.name}: {cell.row} waits for {cell.until}, which is not in the study.")
        for seed in cell.experiment.seeds:
            other = cell_directory(where, reference, seed)
            if has_ended(other):
                timed.append((cell, with_time(replace(cell.experiment, seeds=(seed,)), final_time(Run(other)))))
    return timed


def _missing(
    wanted: Study, cells: Sequence[tuple[Cell, Experiment]], where: Path, data_dir: Path | None
) -> list[RunRequest]:
    """Return the runs that have not ended; refuse those of another setting that have."""
    todo: list[RunRequest] = []
    planned = tuple(dict.fromkeys(e.methods[0].label for _, e in cells))
    for cell, experiment in cells:
        for seed in experiment.seeds:
            directory = cell_directory(where, cell, seed)
            # whose model devices would do best with
            told = replace(experiment, evaluate=replace(experiment.evaluate, by_source=wanted.sources))
            single = told.only(told.methods[0], seed)
            if not has_ended(directory):
                title = f"{cell.row} · {cell.column} · seed {seed}"
                todo.append(RunRequest(single.to_plain(), directory, data_dir, 1, title, planned=planned))
                continue
            unlike = differences(read_description(directory / "run.toml")[0], single)
            if unlike:
                raise RunError(
                    f"{directory} holds a run of another setting: it differs in {', '.join(unlike[:5])}. Choose "
                    "another --out, or remove it."
                )
    return todo


def _run_all(todo: Sequence[RunRequest], jobs: int, quiet: bool) -> None:
    if not todo:
        return
    begun, ended = time.monotonic(), 0

    def tell(news: RunStatus) -> None:
        nonlocal ended
        if news.state == "running":
            return
        ended += news.final
        if not quiet:
            left = (time.monotonic() - begun) / max(1, ended) * (len(todo) - ended)
            why = f" ({' '.join(news.text.splitlines()[-1].split())})" if news.text else ""
            rest = f", about {left / 60:.0f} min to go" if 0 < ended < len(todo) else ""
            click.echo(f"[{ended}/{len(todo)}{rest}] {todo[news.number].title}: {news.state}{why}", err=True)

    ends = run_all(todo, jobs, tell)
    if any(e.state == "stopped" for e in ends):
        raise SystemExit(130)
    for request, end in zip(todo, ends, strict=True):
        if end.state not in ("finished", "stopped"):
            raise RunError(f"{request.title}: {end.text}")
