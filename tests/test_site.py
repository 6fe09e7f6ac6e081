"""The site's pages run as they stand, its notebooks are its tutorials, and it builds without a warning."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tutorials import ROOT, follow, notebook

TUTORIALS = sorted((ROOT / "docs/tutorials").glob("*.md"))
PAGES = [ROOT / "docs/quick-start.md", *sorted((ROOT / "docs/how-to").glob("*.md")), *TUTORIALS]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_can_be_followed(page: Path, tmp_path: Path) -> None:
    done = follow(page, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


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
