"""Methods in a tree of five levels (cloud, two servers, three below them, six edges, devices).

Where its settings make a method another one, it is that one there, too; where its sums are exact, a tree gives what a
star of the same devices does.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from espalier.core.messages import ALL
from espalier.experiment import Experiment
from espalier.simulator.runner import Runner
from espalier.simulator.simulation import Simulation
from espalier.testing import BASE

DEEP = {"devices": 12, "edges": 6, "tiers": [3, 2]}
STAR = {"devices": 12, "edges": 1}
STEPS = {"unit": "step", "updates": 3}
#: a mean of means adds the same numbers in another order
NEAR = {"rtol": 1e-10, "atol": 1e-11}


def run(method: str | dict[str, Any], training: dict[str, Any] | None = None, **changes: Any) -> Simulation:
    table = {
        **BASE,
        "partition": {"kind": "dirichlet", "alpha": 0.5, "fraction": 0.4},
        "fleet": DEEP,
        "stop": {"rounds": 2},
        "training": {**BASE["training"], **(training or {}), "precision": "float64"},
        **changes,
    }
    runner = Runner(Experiment.build(table).only(method, 1), None)
    runner.run()
    assert runner.simulation.round == table["stop"]["rounds"]
    return runner.simulation


def cloud(sim: Simulation) -> Tensor:
    return sim.ledger.vector(sim.served[sim.fleet.cloud][ALL])


def devices(sim: Simulation) -> Tensor:
    return torch.stack([sim.ledger.vector(sim.served[d][ALL]) for d in range(sim.fleet.n_devices)])


@pytest.mark.parametrize(
    ("method", "other", "changes"),
    [
        ({"name": "scaffold"}, "hierfavg", {"stop": {"rounds": 1}}),  # all variates are zero
        ({"name": "fednova"}, "hierfavg", {"training": STEPS}),  # equal work
        ({"name": "moon", "mu": 0.0}, "hierfavg", {}),
        ({"name": "fedlc", "tau": 0.0}, "hierfavg", {}),
        ({"name": "fedrs", "alpha": 1.0}, "hierfavg", {}),
        ({"name": "qfedavg", "q": 0.0}, "hierfavg", {}),
        ({"name": "ditto"}, "hierfavg", {}),
        ({"name": "apfl"}, "hierfavg", {}),
        ({"name": "fedper", "head": ["none"]}, "hierfavg", {}),
        ({"name": "lg_fedavg", "head": ["*"]}, "hierfavg", {}),
        ({"name": "fedbn"}, "hierfavg", {}),  # a model without batch normalisation
        ({"name": "fedrep", "head": ["none"], "body_updates": 2}, "hierfavg", {}),
        ({"name": "hierfavg", **{t: {"merge": {"kind": "momentum", "beta": 0.0}} for t in ("root", "middle", "edge")}},
         "hierfavg", {}),
        ({"name": "fedavgm", "beta": 0.0}, "fedavg", {}),
        ({"name": "fedbuff", "buffer": 12, "refill": "after merge"}, "fedavg", {}),
        ({"name": "power_of_choice", "fraction": 1.0}, "fedavg", {}),
        ({"name": "oort", "fraction": 1.0}, "fedavg", {}),
        ({"name": "tifl", "tiers": 1, "fraction": 1.0}, "fedavg", {}),
        ({"name": "power_of_choice", "at": "edges"}, "hierfavg", {}),
        ({"name": "oort", "at": "edges"}, "hierfavg", {}),
        ({"name": "tifl", "tiers": 1, "at": "edges"}, "hierfavg", {}),
    ],
    ids=lambda given: given["name"] if isinstance(given, dict) and "name" in given else "",
)  # fmt: skip
def test_it_is_the_other_method(method: dict[str, Any], other: str, changes: dict[str, Any]) -> None:
    torch.testing.assert_close(cloud(run(method, **changes)), cloud(run(other, **changes)), **NEAR)


@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedper", "head": ["*"]},
        {"name": "lg_fedavg", "head": ["none"]},
        {"name": "fedbn", "norms": ["*"]},
        {"name": "fedrep", "head": ["*"]},
        {"name": "fedproto", "lam": 0.0},
    ],
    ids=lambda method: method["name"],
)
def test_with_nothing_shared_every_device_trains_alone(method: dict[str, Any]) -> None:
    assert torch.equal(devices(run(method)), devices(run("standalone")))


@pytest.mark.parametrize(
    "method",
    ["hierfavg", "scaffold", "fednova", "feddyn", "qfedavg", "moon", "fedlc", "fedrs", "pfedme", "fedper", "fedrep"],
)
def test_a_tree_gives_what_a_star_does(method: str) -> None:
    torch.testing.assert_close(cloud(run(method)), cloud(run(method, fleet=STAR)), **NEAR)


@pytest.mark.parametrize("method", ["fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "fedprox"])
def test_edges_that_pass_on_change_nothing(method: str) -> None:
    torch.testing.assert_close(cloud(run(method)), cloud(run(method, fleet=STAR)), **NEAR)


@pytest.mark.parametrize(
    "method",
    [{"name": "fedasync", "alpha0": 1.0, "at": "edges", "kappa2": 1}, {"name": "fedbuff", "at": "edges", "buffer": 1}],
    ids=lambda method: method["name"],
)
def test_along_a_chain_without_anybody_else_nothing_is_stale(method: dict[str, Any]) -> None:
    chain = {"fleet": {"devices": 1, "edges": 1, "tiers": [1, 1]}, "partition": {"kind": "iid", "fraction": 0.2}}
    torch.testing.assert_close(cloud(run(method, **chain)), cloud(run("fedavg", **chain)), **NEAR)
