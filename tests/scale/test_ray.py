"""On a real cluster: two nodes (two raylets of their own) on the loopback interface, one CPU each."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

from espalier.cli.main import main
from espalier.core.errors import TrainingError
from espalier.core.messages import Train
from espalier.core.store import Ref
from espalier.record.database import Recorder
from espalier.scale import cluster as reaching
from espalier.scale import shards
from espalier.scale.computer import Ray, RayComputer
from espalier.simulator import portions
from espalier.simulator.dataviews import Look, Views
from espalier.simulator.jobs import Job
from espalier.simulator.runner import Runner, Stopped
from espalier.simulator.simulation import Simulation
from espalier.simulator.task import Task
from espalier.testing.conformance import BASE
from espalier.training.trainer import FallbackWarning
from tests.scale.near import DIGITS, experiment, rows, run

ray = reaching.ray(loopback=True)

#: a dead node is found out within some seconds, and one that has to wait for a processor is not taken for dead
QUICK = {
    "health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 5,
}  # fmt: skip
NODE = {"num_cpus": 1, "object_store_memory": 200 << 20}


def added(nodes: Any, **options: Any) -> None:
    """Start a node; Ray gives one thirty seconds, which a busy machine may exceed."""
    for left in (2, 1, 0):
        try:
            nodes.add_node(**NODE, **options)
            return
        except Exception as error:
            if not left or "timed out" not in str(error):
                raise


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    found = Cluster()
    try:
        added(found, include_dashboard=False, _system_config=QUICK)
        added(found)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reaching, "PATIENCE_SECONDS", 60.0)
            reaching.connect(found.address, None)
        yield found
    finally:
        ray.shutdown()
        found.shutdown()


@pytest.fixture(autouse=True)
def _many_shards_and_everything_on_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_BYTES", 1 << 14)
    monkeypatch.setattr(portions, "WORTH_SENDING", 0)


def computer(runner: Runner) -> RayComputer:
    found = runner.task.computers[0]
    assert isinstance(found, RayComputer)
    return found


def at_rounds(deeds: dict[int, Callable[[], None]]) -> Callable[[Simulation], None]:
    """Return a progress function that does each deed once, when its round is reached."""
    left = dict(deeds)

    def progress(sim: Simulation) -> None:
        if sim.round in left:
            left.pop(sim.round)()

    return progress


def test_a_run_is_as_from_one_process_though_a_worker_and_a_node_are_lost(nodes: Any) -> None:
    # partial sums of this model are large enough to stay with the workers
    task = {**BASE["task"], "model": "mlp", "model_options": {"hidden": [512]}}
    options: dict[str, Any] = {"task": task, "fleet": {"devices": 40, "edges": 3}, "stop": {"rounds": 9}}
    here = run(None, **options)
    away = Runner(experiment(**options), None, dataset=DIGITS, backend=Ray(nodes.address))
    work = computer(away)

    def kill() -> None:
        work.open().complete()
        worker = work.open().actors[0].actor
        os.kill(ray.get(worker.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)

    def remove() -> None:
        work.open().complete()
        nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)

    present: list[int] = []

    def add() -> None:
        patience = time.monotonic() + 60
        while work.open().size() > 1 and time.monotonic() < patience:
            time.sleep(0.1)
        assert work.open().size() == 1
        added(nodes)
        work.open().complete()
        present.append(work.open().present)

    away.run(at_rounds({2: kill, 4: remove, 6: add}))
    pool = work.open()
    assert present == [2]
    assert pool.lost >= 2 and pool.again >= 2
    assert rows(away) == rows(here)
    for name, vector in here.final_models().items():
        assert torch.equal(away.final_models()[name], vector)
    # models of whole eights stayed with the workers; a start model went out once per version, a round's per edge
    assert work.handed > 100 and work.joined > 4
    # what evaluations give is little, and samples go to a node once
    assert 0 < work.answered < work.received / 4
    assert work.store.sent["samples"] < 4 * (DIGITS.x_train.nbytes + DIGITS.x_test.nbytes)
    assert work.store.puts <= 9 * (3 + 1)


@pytest.mark.parametrize("method", ["scaffold", "apfl", "fedproto", "easf"])
def test_corrections_trial_trainings_and_what_lies_beside_a_model_reach_the_workers(nodes: Any, method: str) -> None:
    here, away = run(None, method), run(Ray(nodes.address), method)
    assert rows(away) == rows(here)
    for name, vector in here.final_models().items():
        assert torch.equal(away.final_models()[name], vector)


def test_a_users_own_loss_optimiser_schedule_and_metrics_reach_the_workers(nodes: Any) -> None:
    own = "tests.methods.test_own_training"
    options = {
        "task": {**BASE["task"], "loss": f"{own}:scaled_entropy", "metrics": ["auc", f"{own}:right"]},
        "training": {
            **BASE["training"], "optimizer": "torch.optim:AdamW", "lr": 0.01,
            "schedule": {"kind": "function", "path": f"{own}:halving"},
        },
        "stop": {"rounds": 2},
    }  # fmt: skip
    with pytest.warns(FallbackWarning):
        here, away = run(None, "ditto", **options), run(Ray(nodes.address), "ditto", **options)
    assert rows(away) == rows(here)
    assert {"auc", "right"} <= {
        name.partition("_")[0] for (name,) in here.recorder.connection.execute("SELECT name FROM metrics")
    }


def test_a_run_begun_here_goes_on_there_and_ends_here(nodes: Any, tmp_path: Path) -> None:
    whole = run(None, "csahfl", stop={"rounds": 3})

    def until(rounds: int, backend: Ray | None) -> None:
        runner = Runner(experiment("csahfl", stop={"rounds": 3}), tmp_path / "run", dataset=DIGITS, backend=backend)

        def progress(sim: Simulation) -> None:
            runner.stop = sim.round >= rounds

        runner.run(progress)

    with pytest.raises(Stopped):
        until(1, None)
    with pytest.raises(Stopped):
        until(2, Ray(nodes.address, workers=2))
    until(99, None)
    again = Recorder(tmp_path / "run" / "run.sqlite", {})
    found = {t: again.connection.execute(f"SELECT * FROM {t} ORDER BY rowid").fetchall() for t in rows(whole)}
    again.close()
    assert found == rows(whole)


class Faulty(nn.Module):
    """A model that fails in training; ``deadly``: and takes its process with it."""

    def __init__(self, deadly: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.deadly = deadly

    def forward(self, x: Tensor) -> Tensor:
        if self.deadly:
            os._exit(1)
        raise ValueError("this model does not like digits")


@pytest.mark.parametrize("deadly", [False, True])
def test_a_model_that_fails_is_told_here(nodes: Any, monkeypatch: pytest.MonkeyPatch, deadly: bool) -> None:
    monkeypatch.setattr("espalier.scale.dispatch.TRIES", 2)
    parted = experiment().split(DIGITS, 3)
    task = Task(DIGITS, Faulty(deadly), backend=Ray(nodes.address, workers=1))
    views = Views(DIGITS, parted, 3)
    job = Job(0, 0, Train(start=Ref(0)), views.number(Look()))
    start = task.initial(3, 0)
    expected = "2 workers were lost" if deadly else "does not like digits"
    try:
        with pytest.raises(TrainingError, match=expected):
            list(task.computer(3, views)([job], lambda ref: start, lambda ref: None))
    finally:
        task.close()


def test_the_command_runs_on_a_cluster(nodes: Any, tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text('methods = ["hierfavg"]\n[fleet]\ndevices = 8\nedges = 2\n[stop]\nrounds = 1\n')
    options = ["--backend", "ray", "--address", nodes.address, "--json"]
    done = CliRunner().invoke(main, ["run", str(file), "--out", str(tmp_path / "out"), *options])
    assert done.exit_code == 0, done.output
    here = CliRunner().invoke(main, ["run", str(file), "--out", str(tmp_path / "here"), "--json"])
    assert json.loads(done.stdout) == json.loads(here.stdout)
