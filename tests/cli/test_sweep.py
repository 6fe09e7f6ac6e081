"""Sweeps: settings are judged on held-out training data, and a sweep goes on where it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from espalier.cli.main import main
from espalier.cli.sweep import grid_of, ranges_of
from espalier.core.errors import ConfigError
from espalier.data.registry import load
from espalier.record.run import find_runs

TOML = """
methods = ["fedavg"]
seeds = [0, 1]
task = { model_options = { hidden = [8] } }
fleet = { devices = 4, edges = 2 }
stop = { rounds = 2 }
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "exp.toml").write_text(TOML)
    return str(tmp_path / "exp.toml")


def call(*args: str) -> Result:
    return CliRunner().invoke(main, ["sweep", *args])


def test_a_grid_finds_the_better_setting_and_goes_on(file: str, tmp_path: Path) -> None:
    grid = (file, "--grid", "training.lr=1e-6,0.5", "--grid", "training.batch_size=10", "-o", str(tmp_path / "out"))
    done = call(*grid, "--jobs", "2")
    assert done.exit_code == 0, done.output
    assert "best for FedAvg: --set training.lr=0.5 --set training.batch_size=10" in done.output
    runs = find_runs(tmp_path / "out")
    assert len(runs) == 4 and {r.experiment["task"]["judged_on"] for r in runs} == {"validation"}
    again = call(*grid)
    assert again.exit_code == 0 and "seed" not in again.output.split("held-out")[0]  # nothing was run
    more = call(file, "--grid", "training.lr=0.5,0.1", "--grid", "training.batch_size=10", "-o", str(tmp_path / "out"))
    assert more.exit_code == 0 and len(find_runs(tmp_path / "out")) == 6
    one = call(file, "--grid", "training.lr=0.1", "--seed", "3", "-o", str(tmp_path / "one"))
    assert one.exit_code == 0 and [r.seed for r in find_runs(tmp_path / "one")] == [3]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_optuna_searches_and_goes_on(file: str, tmp_path: Path) -> None:
    search = (file, "--range", "training.lr=1e-4..1:log", "--search", "optuna", "-o", str(tmp_path / "out"), "-q")
    assert call(*search, "--trials", "2").exit_code == 0
    done = call(*search, "--trials", "3")
    assert "accuracy per device on held-out training data at the end of each run, the mean over 2 seeds" in done.output
    assert done.exit_code == 0 and "best for FedAvg: --set training.lr=" in done.output
    assert len(find_runs(tmp_path / "out")) == 6


@pytest.mark.parametrize("text", ["training.lr", "training.lr=", "=3"])
def test_grids_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="must be key=value,value"):
        grid_of([text])


@pytest.mark.parametrize("text", ["training.lr=1", "training.lr=2..1", "training.lr=0..1:log", "training.lr=a..b"])
def test_ranges_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match=r"must be key=low\.\.high"):
        ranges_of([text])
    assert ranges_of(["training.lr=0.1..1:log"]) == {"training.lr": (0.1, 1.0, True)}


def test_held_out_data_are_of_the_training_part() -> None:
    whole = load("digits")
    part = whole.for_validation()
    assert len(part.x_train) + len(part.x_test) == len(whole.x_train)
    assert abs(len(part.x_test) / len(whole.x_train) - 0.2) < 0.01
    rows = {tuple(x.flatten().tolist()) for x in whole.x_train}
    assert all(tuple(x.flatten().tolist()) in rows for x in part.x_test)
    assert torch.equal(part.y_test, torch.from_numpy(part.cell_test))


def test_a_method_of_a_file_is_swept_in_processes_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "swept_here.py").write_text(
        "from dataclasses import dataclass\n"
        "from espalier.methods.fedavg import FedAvg\n\n\n"
        "@dataclass(frozen=True)\n"
        'class SweptHere(FedAvg, kind="swept_here"):\n'
        '    """FedAvg by another name."""\n\n'
        '    title = "Swept here"\n'
    )
    (tmp_path / "exp.toml").write_text(TOML.replace("fedavg", "swept_here"))
    given = (str(tmp_path / "exp.toml"), "--grid", "training.lr=1e-6,0.5", "-o", str(tmp_path / "out"), "--jobs", "2")
    done = call(*given, "--plugin", str(tmp_path / "swept_here.py"))
    assert done.exit_code == 0, done.output
    assert "best for Swept here: --set training.lr=0.5" in done.output and len(find_runs(tmp_path / "out")) == 4
