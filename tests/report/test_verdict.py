from __future__ import annotations

from pathlib import Path

import pytest

from espalier.report.groups import compare
from espalier.report.verdict import Column, Standing, Verdict, time_to_target, verdict
from tests.report.conftest import reading_of, with_metrics


def cell(found: Verdict, label: str, key: str) -> Standing:
    at = [m.key for m in found.measures].index(key)
    return next(cells for group, cells in found.rows if group.label == label)[at]


def test_best_equal_and_worse(tmp_path: Path) -> None:
    # against A = .90 .80 .85: B's differences are .05 .02 .05, p = .0572 (see test_paired); C's .50 .51 .49 are
    # t = .5/(.01/√3) = 86.6, p = 1 − 86.6/√(7500 + 2) = .000133. Holm: C .000267, B .0572.
    values = {"A": (0.90, 0.80, 0.85), "B": (0.85, 0.78, 0.80), "C": (0.40, 0.29, 0.36)}
    readings = [
        with_metrics(tmp_path / f"{label}{seed}", label, seed, {"acc_device": [0.1, value]})
        for label, of in values.items()
        for seed, value in enumerate(of)
    ]
    found = verdict(compare(readings))
    best, near, far = (cell(found, label, "acc_device") for label in "ABC")
    assert best.best and best.p is None and best.mark == ""
    assert near.p == pytest.approx(0.0571909584) and near.mark == "≈" and not near.best
    assert far.p == pytest.approx(2 * 0.000133302, rel=1e-3) and far.mark == ""
    assert best.mean == pytest.approx(0.85) and best.std == pytest.approx(0.05)
    measure = found.measures[0]
    assert best.text(measure) == "0.850 ± 0.050"
    assert found.lines[0] == "3 seeds (0, 1, 2)."


def test_one_seed_allows_no_test(tmp_path: Path) -> None:
    readings = [with_metrics(tmp_path / x, x, 0, {"acc_device": [v]}) for x, v in (("A", 0.5), ("B", 0.6))]
    found = verdict(compare(readings))
    assert cell(found, "B", "acc_device").best
    assert cell(found, "A", "acc_device").mark == ""
    assert cell(found, "A", "acc_device").text(found.measures[0]) == "0.500"
    assert any("one seed allows no test" in line for line in found.lines)


def test_too_few_common_seeds_are_said(tmp_path: Path) -> None:
    readings = [with_metrics(tmp_path / f"a{s}", "A", s, {"acc_device": [0.5 + s / 100]}) for s in (0, 1)]
    readings.append(with_metrics(tmp_path / "b", "B", 5, {"acc_device": [0.4]}))
    found = verdict(compare(readings))
    assert cell(found, "B", "acc_device").mark == "°"
    assert "A under 2; B under 1" in found.lines[0]


def test_a_method_that_never_gets_there_is_not_best(tmp_path: Path) -> None:
    # A reaches .6 at 10 s under seed 0 and never under seed 1; B at 20 s under both
    curves = {
        ("A", 0): [0.1, 0.7, 0.7], ("A", 1): [0.1, 0.2, 0.3], ("B", 0): [0.1, 0.2, 0.65], ("B", 1): [0.1, 0.2, 0.6],
    }  # fmt: skip
    readings = [with_metrics(tmp_path / f"{x}{s}", x, s, {"acc_device": c}) for (x, s), c in curves.items()]
    found = verdict(compare(readings))
    a, b = cell(found, "A", "time_to_target"), cell(found, "B", "time_to_target")
    column = next(m for m in found.measures if m.key == "time_to_target")
    assert column.title == "time to acc_device 0.6"
    assert b.best and b.text(column) == "20.0 s"
    assert not a.best and a.text(column) == "10.0 s (1/2)"


def test_small_is_good_where_it_is(tmp_path: Path) -> None:
    readings = [with_metrics(tmp_path / x, x, 0, {"mse_device": [9.0, v]}) for x, v in (("A", 0.5), ("B", 0.6))]
    found = verdict(compare(readings))
    assert cell(found, "A", "mse_device").best


def test_target_of_an_error_is_reached_from_above(tmp_path: Path) -> None:
    reading = with_metrics(tmp_path / "a", "A", 0, {"mse_device": [9.0, 0.7, 0.5]})
    reading.experiment["task"] |= {"score": "mse_device", "target": 0.6}
    assert time_to_target(reading) == 20.0


def test_values_with_units() -> None:
    time, size = Column("time", "time", "seconds", True), Column("bytes_x", "x", "bytes", True)
    # 6942 s are 115.7 min; 336.2 s of spread are 5.6 min
    assert time.pair(6942.0, 336.2) == "115.7 ± 5.6 min"
    assert size.pair(23.1e6, 12e3) == "23.1 ± 0.0 MB"
    assert Standing({0: 5.0, 1: 5.0}).text(size) == "5 B"
    assert Standing({0: float("nan")}).text(time) == "never"


def test_unfinished_runs_and_reconstructions_are_said(tmp_path: Path) -> None:
    dead = reading_of(tmp_path / "a", label="FedUC", state="running", reconstruction="the rule is not in the text")
    lines = verdict(compare([dead])).lines
    assert any("FedUC, seed 0 (dead, round 10)" in line for line in lines)
    assert "FedUC is a reconstruction: the rule is not in the text" in lines


def test_traffic_of_a_silent_method_is_zero(tmp_path: Path) -> None:
    loud = reading_of(tmp_path / "a", label="loud")
    silent = with_metrics(tmp_path / "b", "silent", 0, {"acc_device": [0.1, 0.2]})
    found = verdict(compare([loud, silent]))
    assert cell(found, "silent", "bytes_dev-edge").mean == 0.0 and cell(found, "silent", "bytes_dev-edge").best
    # 20 devices × 20,000 bytes × 10 rounds, up and down
    assert cell(found, "loud", "bytes_dev-edge").mean == 2 * 20 * 20_000 * 10
