"""``espalier list``, ``methods``, ``describe`` and ``data``: what there is. Answers without importing PyTorch."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from espalier.cli.cards import MethodCard, cards, lists
from espalier.cli.plugins import PLUGINS
from espalier.core.errors import ConfigError, nearest
from espalier.experiments import bundled

#: what methods are about, in the order in which they are listed
CATEGORIES = {
    "global": "one model for all",
    "hierarchical": "made for a tree",
    "personal": "a device's own model",
    "clustered": "a model per cluster",
    "asynchronous": "nobody waits",
    "selection": "who works when",
}
#: merges that stand lying devices; they take the place of any method's own
ROBUST = ("clipped", "geometric_median", "krum", "median", "multi_krum", "trimmed_mean")

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command("list")
def experiments() -> None:
    """List the bundled experiments."""
    for name, path in bundled().items():
        first = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        click.echo(f"{name:24} {first}")


@click.command("methods")
@_JSON
@click.option("--table", is_flag=True, help="Print docs/methods.md: what each is and needs, from plans and short runs.")
@PLUGINS
def methods(as_json: bool, table: bool, plugins: tuple[str, ...]) -> None:
    """List the methods."""
    if table:
        from espalier.testing.matrix import markdown

        click.echo(markdown(), nl=False)
        return
    found = cards(plugins)
    if as_json:
        kept = ("title", "citation", "category", "reconstruction", "needs")
        click.echo(json.dumps([{"name": n, **{k: getattr(c, k) for k in kept}} for n, c in found.items()], indent=2))
        return
    out = Table("name", "method", "needs", "from", box=None, pad_edge=False)
    for category, what in CATEGORIES.items():
        out.add_row(Text(category, style="bold"), Text(what, style="bold"))
        for name, card in found.items():
            if card.category == category:
                shown = card.title + (" *" if card.reconstruction else "")
                out.add_row(f"  {name}", shown, card.needs, Text(card.source, no_wrap=True))
    out.add_row(Text("robust", style="bold"), Text("merges against liars", style="bold"))
    for kind in ROBUST:
        out.add_row(f"  {kind}", kind.replace("_", " ").capitalize(), "", "with any method")
    Console().print(out)
    click.echo("* reconstructed where the original text is silent. More: espalier describe NAME")
    click.echo("Pace, tree and more: espalier methods --table. Merges: espalier config merge")


@click.command()
@click.argument("name")
@PLUGINS
def describe(name: str, plugins: tuple[str, ...]) -> None:
    """Describe a method: what it does, its options, where it departs from its paper."""
    found = lists(plugins, name)
    if name not in (known := found["methods"]):
        own = "your own: --plugin FILE"
        raise ConfigError(f"There is no method {name!r}; see `espalier methods` ({own}).{nearest(name, known)}")
    Console().print(_page(name, MethodCard(**known[name]), found["reference"].get("method", {}).get(name, "")))


def _page(name: str, card: MethodCard, options: str) -> Group:
    """Return a method's page: its module's text, and what the reference says of its options after its summary."""
    parts: list[Any] = [Text(f"{card.title} ({name})", style="bold"), Text(card.citation), Text("")]
    if card.reconstruction:
        parts += [Text(f"Reconstruction: {card.reconstruction}", style="yellow"), Text("")]
    about = card.about.partition("Attributes:")[0].strip()  # the options stand below
    parts += [Text(_flowing(text) + "\n") for text in (card.text, about) if text]
    return Group(*parts, Text("methods = " + options.partition("\nmethods = ")[2] if options else ""))


def _flowing(text: str) -> str:
    """Join the lines of paragraphs and of lists' items, so that a terminal of any width breaks them."""
    return re.sub(r"(?<=\S)\n {0,3}(?![ \n]|[-*] |\d+\. )", " ", text)


@click.group()
def data() -> None:
    """List and fetch datasets."""


@data.command("list")
@_JSON
def data_list(as_json: bool) -> None:
    """List the datasets, and where their files were found."""
    from espalier.data import registry

    found = registry.catalogue()
    if as_json:
        rows = [{**dataclasses.asdict(i), "where": None if i.where is None else str(i.where)} for i in found]
        click.echo(json.dumps(rows, indent=2))
        return
    out = Table("name", "kind", "train + test", "classes", "found in", box=None, pad_edge=False)
    for item in found:
        place = str(item.where or ("embedded" if item.embedded else "can be fetched" if item.fetchable else "–"))
        out.add_row(item.name, item.kind, f"{item.samples[0]:,} + {item.samples[1]:,}", str(item.classes), place)
    Console().print(out)


@data.command("fetch")
@click.argument("name")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where to [default: the user's cache].")
def data_fetch(name: str, data_dir: Path | None) -> None:
    """Download a dataset from its publisher and check it."""
    from espalier.data import registry

    with Progress(console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def progress(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=total)
            bars.update(tasks[file], completed=done, total=total)

        where = registry.fetch(name, data_dir, progress)
    click.echo(str(where))
