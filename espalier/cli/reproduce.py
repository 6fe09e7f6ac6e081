"""``espalier reproduce``: run a paper's table and put it beside the published one."""

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

from espalier.cli.pool import RunRequest, RunStatus, run_all
from espalier.core.errors import ConfigError, RunError, nearest
from espalier.experiment import Experiment
from espalier.record.run import Run
from espalier.report.published import slopes_svg
from espalier.simulator.directory import differences, read_description
from espalier.study import tables
from espalier.study.archive import Archive
from espalier.study.base import (
    SCALES,
    Cell,
    Scale,
    Study,
    cell_directory,
    final_time,
    has_ended,
    papers,
    part,
    sharing,
    studies,
    study,
    with_time,
)
from espalier.study.pages import all_pages, claim_cells, state_rows
from espalier.study.results import Results, read_results
from espalier.study.results import keep as keep_results

#: where the repository keeps the figures that its pages are made of
KEPT = Path("docs/results/data")
#: width of the lists of studies and claims where no terminal says its own
LIST_COLUMNS = 100


@click.command()
@click.argument("name", required=False)
@click.option(
    "--scale", type=click.Choice(SCALES), default="smoke", show_default=True, help="How much of the paper's setting."
)
@click.option(
    "--out", "-o", type=click.Path(path_type=Path), help="Where runs are kept and reused [default: runs/NAME-SCALE]."
)
@click.option("--seed", "seeds", type=int, multiple=True, help="Only this one of the scale's seeds (repeatable).")
@click.option("--column", "columns", multiple=True, help="Only this column of the table (repeatable).")
@click.option("--row", "rows", multiple=True, help="Only this row of the table (repeatable).")
@click.option("--jobs", "-j", type=int, default=1, show_default=True, help="Runs side by side.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where dataset files are looked for first.")
@click.option("--finished", is_flag=True, help="Run nothing: read the runs that have ended.")
@click.option(
    "--keep", type=click.Path(path_type=Path),
    help="Write the figures as data into this folder, for pages (of all studies that share the runs).",
)  # fmt: skip
@click.option("--claims", is_flag=True, help="Say of every claim of the papers what the kept figures tell.")
@click.option("--pages", type=click.Path(path_type=Path), help="Render the results pages in this folder from its data.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Write the result as Markdown here.")
@click.option("--report", "report_path", type=click.Path(path_type=Path), help="Write an HTML report here.")
@click.option(
    "--figure", type=click.Path(path_type=Path),
    help="Draw the first measure beside the published one: a .png, .svg or .pdf file (needs Chromium).",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
def reproduce(
    name: str | None,
    scale: Scale,
    out: Path | None,
    seeds: tuple[int, ...],
    columns: tuple[str, ...],
    rows: tuple[str, ...],
    jobs: int,
    data_dir: Path | None,
    finished: bool,
    keep: Path | None,
    claims: bool,
    pages: Path | None,
    markdown: Path | None,
    report_path: Path | None,
    figure: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run study NAME (such as csahfl/table1) and print our figures beside the published ones.

    Without a name, list the studies, what was run of them and what the rest costs, or judge the papers' claims
    (--claims), or render pages (--pages): all by the figures that --keep has left in docs/results/data. Runs that are
    already there are reused; unfinished ones go on.
    """
    if name is None:
        _without_name(claims, pages)
        return
    wanted = _wanted(name, scale, seeds, columns, rows)
    where = out or Path("runs") / f"{(wanted.runs_of or name).replace('/', '-')}-{scale}"
    if finished:
        check_study(wanted, scale, where)
    else:
        run_study(wanted, scale, where, jobs, data_dir, quiet=quiet or as_json)
    some = [*(f"--seed {s}" for s in seeds), *(f"--column '{c}'" for c in columns), *(f"--row '{r}'" for r in rows)]
    command = " ".join([f"espalier reproduce {name} --scale {scale}", *some])
    results = read_results(wanted, scale, where, command, unfinished=finished)
    if keep is not None:
        keep_results(results, keep)
        for other in sharing(wanted):
            shared = read_results(other, scale, where, command, unfinished=True)
            if shared.cells:
                keep_results(shared, keep)
    if markdown is not None:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text(tables.markdown(results, command), encoding="utf-8")
    if wanted.curves:
        (where / "curves.csv").write_text(tables.curves_csv(results), encoding="utf-8")
    _report(results, where, report_path, figure)
    if as_json:
        click.echo(tables.as_json(results))
    elif not quiet:
        console = Console(width=None if sys.stdout.isatty() else 200)
        console.print(tables.terminal(results))
        for line in [*results.words(), *wanted.notes]:
            click.echo(f"- {line}")


def _report(results: Results, where: Path, page: Path | None, figure: Path | None) -> None:
    """Write the report and draw the picture that were asked for."""
    if page is not None:
        from espalier.report.page import write_report

        write_report([where], page, results)
    if figure is not None:
        from espalier.report.pictures import write_picture
        from espalier.report.published import slopes

        write_picture(slopes(results, next(iter(results.study.measures))), figure)


def _without_name(claims: bool, pages: Path | None) -> None:
    """Render pages, or print the claims' verdicts, or the studies' states."""
    if pages is not None:
        for path, text in all_pages(pages, slopes_svg).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return
    console = Console(width=None if sys.stdout.isatty() else LIST_COLUMNS)
    if not KEPT.is_dir():  # a package that was installed has no figures, and those of nobody say nothing
        if claims:
            raise ConfigError(f"There is no folder {KEPT}, whose figures --claims judges: call it in a checkout.")
        for name, one in studies().items():
            console.print(f"{name:24} {escape(one.title)}", highlight=False, soft_wrap=True)
        click.echo("Run one: espalier reproduce NAME. What was run of them, and its cost, is listed in a checkout.")
        return
    archive = Archive(KEPT)
    if not claims:
        columns = ("study", "scale", "state", "all of it", "what it shows")
        table = Table(*columns, title=f"Studies; kept in {KEPT}", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.columns[0].no_wrap = True
        for line in state_rows(archive):
            table.add_row(*map(escape, line))
        console.print(table)
        return
    heads = ("claim", "verdict", "claimed lead", "our mean lead", "from published", "why")
    title = f"What the papers claim, by the figures in {KEPT}"
    table = Table("paper", *heads, title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for paper in papers():
        for found in archive.judgements(paper):
            verdict, why, *sizes = claim_cells(archive, found)
            table.add_row(paper, escape(found.claim.text), f"[bold]{verdict}[/bold]", *map(escape, (*sizes, why)))
    console.print(table)


def _wanted(name: str, scale: Scale, seeds: tuple[int, ...], columns: tuple[str, ...], rows: tuple[str, ...]) -> Study:
    """Return the part of a study that is asked for, with those rows whose time others of it end by."""
    whole = study(name)
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
    wanted: Study, scale: Scale, where: Path, jobs: int, data_dir: Path | None, *, quiet: bool = False
) -> None:
    """Do the runs of a study that are not there yet; those that depend on another's time come second."""
    cells = list(wanted.cells(scale))
    first = [(c, c.experiment) for c in cells if c.until is None]
    _run_all(_missing(wanted, first, where, data_dir), jobs, quiet)
    _run_all(_missing(wanted, _timed(wanted, cells, where), where, data_dir), jobs, quiet)


def check_study(wanted: Study, scale: Scale, where: Path) -> None:
    """Refuse runs of another setting among those that have ended."""
    cells = list(wanted.cells(scale))
    _missing(wanted, [(c, c.experiment) for c in cells if c.until is None], where, None)
    _missing(wanted, _timed(wanted, cells, where), where, None)


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
    for cell, experiment in cells:
        for seed in experiment.seeds:
            directory = cell_directory(where, cell, seed)
            # whose model devices would do best with
            told = replace(experiment, evaluate=replace(experiment.evaluate, by_source=wanted.sources))
            single = told.only(told.methods[0], seed)
            if not has_ended(directory):
                title = f"{cell.row} · {cell.column} · seed {seed}"
                todo.append(RunRequest(single.to_plain(), directory, data_dir, 1, title))
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
