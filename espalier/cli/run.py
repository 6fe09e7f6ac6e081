"""``espalier run`` and ``espalier resume``. What runs is imported when something is run, so that help is quick."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from espalier.cli.plugins import PLUGINS
from espalier.core.errors import ConfigError

if TYPE_CHECKING:
    from espalier.simulator.task import Backend

#: where a run trains: in this process, or on a Ray cluster
_OPTIONS = (
    click.option(
        "--workers", type=click.IntRange(1), metavar="N",
        help="Training workers inside each run [default: 1; with Ray, all its CPUs].",
    ),
    click.option(
        "--backend", type=click.Choice(["local", "ray"]), default="local", show_default=True,
        help="Train in this process, or on a Ray cluster; the results are the same.",
    ),
    click.option("--device", default="cpu", show_default=True, metavar="cpu|cuda", help="What trains."),
    click.option(
        "--address", metavar="HOST:PORT", help="The Ray cluster [default: one that is started on this machine]."
    ),
)  # fmt: skip


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
@click.option("--jobs", "-j", type=click.IntRange(1), default=1, show_default=True, help="Runs side by side.")
@placed
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where dataset files are looked for first.")
@PLUGINS
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
    from espalier.cli.plan import prepare, tidy, writable
    from espalier.cli.progress import carry_out
    from espalier.cli.report import shown_live
    from espalier.experiment import OWNERS_UNUSED, MethodEntry, checked_seeds, read

    found = read(experiment, changes)
    if names:
        chosen = [e for e in found.methods if e.method.kind in names or e.label in names]
        missing = [n for n in names if not any(n in (e.method.kind, e.label) for e in chosen)]
        found = replace(found, methods=tuple(chosen) + tuple(MethodEntry.build(n) for n in missing))
    if seeds:
        found = replace(found, seeds=checked_seeds(seeds))
    if logs:
        found = replace(found, record=replace(found.record, log=logs))
    remote = choose(backend, address, workers, jobs)
    if report_path is not None:
        writable(report_path)
    where = out or Path("runs") / f"{found.name}-{datetime.now():%Y%m%d-%H%M%S}"
    todo = prepare(found, where, data_dir, workers or 1, go_on=go_on)
    todo = [replace(request, backend=remote, device=device, plugins=plugins) for request in todo]
    if "owner" in found.task.dataset_options and found.partition == {"kind": "iid"} and not quiet:
        click.echo(f"espalier: warning: {OWNERS_UNUSED}", err=True)
    with shown_live(where) if live else nullcontext():
        carry_out(todo, where, jobs, quiet, as_json, tidy, report_path)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--jobs", "-j", type=click.IntRange(1), default=1, show_default=True, help="Runs side by side.")
@placed
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where dataset files are looked for first.")
@PLUGINS
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
    from espalier.cli.plan import unfinished
    from espalier.cli.progress import carry_out

    remote = choose(backend, address, workers, jobs)
    left = unfinished(directory, data_dir, workers or 1)
    todo = [replace(request, backend=remote, device=device, plugins=plugins) for request in left]
    if not todo and not quiet and not as_json:
        click.echo(f"Every run below {directory} is finished.", err=True)
    carry_out(todo, directory, jobs, quiet, as_json)
