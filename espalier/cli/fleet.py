"""``espalier fleet``: runs of a standing fleet, how it is, or a whole one on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from espalier.cli.node import RunChoice, begins_a_run, needs_deploy
from espalier.cli.plugins import PLUGINS
from espalier.core.errors import ConfigError, TrainingError

_PATH = click.Path(path_type=Path)


@click.group()
def fleet() -> None:
    """Submit runs to a standing fleet, look at it, or start a whole one on this machine."""


@fleet.command()
@begins_a_run
@click.argument("experiment")
@click.option("--devices", type=int, help="How many devices [default: the experiment's].")
@click.option("--edges", type=int, help="How many edges [default: the experiment's].")
@click.option("--out", "-o", type=_PATH, help="Where everything is kept [default: runs/fleet-NAME-TIME].")
@click.option("--data-dir", type=_PATH, help="Where dataset files are looked for first.")
@PLUGINS
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
@needs_deploy
def up(
    choice: RunChoice,
    experiment: str,
    devices: int | None,
    edges: int | None,
    out: Path | None,
    data_dir: Path | None,
    plugins: tuple[str, ...],
    quiet: bool,
) -> None:
    """Run EXPERIMENT on a fleet of processes with certificates of its own, and end it cleanly."""
    from espalier.fleet.local import LocalFleet

    found = choice.of(experiment)
    counts = {k: v for k, v in (("devices", devices), ("edges", edges)) if v is not None}
    found = replace(found, fleet=replace(found.fleet, **counts))  # type: ignore[arg-type]
    where = out or Path("runs") / f"fleet-{found.name}-{datetime.now():%Y%m%d-%H%M%S}"
    if (where / "cloud" / "node.sqlite").exists():
        raise ConfigError(f"--out {where}: holds a fleet already; choose another directory.")
    shown = _Progress(quiet)
    with LocalFleet(found, where, data_dir=data_dir, plugins=plugins, **choice.conduct()) as running:
        shown.say(f"{found.fleet.devices} devices, {found.fleet.edges} edges; logs: {where}/*/node.log")
        running.start()
        running.wait(7 * 24 * 3600, shown.look)
    if not quiet:
        from rich.console import Console

        from espalier.cli import show
        from espalier.record.run import find_runs

        console = Console()
        console.print(show.table(find_runs(where / "cloud"), console.width))
        click.echo(f"run: {where / 'cloud'}")


# -- a standing fleet ----------------------------------------------------------------------------------------------


def _at_cloud(needed: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options that say which cloud is meant, and as whom it is asked."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        cloud = click.option(
            "--cloud", metavar="[NAME@]HOST:PORT", required=needed, envvar="ESPALIER_CLOUD", show_envvar=True,
            help="The cloud of the fleet.",
        )  # fmt: skip
        certs = click.option(
            "--certs", type=_PATH, required=needed, envvar="ESPALIER_CERTS", show_envvar=True,
            help="An operator's certificates (`espalier certs issue NAME --role operator`).",
        )  # fmt: skip
        return cloud(certs(needs_deploy(function)))

    return add


def _operator(cloud: str, certs: Path) -> Any:
    from espalier.fleet.certs import Bundle
    from espalier.fleet.operator import Operator

    return Operator(Bundle.read(certs), cloud)


@fleet.command()
@begins_a_run
@click.argument("experiment")
@click.option("--name", help="What the run is called [default: the experiment's name, and a number].")
@click.option("--start-with", type=int, help="Begin when so many devices are there [default: fleet.devices].")
@click.option("--wait", is_flag=True, help="Wait until the run is over; exit with 5 if it failed or was stopped.")
@click.option("--out", "-o", type=_PATH, help="With --wait: write the run's directory here afterwards.")
@PLUGINS
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but the run's name and errors.")
@_at_cloud()
def submit(
    choice: RunChoice,
    experiment: str,
    name: str | None,
    start_with: int | None,
    wait: bool,
    out: Path | None,
    plugins: tuple[str, ...],
    quiet: bool,
    cloud: str,
    certs: Path,
) -> None:
    """Put EXPERIMENT into the queue of a standing fleet; print the run's name."""
    if out is not None and not wait:
        raise ConfigError("--out: needs --wait; later: espalier fleet fetch RUN -o DIR.")
    given = {"name": name, "start_with": start_with}
    options = choice.conduct() | {key: value for key, value in given.items() if value is not None}
    with _operator(cloud, certs) as fleet:
        run = fleet.submit(choice.of(experiment), **options)
        click.echo(run)
        if not wait:
            return
        shown = _Progress(quiet)
        state = fleet.wait(run, look=lambda row: shown.say(_stage(row)))
        if out is not None and state != "failed":  # it may have no record
            fleet.fetch(run, out)
        if state != "finished":
            why = next((row["why"] for row in fleet.runs() if row["run"] == run), "")
            raise TrainingError(f"{run}: {state}; {why or 'no reason was told'}")


