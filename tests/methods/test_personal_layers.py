"""FedPer, LG-FedAvg and FedBN: which layers stay, and the methods that they are at either end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from espalier.core.messages import ALL
from espalier.core.params import ParamSpec
from espalier.methods.personal_layers import OwnBatchNorms, SharedHead, batch_norms
from espalier.policies.local_policies import Parts
from espalier.simulator.runner import Runner
from espalier.simulator.simulation import Simulation
from espalier.testing import BASE
from espalier.testing.conformance import resume
from espalier.training.trainer import FallbackWarning
from tests.methods.test_ditto import run

FLEET = {"devices": 6, "edges": 2}


def small() -> nn.Module:
    """Layer 2·3 + 3 at 0, norm 3 + 3 at 9, head 3·2 + 2 at 15; running statistics 3 + 3 at 23, counter at 29."""
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def test_which_places_are_shared() -> None:
    spec = ParamSpec.of(small())
    assert (spec.n_params, spec.n_float, spec.size) == (23, 29, 30)
    assert batch_norms(spec) == ("1.*",)
    assert Parts().shares(spec) == ((0, 15), (23, 30))
    assert SharedHead().shares(spec) == ((15, 23),)
    assert OwnBatchNorms().shares(spec) == ((0, 9), (15, 23))


def test_bytes_are_four_for_each_shared_number() -> None:
    spec = ParamSpec.of(small())
    assert [p.shared_bytes(spec) for p in (Parts(), SharedHead(), OwnBatchNorms())] == [4 * 21, 4 * 8, 4 * 17]


def shared(method: str | dict[str, Any], **changes: Any) -> Tensor:
    sim = run(method, fleet=FLEET, **changes).simulation
    return sim.ledger.vector(sim.served[sim.fleet.cloud][ALL])


def own(sim: Simulation) -> list[Tensor]:
    return [sim.ledger.vector(sim.served[device][ALL]) for device in range(FLEET["devices"])]


@pytest.mark.parametrize(
    "method", [{"name": "fedper", "head": ["none"]}, {"name": "lg_fedavg", "head": ["*"]}, {"name": "fedbn"}]
)
def test_with_everything_shared_it_is_hierfavg(method: dict[str, Any]) -> None:
    # The model has neither a layer called "none" nor a batch normalisation.
    # Reports of one instant come, and are added, in another order: the last bit may be rounded otherwise.
    torch.testing.assert_close(shared(method), shared("hierfavg"), rtol=0, atol=5e-7)


class LowRank(nn.Linear):
    """A frozen layer 64·10 + 10 with adapters 2·64 + 10·2."""

    def __init__(self) -> None:
        super().__init__(64, 10)
        self.requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, 64) / 8), nn.Parameter(torch.zeros(10, 2))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1)) + x.flatten(1) @ self.down.T @ self.up.T


def test_adapters_of_a_frozen_model_travel_alone_and_give_the_same_model() -> None:
    module = LowRank()
    adapters = {"name": "hierfavg", "local": {"kind": "parts", "shared": ["down", "up"]}}
    assert Parts(shared=("down", "up")).shared_bytes(ParamSpec.of(module)) == 4 * (2 * 64 + 10 * 2)
    part, whole = (shared(m, task={"model": module}) for m in (adapters, "hierfavg"))
    torch.testing.assert_close(part, whole, rtol=0, atol=5e-7)
    views = ParamSpec.of(module).views(part)
    torch.testing.assert_close(
        views["weight"], module.weight.detach(), rtol=0, atol=5e-7
    )  # a weighted mean of one model
    assert float((views["up"] - module.up).detach().abs().max()) > 1e-3


@pytest.mark.parametrize(
    "method",
    [{"name": "fedper", "head": ["*"]}, {"name": "lg_fedavg", "head": ["none"]}, {"name": "fedbn", "norms": ["*"]}],
)
def test_with_nothing_shared_it_is_standalone_to_the_bit(method: dict[str, Any]) -> None:
    found, alone = (own(run(m, fleet=FLEET).simulation) for m in (method, "standalone"))
    assert all(torch.equal(one, two) for one, two in zip(found, alone, strict=True))


def test_lg_fedavg_shares_the_head_alone() -> None:
    sim = run("lg_fedavg", fleet=FLEET).simulation
    spec, initial = sim.task.spec, sim.task.initial(sim.seed, 0)
    ((a, _),) = spec.spans(spec.last_layer())
    model = sim.ledger.vector(sim.served[sim.fleet.cloud][ALL])
    assert torch.equal(model[:a], initial[:a]) and not torch.equal(model[a:], initial[a:])


def test_fedbn_keeps_the_normalisations_of_a_model_that_has_some() -> None:
    task = {"dataset": "digits", "model": f"{__name__}:normed"}
    with pytest.warns(FallbackWarning):
        sim = run("fedbn", fleet=FLEET, task=task, stop={"rounds": 2}).simulation
    spec, initial = sim.task.spec, sim.task.initial(sim.seed, 0)
    norms = spec.spans(batch_norms(spec))
    model, (one, two, *_) = sim.ledger.vector(sim.served[sim.fleet.cloud][ALL]), own(sim)
    assert norms and all(torch.equal(model[a:b], initial[a:b]) for a, b in norms)
    assert all(not torch.equal(one[a:b], two[a:b]) for a, b in norms if b <= spec.n_float)


def normed() -> nn.Module:
    """Return a classifier of 8×8 digits with a batch normalisation."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))


