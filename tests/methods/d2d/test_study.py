"""The D2D paper's tables and figures as studies: every setting can be built, one runs, what is read is right."""

from __future__ import annotations

import json
import math
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from espalier.methods.d2d.method import D2D
from espalier.methods.d2d.settings import DISTRIBUTIONS, rounds, world
from espalier.methods.d2d.study import ORIGINAL, gains, read_reached, read_rounds, rounds_to, target
from espalier.record.database import FORMAT
from espalier.record.run import Run, slug
from espalier.simulator.runner import Runner
from espalier.study import tables
from espalier.study.base import SCALES, cell_directory, studies, study
from espalier.study.results import Finished, Results, read_results

NAMES = [f"d2d/table{i}" for i in range(6, 13)] + [f"d2d/fig{i}" for i in range(5, 18)] + ["d2d/calibration"]


def smoke(name: str, directory: Path) -> Results:
    found = study(name)
    for cell in found.cells("smoke"):
        experiment = cell.experiment
        Runner(experiment.only(experiment.methods[0], 0), cell_directory(directory, cell, 0)).run()
    return read_results(found, "smoke", directory)


def test_every_table_and_figure_is_there() -> None:
    assert set(NAMES) <= set(studies())


@pytest.mark.parametrize("name", NAMES)
def test_settings_can_be_built_at_every_scale(name: str) -> None:
    for scale in SCALES:
        cells = list(study(name).cells(scale))
        keys = [(c.row, c.column) for c in cells]
        assert len(keys) == len(set(keys)) > 1
        # what was published has a place in the table
        if scale == "full":
            published = {(r, c) for r, columns in study(name).published.items() for c in columns}
            assert published <= set(keys)


def test_rounds_of_the_papers_2400_steps() -> None:
    # 120 + 80 steps make 12 rounds; 90 + 80 make 14 and 180 + 80 make 9, the rest being too short for one more.
    assert [rounds("small", t) for t in (120, 90, 150, 180)] == [12, 14, 10, 9]


def test_sizes_and_speeds_shrink_together() -> None:
    dealt = DISTRIBUTIONS["σ=750 I_c=4"]
    assert dealt.partition(1.0) == {"kind": "sized", "sigma": 750, "classes": 4, "min_samples": 200}
    assert dealt.partition(0.36) == {"kind": "sized", "sigma": 270, "classes": 4, "min_samples": 72}
    assert world("3", 3.6, 0.5)["compute"] == {"kind": "redrawn", "of": {"kind": "rate", "low": 1.8, "high": 5.4}}
    assert world("3-intermittent", 10)["links"]["throughput"] == [0.0, 5.0]


def test_batches_per_step_of_set_3_are_whole_numbers() -> None:
    # Table 4, set 3: 5 to 15 batches per step, as the preset draws them.
    assert world("3", 10, 0.5)["compute"]["of"] == {"kind": "rate", "low": 5.0, "high": 15.0, "whole": True}


def test_rounds_to_a_target_between_two_rounds() -> None:
    # A straight line stays one under PCHIP: .35 is reached half way between rounds 2 (.3) and 3 (.4).
    line = [0.1, 0.2, 0.3, 0.4, 0.5]
    assert rounds_to(line, 0.35) == pytest.approx(2.5)
    assert rounds_to(line, 0.4) == pytest.approx(3.0)
    assert rounds_to(line, 0.1) == 0.0
    assert math.isnan(rounds_to(line, 0.6))
    # the first crossing counts, and the curve may fall again
    assert 1.0 < rounds_to([0.1, 0.2, 0.5, 0.1, 0.6], 0.45) < 2.0


def curve(directory: Path, row: str, seed: int, accuracies: list[float]) -> Run:
    """Write a run that has only its accuracies."""
    where = directory / "column" / slug(row) / f"seed-{seed}"
    where.mkdir(parents=True)
    with sqlite3.connect(where / "run.sqlite") as connection:
        connection.execute("CREATE TABLE meta (key TEXT, value TEXT)")
        connection.execute("INSERT INTO meta VALUES ('format', ?)", (json.dumps(FORMAT),))
        connection.execute("CREATE TABLE metrics (name TEXT, value REAL)")
        connection.executemany("INSERT INTO metrics VALUES ('acc_global', ?)", [(a,) for a in accuracies])
    return Run(where)


