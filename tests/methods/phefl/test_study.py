"""PHE-FL's table and figures as studies."""

from __future__ import annotations

from pathlib import Path

import pytest

from espalier.simulator.runner import Runner
from espalier.study import tables
from espalier.study.base import SCALES, cell_directory, study
from espalier.study.results import read_results

NAMES = ("phefl/table5", "phefl/long", "phefl/fig3", "phefl/fig4", "phefl/options")


@pytest.mark.parametrize("name", NAMES)
def test_settings_can_be_built_at_every_scale(name: str) -> None:
    for scale in SCALES:
        keys = [(c.row, c.column) for c in study(name).cells(scale)]
        assert len(keys) == len(set(keys)) > 1
        if scale == "full":
            assert {(r, c) for r, columns in study(name).published.items() for c in columns} <= set(keys)


def test_the_long_study_has_all_data_and_200_rounds() -> None:
    cells = study("phefl/long").cells("small")
    assert {c.column for c in cells} == {f"mnist {layout} imbalanced" for layout in ("D2", "D3", "D4")}
    assert all(c.experiment.stop.rounds == 200 and "fraction" not in c.experiment.partition for c in cells)
    assert study("phefl/long").published["PHE-FL"].keys() == {c.column for c in cells}


def test_options_run_and_are_compared(tmp_path: Path) -> None:
    found = study("phefl/options")
    for cell in found.cells("smoke"):
        experiment = cell.experiment
        Runner(experiment.only(experiment.methods[0], 0), cell_directory(tmp_path, cell, 0)).run()
    results = read_results(found, "smoke", tmp_path)
    assert all(0 < results.mean("PHE-FL", c, "best") <= 100 for c in results.columns)
    # servers that do not choose leave every edge what it gets without them
    flat, deep = (results.mean("PHE-FL", c, "best") for c in results.columns)
    assert flat == pytest.approx(deep, abs=2.0)
    assert "alpha by loss" in tables.markdown(results, "espalier reproduce phefl/options")
