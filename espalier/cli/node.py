"""``espalier node`` and ``espalier certs``: the nodes of a real fleet, and who they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from espalier.cli.plugins import PLUGINS
from espalier.core.errors import ConfigError

if TYPE_CHECKING:
    from espalier.experiment import Experiment

_PATH = click.Path(path_type=Path)
_HOST = "HOST:PORT"


def needs_deploy(function: Callable[..., Any]) -> Callable[..., Any]:
    """Say what to install if the packages of a deployed fleet are missing."""

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            import cryptography
            import google.protobuf
            import grpc
            import prometheus_client
            import zstandard
        except ImportError as error:
            raise ConfigError(
                f"A real fleet needs {error.name}, which is not installed: pip install 'espalier-hfl[deploy]'."
            ) from error
        del cryptography, google, grpc, prometheus_client, zstandard
        return function(*args, **kwargs)

    return wrapped


def _options(*wanted: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add some of the options that several nodes share."""
    known = {
        "certs": click.option(
            "--certs", type=_PATH, required=True, help="The node's certificates (see `espalier certs issue`)."
        ),
        "directory": click.option("--dir", "directory", type=_PATH, help="Where the node keeps its state."),
        "listen": click.option("--listen", metavar=_HOST, help="Where children link to this node."),
        "advertise": click.option("--advertise", metavar=_HOST, help="Where others reach it, if not as it listens."),
        "parents": click.option(
            "--parent", "parents", multiple=True, required=True, metavar="[NAME@]HOST:PORT",
            help="Whom it reports to (repeatable: the next is tried when the first is gone).",
        ),
        "data": click.option(
            "--data", metavar="FILE|MODULE:FUNCTION|share", help="Its data: x, y and x_test, y_test (see the docs)."
        ),
        "data_dir": click.option("--data-dir", type=_PATH, help="Where dataset files are looked for first."),
        "number": click.option("--number", type=int, default=-1, help="The number it would like [default: any]."),
        "plugins": PLUGINS,
        "allow_models": click.option(
            "--allow-model", "allow_models", multiple=True, metavar="MODULE:NAME",
            help="A model, loss, optimiser or schedule of your own that the fleet may use here.",
        ),
        "ops": click.option("--ops", metavar="[HOST:]PORT", help="Serve /healthz and /metrics there (loopback)."),
        "log_file": click.option("--log-file", type=_PATH, help="Write the log here [default: standard error]."),
        "log_level": click.option(
            "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True,
            help="The least level that is logged.",
        ),
    }  # fmt: skip

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed([*wanted, "certs", "directory", "ops", "log_file", "log_level", "plugins", "data_dir"]):
            function = known[name](function)
        return function

    return add


