"""A part of a study, run at the smallest scale."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from espalier.cli.studies import run_study
from espalier.study.base import Cell, part, study
from espalier.study.results import Results, read_results


def made(name: str, folder: Path, only: Callable[[Cell], bool] = lambda cell: True) -> Results:
    """Run the cells for which ``only`` holds."""
    some = part(study(name), only)
    run_study(some, "smoke", folder, 1, None, quiet=True)
    return read_results(some, "smoke", folder)
