"""What lists say without importing the parts, which takes PyTorch, SciPy and seconds.

The bundled methods' cards (title, citation, text) are read from their source. The reference of experiment files, the
studies' titles and what was run of them are shipped as ``lists.json``, which ``python -m espalier.cli.cards`` (and
``espalier reproduce --pages docs/results``) writes anew and a test keeps true. Where another package announces methods
too, all are imported and asked.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

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
    return from_source() if only_bundled(plugins) else from_classes()


def only_bundled(plugins: Sequence[str]) -> bool:
    """Tell whether neither a plug-in nor another package announces methods."""
    return not plugins and all(point.value == BUNDLED for point in entry_points(group=GROUP))


def from_classes() -> dict[str, MethodCard]:
    """Import the methods and ask them."""
    from espalier.core.method import available

    return {name: _ask(cls) for name, cls in available().items()}


def _ask(cls: Any) -> MethodCard:
    module = inspect.getmodule(cls)
    text = (module.__doc__ if module else None) or ""
    return MethodCard(
        cls.title,
        cls.citation,
        cls.reconstruction,
        cls.category,
        cls.needs,
        inspect.cleandoc(text),
        inspect.cleandoc(cls.__doc__ or ""),
    )


def from_source() -> dict[str, MethodCard]:
    """Read the cards out of the bundled methods' source."""
    files = [ROOT / "core" / "method.py", *sorted((ROOT / "methods").rglob("*.py"))]
    texts = (path.read_text(encoding="utf-8") for path in files)
    trees = [ast.parse(text) for text in texts if "title: ClassVar" in text]
    classes = {node.name: (node, tree) for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
    found = {}
    for node, tree in classes.values():
        kind = next((ast.literal_eval(k.value) for k in node.keywords if k.arg == "kind"), None)
        line = list(_line(node.name, classes))
        if kind is not None and line[-1].name == "Method":
            found[kind] = _read(line, tree)
    return dict(sorted(found.items()))


def _line(name: str, classes: dict[str, tuple[ast.ClassDef, ast.Module]]) -> Iterator[ast.ClassDef]:
    """Yield a class and the classes that it comes from, as far as they are ours."""
    node: ast.ClassDef | None = classes[name][0]
    while node is not None:
        yield node
        above = [base.id for base in node.bases if isinstance(base, ast.Name)]
        node = classes[above[0]][0] if above and above[0] in classes else None


def _text(value: ast.expr, tree: ast.Module) -> str:
    """Return a string that stands there, or in the module's constant of that name."""
    for part in tree.body:
        if isinstance(value, ast.Name) and isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == value.id:
            value = part.value
    return str(ast.literal_eval(value))


def _read(line: list[ast.ClassDef], tree: ast.Module) -> MethodCard:
    says: dict[str, Any] = {"title": "", "citation": "", "reconstruction": "", "category": "", "needs": ""}
    for node in reversed(line):
        for part in node.body:
            if not isinstance(part, ast.AnnAssign | ast.Assign):
                continue
            target = part.target if isinstance(part, ast.AnnAssign) else part.targets[0]
            name = target.id if isinstance(target, ast.Name) else ""
            if name in says and part.value is not None:
                says[name] = _text(part.value, tree)
    return MethodCard(
        says["title"],
        says["citation"],
        says["reconstruction"],
        says["category"],
        says["needs"],
        ast.get_docstring(tree) or "",
        ast.get_docstring(line[0]) or "",
    )


def lists(plugins: Sequence[str] = ()) -> dict[str, Any]:
    """Return the pages of the ``reference`` by family and kind, the titles of ``studies`` by name, their ``states``.

    A state is a study's name, its scale, what was run, and what all of it costs; without kept figures there is none.
    """
    found: dict[str, Any] = json.loads(LISTS.read_text(encoding="utf-8")) if only_bundled(plugins) else made()
    return found


def made(*, bundled: bool = False) -> dict[str, Any]:
    """Ask the parts themselves; ``bundled``: those of the package alone."""
    from espalier.reference import pages
    from espalier.study.archive import Archive
    from espalier.study.base import studies as known
    from espalier.study.pages import state_rows

    data = RESULTS / "data"
    states = [list(row[:4]) for row in state_rows(Archive(data))] if data.is_dir() else []
    return {
        "reference": pages(bundled=bundled),
        "studies": {name: study.title for name, study in known().items()},
        "states": states,
    }


def renew() -> None:
    """Write the shipped lists anew."""
    LISTS.write_text(json.dumps(made(bundled=True), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    renew()
