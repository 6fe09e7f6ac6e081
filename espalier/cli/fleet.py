"""``espalier fleet``: look at a real fleet from its cloud, or start a whole one on this machine."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from espalier.cli.node import EXPERIMENT_OPTIONS, needs_deploy, one_run
from espalier.core.errors import ConfigError

_PATH = click.Path(path_type=Path)


@click.group()
def fleet() -> None:
    """Look at a fleet that runs, or start a whole one on this machine."""


@fleet.command()
@click.argument("experiment")
@click.option("--devices", type=int, help="How many devices [default: the experiment's].")
@click.option("--edges", type=int, help="How many edges [default: the experiment's].")
@click.option("--out", "-o", type=_PATH, help="Where everything is kept [default: runs/fleet-NAME-TIME].")
@click.option("--data-dir", type=_PATH, help="Where dataset files are looked for first.")
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
@needs_deploy
def up(
    experiment: str,
    method: str | None,
    seed: int | None,
    changes: tuple[str, ...],
    patience: float,
    round_deadline: float,
    compress: str | None,
    devices: int | None,
    edges: int | None,
    out: Path | None,
    data_dir: Path | None,
    quiet: bool,
) -> None:
    """Run EXPERIMENT on a fleet of processes with certificates of its own, and end it cleanly."""
    from espalier.fleet.local import LocalFleet

    found = one_run(experiment, method, seed, changes)
    counts = {k: v for k, v in (("devices", devices), ("edges", edges)) if v is not None}
    found = replace(found, fleet=replace(found.fleet, **counts))  # type: ignore[arg-type]
    where = out or Path("runs") / f"fleet-{found.name}-{datetime.now():%Y%m%d-%H%M%S}"
    if (where / "cloud" / "node.sqlite").exists():
        raise ConfigError(f"--out {where}: holds a fleet already; choose another directory.")
    shown = _Progress(quiet)
    with LocalFleet(
        found, where, data_dir=data_dir, patience=patience, compress=compress, round_deadline=round_deadline
    ) as running:
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


for _option in reversed(EXPERIMENT_OPTIONS):
    up = _option(up)


@fleet.command()
@click.argument("directory", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON, for programs.")
@needs_deploy
def status(directory: Path, as_json: bool) -> None:
    """Show the fleet whose cloud runs in DIRECTORY: its members, rounds and scores."""
    from espalier.fleet.status import ask

    found = ask(directory, do="fleet")
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    from rich.console import Console

    of = "" if found["rounds"] is None else f" of {found['rounds']}"
    click.echo(
        f"{found['run']}, {found['method']}: {found['state']}, round {found['round']}{of}, "
        f"{found['devices']} of {found['devices_expected']} devices, {found['refused']} refused"
    )
    for one in found["evaluations"][-5:]:
        scores = ", ".join(f"{name} {value:.4g}" for name, value in sorted(one["scores"].items()))
        click.echo(f"round {one['round']} ({one['time']:.0f} s): {scores or 'nothing was scored'}")
    Console().print(_tree(found["members"]))
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
            "  " * depth + row["name"], row["state"], row["reports_to"] or "", row["version"], str(row["samples"]),
            "" if age is None else f"{age:.0f} s ago", str(row["late"]), str(row["refused"]),
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
        if now.get("started"):
            self.say(f"round {now['round']}, {now['devices']} devices")
        else:
            self.say(f"{now.get('devices', 0)} devices have joined")
