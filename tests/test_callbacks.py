"""Following a run: what callbacks are told, stopping early, loggers with the real packages."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from espalier import Callback, Run, StopRun, compare, simulate
from espalier.callbacks import Bar, MLflow, RunProgress, TensorBoard, WandB, loggers
from espalier.core.errors import ConfigError
from espalier.record.run import find_runs
from espalier.settings import LOGGERS

BASE: dict[str, Any] = {"fleet": {"devices": 4, "edges": 2}, "stop": {"rounds": 3}}


class Told(Callback):
    def __init__(self, stop_at: int = 99) -> None:
        self.rounds: list[int] = []
        self.evaluations: list[tuple[int, float]] = []
        self.ended: list[Run] = []
        self.stop_at = stop_at

    def on_round(self, progress: RunProgress) -> None:
        self.rounds.append(progress.round)
        if progress.round == self.stop_at:
            raise StopRun("seen enough")

    def on_evaluation(self, progress: RunProgress) -> None:
        assert 0 <= progress.done <= 1 and progress.label == "FedAvg"
        self.evaluations.append((progress.round, progress.figures["acc_device"]))

    def on_end(self, run: Run) -> None:
        self.ended.append(run)


def test_callbacks_hear_of_every_round_and_evaluation() -> None:
    told = Told()
    run = simulate("fedavg", BASE, callbacks=[told])
    frame = run.frame()
    assert told.rounds == [1, 2, 3] and told.ended == [run]
    assert told.evaluations == list(zip(frame["round"], frame["acc_device"], strict=True))
    assert simulate("fedavg", BASE).frame().equals(frame)


def test_a_callback_ends_a_run_and_it_is_saved(tmp_path: Path) -> None:
    told = Told(stop_at=2)
    run = simulate("fedavg", BASE, directory=tmp_path / "run", callbacks=[told])
    assert run.rounds == 2 and run.status["state"] == "finished" and told.ended
    assert run.status["stalled"] == "It was stopped: seen enough." and "diverged" not in run.status
    assert run.models == ["global"]
    # it has come to its end: nothing is left to do
    assert simulate("fedavg", BASE, directory=tmp_path / "run").rounds == 2


def test_a_bar_is_shown_where_a_person_watches(capsys: pytest.CaptureFixture[str]) -> None:
    assert not Bar.wanted()
    compare(["fedavg"], BASE, progress=True)
    shown = capsys.readouterr().err
    assert "FedAvg · seed 0" in shown and "round 3" in shown


def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = simulate("fedavg", BASE, callbacks=[TensorBoard(tmp_path)])
    read = EventAccumulator(str(tmp_path / "FedAvg-seed-0"))
    read.Reload()
    found = [event.value for event in read.Scalars("acc_device")]
    assert found == pytest.approx(run.frame()["acc_device"].tolist())


@pytest.mark.filterwarnings("ignore")  # of MLflow, about its own dependencies
def test_mlflow(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    logging.disable(logging.INFO)
    runs = compare(["fedavg", "hierfavg"], BASE, callbacks=[MLflow(store)])
    logging.disable(logging.NOTSET)
    client = MlflowClient(tracking_uri=store)
    kept = client.search_runs([client.get_experiment_by_name("espalier").experiment_id])
    assert sorted(r.info.run_name for r in kept) == ["FedAvg · seed 0", "HierFAVG · seed 0"]
    assert {r.data.params["methods.name"] for r in kept} == {"fedavg", "hierfavg"}
    assert {r.data.params["training.batch_size"] for r in kept} == {"10"} and "world.compute.kind" in kept[
        0
    ].data.params
    found = client.get_metric_history(kept[0].info.run_id, "acc_device")
    assert [m.value for m in found] in [r.frame()["acc_device"].tolist() for r in runs]


def test_weights_and_biases_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    compare(["fedavg"], BASE, seeds=[0, 1], callbacks=[WandB(folder=tmp_path)])
    assert len(list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))) == 2


def test_an_experiment_file_names_its_loggers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from espalier.cli.main import main

    monkeypatch.chdir(tmp_path)
    Path("e.toml").write_text(
        'methods = ["fedavg"]\n[fleet]\ndevices = 4\nedges = 2\n[stop]\nrounds = 3\n'
        '[record]\nlog = ["tensorboard:from-file"]\n'
    )
    for more, folder in (([], "from-file"), (["--log", "tensorboard"], "tensorboard")):
        done = CliRunner().invoke(main, ["run", "e.toml", "--out", f"runs/{folder}", "-q", *more])
        assert done.exit_code == 0, done.output
        read = EventAccumulator(f"{folder}/FedAvg-seed-0")
        read.Reload()
        (run,) = find_runs(Path("runs") / folder)
        assert [e.value for e in read.Scalars("acc_device")] == pytest.approx(run.frame()["acc_device"].tolist())
    done = CliRunner().invoke(main, ["run", "e.toml", "--log", "tensorbord"])
    assert "record.log: 'tensorbord'; known: tensorboard, wandb, mlflow. Did you mean 'tensorboard'" in done.output
    for name, kind in zip(LOGGERS, (TensorBoard, WandB, MLflow), strict=True):
        assert isinstance(loggers([name])[0], kind)


def test_a_logger_whose_package_is_missing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(ConfigError, match="pip install wandb"):
        WandB()


def test_runs_are_found_after_they_were_followed(tmp_path: Path) -> None:
    compare(["fedavg"], BASE, directory=tmp_path, callbacks=[Told()])
    assert [r.label for r in find_runs(tmp_path)] == ["FedAvg"]
