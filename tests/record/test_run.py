"""Reading a run back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import espalier
from espalier.core.errors import RunError
from espalier.record.database import ROWS_PER_STATEMENT, Recorder

SETTING = {"fleet": {"devices": 8, "edges": 2}, "stop": {"rounds": 3}, "task": {"model_options": {"hidden": [16]}}}


def test_frame_arrays_and_model(tmp_path: Path) -> None:
    run = espalier.simulate("hierfavg", SETTING, seed=1, directory=tmp_path / "run")
    frame = run.frame()
    assert frame["round"].tolist() == [0, 1, 2, 3]
    assert frame["bytes"].is_monotonic_increasing
    assert frame["bytes"].iloc[-1] == frame["bytes_dev-edge"].iloc[-1] + frame["bytes_edge-cloud"].iloc[-1]
    assert len(run.array("acc_device")) == 8
    assert run.array("acc_device").mean() == pytest.approx(frame["acc_device"].iloc[-1])
    module = run.model()
    data = espalier.Experiment.build(SETTING).dataset()
    right = (module(data.x_test).argmax(1) == data.y_test).float().mean()
    assert float(right) == pytest.approx(frame["acc_global"].iloc[-1], abs=1e-6)
    with pytest.raises(RunError, match="known: global"):
        run.model("nonsense")


def test_a_run_in_memory_and_one_in_a_directory_agree(tmp_path: Path) -> None:
    kept = espalier.simulate("fedavg", SETTING, directory=tmp_path / "run").frame()
    assert kept.equals(espalier.simulate("fedavg", SETTING).frame())


def test_bytes_of_two_evaluations_at_one_moment_are_not_added() -> None:
    run = espalier.simulate("hierfavg", SETTING)
    before = run.frame()
    connection = run._connection
    assert connection is not None
    last = "WHERE round = 3"
    connection.execute(f"INSERT INTO metrics SELECT * FROM metrics {last}")
    connection.execute(f"INSERT INTO traffic SELECT time, round, tier, direction, kind, bytes + 1 FROM traffic {last}")
    rows = connection.execute(f"SELECT count(*) / 2 FROM traffic {last}").fetchone()[0]
    assert run.frame()["bytes"].tolist() == [*before["bytes"][:-1], before["bytes"].iloc[-1] + rows]


@pytest.mark.parametrize("count", [1, ROWS_PER_STATEMENT, 2 * ROWS_PER_STATEMENT + 1])
def test_rows_are_written_in_the_order_in_which_they_came(count: int) -> None:
    recorder = Recorder(None)
    nodes = list(range(count))[::-1]
    recorder.moves(1.5, nodes, [count + node for node in nodes], ["a"] * count)
    recorder.devices((node, node % 3, 10, bytes([node % 256])) for node in nodes)
    recorder.commit()
    moves = recorder.connection.execute("SELECT rowid, * FROM moves ORDER BY rowid").fetchall()
    assert moves == [(place, 1.5, node, count + node, "a") for place, node in enumerate(nodes, 1)]
    devices = recorder.connection.execute("SELECT * FROM devices ORDER BY node").fetchall()
    assert devices == [(node, node % 3, 10, bytes([node % 256])) for node in reversed(nodes)]
    recorder.close()


def test_users_own_data_and_module(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(300, 5)
    y = (x[:, 0] > 0).long()
    data = espalier.Dataset.from_arrays(x[:200], y[:200], x[200:], y[200:])
    setting = {
        **SETTING,
        "task": {"model": "tests.record.test_run:tiny"},
        "training": {"lr": 0.5},
        "stop": {"rounds": 10},
    }
    frame = espalier.simulate("hierfavg", setting, dataset=data).frame()
    assert frame["acc_global"].iloc[-1] > 0.85


def tiny(input_shape: tuple[int, ...], n_classes: int) -> torch.nn.Module:
    return torch.nn.Linear(input_shape[0], n_classes)


def test_time_to_a_target() -> None:
    run = espalier.simulate("fedavg", {**SETTING, "world": {"compute": {"kind": "constant", "seconds": 1.0}}})
    frame = run.frame()
    middle = frame["acc_device"].iloc[2]
    assert run.time_to(middle) == frame[frame["acc_device"] >= middle]["time"].iloc[0]
    assert run.time_to(2.0) is None
    # a loss falls: it is reached from above
    middle = frame["loss_device"].iloc[2]
    assert run.time_to(middle, "loss_device") == frame[frame["loss_device"] <= middle]["time"].iloc[0]
    assert run.time_to(-1.0, "loss_device") is None


def test_figures_are_read_without_pytorch() -> None:
    """It takes seconds to import; a live page is there before."""
    code = "import sys, espalier.report.server; print('torch' in sys.modules or 'scipy.stats' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run"):
        espalier.Run(tmp_path)
    with pytest.raises(RunError, match="no run"):
        espalier.find_runs(tmp_path)
