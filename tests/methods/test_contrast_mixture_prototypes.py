"""MOON, APFL and FedProto: what each is without its strength, and what devices do (arithmetic: tests/training)."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch

from espalier.core.device import Device
from espalier.core.errors import ConfigError
from espalier.core.learning import TrainingFacts
from espalier.core.messages import ALL, Arrived, Measure, Measured, Order, Serve, Train, Trained
from espalier.core.method import Setting, make
from espalier.core.objectives import ClassSums, Contrast, Mixture, NearPrototypes
from espalier.core.policies import Pace
from espalier.core.runtime import FIRST_FOLLOWING, JobNumbers
from espalier.core.store import Ref
from espalier.methods.apfl import TrainedMixed, mixture, moved_share
from espalier.methods.fedproto import WithPrototypes
from espalier.methods.moon import Contrasted
from espalier.testing import BASE
from tests.core.fakes import SmallFleet, reports
from tests.methods.test_ditto import run
from tests.methods.test_equivalences import final

FEW: dict[str, Any] = {"fleet": {"devices": 6, "edges": 2}}


class TenModels(SmallFleet):
    """A fleet whose store has models 0 to 9 from the first, and which trains by epochs."""

    unit, batch_size = "epoch", 10

    def __init__(self) -> None:
        super().__init__({0: 10, 10: 20})
        self.store.numbers = [float(i) for i in range(10)]


def ordered(node: Device, number: int) -> Any:
    return node.on(Arrived(Order(number, 10, 0, {ALL: Ref(7)}, 2, 0, 0, 0.0)), 0.0)[0]


#: everybody has as many samples and is as fast: a round of devices alone is a round of theirs in a tree
EVEN: dict[str, Any] = {
    **FEW,
    "partition": {"kind": "iid", "fraction": 0.4},
    "training": {**BASE["training"], "unit": "step", "updates": 3, "precision": "float64"},
    "world": {"compute": {"kind": "uniform", "low": 1.0, "high": 1.0}},
}


def own_models(method: str | dict[str, Any]) -> torch.Tensor:
    """Return the devices' own models ``[6, size]``."""
    sim = run(method, **EVEN).simulation
    return torch.stack([sim.ledger.vector(sim.served[d][ALL]) for d in range(6)])


def test_moon_without_its_strength_is_hierfavg_to_the_bit() -> None:
    assert torch.equal(final({"name": "moon", "mu": 0.0}), final("hierfavg"))
    assert not torch.equal(final("moon"), final("hierfavg"))


def test_moons_first_order_is_plain_and_the_next_looks_back() -> None:
    node = Device(0, Contrasted(strength=2.0, temperature=0.1), Pace(), TenModels())
    first = ordered(node, 1)
    assert isinstance(first, Train) and first.objective is None
    node.on(Trained(first.token, Ref(8), 1.0, 2), 1.0)
    second = ordered(node, 2)
    assert second.objective == Contrast(2.0, 0.1)
    assert (second.start, second.anchor, second.mu, second.beside) == (Ref(7), Ref(7), 0.0, Ref(8))


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_shared_model_of_apfl_is_hierfavgs_to_the_bit(alpha: float) -> None:
    assert torch.equal(final({"name": "apfl", "alpha": alpha}), final("hierfavg"))


def test_without_an_own_share_a_device_uses_what_it_reported() -> None:
    node = Device(0, TrainedMixed(alpha=0.0), Pace(), TenModels())
    shared = ordered(node, 1)
    (own,) = node.on(Trained(shared.token, Ref(8), 1.0, 2), 1.0)
    assert (own.objective, own.beside, own.again, own.follows) == (Mixture(0.0), Ref(7), True, True)
    _, send = node.on(Trained(own.token, Ref(9), 1.0, 2), 2.0)
    assert reports([send])[0].models == {ALL: Ref(8)}
    assert mixture(Ref(9), Ref(8), 0.0) == [(1.0, Ref(8))] and mixture(Ref(9), Ref(8), 1.0) == [(1.0, Ref(9))]


def test_an_own_model_that_is_not_mixed_is_trained_alone() -> None:
    # It sees the batches of the shared one, which are those of a device that trains alone.
    alone = own_models("standalone")
    torch.testing.assert_close(own_models({"name": "apfl", "alpha": 1.0}), alone, rtol=1e-12, atol=1e-13)
    assert not torch.allclose(own_models("apfl"), alone)


