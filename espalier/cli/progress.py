"""Runs of a command on their way: bars or lines while they go on, a table and an exit code at the end."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from espalier.cli import show
from espalier.cli.pool import DONE, RunRequest, RunStatus, on_terminal, run_all, stopped
from espalier.core.errors import EspalierError, TrainingError
from espalier.record.run import Run, find_runs


def carry_out(
    todo: list[RunRequest],
    where: Path,
    jobs: int,
    quiet: bool,
    as_json: bool,
    failed: Callable[[Path], None] = lambda where: None,
    report: Path | None = None,
) -> None:
    """Do runs, tell how far they are, print their table and write a report; ``failed`` is called where some failed."""
    try:
        ends = _run(todo, jobs, quiet or as_json) if todo else []
    except EspalierError:  # before anything ran
        failed(where)
        raise
    worst = _worst(todo, ends)
    if worst:
        failed(where)
    if said := stopped(ends):
        click.echo(f"{said} Go on with: espalier resume {shlex.quote(str(where))}", err=True)
        sys.exit(130)
    found = find_runs(where) if not worst or any(end.state in DONE for end in ends) else []
    runs = [run for run in found if not worst or run.rounds > 0]  # one that failed at once compares with none
    if runs:
        _print(runs, where, quiet, as_json)
        if report is not None:  # also of those that finished beside one that failed
            from espalier.report.page import write_report

            write_report([where], report)
            if not quiet and not as_json:
                click.echo(f"report: {report}")
    if worst:
        sys.exit(worst)


def _run(todo: list[RunRequest], jobs: int, silent: bool) -> list[RunStatus]:
    if silent:
        return run_all(todo, jobs, lambda news: None)
    return _with_bars(todo, jobs) if on_terminal() else _with_lines(todo, jobs)


def _print(runs: list[Run], where: Path, quiet: bool, as_json: bool) -> None:
    """Print the runs' table."""
    if as_json:
        click.echo(json.dumps(show.plain(runs), indent=2))
    elif not quiet:
        console = Console(width=None if sys.stdout.isatty() else 160)
        console.print(show.table(runs, console.width))
        click.echo(f"runs: {where}")


def _worst(todo: list[RunRequest], ends: list[RunStatus]) -> int:
    """Say which runs failed; return the exit code."""
    worst, said = 0, dict[str, list[str]]()
    for request, end in zip(todo, ends, strict=True):
        if end.state == "diverged":
            worst = max(worst, TrainingError.exit_code)
        elif end.state == "crash" or end.state.startswith("error"):
            said.setdefault(end.text, []).append(request.title)
            worst = max(worst, 70 if end.state == "crash" else int(end.state.split()[1]))
    for text, titles in said.items():  # what all runs share, such as their data, is told once
        who = f"every run ({len(todo)})" if len(titles) == len(todo) > 1 else ", ".join(titles)
        click.echo(f"espalier: {who}: {text}", err=True)
    return worst


class _Notes:
    """What runs have to say besides how far they are; a warning about what they share is told once."""

    def __init__(self, todo: list[RunRequest]) -> None:
        self.todo = todo
        self.said: set[str] = set()

    def new(self, news: RunStatus) -> list[str]:
        """Return the lines to print."""
        if news.state == "note":
            return [f"{self.todo[news.number].title}: {news.text}"]
        if news.state != "warning" or news.text in self.said:
            return []
        self.said.add(news.text)
        return [f"espalier: warning: {news.text}"]


def _with_bars(todo: list[RunRequest], jobs: int) -> list[RunStatus]:
    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[text]}"),
        TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[int, Any] = {}
        notes = _Notes(todo)

        def tell(news: RunStatus) -> None:
            if news.state in ("note", "warning"):
                for line in notes.new(news):
                    bars.console.print(line, markup=False)
                return
            if news.number not in tasks:
                tasks[news.number] = bars.add_task(todo[news.number].title, total=1.0, text="")
            bars.update(tasks[news.number], completed=news.done, text=news.text.splitlines()[-1] if news.text else "")

        return run_all(todo, jobs, tell)


def _with_lines(todo: list[RunRequest], jobs: int) -> list[RunStatus]:
    shown: dict[int, int] = {}
    notes = _Notes(todo)

    def tell(news: RunStatus) -> None:
        for line in notes.new(news):
            click.echo(line, err=True)
        tenth = int(news.done * 10)
        if shown.get(news.number) != tenth and news.state in ("running", *DONE):
            shown[news.number] = tenth
            click.echo(f"{todo[news.number].title}: {news.done:4.0%}  {news.text}", err=True)

    return run_all(todo, jobs, tell)