def test_a_partition_has_one_target_and_seeds_that_miss_it_count(tmp_path: Path) -> None:
    # Solution 1.1 ends at .3 and .5: the target is .4 under both seeds.
    for seed, last in enumerate((0.3, 0.5)):
        curve(tmp_path, ORIGINAL, seed, [0.1, 0.2, last])
    good = curve(tmp_path, "1.1-crop", 0, [0.1, 0.2, 0.3, 0.4])
    bad = curve(tmp_path, "1.1-crop", 1, [0.1, 0.2, 0.3, 0.35])
    assert target(good) == target(bad) == pytest.approx(0.4)
    assert read_rounds(good) == pytest.approx(3.0)
    # It never got there in three rounds: it counts with three, and as one that has not reached the target.
    assert read_rounds(bad) == 3.0
    assert [read_reached(good), read_reached(bad)] == [1.0, 0.0]


def test_features_are_compared_with_solution_1_under_the_same_partition(tmp_path: Path) -> None:
    results = smoke("d2d/table11", tmp_path)
    for column in results.columns:
        assert results.mean("Solution 1.1", column, "rounds") == pytest.approx(2.0, abs=1e-6)
        assert math.isnan(results.mean("Solution 1.1", column, "affordable"))
        needed, rounds_needed = (results.mean("1.1-crop", column, m) for m in ("needed", "rounds"))
        assert needed == pytest.approx((rounds_needed / 16 - 1) * 130)  # as Table 11: t_g + t_cg = 130 steps
    text = tables.markdown(results, "espalier reproduce d2d/table11")
    assert "1.1-crop" in text and "17.4" in text and "11.0" in text


def test_the_grid_of_a_heat_map_is_run_once_for_both_figures() -> None:
    final, mean = study("d2d/fig14"), study("d2d/fig15")
    assert [(c.row, c.column) for c in final.cells("full")] == [(c.row, c.column) for c in mean.cells("full")]
    chosen = next(c for c in final.cells("full") if c.row == "Solution 3 z=1.8" and c.column == "Dir(0.1) n_swap=80")
    assert chosen.experiment.methods[0].method == D2D(solution="3", z=1.8, n_swap=80, t_g=120, t_feature=80)
    assert len(chosen.experiment.seeds) == 5


def test_theory_is_read_off_the_record(tmp_path: Path) -> None:
    results = smoke("d2d/table9", tmp_path)
    for column in results.columns:
        for row in results.rows:
            assert results.mean(row, column, "cluster") > 0 and results.mean(row, column, "device") > 0
    words = " ".join(results.words())
    assert "relative to benchmark A" in words
    # the same runs carry the loss term of Table 8
    read = study("d2d/table8").measures["term"].read
    assert all(np.isfinite(read(run)) for runs in results.runs.values() for run in runs)


def test_magnet_errors_are_in_millimetres_and_degrees(tmp_path: Path) -> None:
    results = smoke("d2d/fig13", tmp_path)
    for row in results.rows:
        # an untrained guess is off by decimetres and by tens of degrees
        assert 20 < results.mean(row, "magnet", "position") < 300
        assert 5 < results.mean(row, "magnet", "angle") < 180
        assert math.isnan(results.mean(row, "magnet", "to_5mm"))


def test_gains_name_their_setting_and_leave_out_what_was_not_run() -> None:
    figures = {("Benchmark A", "Dir(0.1)"): 40.0, ("Solution 1.1", "Dir(0.1)"): 42.0, ("Benchmark A", "Dir(0.5)"): 40.0}
    one = Results(study("d2d/table7"), "full", {at: {0: Finished({"accuracy": a})} for at, a in figures.items()})
    assert gains(one) == ["Solution 1.1 against benchmark A: +5.0 % (Dir(0.1))."]


def test_what_was_chosen_is_table_7s_own_setting() -> None:
    """The last reading is what all studies run: benchmark A of Table 7 under its first seed."""
    table7 = {(c.row, c.column): c.experiment.to_plain() for c in study("d2d/table7").cells("full")}
    tried = {c.row: c.experiment.to_plain() for c in study("d2d/calibration").cells("full")}
    chosen, same = tried["standardised, 10 units"], table7["Benchmark A", "σ=750 I_c=7"]
    assert [chosen[k] == same[k] for k in ("task", "partition", "training", "world", "stop")] == [True] * 5
    assert len({json.dumps([t["task"], t["world"]]) for t in tried.values()}) == 4
