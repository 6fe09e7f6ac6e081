from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from espalier.core.errors import RunError
from espalier.record.database import Recorder
from espalier.report.pictures import browser as find_browser
from espalier.report.reading import Reading, opened, read
from tests.report.made import Made, write_run


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A real Chromium. Where there is none, the tests that need it fail and say what to install.

    For one module at a time: while it is there, its event loop runs in this thread, and others' tests need their own.
    """
    try:
        program = find_browser()
    except RunError as error:
        pytest.fail(f"{error} These tests look at pages in a real browser and are not skipped without one.")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium refuses its sandbox to root, the usual user of a container
        arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        opened_browser = playwright.chromium.launch(executable_path=program, args=arguments)
        yield opened_browser
        opened_browser.close()


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods × two seeds, with moves, clusters, churn, notes and similarities."""
    root = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        write_run(root / "a" / f"seed-{seed}", label="HierFAVG", seed=seed, churn=True, notes=True)
        write_run(root / "b" / f"seed-{seed}", label="CSAHFL", seed=seed, skill=0.85, clusters=3, similarity=True)
        write_run(
            root / "c" / f"seed-{seed}", label="Flat <i>", seed=seed, skill=0.4, flat=True, reconstruction="all of it"
        )
    return root


def reading_of(directory: Path, made: Made | None = None, **changes: Any) -> Reading:
    """Write a made-up run and read it."""
    with opened(write_run(directory, made, **changes)) as run:
        found = read(run)
    assert found is not None
    return found


def with_metrics(
    directory: Path, label: str, seed: int, metrics: dict[str, list[float | None]], **changes: Any
) -> Reading:
    """Write a run whose only metrics are the given ones: round i at 10·i seconds."""
    made = Made(label=label, seed=seed, rounds=0, **changes)
    write_run(directory, made)
    recorder = Recorder(directory / "run.sqlite")
    recorder.rewind({"metrics": 0, "arrays": 0, "traffic": 0})
    for name, values in metrics.items():
        for number, value in enumerate(values):
            recorder.metric(10.0 * number, number, name, value)
    recorder.close()
    with opened(directory) as run:
        found = read(run)
    assert found is not None
    return found
