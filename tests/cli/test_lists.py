"""What answers at once: lists and descriptions, without PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from espalier.cli.cards import LISTS, cards, lists
from espalier.cli.lists import CATEGORIES, ROBUST
from espalier.cli.main import COMMANDS, main

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


def test_a_bundled_method_is_described_at_once_beside_other_packages() -> None:
    code = (
        "import sys, importlib.metadata as m\nfrom espalier.cli import cards\n"
        "cards.entry_points = lambda group: [m.EntryPoint('theirs', 'json', group)]\n"
        "print(cards.lists(method='easf')['methods']['easf']['title'], 'torch' in sys.modules)\n"
        "print(cards.lists() == cards.made(), 'torch' in sys.modules)"
    )
    assert alone(code).split() == ["EASF", "False", "True", "True"]


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
