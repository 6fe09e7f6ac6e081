"""A loss, an optimiser and metrics of the user's own on a node of a fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from espalier.core.errors import ConfigError, DataError
from espalier.core.messages import LocalWork
from espalier.core.seeds import key
from espalier.fleet.coordinator.manifest import Manifest
from espalier.fleet.node import clients
from espalier.fleet.node.data import from_arrays
from espalier.fleet.node.launch import Options, make_trainer
from espalier.fleet.node.threads import Driver
from espalier.fleet.node.trainer import ArrayTrainer, TrainingRequest
from espalier.training.models import build
from espalier.training.trainer import FallbackWarning
from tests.fleet.net import manifest
from tests.training.problems import Textbook, distance
from tests.training.test_losses import squared_hinge

LOSS, OPTIMIZER = "tests.training.test_losses:squared_hinge", "torch.optim:AdamW"
METRIC, OF_SAMPLES = "tests.training.test_metrics:right_share", "tests.training.test_metrics:right"
RNG = np.random.default_rng(0)
X, Y = RNG.random((25, 64), dtype=np.float32), RNG.integers(0, 10, 25)
ARRAYS = {"x": X, "y": Y, "x_test": X, "y_test": Y}


def own() -> Manifest:
    """Return a manifest that names code of the user's own."""
    made = manifest(2, 1, 1)
    training = replace(made.experiment.training, optimizer=OPTIMIZER, precision="float64")
    task = replace(made.experiment.task, metrics=("f1", METRIC), sample_metrics=(OF_SAMPLES,))
    experiment = replace(made.experiment, training=training, task=task)
    return replace(made, card=replace(made.card, loss=LOSS), experiment=experiment)


def test_a_node_trains_with_what_its_operator_allowed() -> None:
    made, held = own(), from_arrays(ARRAYS, "here", "classification", 10)
    assert made.code == {LOSS: "task.loss", OPTIMIZER: "training.optimizer"}
    with pytest.raises(ConfigError, match=f"The fleet's training.optimizer is '{OPTIMIZER}', code of its own"):
        ArrayTrainer(made, held, allowed=[LOSS])
    trainer = ArrayTrainer(made, held, allowed=[LOSS, OPTIMIZER])
    work = LocalWork(start=trainer.initial(0, 0), updates=1)
    with pytest.warns(FallbackWarning):
        found = trainer.train(TrainingRequest(0, 1, work))
    assert held.pool is not None
    job = made.experiment.training.job(work, held.pool, held.rows, key(made.seed, "train", 0, 1))
    module = build("logistic", input_shape=(64,), n_classes=10)
    assert distance(found.vector, Textbook(module, squared_hinge).run(job)[0], work.start) < 1e-12


def test_an_edge_without_data_makes_the_initial_model_where_it_may(tmp_path: Path) -> None:
    made = manifest(2, 1, 1)
    edge = make_trainer(made, 2, Options(tmp_path), "edge")
    held = from_arrays(ARRAYS, "here", "classification", 10)
    assert not edge.samples and torch.equal(edge.initial(0, 0), ArrayTrainer(made, held).initial(0, 0))
    with pytest.raises(DataError, match="cannot make the run's initial models"):
        make_trainer(own(), 2, Options(tmp_path), "edge").initial(0, 0)


def test_metrics_are_code_that_an_operator_must_allow() -> None:
    held = from_arrays(ARRAYS, "here", "classification", 10)
    with pytest.raises(ConfigError, match=f"The fleet's task.metrics is '{METRIC}', code of its own"):
        ArrayTrainer(own(), held, allowed=[LOSS, OPTIMIZER], metrics=("f1", METRIC))


def test_the_cloud_measures_the_metrics(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", **ARRAYS)
    options = Options(tmp_path, data=str(tmp_path / "mine.npz"), allow_models=(LOSS, OPTIMIZER))
    cloud, device = (make_trainer(own(), 0, options, role) for role in ("cloud", "device"))
    model = cloud.initial(0, 0)
    (found,), (known,) = cloud.score([model], "test"), device.score([model], "test")
    assert set(found) - set(known) == {"f1", "right_share", "right"}
    assert found["right_share"] == pytest.approx(found["acc"]) and found["right"] == pytest.approx(found["acc"])
    outputs = torch.nn.functional.linear(torch.from_numpy(X).double(), model[:640].view(10, 64), model[640:])
    assert found["loss"] == pytest.approx(float(squared_hinge(outputs, torch.from_numpy(Y)).mean()))


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


class Asked:
    """A client that writes down how many torch threads it has."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def samples(self) -> int:
        return 1

    def fit(self, state: dict[str, torch.Tensor], work: clients.Work) -> dict[str, torch.Tensor]:
        self.threads.append(torch.get_num_threads())
        return state

    def evaluate(self, state: dict[str, torch.Tensor]) -> dict[str, float]:
        self.threads.append(torch.get_num_threads())
        return {}


@pytest.mark.usefixtures("three_threads")
def test_a_node_computes_with_one_thread_a_client_with_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async def threads_of_engine() -> int:
        driver = Driver()
        found = await driver.at_once(torch.get_num_threads)
        driver.close()
        return found

    assert asyncio.run(threads_of_engine()) == 1
    monkeypatch.setattr(clients, "_THREADS", 3)
    client, made = Asked(), manifest(2, 1, 1)
    trainer, vector = clients.ClientTrainer(made, client), torch.zeros(made.card.spec.size)
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as worker:
        worker.submit(trainer.train, TrainingRequest(0, 1, LocalWork(start=vector, updates=1))).result()
        worker.submit(trainer.score, [vector], "test").result()
        assert worker.submit(torch.get_num_threads).result() == 1
    assert client.threads == [3, 3]
