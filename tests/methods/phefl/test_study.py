"""PHE-FL's table and figures as studies; Acc_N, Drop_M and who learns from whom."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.methods.phefl.study import acc_n, drop_m
from espalier.simulator.runner import Runner
from espalier.study import tables
from espalier.study.base import SCALES, cell_directory, study
from espalier.study.results import read_results

SERIES = [50, 92, 95, 60, 96, *[97] * 8, 50]


def test_acc_n_is_the_highest_of_the_first_rounds() -> None:
    assert acc_n(SERIES, 2) == 92
    assert acc_n(SERIES, 4) == 95
    assert acc_n(SERIES, 200) == 97
    assert math.isnan(acc_n([], 5))


def test_drop_m_looks_into_every_window_from_the_threshold_on() -> None:
    # 90 is first reached in round 2. Rounds 2–11 hold 60 … 97 (37), rounds 5–14 hold 50 … 97 (47).
    assert drop_m(SERIES, 90) == 47
    # From round 1 on rounds 1–10 hold 50 … 97 as well.
    assert drop_m(SERIES, 0) == 47
    # 97 is reached in round 6: rounds 6–14, a window cut short, hold 50 … 97.
    assert drop_m(SERIES, 97) == 47


def test_drop_m_of_a_curve_that_never_gets_there() -> None:
    assert drop_m(SERIES, 98) is None
    assert drop_m([], 0) is None


def test_drop_m_counts_a_rise_as_well_as_a_fall() -> None:
    assert drop_m([10, 20, 90], 0) == 80
    assert drop_m([40.0], 0) == 0


@settings(deadline=None)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=40), st.floats(0, 100))
def test_drop_m_is_the_largest_spread_of_nearby_rounds(series: list[float], threshold: float) -> None:
    first = next((i for i, v in enumerate(series) if v >= threshold), None)
    found = drop_m(series, threshold)
    if first is None:
        assert found is None
    else:
        pairs = [(a, b) for a in range(first, len(series)) for b in range(a, min(a + 10, len(series)))]
        assert found == pytest.approx(max(abs(series[a] - series[b]) for a, b in pairs))


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
