"""``--plugin``: a user's own methods and policies, known before anything else of a command is looked at."""

from __future__ import annotations

import click

from espalier.core.code import plug_in


def _load(ctx: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    plug_in(names)
    return names


#: imports the plug-ins as the command line is read; processes of the command's own are to import them again
PLUGINS = click.option(
    "--plugin", "plugins", multiple=True, metavar="FILE", callback=_load, help="Import your own methods first: mine.py."
)
