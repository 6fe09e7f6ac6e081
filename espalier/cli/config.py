"""``espalier config`` and ``espalier init``: what an experiment file may say, and one to begin with."""

from __future__ import annotations

import json
from pathlib import Path

import click

from espalier import reference
from espalier.core.errors import ConfigError


@click.command()
@click.argument("family", required=False)
@click.argument("kind", required=False)
@click.option("--schema", "as_schema", is_flag=True, help="Print a JSON schema, for editors.")
@click.option("--markdown", is_flag=True, help="Print the whole reference.")
def config(family: str | None, kind: str | None, as_schema: bool, markdown: bool) -> None:
    """Print what an experiment file may say: all tables, a FAMILY's kinds, or one KIND."""
    if as_schema:
        click.echo(json.dumps(reference.schema(), indent=2))
    elif markdown:
        click.echo(reference.markdown(), nl=False)
    elif family is not None:
        click.echo(reference.text(family, kind))
    else:
        for name, kinds in reference.families().items():
            click.echo(f"{name:18} {', '.join(k for k in kinds if k)}")


@click.command()
@click.argument("file", type=click.Path(path_type=Path), default=Path("experiment.toml"))
def init(file: Path) -> None:
    """Write a commented experiment file to begin with."""
    if file.exists():
        raise ConfigError(f"{file} is there already; give another name.")
    file.write_text(reference.starting_file(file), encoding="utf-8")
    click.echo(f"{file}: run it with `espalier run {file}`")
