"""Imports point one way: one table says which package may import which, and every import statement keeps to it.

Lazy and type-checking imports count. Where a package has modules with more rights than the rest (a paper's study may
run experiments, its method may not), they have a row of their own; the most particular row decides.
"""

from __future__ import annotations

import ast
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[1]

_LOWER = {"core", "data", "policies", "training", "world"}
_RUN = {*_LOWER, "experiment", "privacy", "record", "settings"}
_STUDY = {*_LOWER, "experiment", "record", "settings", "study"}

#: package, or a pattern of modules → packages that it may import besides itself; ``*`` stands for every one
MAY_IMPORT: dict[str, set[str]] = {
    "_version": set(),
    "core": set(),
    "world": {"core"},
    "data": {"core"},
    "training": {"core"},
    "secure": {"core"},
    "policies": {"core", "secure"},
    "privacy": {"core", "policies"},
    "settings": {"core", "training"},
    "experiments": set(),
    "experiment": {"core", "data", "experiments", "settings", "training", "world"},
    "record": {"core", "data", "experiment"},
    "study": {"core", "experiment", "record", "settings"},
    "methods": {"core", "policies"},
    "methods.*.partition": {"core", "data"},
    "methods.*.world": {"core", "world"},
    "methods.*.study": _STUDY,
    "methods.*.settings": _STUDY,
    "methods.*.measures": _STUDY,
    "methods.*.figures": _STUDY,
    "simulator": {*_RUN, "_version"},
    "scale": {*_LOWER, "_version", "settings", "simulator"},
    "fleet": {*_RUN, "_version", "secure", "simulator"},
    "callbacks": {"core"},
    "reference": {"core"},
    "api": {*_RUN, "callbacks", "simulator"},
    "report": {"_version", "core", "record", "study"},
    "testing": {*_RUN, "simulator"},
    "cli": {"*"},
    "__main__": {"cli"},
    "__init__": {"*"},
}

#: statements that break the table still, ``file: package``. Only ever shorter: the aim is none.
STILL_THERE: set[str] = set()


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted((ROOT / "espalier").rglob("*.py")):
        parts = path.relative_to(ROOT / "espalier").with_suffix("").parts
        found[".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)] = path
    return found


def imported(tree: ast.AST) -> list[tuple[int, str]]:
    """Return (line, package of ours) of every import statement, wherever it stands."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if node.module == "espalier":
                found += [(node.lineno, alias.name) for alias in node.names]
            elif node.module and node.module.startswith("espalier."):
                found.append((node.lineno, node.module.split(".")[1]))
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] == "espalier"]
            found += [(node.lineno, (*name.split("."), "__init__")[1]) for name in names]
    return found


def allowed(module: str) -> set[str]:
    rows = [row for row in MAY_IMPORT if module == row or module.startswith(f"{row}.") or fnmatchcase(module, row)]
    assert rows, f"{module} has no row in MAY_IMPORT: say what it may import"
    return MAY_IMPORT[max(rows, key=len)]


def test_every_import_keeps_to_the_table() -> None:
    wrong, seen = [], set()
    for module, path in modules().items():
        may, own = allowed(module), module.split(".")[0]
        for line, package in imported(ast.parse(path.read_text(encoding="utf-8"))):
            if package in (own, *may) or "*" in may:
                continue
            statement = f"{path.relative_to(ROOT).as_posix()}: {package}"
            seen.add(statement)
            if statement not in STILL_THERE:
                wrong.append(f"{path.relative_to(ROOT).as_posix()}:{line} imports espalier.{package}")
    assert not wrong, "these break the table of what may import what:\n" + "\n".join(wrong)
    assert seen == STILL_THERE, f"no longer there, take them out of STILL_THERE: {sorted(STILL_THERE - seen)}"


def test_the_table_has_no_cycle() -> None:
    left = {row: may - {"*"} for row, may in MAY_IMPORT.items() if "*" not in may and "." not in row}
    while left:
        free = [row for row, may in left.items() if not may & left.keys()]
        assert free, f"these packages may import each other in a ring: {sorted(left)}"
        for row in free:
            del left[row]


def test_the_table_names_only_what_there_is() -> None:
    known = set(modules())
    packages = {module.split(".")[0] for module in known}
    for row, may in MAY_IMPORT.items():
        assert row in packages or any(fnmatchcase(module, row) for module in known), row
        assert may <= packages | {"*"}, row
