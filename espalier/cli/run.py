"""``espalier run`` and ``espalier resume``: do an experiment's runs, and show how far they are."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from espalier.cli import show
from espalier.cli.plan import prepare, tidy, unfinished
from espalier.cli.pool import DONE, RunRequest, RunStatus, on_terminal, plug_in, run_all
from espalier.cli.report import shown_live
from espalier.core.errors import ConfigError, TrainingError
from espalier.experiment import MethodEntry, read
from espalier.record.run import Run, find_runs
from espalier.simulator.task import Backend

#: where a run trains: in this process, or on a Ray cluster
_OPTIONS = (
    click.option(
        "--workers",
        type=int,
        metavar="N",
        help="Training workers inside each run [default: 1; with Ray, all its CPUs].",
    ),
    click.option(
        "--backend",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Train in this process, or on a Ray cluster; the results are the same.",
    ),
    click.option("--device", default="cpu", show_default=True, metavar="cpu|cuda", help="What trains."),
    click.option(
        "--address", metavar="HOST:PORT", help="The Ray cluster [default: one that is started on this machine]."
    ),
)


def placed(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that :func:`choose` takes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def choose(backend: str, address: str | None, workers: int | None, jobs: int) -> Backend | None:
    """Return the backend that the options ask for; None is this process.

    Raises:
        ConfigError: The options do not go together, or Ray is not installed.
    """
    if backend == "local":
        if address is not None:
            raise ConfigError(f"--address {address} is a Ray cluster's: add --backend ray.")
        return None
    if jobs > 1 and workers is None:
        raise ConfigError(
            f"--jobs {jobs} with --backend ray needs --workers: the runs side by side share the cluster's CPUs."
        )
    from espalier.scale.computer import Ray

    return Ray(address, workers)


@click.command()
@click.argument("experiment")
@click.option("--method", "-m", "names", multiple=True, help="Run only these methods (repeatable).")
@click.option("--seed", "-s", "seeds", multiple=True, type=int, help="Run these seeds (repeatable).")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a setting, such as training.lr=0.1.")
@click.option("--out", "-o", type=click.Path(path_type=Path), help="Where the runs are kept [default: runs/NAME-TIME].")
@click.option("--jobs", "-j", type=int, default=1, show_default=True, help="Runs side by side.")
@placed
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where dataset files are looked for first.")
@click.option("--plugin", "plugins", multiple=True, metavar="FILE", help="Import your own methods first: mine.py.")
@click.option("--report", "report_path", type=click.Path(path_type=Path), help="Write an HTML report here at the end.")
@click.option(
    "--log", "logs", multiple=True, metavar="LOGGER",
    help="Log every evaluation to tensorboard[:FOLDER], wandb[:PROJECT] or mlflow[:STORE] (repeatable).",
)  # fmt: skip
@click.option("--watch", "live", is_flag=True, help="Show the runs in a browser while they go on.")
@click.option("--resume", "go_on", is_flag=True, help="Go on with the runs that --out holds already.")
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON, and nothing else.")
def run(
    experiment: str,
    names: tuple[str, ...],
    seeds: tuple[int, ...],
    changes: tuple[str, ...],
    out: Path | None,
    jobs: int,
    workers: int | None,
    backend: str,
    address: str | None,
    device: str,
    data_dir: Path | None,
    plugins: tuple[str, ...],
    report_path: Path | None,
    logs: tuple[str, ...],
    live: bool,
    go_on: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run EXPERIMENT: a TOML file, or a bundled name (see `espalier list`)."""
    plug_in(plugins)
    found = read(experiment, changes)
    if names:
        chosen = [e for e in found.methods if e.method.kind in names or e.label in names]
        missing = [n for n in names if not any(n in (e.method.kind, e.label) for e in chosen)]
        found = replace(found, methods=tuple(chosen) + tuple(MethodEntry.build(n) for n in missing))
    if seeds:
        found = replace(found, seeds=seeds)
    if logs:
        found = replace(found, record=replace(found.record, log=logs))
    remote = choose(backend, address, workers, jobs)
    where = out or Path("runs") / f"{found.name}-{datetime.now():%Y%m%d-%H%M%S}"
    todo = prepare(found, where, data_dir, workers or 1, go_on=go_on)
    todo = [replace(request, backend=remote, device=device, plugins=plugins) for request in todo]
    with shown_live(where) if live else nullcontext():
        _carry_out(todo, where, jobs, quiet, as_json, tidy)
    if report_path is not None:
        from espalier.report.page import write_report

        write_report([where], report_path)
        if not quiet and not as_json:
            click.echo(f"report: {report_path}")


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--jobs", "-j", type=int, default=1, show_default=True, help="Runs side by side.")
@placed
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where dataset files are looked for first.")
@click.option("--plugin", "plugins", multiple=True, metavar="FILE", help="Import your own methods first: mine.py.")
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON, and nothing else.")
def resume(
    directory: Path,
    jobs: int,
    workers: int | None,
    backend: str,
    address: str | None,
    device: str,
    data_dir: Path | None,
    plugins: tuple[str, ...],
    quiet: bool,
    as_json: bool,
) -> None:
    """Go on with every unfinished run at or below DIRECTORY."""
    plug_in(plugins)
    remote = choose(backend, address, workers, jobs)
    left = unfinished(directory, data_dir, workers or 1)
    todo = [replace(request, backend=remote, device=device, plugins=plugins) for request in left]
    if not todo and not quiet and not as_json:
        click.echo(f"Every run below {directory} is finished.", err=True)
    _carry_out(todo, directory, jobs, quiet, as_json)


def _carry_out(
    todo: list[RunRequest],
    where: Path,
    jobs: int,
    quiet: bool,
    as_json: bool,
    failed: Callable[[Path], None] = lambda where: None,
) -> None:
    silent = quiet or as_json
    if silent:
        ends = run_all(todo, jobs, lambda news: None) if todo else []
    elif on_terminal():
        ends = _with_bars(todo, jobs) if todo else []
    else:
        ends = _with_lines(todo, jobs) if todo else []
    worst = _worst(todo, ends)
    if worst:
        failed(where)
    if any(end.state == "stopped" for end in ends):
        click.echo(f"Stopped; everything is saved. Go on with: espalier resume {shlex.quote(str(where))}", err=True)
        sys.exit(130)
    found = find_runs(where) if not worst or any(end.state in DONE for end in ends) else []
    runs = [run for run in found if not worst or run.rounds > 0]  # one that failed at once compares with none
    if runs:
        _print(runs, where, quiet, as_json)
    if worst:
        sys.exit(worst)


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
