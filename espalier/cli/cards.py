"""What lists say without importing the parts, which takes PyTorch, SciPy and seconds.

The bundled methods' cards (title, citation, text), the reference of experiment files, the studies' titles and what was
run of them are shipped as ``lists.json``, which ``python -m espalier.cli.cards`` (and ``espalier reproduce --pages
docs/results``) writes anew and a test keeps true. Where another package announces methods too, all are imported and
asked once; what they say is kept in the user's cache until a file of that package changes.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from espalier.data import cache

GROUP = "espalier.methods"
BUNDLED = "espalier.methods.bundled"
ROOT = Path(__file__).parents[1]
LISTS = Path(__file__).with_name("lists.json")
#: the results that the repository keeps, whose states are shipped
RESULTS = ROOT.parent / "docs" / "results"


@dataclass(frozen=True)
class MethodCard:
    """A method as lists show it."""

    title: str
    citation: str
    reconstruction: str
    category: str
    needs: str
    text: str
    about: str

    @property
    def source(self) -> str:
        """The citation, shortened to its authors and year."""
        first, _, rest = self.citation.partition(":" if self.citation.startswith("this project") else ",")
        years = re.findall(r"(?<![\d:.])(?:19|20)\d\d(?![\d.]\d)", rest)
        return " ".join([first.strip(), *years[-1:]])


def cards(plugins: Sequence[str] = ()) -> dict[str, MethodCard]:
    """Return every method's card by name."""
    return {name: MethodCard(**card) for name, card in lists(plugins)["methods"].items()}


def _ask(cls: Any) -> MethodCard:
    texts = [inspect.cleandoc(source.__doc__ or "") for source in (inspect.getmodule(cls), cls)]
    return MethodCard(cls.title, cls.citation, cls.reconstruction, cls.category, cls.needs, *texts)


def lists(plugins: Sequence[str] = (), method: str = "") -> dict[str, Any]:
    """Return the ``methods``' cards, the ``reference``'s pages by kind, the ``studies``' titles and their ``states``.

    A state is a study's name, its scale, what was run, and what all of it costs; without kept figures there is none.
    Who asks for a shipped ``method`` alone does not wait for what other packages announce.
    """
    shipped: dict[str, Any] = json.loads(LISTS.read_text(encoding="utf-8"))
    others = [point for point in entry_points(group=GROUP) if point.value != BUNDLED]
    if plugins:
        return made()
    return _with(others) if others and method not in shipped["methods"] else shipped


def _with(others: Sequence[EntryPoint]) -> dict[str, Any]:
    """Return the lists with what other packages announce, as it was kept if none of their files has changed since."""
    place, stamp = cache() / "lists.json", _stamp(others)
    with suppress(OSError, ValueError, LookupError):
        kept = json.loads(place.read_text(encoding="utf-8"))
        if kept["stamp"] == stamp:
            return dict(kept["lists"])
    found = made()
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps({"stamp": stamp, "lists": found}), encoding="utf-8")
    return found


def _stamp(others: Sequence[EntryPoint]) -> list[Any]:
    """Return which files stand behind the lists, and when each was written; nothing is imported."""
    files = [LISTS]
    for point in others:
        spec = find_spec(point.module.partition(".")[0])
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            files += sorted(Path(folder).rglob("*.py"))
        files += [Path(spec.origin)] if spec and spec.origin else []
    return [[point.value for point in others], *([str(f), f.stat().st_mtime_ns] for f in files)]


def made(*, bundled: bool = False) -> dict[str, Any]:
    """Ask the parts themselves; ``bundled``: those of the package alone."""
    from espalier.core.method import available
    from espalier.reference import pages
    from espalier.study.archive import Archive
    from espalier.study.base import studies as known
    from espalier.study.pages import state_rows

    data = RESULTS / "data"
    states = [list(row[:4]) for row in state_rows(Archive(data))] if data.is_dir() else []
    methods = {n: c for n, c in available().items() if not bundled or c.__module__.startswith("espalier.")}
    return {
        "methods": {name: asdict(_ask(cls)) for name, cls in methods.items()},
        "reference": pages(bundled=bundled),
        "studies": {name: study.title for name, study in known().items()},
        "states": states,
    }


def renew() -> None:
    """Write the shipped lists anew."""
    LISTS.write_text(json.dumps(made(bundled=True), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    renew()
