"""Imports point one way: one table says which package may import which, and every import statement keeps to it.

Lazy and type-checking imports count. Where a package has modules with more rights than the rest (a paper's study may
run experiments, its method may not), they have a row of their own; the most particular row decides.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
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


def rooms() -> dict[str, tuple[int, str]]:
    """Return each package's row in the document's table of rooms: its number, and what it says may be imported."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = text.split("## Rooms")[1].split("## Words")[0]
    rows = re.findall(r"^\| (`.+?) \| .+ \| (.+?) \|$", table, flags=re.MULTILINE)
    return {name: (at, may) for at, (names, may) in enumerate(rows) for name in re.findall(r"`(\w+)`", names)}


def test_the_document_has_a_room_for_every_package_and_imports_point_up_its_table() -> None:
    found = rooms()
    own = {row for row in MAY_IMPORT if not row.startswith("_")}
    assert found.keys() == {row for row in own if "." not in row}
    for row in own:
        package = row.split(".")[0]
        at, said = found[package]
        may = MAY_IMPORT[row] - {"*", "_version", package}
        assert all(found[other][0] <= at for other in may), f"{row} imports what stands below it"
        if "." not in row and re.fullmatch(r"(`\w+`(, )?)+", said):
            assert set(re.findall(r"\w+", said)) == may, f"the document says otherwise of {row}"


def test_modules_that_the_document_names_are_there() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    named = {name for name in re.findall(r"`(\w+(?:[./]\w+)+)`", text) if re.split(r"[./]", name)[0] in rooms()}
    assert len(named) > 15
    for name in sorted(named - {"cli/lists.json"}):
        path = name.removesuffix(".py").replace("/", ".").split(".")
        for cut in range(len(path), 0, -1):
            try:
                thing = importlib.import_module(".".join(["espalier", *path[:cut]]))
            except ModuleNotFoundError:
                continue
            for part in path[cut:]:
                thing = getattr(thing, part)
            break


def test_large_packages_say_where_to_begin_and_name_modules_that_are_there() -> None:
    for package in (
        "cli",
        "core",
        "data",
        "fleet",
        "methods",
        "policies",
        "record",
        "report",
        "scale",
        "secure",
        "simulator",
        "study",
        "training",
        "world",
    ):
        folder = ROOT / "espalier" / package
        told = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
        assert re.search(r"[Bb]egin (at|with)", told), package
        if package in ("core", "policies", "simulator"):
            gone = [name for name in re.findall(r"`([a-z_]+)`", told) if not (folder / f"{name}.py").is_file()]
            assert not gone, f"{package} names {gone}"


def test_hooks_that_name_files_leave_generated_ones_alone() -> None:
    generated = sorted(str(p) for p in (ROOT / "espalier/fleet/links/protocol").glob("*_pb2*"))
    assert generated
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *command, *generated], cwd=ROOT, capture_output=True)
        assert done.returncode == 0, done.stdout.decode()
