"""Serving in a simulation: a device's figure under a prior is that of counting its own test samples one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from espalier.core.errors import ConfigError
from espalier.core.messages import ALL
from espalier.experiment import Experiment
from espalier.simulator.runner import Runner
from espalier.testing import BASE

TABLE: dict[str, Any] = {
    **BASE,
    "partition": {"kind": "dirichlet", "alpha": 0.2, "fraction": 0.5, "val_fraction": 0.2},
    "fleet": {"devices": 6, "edges": 2},
    "stop": {"rounds": 2},
}


def run(serve: dict[str, Any] | None = None, method: str = "hierfavg", **changes: Any) -> Runner:
    entry: dict[str, Any] = {"name": method} if serve is None else {"name": method, "serve": serve}
    runner = Runner(Experiment.build({**TABLE, **changes}).only(entry, 1), None)
    runner.run()
    return runner


def figures(runner: Runner, name: str) -> np.ndarray:
    meter = runner.simulation.meter
    found = meter._at_devices(meter._candidates(runner.simulation.ledger.initial()))
    return found[name]


def by_hand(runner: Runner, device: int, smoothing: float) -> float:
    """Count a device's answers with its own prior, test sample by test sample."""
    simulation = runner.simulation
    data, part = simulation.task.dataset, simulation.fleet.partition
    vector = simulation.ledger.vector(simulation.served[simulation.fleet.tree.root][ALL])
    outputs = simulation.task.evaluator.logits([vector], data.pool("test"), np.arange(len(data.cell_test)))[0].double()
    shares = part.histogram[device] / part.histogram[device].sum()
    prior = (1 - smoothing) * shares + smoothing / len(shares)
    answers = (outputs + torch.from_numpy(prior).log()).argmax(1).numpy()
    total = 0.0
    for label, weight in enumerate(part.test_mix[device].tolist()):
        rows = data.cell_test == label
        total += weight * (answers[rows] == label).mean()
    return total / part.test_mix[device].sum()


def test_a_known_prior_by_hand() -> None:
    runner = run({"prior": "known", "smoothing": 0.05})
    found = figures(runner, "acc")
    for device in range(6):
        assert found[device] == pytest.approx(by_hand(runner, device, 0.05), abs=1e-6)


def test_an_even_prior_is_no_prior() -> None:
    plain, even = run(), run({"prior": "known", "smoothing": 1.0})
    for name, value in plain.simulation.meter.last.items():
        assert even.simulation.meter.last[name] == pytest.approx(value, abs=1e-6), name


def test_serving_does_not_change_training() -> None:
    plain, served = run(), run({"model": "mixture", "prior": "known"})
    assert torch.equal(plain.final_models()["global"], served.final_models()["global"])
    assert plain.simulation.meter.last["acc_global"] == served.simulation.meter.last["acc_global"]


def test_own_models_are_those_that_devices_trained_last() -> None:
    runner = run({"model": "own"}, "fedavg")
    simulation = runner.simulation
    refs = {int(simulation.served[device][ALL]) for device in range(6)}
    assert len(refs) == 6 and runner.simulation.meter.last["groups"] == 6
    # A device of few labels knows them better by its own model than by everybody's after two rounds.
    assert runner.simulation.meter.last["acc_device"] > run(None, "fedavg").simulation.meter.last["acc_device"]


def test_edges_use_their_devices_labels() -> None:
    changes = {"stop": {"rounds": 6}}
    plain, served = run(None, **changes), run({"prior": "known"}, **changes)
    assert served.simulation.meter.last["acc_edge"] > plain.simulation.meter.last["acc_edge"]


def test_a_prior_is_estimated_without_labels() -> None:
    # After some rounds the model is good enough to tell which labels come.
    changes = {"stop": {"rounds": 12}, "training": {**BASE["training"], "lr": 0.1, "updates": 2}}
    plain, served = run(None, **changes), run({"prior": "estimated", "inputs": 200}, **changes)
    assert served.simulation.meter.last["acc_device"] > plain.simulation.meter.last["acc_device"]


def test_what_cannot_be_served_is_refused() -> None:
    with pytest.raises(ConfigError, match="val_fraction"):
        run({"model": "mixture"}, partition={"kind": "iid"})
    with pytest.raises(ConfigError, match="classifications"):
        run({"prior": "known"}, task={"dataset": "magnet", "model": "mlp", "dataset_options": {"samples": 200}})


def test_what_priors_would_change_is_told_beside_the_figures_without() -> None:
    # one run tells both: with the prior as a run that serves with it, without as a run that does not
    told = {"prior": True}
    both, served = run(evaluate=told), run({"prior": "validated"}, evaluate=told)
    mine, theirs = both.simulation.meter.last, served.simulation.meter.last
    assert mine["acc_device_prior"] == theirs["acc_device"] == theirs["acc_device_prior"]
    assert mine["acc_edge_prior"] == theirs["acc_edge"]
    assert mine["acc_device"] == run().simulation.meter.last["acc_device"] != mine["acc_device_prior"]
