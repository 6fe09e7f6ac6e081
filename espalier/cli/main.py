"""The command ``espalier``. A subcommand's module is imported when it is called, so that the quick ones are quick."""

from __future__ import annotations

import atexit
import importlib
import os
import signal
import sys
from typing import Any

import click

from espalier._version import __version__
from espalier.core.errors import EspalierError, nearest

#: subcommand → where it is, and its line in ``espalier --help``
COMMANDS = {
    "certs": ("node:certs", "Make certificates for the nodes of a fleet."),
    "config": ("config:config", "Print what an experiment file may say: all tables, a FAMILY's kinds, or one KIND."),
    "data": ("lists:data", "List and fetch datasets."),
    "describe": ("lists:describe", "Describe a method: what it does, its options, where it departs from its paper."),
    "export": ("export:export", "Write a model of the run at DIRECTORY for use elsewhere."),
    "fleet": ("fleet:fleet", "Submit runs to a standing fleet, look at it, or start a whole one on this machine."),
    "init": ("config:init", "Write a commented experiment file to begin with."),
    "list": ("lists:experiments", "List the bundled experiments."),
    "methods": ("lists:methods", "List the methods."),
    "node": ("node:node", "Run a node of a real fleet: the cloud, an edge, a device."),
    "report": ("report:report", "Report on every run at or below DIRECTORIES: methods side by side, over their seeds."),
    "reproduce": (
        "reproduce:reproduce",
        "Run study NAME (such as csahfl/table1) and print our figures beside the published ones.",
    ),
    "resume": ("run:resume", "Go on with every unfinished run at or below DIRECTORY."),
    "run": ("run:run", "Run EXPERIMENT: a TOML file, or a bundled name (see `espalier list`)."),
    "sweep": (
        "sweep:sweep",
        "Try settings of EXPERIMENT on held-out training data and say which is best; again, to go on.",
    ),
    "watch": ("report:watch", "Show the runs at or below DIRECTORY in a browser, live, until interrupted."),
}


class Commands(click.Group):
    """A command group that imports a subcommand when it is called, and turns a user's mistake into one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the subcommands' names."""
        return sorted(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a subcommand; say which one may have been meant."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}.{nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a subcommand."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        found: click.Command = getattr(importlib.import_module(f"espalier.cli.{module}"), name)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of subcommands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in sorted(COMMANDS.items())])

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command; models and methods of the user's are found in the current directory."""
        if os.getcwd() not in sys.path and "" not in sys.path:
            sys.path.append(os.getcwd())
        try:
            return super().main(*args, **kwargs)
        except EspalierError as error:
            click.echo(f"espalier: {error}", err=True)
            sys.exit(error.exit_code)
        finally:  # what is left is the end of the process: a second Ctrl-C would only print PyTorch's traceback there
            atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a subcommand; Ctrl-C where nothing is being run is a stop like any other."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("espalier: stopped.", err=True)
            sys.exit(130)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="espalier")
def main() -> None:
    """Train models over trees of devices: simulate, compare, report, deploy."""
