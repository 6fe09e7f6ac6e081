"""Gradients of devices' losses at one model."""

from __future__ import annotations

import numpy as np
import torch

from espalier.experiment import Entry, Experiment
from espalier.simulator.gradients import gradients
from espalier.simulator.jobs import Job
from espalier.simulator.runner import Runner
from espalier.testing import BASE


def test_gradients_are_those_of_the_whole_local_loss() -> None:
    # One step of plain gradient descent over all samples of a device at once moves the model by -lr times the
    # gradient: the trainer is the reference.
    table = {**BASE, "training": {"batch_size": 10_000, "lr": 0.5, "precision": "float64"}, "stop": {"rounds": 1}}
    runner = Runner(Experiment.build(table).only(Entry.build("fedavg"), 0), None)
    sim = runner.simulation
    sim.start()
    model = sim.ledger.initial()
    losses, found = gradients(sim, model, [0, 5])
    start = sim.ledger.vector(model)
    for i, device in enumerate((0, 5)):
        after = sim.ledger.vector(sim.ledger.submit(Job(device, 0, model, 1, 0)))
        wanted = ((start - after) / 0.5)[: sim.task.spec.n_params]
        np.testing.assert_allclose(found[i], wanted, rtol=1e-5, atol=1e-7)
        mean = sim.task.evaluator.mean_loss([start], sim.views.pool(0), sim.views.rows(device, 0))[0]
        assert np.isclose(losses[i], mean)
    assert torch.equal(sim.ledger.vector(model), start)
