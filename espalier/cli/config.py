"""``espalier config`` and ``espalier init``: what an experiment file may say, and one to begin with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click

from espalier.cli import cards
from espalier.cli.plugins import PLUGINS
from espalier.core.errors import ConfigError, RunError, nearest

#: a file to begin with
STARTING_FILE = """# An experiment: methods × seeds under one task, fleet and world. Run it: espalier run {name}
# Every key: espalier config, or `espalier config training` for one table.
name = "{stem}"
seeds = [0, 1, 2]               # fewer than three cannot tell a lead from chance
methods = ["trellis", "hierfavg", "fedavg", {{ name = "ditto", lam = 0.1 }}]      # espalier methods

[task]
dataset = "digits"              # espalier data list; or a table of your own:
# dataset = {{ kind = "csv", path = "mine.csv", label = "ill", owner = "clinic" }}
model = "mlp"                   # or "mymodel:Net" of mymodel.py in this directory
target = 0.8                    # time to this score is measured

[partition]
kind = "dirichlet"              # who holds which labels; owner: each owner of your data is a device
alpha = 0.5

[fleet]
devices = 20                    # with partition owner, at most as many as there are owners
edges = 4
fraction = 1.0                  # the share that works in a round

[training]
batch_size = 10
updates = 1                     # epochs per order
lr = 0.1

# [world]                       # without it: devices and links as in everyday life
# preset = "demo"               # some slow devices, one in five on the move; "ideal" costs no time

# [stop]                        # without it: the first method closes 20 rounds, the others have its virtual time
# rounds = 50
"""


@click.command()
@click.argument("family", required=False)
@click.argument("kind", required=False)
@click.option("--schema", "as_schema", is_flag=True, help="Print a JSON schema, for editors.")
@click.option("--markdown", is_flag=True, help="Print the whole reference.")
@PLUGINS
def config(family: str | None, kind: str | None, as_schema: bool, markdown: bool, plugins: tuple[str, ...]) -> None:
    """Print what an experiment file may say: all tables, a FAMILY's kinds, or one KIND."""
    if as_schema or markdown:
        from espalier import reference

        click.echo(json.dumps(reference.schema(), indent=2) if as_schema else reference.markdown(), nl=as_schema)
        return
    pages = cards.lists(plugins)["reference"]
    if family is not None:
        click.echo(_page(pages, family, kind))
        return
    for name, kinds in pages.items():
        click.echo(f"{name:18} {', '.join(k for k in kinds if k)}")
    click.echo("One of them: espalier config TABLE. A file to begin with: espalier init")


def _page(pages: Mapping[str, Mapping[str, str]], family: str, kind: str | None) -> str:
    """Return a family's kinds, or all about one kind."""
    if family not in pages:
        raise ConfigError(f"There is no table {family!r}; known: {', '.join(pages)}.{nearest(family, pages)}")
    kinds = pages[family]
    if kind is None and list(kinds) != [""]:
        lines = [f"{family}: give kind = …, one of", ""]
        lines += [f"  {name:18} {page.partition(chr(10))[0]}" for name, page in kinds.items()]
        return "\n".join([*lines, "", f"More: espalier config {family} KIND"])
    if (kind or "") not in kinds:
        raise ConfigError(f"{family} has no kind {kind!r}; known: {', '.join(kinds)}.{nearest(kind or '', kinds)}")
    return kinds[kind or ""]


@click.command()
@click.argument("file", type=click.Path(path_type=Path), default=Path("experiment.toml"))
def init(file: Path) -> None:
    """Write a commented experiment file to begin with."""
    if file.exists():
        raise ConfigError(f"{file} is there already; give another name.")
    try:
        file.write_text(STARTING_FILE.format(name=file.name, stem=file.stem), encoding="utf-8")
    except OSError as error:
        raise RunError(f"{file} cannot be written: {error.strerror or error}.") from error
    click.echo(f"{file}: run it with `espalier run {file}`")
