"""Distillation at a simulated server, and gradients of devices' losses at one model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from espalier.core.errors import ConfigError
from espalier.core.messages import Train
from espalier.experiment import Experiment
from espalier.simulator.jobs import Job
from espalier.simulator.runner import Runner
from espalier.testing import BASE


def simulation(**partition: object) -> Runner:
    table = {
        "task": {"dataset": "digits", "model": "mlp", "model_options": {"hidden": [16]}},
        "partition": {"kind": "iid", **partition},
        "fleet": {"devices": 4, "edges": 2},
        "training": {"batch_size": 10, "lr": 0.1, "updates": 5},
        "stop": {"rounds": 3},
    }
    return Runner(Experiment.build(table).only("fedavg", 0), None)


@pytest.mark.parametrize("fraction", [0.5, 0.98])
def test_the_proxy_set_is_held_by_no_device_and_a_twentieth_at_most(fraction: float) -> None:
    sim = simulation(fraction=fraction, val_fraction=0.1).simulation
    rows, part = sim.fleet.trials.proxy_rows, sim.fleet.partition
    assert part.validation is not None
    held = np.concatenate([part.indices, part.validation.indices])
    assert len(np.intersect1d(rows, held)) == 0 and len(np.unique(rows)) == len(rows)
    # Of 1438 rows half are left, far more than a twentieth of what the devices have; or next to none.
    left = len(sim.task.dataset.cell_train) - len(held)
    assert len(rows) == min(left, int(0.05 * len(held)))


def test_a_student_learns_its_teacher_s_answers_without_any_label() -> None:
    one = simulation(fraction=0.5)
    one.run()
    sim = one.simulation
    teacher = sim.served[sim.fleet.tree.root][""]
    student = sim.ledger.initial(3)
    options = {"temperature": 2.0, "updates": 100, "clock": 0, "number": 0}
    taught = sim.fleet.trials.distilled(student, [(1.0, teacher)], **options)
    pool, rows = sim.task.dataset.pool("test"), np.arange(len(sim.task.dataset.cell_test))
    logits = sim.task.evaluator.logits(list(sim.ledger.vectors([teacher, student, taught])), pool, rows)
    answers = logits.argmax(2)
    agree = (answers[0] == answers).float().mean(1)
    assert agree[1] < 0.3 < 0.8 < agree[2]
    # The same again gives the same numbers: a resumed run ends alike.
    again = sim.fleet.trials.distilled(student, [(1.0, teacher)], **options)
    assert torch.equal(*sim.ledger.vectors([taught, again]))


def test_no_samples_no_distillation() -> None:
    sim = simulation().simulation
    first = sim.ledger.initial()
    with pytest.raises(ConfigError, match=r"partition\.fraction"):
        sim.fleet.trials.distilled(first, [(1.0, first)], temperature=2.0, updates=1, clock=0, number=0)


def test_gradients_are_those_of_the_whole_local_loss() -> None:
    # One step of plain gradient descent over all samples of a device at once moves the model by -lr times the
    # gradient: the trainer is the reference.
    table = {**BASE, "training": {"batch_size": 10_000, "lr": 0.5, "precision": "float64"}, "stop": {"rounds": 1}}
    runner = Runner(Experiment.build(table).only("fedavg", 0), None)
    sim = runner.simulation
    sim.start()
    model = sim.ledger.initial()
    losses, found = sim.fleet.trials.gradients(model, [0, 5])
    start = sim.ledger.vector(model)
    for i, device in enumerate((0, 5)):
        after = sim.ledger.vector(sim.ledger.submit(Job(device, 0, Train(start=model))))
        wanted = ((start - after) / 0.5)[: sim.task.spec.n_params]
        np.testing.assert_allclose(found[i], wanted, rtol=1e-5, atol=1e-7)
        mean = sim.task.evaluator.mean_loss([start], sim.views.pool(0), sim.views.rows(device, 0))[0]
        assert np.isclose(losses[i], mean)
    assert torch.equal(sim.ledger.vector(model), start)


def test_a_pretraining_goes_on_until_it_tells_something() -> None:
    trials = simulation().simulation.fleet.trials
    epochs = trials.epochs_above_chance()
    mean = {n: np.mean([trials.pretraining_accuracy(d, n) for d in range(4)]) for n in (epochs, max(1, epochs // 2))}
    assert mean[epochs] >= 0.15 and (epochs == 1 or mean[epochs // 2] < 0.15)


def test_a_pretraining_that_never_tells_anything_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("espalier.simulator.trials.TELLING_CHANCES", 11)  # more than all answers right
    monkeypatch.setattr("espalier.simulator.trials.MOST_TRIAL_EPOCHS", 2)
    with pytest.raises(ConfigError, match="up to 2 epochs"):
        simulation().simulation.fleet.trials.epochs_above_chance()