def _stage(row: dict[str, Any]) -> str:
    """Say where a run is."""
    if row["state"] == "queued":
        return "queued"
    of = "" if row["rounds"] is None else f" of {row['rounds']}"
    told = [name for name in ("acc_global", "acc_edge", "acc_device") if name in row["scores"]]
    return ", ".join([f"{row['state']}, round {row['round']}{of}", *(f"{n} {row['scores'][n]:.3g}" for n in told)])


@fleet.command()
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON, for programs.")
@_at_cloud()
def runs(as_json: bool, cloud: str, certs: Path) -> None:
    """List the runs of a standing fleet, the oldest first: queued, running, finished, stopped or failed."""
    with _operator(cloud, certs) as fleet:
        rows = fleet.runs()
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    out = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for title in ("run", "method", "by", "submitted"):
        out.add_column(title, no_wrap=True)
    out.add_column("state")
    for row in rows:
        when = f"{datetime.fromtimestamp(row['submitted']):%Y-%m-%d %H:%M:%S}"
        stage = _stage(row) + (f": {row['why']}" if row["why"] else "")
        out.add_row(row["run"], row["method"], row["submitter"], when, stage)
    Console().print(out if rows else "no runs yet")


@fleet.command()
@click.argument("run")
@_at_cloud()
def stop(run: str, cloud: str, certs: Path) -> None:
    """Stop RUN: one that goes on ends in good order with what it has, one that waits leaves the queue."""
    with _operator(cloud, certs) as fleet:
        fleet.stop(run)


@fleet.command()
@click.argument("run")
@click.option("--out", "-o", type=_PATH, required=True, help="Where the run's directory is written.")
@_at_cloud()
def fetch(run: str, out: Path, cloud: str, certs: Path) -> None:
    """Fetch the record and the models of RUN, also while it goes on: a run directory for `espalier report`."""
    with _operator(cloud, certs) as fleet:
        fleet.fetch(run, out)
    click.echo(str(out))


@fleet.command()
@click.argument("directory", type=_PATH, required=False)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON, for programs.")
@_at_cloud(needed=False)
def status(directory: Path | None, as_json: bool, cloud: str | None, certs: Path | None) -> None:
    """Show a fleet: its members, rounds and scores. Ask the cloud that runs in DIRECTORY, or --cloud from afar."""
    from espalier.fleet.status import ask

    if directory is not None:
        found = ask(directory, do="fleet")
    elif cloud is not None and certs is not None:
        click.echo(f"connecting to {cloud}", err=True)
        with _operator(cloud, certs) as fleet:
            found = fleet.status() | {"page": ""}
    else:
        raise ConfigError("DIRECTORY, or --cloud and --certs: one of them says which fleet is meant.")
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    from rich.console import Console

    of = "" if found["rounds"] is None else f" of {found['rounds']}"
    if found["run"]:
        click.echo(
            f"{found['run']}, {found['method']}: {found['state']}, round {found['round']}{of}, "
            f"{found['devices']} of {found['devices_expected']} devices, {found['refused']} refused"
        )
    else:
        click.echo(f"{found['state']}, {found['devices']} devices, {found['refused']} refused")
    if found["queued"]:
        click.echo(f"queued: {', '.join(found['queued'])}")
    for one in found["evaluations"][-5:]:
        scores = ", ".join(f"{name} {value:.4g}" for name, value in sorted(one["scores"].items()))
        click.echo(f"round {one['round']} ({one['time']:.0f} s): {scores or 'nothing was scored'}")
    Console().print(_tree(found["members"]))
    for row in found["members"]:
        if row["why"]:
            click.echo(f"{row['name']} waits: {row['why']}")
    if found["page"]:
        click.echo(f"page: {found['page']}")


def _tree(members: list[dict[str, Any]]) -> Any:
    """Return the members as a table, each below its parent; who has left comes last."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    out = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for title in ("member", "state", "reports to", "version"):
        out.add_column(title, no_wrap=True)
    for title in ("samples", "last report", "late", "refused"):
        out.add_column(title, justify="right", no_wrap=True)
    below: dict[str | None, list[dict[str, Any]]] = {}
    for row in members:
        below.setdefault(row["parent"], []).append(row)
    waiting = [(row, 0) for row in reversed(below.get(None, []))]
    while waiting:
        row, depth = waiting.pop()
        age = row["seconds_since_report"]
        out.add_row(
            "  " * depth + row["name"], row["state"], row["reports_to"], row["version"],
            str(row["samples"]), "" if age is None else f"{age:.0f} s ago", str(row["late"]), str(row["refused"]),
        )  # fmt: skip
        waiting += [(child, depth + 1) for child in reversed(below.get(row["name"], []))]
    return out


class _Progress:
    """Says what a fleet is at, a line whenever something changes."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._last = quiet, ""

    def say(self, text: str) -> None:
        if not self._quiet and text != self._last:
            click.echo(text, err=True)
            self._last = text

    def look(self, running: Any) -> None:
        try:
            now = running.status("cloud")
        except (ConfigError, OSError, ValueError):
            return  # it is just starting or ending
        if now.get("finished"):
            self.say(f"round {now['round']}, finished")  # devices leave one by one
        elif now.get("started"):
            self.say(f"round {now['round']}, {now['devices']} devices")
        else:
            self.say(f"{now.get('devices', 0)} devices have joined")
