"""MACFL: weights by agreement, a start between two models after a move, nothing lost on the way."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from espalier.core.memory import Memory
from espalier.core.messages import Order
from espalier.core.policies import LocalView
from espalier.core.store import Ref
from espalier.methods.macfl import Travelling, agreement, agreement_weights
from espalier.testing import BASE
from tests.core.fakes import SmallFleet
from tests.methods.csahfl.test_csahfl import Spied
from tests.methods.test_equivalences import final


def test_agreement_by_hand() -> None:
    # w_g = 0, w_e = (1, 0); cosines 1, 0 and -1; with equal samples weights ⅔, ⅓ and 0; the new w_e = (⅔, ⅓)
    models = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    found = agreement(models, torch.tensor([1.0, 0.0]), torch.zeros(2))
    assert found.tolist() == [1.0, 0.0, -1.0]
    weights = agreement_weights([5.0, 5.0, 5.0], found.tolist())
    assert weights == pytest.approx([2 / 3, 1 / 3, 0.0])
    assert (torch.tensor(weights) @ models).tolist() == pytest.approx([2 / 3, 1 / 3])


def test_where_there_is_no_direction_samples_decide() -> None:
    models = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    assert agreement(models, torch.zeros(2), torch.zeros(2)).tolist() == [0.0, 0.0]
    assert agreement(models, torch.tensor([2.0, 0.0]), torch.zeros(2)).tolist() == [1.0, 0.0]
    assert agreement_weights([1.0, 3.0], [0.0, 0.0]) == [0.25, 0.75]
    # everybody goes the other way
    assert agreement_weights([1.0, 3.0], [-1.0, -1.0]) == [0.25, 0.75]


def test_a_device_that_moved_starts_between_two_models() -> None:
    fleet = SmallFleet({})
    local, memory = Travelling(rho=0.25), Memory()
    view = LocalView(0.0, 3, memory, fleet)
    edge, own = fleet.store.number(8.0), fleet.store.number(4.0)

    def start(sender: int) -> float:
        order = Order(1, sender, 3, {"": edge}, 2, 0, 0, 0.0)
        return fleet.store.numbers[local.train(view, order).start]

    assert start(10) == 8.0  # it has no model yet
    local.done(view, Order(1, 10, 3, {"": edge}, 2, 0, 0, 0.0), {"": own})
    assert start(10) == 8.0  # it stayed
    assert start(11) == 0.75 * 8.0 + 0.25 * 4.0


def test_without_moves_and_agreement_it_is_hierfavg_to_the_bit() -> None:
    for kappa2 in (1, 3):
        theirs = final({"name": "hierfavg", "kappa2": kappa2})
        assert torch.equal(final({"name": "macfl", "kappa2": kappa2, "similarity": False}), theirs)
    # Right after a cloud merge an edge has no direction: with one edge round all rounds are like that.
    assert torch.equal(final({"name": "macfl", "kappa2": 1}), final("hierfavg"))
    assert not torch.equal(final({"name": "macfl", "kappa2": 3}), final({"name": "hierfavg", "kappa2": 3}))


def test_moving_loses_work_for_others_but_not_here() -> None:
    world = {**BASE["world"], "mobility": {"kind": "markov", "stay": 0.5, "when": "mid_round"}}
    lost = [Spied(m, world=world).events("dropped") for m in ("hierfavg", "macfl")]
    assert lost[0] and not lost[1]


def test_devices_that_stay_remember_nothing() -> None:
    def memories(**changes: Any) -> list[Ref]:
        nodes = Spied("macfl", **changes).runner.simulation.nodes
        return [n.state.memory.state(Travelling()).model for a, n in nodes.items() if a < 12 and n.state.memory]

    assert not memories()
    assert memories(world={**BASE["world"], "mobility": {"kind": "markov", "stay": 0.5}})
