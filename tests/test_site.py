"""Pages and examples run as they stand, notebooks are their tutorials, and the site builds without a warning."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tutorials import ROOT, follow, notebook, unprinted

TUTORIALS = sorted((ROOT / "docs/tutorials").glob("*.md"))
PAGES = [ROOT / "docs/quick-start.md", *sorted((ROOT / "docs/how-to").glob("*.md")), *TUTORIALS]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_can_be_followed(page: Path, tmp_path: Path) -> None:
    done = follow(page, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert unprinted(page, done.stdout) == []


#: how an example is run, in a folder with all of them, and what it leaves there
EXAMPLES = {
    "adapters.py": ("adapters.py", ""),
    "compare_on_csv.py": ("compare_on_csv.py", "report.html"),
    "own_model.py": ("own_model.py", "net.pt"),
    "own_method.py": ("own_method.py", ""),
    "moving_fleet.toml": ("-m espalier run moving_fleet.toml --quiet --out runs --report report.html", "report.html"),
    "sweep.toml": ("-m espalier sweep sweep.toml --grid training.lr=0.1 --out runs", "runs"),
}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path, dirs_exist_ok=True)
    command, left = EXAMPLES[name]
    done = subprocess.run(
        [sys.executable, *command.split()], cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / left).exists()


def test_every_example_is_run() -> None:
    files = {p.name for p in (ROOT / "examples").iterdir() if p.suffix in (".py", ".toml")}
    assert files == set(EXAMPLES)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_notebook_is_its_tutorial(page: Path) -> None:
    assert page.with_suffix(".ipynb").read_text(encoding="utf-8") == notebook(page), (
        "run python -m tests.tutorials to write the notebooks anew"
    )


def test_the_site_builds_and_asks_nobody(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", "docs", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="https?://(?!localhost)[^"]*"', text), page