_RUN_OPTIONS = (
    click.option("--method", "-m", help="Which of the experiment's methods, or another one [default: its first]."),
    click.option("--seed", "-s", type=int, help="Which seed [default: the experiment's first]."),
    click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a setting."),
    click.option("--patience", type=float, default=10.0, show_default=True, help="Seconds a lost child is waited for."),
    click.option(
        "--round-deadline", type=float, default=60.0, show_default=True,
        help="Seconds that a round waits for its slowest child, at least (0: for ever).",
    ),
    click.option(
        "--compress", type=click.Choice(["none", "zstd", "q8"]),
        help="How models travel [default: none; q8 if the experiment says so].",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class RunChoice:
    """What the options say that every command has which begins a run on a fleet."""

    method: str | None
    seed: int | None
    changes: tuple[str, ...]
    patience: float
    round_deadline: float
    compress: str | None

    def of(self, path: str) -> Experiment:
        """Read an experiment and choose one method and one seed of it."""
        return one_run(path, self.method, self.seed, self.changes)

    def conduct(self) -> dict[str, Any]:
        """Return how the run is conducted, as :class:`~espalier.fleet.coordinator.submission.RunOptions` takes it."""
        found = {"patience": self.patience, "round_deadline": self.round_deadline, "compress": self.compress}
        return {name: value for name, value in found.items() if value is not None}


def begins_a_run(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of :class:`RunChoice`; the command gets them as ``choice``."""

    @wraps(command)
    def wrapped(**options: Any) -> Any:
        chosen = {field.name: options.pop(field.name) for field in fields(RunChoice)}
        return command(choice=RunChoice(**chosen), **options)

    for option in reversed(_RUN_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def one_run(path: str, method: str | None, seed: int | None, changes: tuple[str, ...]) -> Experiment:
    """Read an experiment and choose one method and one seed of it."""
    from espalier.experiment import MethodEntry, read

    found = read(path, changes)
    entry = found.methods[0]
    if method is not None:
        named = [e for e in found.methods if method in (e.label, e.method.kind)]
        entry = named[0] if named else MethodEntry.build(method)
    return found.only(entry, found.seeds[0] if seed is None else seed)


@click.group()
def node() -> None:
    """Run a node of a real fleet: the cloud, an edge, a device."""


@node.command()
@begins_a_run
@click.option(
    "--config", help="Conduct this experiment alone: a TOML file, or a bundled name [default: submitted runs]."
)
@_options("listen", "advertise", "data", "allow_models")
@click.option("--allow", type=_PATH, help="A file with the names that may join, one per line [default: all].")
@click.option("--start-with", type=int, help="Begin when so many devices are there [default: fleet.devices].")
@click.option("--classes", type=int, help="Classes of the task, if --data does not show them all.")
@click.option("--limit", "limits", multiple=True, metavar="NAME=VALUE", help="A limit, such as letter_bytes=100000000.")
@click.option(
    "--status-page", metavar="[HOST:]PORT", help="Show the fleet there in a browser (loopback; needs a token)."
)
@needs_deploy
def cloud(
    choice: RunChoice,
    config: str | None,
    allow: Path | None,
    start_with: int | None,
    classes: int | None,
    limits: tuple[str, ...],
    status_page: str | None,
    **options: Any,
) -> None:
    """Conduct runs: hand experiments down, merge, evaluate, record.

    Without --config the fleet stands: nodes wait, and take one run after another as operators submit them (`espalier
    fleet submit`); each has a run directory in DIR/runs. With it there is one run, --dir is its run directory, and
    every node ends with it.
    """
    from espalier.fleet.coordinator.submission import RunOptions
    from espalier.fleet.node.launch import CloudOptions, Options, Page, run

    given = Options(**options)
    page: Page | None = None
    if status_page is not None:
        from espalier.report.fleet_page import served

        if given.directory is None:
            raise ConfigError("--dir: must be given for a cloud.")
        page = partial(served, status_page, given.directory)
    if config is None and (choice.method is not None or choice.seed is not None or choice.changes):
        raise ConfigError("--method, --seed, --set: choose among --config's; give them to `espalier fleet submit`.")
    experiment = None if config is None else choice.of(config)
    conducted = RunOptions(start_with, **choice.conduct())
    run(given, CloudOptions(experiment, conducted, _limits(limits), allow, classes), page)


def _limits(given: tuple[str, ...]) -> Any:
    from espalier.fleet.links.limits import Limits

    table: dict[str, Any] = {}
    for one in given:
        name, sign, value = one.partition("=")
        try:
            table[name] = json.loads(value)
        except ValueError:
            sign = ""
        if not sign:
            raise ConfigError(f"--limit {one}: must be name=number.")
    return Limits.build(table, "--limit")


@node.command()
@_options("parents", "listen", "advertise", "data", "number", "allow_models")
@needs_deploy
def edge(**options: Any) -> None:
    """Merge what devices (or further edges) report, and report to a parent."""
    from espalier.fleet.node.launch import Options, run

    if options["listen"] is None or options["directory"] is None:
        raise ConfigError("--listen and --dir: must be given for an edge.")
    run(Options(**options))


@node.command()
@_options("parents", "listen", "advertise", "data", "number", "allow_models")
@click.option("--client", metavar="MODULE:FACTORY", help="Your own training code (see espalier.fleet.node.clients).")
@click.option("--flower-client", metavar="MODULE:CLIENT_FN", help="A Flower NumPyClient as it is.")
@click.option("--head", "aggregates", is_flag=True, help="It may be head of a cluster of devices (with --listen).")
@needs_deploy
def device(**options: Any) -> None:
    """Train on this machine's own data."""
    from espalier.fleet.node.launch import Options, run

    sources = [n for n in ("data", "client", "flower_client") if options[n] is not None]
    if len(sources) != 1:
        raise ConfigError("--data, --client and --flower-client: exactly one must be given.")
    run(Options(**options))


@node.command("status")
@click.argument("directory", type=_PATH)
@needs_deploy
def node_status(directory: Path) -> None:
    """Ask the node that runs in DIRECTORY how it is."""
    from espalier.fleet.status import ask

    click.echo(json.dumps(ask(directory, do="status"), indent=2))


@node.command("move")
@click.argument("directory", type=_PATH)
@click.argument("parent", metavar="[NAME@]HOST:PORT")
@needs_deploy
def node_move(directory: Path, parent: str) -> None:
    """Tell the node that runs in DIRECTORY to report to another PARENT."""
    from espalier.fleet.status import ask

    ask(directory, do="move", parent=parent)


# -- certificates ------------------------------------------------------------------------------------------------


@click.group()
def certs() -> None:
    """Make certificates for the nodes of a fleet."""


_CA = click.option(
    "--ca", "directory", type=_PATH, default=Path("ca"), show_default=True, help="The authority's directory."
)


@certs.command("init")
@_CA
@click.option("--fleet", "name", default="fleet", show_default=True, help="The fleet's name.")
@click.option("--days", type=int, default=3650, show_default=True, help="How long it is valid.")
@needs_deploy
def certs_init(directory: Path, name: str, days: int) -> None:
    """Make the fleet's certificate authority. Keep ca.key secret: whoever has it can admit nodes."""
    from espalier.fleet import certs as authority

    authority.init(directory, name, days)
    click.echo(str(directory / "ca.pem"))


@certs.command("issue")
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["cloud", "edge", "device", "operator"]),
    required=True,
    help="What the node is; an operator is nobody's node and may submit, stop and fetch runs.",
)
@click.option("--host", "hosts", multiple=True, help="A DNS name or IP address of a node that listens (repeatable).")
@click.option("--days", type=int, default=825, show_default=True, help="How long it is valid.")
@_CA
@needs_deploy
def certs_issue(name: str, role: str, hosts: tuple[str, ...], days: int, directory: Path) -> None:
    """Issue a certificate for the node NAME; prints the directory to copy to it."""
    from espalier.fleet import certs as authority

    click.echo(str(authority.issue(directory, name, role, hosts, days)))


@certs.command("renew")
@click.argument("name")
@click.option("--days", type=int, default=825, show_default=True, help="How long it is valid.")
@_CA
@needs_deploy
def certs_renew(name: str, days: int, directory: Path) -> None:
    """Issue NAME a new key and certificate, for the same role and hosts; prints the directory to copy to the node."""
    from espalier.fleet import certs as authority

    click.echo(str(authority.renew(directory, name, days)))


@certs.command("rotate")
@click.option("--days", type=int, default=3650, show_default=True, help="How long the new authority is valid.")
@_CA
@needs_deploy
def certs_rotate(days: int, directory: Path) -> None:
    """Make a new authority beside the old one; prints the directories to copy to the nodes, which then trust both."""
    from espalier.fleet import certs as authority

    for bundle in authority.rotate(directory, days):
        click.echo(str(bundle))


@certs.command("retire")
@_CA
@needs_deploy
def certs_retire(directory: Path) -> None:
    """Trust the newest authority only; prints the directories to copy to the nodes."""
    from espalier.fleet import certs as authority

    for bundle in authority.retire(directory):
        click.echo(str(bundle))


@certs.command("revoke")
@click.argument("name")
@_CA
@needs_deploy
def certs_revoke(name: str, directory: Path) -> None:
    """Revoke every certificate of NAME; copy the printed file to the cloud's --certs directory."""
    from espalier.fleet import certs as authority

    count = authority.revoke(directory, name)
    click.echo(f"{count} certificate{'s' * (count != 1)} newly revoked", err=True)
    click.echo(str(directory / "crl.pem"))
