"""What answers at once: lists and descriptions, without PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from espalier.cli.cards import LISTS, cards, lists
from espalier.cli.lists import CATEGORIES, ROBUST
from espalier.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[2]
HEAVY = ("numpy", "torch", "scipy", "sklearn", "pandas", "plotly")


@pytest.mark.parametrize(
    "words",
    [
        ("--version",), ("--help",), ("methods",), ("describe", "d2d"), ("list",), ("data", "list"), ("config",),
        ("config", "partition", "dirichlet"), ("reproduce",), ("fleet", "up", "--help"), ("node", "cloud", "--help"),
        *((name, "--help") for name in COMMANDS),
    ],
    ids=" ".join,
)  # fmt: skip
def test_quick_commands_import_nothing_heavy(words: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom espalier.cli.main import main\n"
        f"main({list(words)!r}, standalone_mode=False)\n"
        f"print('heavy:', [m for m in {HEAVY[words == ('data', 'list') :]} if m in sys.modules])"  # loaders need NumPy
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("heavy: []\n"), done.stdout


def alone(code: str) -> str:
    """Run code in a process of its own, where no test has registered methods and parts; return what it prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_what_is_shipped_is_what_the_parts_say() -> None:
    found = alone("import json; from espalier.cli.cards import made; print(json.dumps(made()))")
    shipped = json.loads(LISTS.read_text(encoding="utf-8"))
    assert shipped == json.loads(found), "renew it: python -m espalier.cli.cards"


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, espalier; print([m for m in sys.argv[1:] if m in sys.modules], dir(espalier))"
    done = subprocess.run([sys.executable, "-c", code, *HEAVY], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[] ")
    assert "'compare'" in done.stdout and "'Dataset'" in done.stdout and "'Run'" in done.stdout


THEIRS = """
import espalier
class Theirs(espalier.Method, kind="theirs"):
    title = "Theirs"
"""


def test_what_other_packages_announce_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundled method is described without asking; what was said is kept until a file of the package changes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "theirs.py").write_text(THEIRS, encoding="utf-8")
    (tmp_path / "theirs-1.dist-info").mkdir()
    (tmp_path / "theirs-1.dist-info/METADATA").write_text("Name: theirs\nVersion: 1\n", encoding="utf-8")
    (tmp_path / "theirs-1.dist-info/entry_points.txt").write_text("[espalier.methods]\nt = theirs\n", encoding="utf-8")
    code = "import sys\nfrom espalier.cli.cards import lists, made\nfound = lists(method={!r})['methods']\n"
    code += "print(found.get('theirs', {{}}).get('title'), 'torch' in sys.modules, {})"
    assert alone(code.format("easf", 0)).split() == ["None", "False", "0"]
    assert alone(code.format("", "lists() == made()")).split() == ["Theirs", "True", "True"]
    assert alone(code.format("theirs", 0)).split() == ["Theirs", "False", "0"]
    (tmp_path / "theirs.py").write_text(THEIRS.replace('"Theirs"', '"Anew"'), encoding="utf-8")
    assert alone(code.format("theirs", 0)).split() == ["Anew", "True", "0"]
    (tmp_path / "theirs.py").write_text("1 / 0\n", encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "espalier", "methods"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "espalier: The package theirs, which announces methods (t = theirs), cannot be imported: Zero" in done.stderr


def test_the_list_of_commands_says_what_each_says_of_itself() -> None:
    ctx = click.Context(main)
    for name, (_, line) in COMMANDS.items():
        command = main.get_command(ctx, name)
        assert command is not None and command.name == name
        assert command.get_short_help_str(limit=200) == line


def test_methods_fit_a_terminal_of_eighty_columns() -> None:
    done = CliRunner().invoke(main, ["methods"], env={"COLUMNS": "80"})
    lines = done.output.splitlines()
    assert len(lines) == len(cards()) + len(CATEGORIES) + 1 + len(ROBUST) + 3 and max(map(len, lines)) <= 80
    assert set(CATEGORIES) == {card.category for card in cards().values()}
    assert any(line.split() == ["hierfavg", "HierFAVG", "Liu", "et", "al.", "2020"] for line in lines)


def test_an_unknown_command_is_refused() -> None:
    done = CliRunner().invoke(main, ["rum"])
    assert done.exit_code == 2 and "No such command 'rum'" in done.output


def test_robust_merges_that_are_listed_are_there() -> None:
    assert set(ROBUST) <= set(lists()["reference"]["merge"])