def test_numbers_of_trainings_that_see_the_first_ones_batches() -> None:
    numbers = JobNumbers((), lambda: defaultdict(int))
    asked = [numbers.training(0, follows, again) for follows, again in ((0, 0), (1, 1), (0, 0), (1, 0), (1, 1), (0, 0))]
    assert asked == [0, 0, 1, FIRST_FOLLOWING + 1, 1, 2]


def test_the_share_moves_down_the_slope() -> None:
    # slope (1.0 - 0.9) / 0.02 = 5; 0.5 - 0.04 * 5 = 0.3
    assert moved_share(0.5, 1.0, 0.9, 0.04) == pytest.approx(0.3)
    assert moved_share(0.5, 1.0, 0.9, 1.0) == 0.0 and moved_share(0.5, 0.9, 1.0, 1.0) == 1.0


def test_an_adaptive_device_asks_before_it_trains_from_its_second_order_on() -> None:
    node = Device(0, TrainedMixed(alpha=0.5, adapt=0.04), Pace(), TenModels())
    shared = ordered(node, 1)
    (own,) = node.on(Trained(shared.token, Ref(8), 1.0, 2), 1.0)
    node.on(Trained(own.token, Ref(9), 1.0, 2), 2.0)
    question = ordered(node, 2)
    assert isinstance(question, Measure) and question.what == "losses" and len(question.models) == 2
    (shared,) = node.on(Measured(question.token, {"losses": [1.0, 0.9]}, 0.5), 3.0)
    (own,) = node.on(Trained(shared.token, Ref(8), 1.0, 2), 4.0)
    assert isinstance(own, Train) and isinstance(own.objective, Mixture)
    assert own.objective.alpha == pytest.approx(0.3)
    run({"name": "apfl", "adapt": 0.05}, **FEW)


def test_a_mixture_is_not_stepped_by_a_users_optimiser() -> None:
    with pytest.raises(ConfigError, match="needs 'sgd' or 'adam'"):
        make("apfl").plan(Setting(4, 2, 10, training=TrainingFacts(optimizer="torch.optim:AdamW")))


def test_fedproto_trains_its_own_model_and_reports_prototypes() -> None:
    node = Device(0, WithPrototypes(lam=0.5), Pace(), TenModels())
    first = ordered(node, 1)
    assert (first.objective, first.beside) == (NearPrototypes(0.5), Ref(7))
    (sums,) = node.on(Trained(first.token, Ref(8), 1.0, 2), 1.0)
    assert isinstance(sums, Train) and (sums.objective, sums.start) == (ClassSums(), Ref(8))
    serve, send = node.on(Trained(sums.token, Ref(9), 1.0, 1), 2.0)
    assert serve == Serve({ALL: Ref(8)}) and reports([send])[0].models == {ALL: Ref(9)}
    assert ordered(node, 2).start == Ref(8)


def test_without_its_strength_every_device_of_fedproto_trains_alone() -> None:
    alone = own_models("standalone")
    torch.testing.assert_close(own_models({"name": "fedproto", "lam": 0.0}), alone, rtol=1e-12, atol=1e-13)
    assert not torch.allclose(own_models("fedproto"), alone)


def test_prototypes_of_a_deep_tree_are_those_of_all_samples() -> None:
    # The root's numbers after a round: each label's share of all samples in place of its bias.
    deep = {"devices": 12, "edges": 6, "tiers": [3, 2]}
    runner = run("fedproto", fleet=deep, stop={"rounds": 1}, partition={"kind": "iid", "fraction": 0.4})
    sim = runner.simulation
    root = sim.runtime.node(sim.fleet.cloud)
    biases = sim.ledger.vector(root.state.models[ALL])[-10:]
    labels = torch.cat([sim.views.pool(0).gather(torch.from_numpy(sim.views.rows(d, 0)))[1] for d in range(12)])
    torch.testing.assert_close(biases, torch.bincount(labels, minlength=10) / len(labels))


def test_only_the_last_layer_of_fedproto_is_paid_for() -> None:
    spec = run("fedproto", **FEW, stop={"rounds": 1}).simulation.task.spec
    assert WithPrototypes().shared_bytes(spec) == 4 * (10 * 16 + 10)


@pytest.mark.parametrize(
    ("name", "options"), [("moon", {"mu": -1.0}), ("moon", {"temperature": 0.0}), ("apfl", {"alpha": 1.5}),
                          ("apfl", {"adapt": -1.0}), ("fedproto", {"lam": -1.0}), ("moon", {"kappa2": 0})],
)  # fmt: skip
def test_impossible_strengths_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        make(name, **options)
