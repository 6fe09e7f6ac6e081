"""The documents' code runs as it stands."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import click
import pytest

import espalier
from espalier.cli.cards import cards
from espalier.cli.lists import CATEGORIES
from espalier.cli.main import main
from tests.tutorials import unprinted

ROOT = Path(__file__).parents[1]


def blocks(document: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def commands(document: str) -> list[str]:
    """Return the lines of a document's shell blocks that call the command."""
    text = (ROOT / document).read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL) for line in block.splitlines()]
    return [line for line in lines if line.startswith("espalier ")]


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "example.py"
    path.write_text(code, encoding="utf-8")
    return subprocess.run([sys.executable, str(path)], cwd=folder, capture_output=True, text=True, timeout=300)


def test_a_new_method_from_the_document_alone(tmp_path: Path) -> None:
    middle, method, paced, comparison, conformance, corrected, personal = blocks("docs/adding-a-method.md")
    assert len([line for line in middle.splitlines() if line and not line.startswith("#")]) <= 12
    assert len(method.strip().splitlines()) <= 60
    (tmp_path / "momentum.py").write_text(method + paced, encoding="utf-8")
    again = 'check("hier_momentum_paced", "determinism")\n'
    for name, code in (("middle", middle), ("corrected", corrected), ("personal", personal)):
        assert len(code.strip().splitlines()) <= 50
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
        again += f"import {name}\n"
        again += "".join(
            f'check("hier_{name}", "{what}")\n' for what in ("determinism", "resume", "learns", "fixed_point")
        )
    done = run(comparison + conformance + again, tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 4
    assert all(0.1 < float(line.split()[-1]) <= 1 for line in lines)


def test_the_readme_example(tmp_path: Path) -> None:
    (example,) = blocks("README.md")
    assert len(example.strip().splitlines()) <= 15
    done = run(example, tmp_path)
    assert done.returncode == 0, done.stderr
    assert unprinted(ROOT / "README.md", done.stdout) == []


def test_the_readme_s_seconds_are_those_that_were_measured() -> None:
    measured = (ROOT / "docs/performance.md").read_text(encoding="utf-8").partition("<!-- measured: all_peers -->")[2]
    head, _, *rows = measured.strip().splitlines()
    place = next(i for i, row in enumerate(rows) if row.startswith("| LeNet | 10 |")) + 1  # 20 clients, then 100
    names, figures = ([cell.strip() for cell in row.strip("|").split("|")] for row in (head, rows[place]))
    assert figures[2] == "100"
    seconds = {name.split()[0]: float(cell.split()[0]) for name, cell in zip(names[3:9], figures[3:9], strict=True)}
    told = " | ".join(f"{seconds[name]:.1f}" for name in ("Espalier", "flwr", "FLGo", "pfl", "FedLab"))
    assert f"LeNet, batch 10, 100 clients [11] | {told} | – |" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_lists_every_method() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    ours = cards()
    for category, what in CATEGORIES.items():
        named = [c.title + " (r)" * bool(c.reconstruction) for c in ours.values() if c.category == category]
        assert f"| {category}: {what} | {', '.join(named)} |" in text
    assert f"{len(ours)} methods and baselines" in " ".join(text.split())


def test_methods_that_are_worth_a_try_are_there() -> None:
    text = (ROOT / "docs/how-to/which-methods.md").read_text(encoding="utf-8")
    tried = [row.split("|")[2] for row in re.findall(r"^\| (?!your|---).*", text, flags=re.MULTILINE)]
    named = {name for cell in tried for name in re.findall(r"`(\w+)`", cell)}
    assert len(tried) == 12 and named - {"kappa2", "private", "secure", "acc_device_worst"} <= set(cards())


@pytest.mark.parametrize("line", commands("README.md"))
def test_the_readme_names_commands_and_options_that_are_there(line: str) -> None:
    words = shlex.split(line, comments=True)
    group, at = main, 1
    while isinstance(group, click.Group):
        found = group.get_command(click.Context(group), words[at])
        assert found is not None, line
        group, at = found, at + 1
    known = {name for option in group.params for name in option.opts}
    assert {word for word in words if word.startswith("-")} <= known, line


def test_the_public_names_are_those_of_the_document() -> None:
    text = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", text, flags=re.MULTILINE)
    told = [name for row in rows for name in re.findall(r"\w+", row)]
    assert sorted(told) == sorted(espalier.__all__) == sorted(dir(espalier))
    for name in espalier.__all__:
        assert getattr(espalier, name) is not None


def test_a_type_checker_knows_the_public_names() -> None:
    # one that is not imported for it is Any to whoever checks a method of their own
    tree = ast.parse((ROOT / "espalier/__init__.py").read_text(encoding="utf-8"))
    known = {a.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for a in node.names}
    assert set(espalier.__all__) <= known


POLICIES = (
    espalier.Structure, espalier.Selection, espalier.Pace, espalier.Merge, espalier.HandDown, espalier.Guard,
    espalier.Local,
)  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_what_hooks_take_and_return_is_public(policy: type) -> None:
    # who overrides a hook with types finds them all in one place
    hooks = [f for name, f in vars(policy).items() if inspect.isfunction(f) and not name.startswith("_")]
    assert hooks
    for hook in hooks:
        for hint in get_type_hints(hook).values():
            named = {cls.__name__ for cls in _classes(hint) if cls.__module__.startswith("espalier")}
            assert named <= set(espalier.__all__), hook.__qualname__


def _classes(hint: object) -> list[type]:
    inside = [cls for part in get_args(hint) for cls in _classes(part)]
    return [hint, *inside] if isinstance(hint, type) else inside


@pytest.mark.parametrize("path", sorted(p.relative_to(ROOT).as_posix() for p in ROOT.glob("docs/**/*.md")))
def test_links_between_documents_lead_somewhere(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert ((ROOT / path).parent / target).exists(), f"{path} links to {target}"


def test_the_measured_tables_are_those_of_the_kept_figures() -> None:
    code = "import json, renew, tables\ndata = json.loads(renew.DATA.read_text())\n"
    code += "for page in renew.PAGES:\n    text = page.read_text()\n"
    code += "    assert renew.rendered(text, data) == text, f'python benchmarks/renew.py --tables: {page.name}'\n"
    code += "assert {part for _, *parts in tables.BLOCKS.values() for part in parts} == set(renew.PARTS)\n"
    code += "assert set(data) <= set(renew.PARTS)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "benchmarks", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
