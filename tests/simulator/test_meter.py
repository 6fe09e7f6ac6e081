"""A run that diverges ends, says so in one sentence, and can be saved and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import espalier
from espalier.cli.main import main
from espalier.core.errors import SetupWarning
from espalier.simulator.meter import Divergence

BASE: dict[str, Any] = {
    "fleet": {"devices": 6, "edges": 2},
    "training": {"lr": 1e6},
    "stop": {"rounds": 9},
    "record": {"checkpoint_rounds": 1},
}


@pytest.mark.parametrize("method", ["hierfavg", "fedavg", "fedat"])
def test_a_run_that_diverges_ends_with_a_sentence(method: str, tmp_path: Path) -> None:
    for directory in (None, tmp_path / "run"):
        with pytest.warns(SetupWarning, match="seed 0: The training has diverged: since round 0 all"):
            run = espalier.simulate(method, BASE, directory=directory)
        why = run.status["stalled"]
        assert why.startswith("The training has diverged: since round 0 all ") and "training.lr (it is 1e+06)" in why
        assert run.rounds < 9
        assert [e["why"] for e in run.events("stalled")] == [why]
        rows = run.query("SELECT time, round, count(*) FROM metrics WHERE name = 'acc_device' GROUP BY time, round")
        assert {count for *_, count in rows} == {1}
    assert (tmp_path / "run" / "models" / "global.safetensors").exists()


def test_the_command_line_says_so_and_resumes(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(
        'methods = ["hierfavg"]\nfleet = { devices = 6, edges = 2 }\ntraining = { lr = 1e6 }\nstop = { rounds = 9 }\n'
    )
    folder = tmp_path / "out"
    first = CliRunner().invoke(main, ["run", str(tmp_path / "one.toml"), "-o", str(folder)])
    assert first.exit_code == 5, first.output
    assert "it ended early. The training has diverged" in " ".join(first.output.split())
    again = CliRunner().invoke(main, ["resume", str(folder)])
    assert again.exit_code == 0, again.output
    table = CliRunner().invoke(main, ["report", str(folder), "--format", "md"])
    assert "ended early. The training has diverged" in " ".join(table.output.split())


def test_some_updates_that_are_never_finite_are_no_divergence() -> None:
    # 8 devices: it takes 4 rejected updates in a row without a usable one
    found = Divergence()
    found.rejected(1)
    assert not found.noticed(3, 8, 1)
    for round in (2, 3, 4):
        found.rejected(round)
        assert not found.noticed(2 + round, 8, round)
    found.rejected(9)
    assert "since round 1 all 4 updates" in found.noticed(7, 8, 5)


def test_devices_on_their_own_diverge_too(tmp_path: Path) -> None:
    with pytest.warns(SetupWarning, match="Standalone, seed 0: "):
        run = espalier.simulate("standalone", BASE, directory=tmp_path / "run")
    assert run.status["diverged"] and "in round 1 no model in use has finite numbers" in run.status["stalled"]
    assert run.rounds == 1


@pytest.mark.parametrize("method", ["standalone", "ditto"])
def test_a_share_bounds_what_judging_devices_own_models_takes(method: str) -> None:
    setting = {"fleet": {"devices": 8, "edges": 2}, "stop": {"rounds": 12}}
    full = espalier.simulate(method, setting, seed=0)
    bounded = espalier.simulate(method, setting | {"evaluate": {"share": 0.15}}, seed=0)
    every, some = (run.frame().set_index("round")["acc_device"].dropna() for run in (full, bounded))
    assert len(every) == 13
    assert 2 <= len(some) < 13
    assert set(some.items()) <= set(every.items())  # each figure is exact
    assert some.index[-1] == every.index[-1]
    # eight models on at least 250 of the 360 test rows each time; a step of ten samples is three passes over them
    passes = 3 * 10 * bounded.frame()["steps"].iloc[-1]
    assert (len(some) - 1) * 8 * 250 <= 0.15 / 0.85 * passes


def test_a_share_leaves_shared_models_alone() -> None:
    setting = {"fleet": {"devices": 8, "edges": 2}, "stop": {"rounds": 3}}
    full, bounded = (espalier.simulate("hierfavg", setting | {"evaluate": e}, seed=0) for e in ({}, {"share": 0.01}))
    assert full.frame().equals(bounded.frame())


@pytest.mark.parametrize("method", ["standalone", "ditto"])
def test_devices_own_models_may_be_judged_on_a_few_rows_of_their_own(method: str) -> None:
    setting = {"fleet": {"devices": 8, "edges": 2}, "stop": {"rounds": 3}}
    full, few, all_rows = (
        espalier.simulate(method, setting | {"evaluate": e}, seed=0).frame() for e in ({}, {"rows": 40}, {"rows": 9999})
    )
    assert full.equals(all_rows)
    assert len(few["acc_device"].dropna()) == len(full["acc_device"].dropna()) == 4
    assert few["acc_device"].iloc[0] == full["acc_device"].iloc[0]  # all devices use the initial model
    # 8 x 40 rows, of which each is right or wrong: a standard error of at most 0.5 / sqrt(320) = 0.028
    assert 0 < abs(few["acc_device"] - full["acc_device"]).max() < 4 * 0.028
    same = [name for name in full if not name.startswith(("acc_device", "loss_device"))]
    assert full[same].equals(few[same])


def test_a_few_rows_leave_shared_models_alone() -> None:
    setting = {"fleet": {"devices": 8, "edges": 2}, "stop": {"rounds": 3}}
    full, few = (espalier.simulate("hierfavg", setting | {"evaluate": e}, seed=0) for e in ({}, {"rows": 5}))
    assert full.frame().equals(few.frame())


def test_a_share_counts_the_rows_that_are_judged() -> None:
    setting = {"fleet": {"devices": 8, "edges": 2}, "stop": {"rounds": 12}}
    bounds: tuple[dict[str, Any], ...] = ({"share": 0.15}, {"share": 0.15, "rows": 40})
    whole, few = (espalier.simulate("standalone", setting | {"evaluate": e}, seed=0) for e in bounds)
    assert len(few.frame()["acc_device"].dropna()) > len(whole.frame()["acc_device"].dropna())