def keeps(*own: str) -> dict[str, Any]:
    return {"name": "hierfavg", "edge": {"hand_down": {"kind": "parts", "own": list(own)}}, "serve": {"model": "edge"}}


def edges(sim: Simulation) -> list[Tensor]:
    return [sim.ledger.vector(sim.served[edge][ALL]) for edge in range(FLEET["devices"], FLEET["devices"] + 2)]


def test_edges_that_keep_nothing_are_hierfavgs() -> None:
    torch.testing.assert_close(shared(keeps("none")), shared("hierfavg"), rtol=0, atol=5e-7)


def test_edges_that_keep_everything_never_meet() -> None:
    kept, alone = (run(m, fleet=FLEET) for m in (keeps("*"), "only_edge"))
    # the slower one: OnlyEdge's other edge has gone on meanwhile
    assert torch.equal(edges(kept.simulation)[1], edges(alone.simulation)[1])
    assert sent(kept, "edge-cloud") == 0 < sent(kept, "dev-edge")


@pytest.mark.parametrize("tiers", [[], [2]])
def test_what_an_edge_keeps_is_neither_sent_nor_the_clouds(tiers: list[int]) -> None:
    fleet, local = {**FLEET, "tiers": tiers}, {"kind": "parts", "own": ["5.*"]}
    task = {**BASE["task"], "model": "mlp", "model_options": {"hidden": [8, 4]}}
    runner = run({**keeps("3.*"), "local": local}, fleet=fleet, task=task)
    sim = runner.simulation
    spec, initial = sim.task.spec, sim.task.initial(sim.seed, 0)
    model = sim.ledger.vector(sim.served[sim.fleet.cloud][ALL])
    body, middle, head = (spec.spans([pattern]) for pattern in ("1.*", "3.*", "5.*"))
    moved = [any(not torch.equal(model[a:b], initial[a:b]) for a, b in part) for part in (body, middle, head)]
    assert moved == [True, False, False]
    one, two = edges(sim)
    assert all(not torch.equal(one[a:b], two[a:b]) for a, b in middle)
    assert all(torch.equal(one[a:b], initial[a:b]) for a, b in head)
    children, numbers = 2 + sum(tiers), 64 * 8 + 8  # of servers: both edges, and the servers between
    assert sent(runner, "edge-cloud") == sim.round * 2 * children * 4 * numbers
    assert sent(runner, "dev-edge") == sim.round * 2 * FLEET["devices"] * 4 * (numbers + 8 * 4 + 4)


def sent(runner: Runner, tier: str) -> int:
    query = "SELECT max(bytes) FROM traffic WHERE tier = ? AND kind = 'model' GROUP BY direction"
    return sum(most for (most,) in runner.recorder.connection.execute(query, (tier,)))


def test_what_an_edge_keeps_is_there_after_a_resume() -> None:
    resume({**keeps("3.*"), "kappa2": 2}, often=(23,), fleet={**FLEET, "tiers": [2]}, stop={"rounds": 2})
