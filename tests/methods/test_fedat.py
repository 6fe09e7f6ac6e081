"""FedAT: tiers by latency, weights by counts in reverse."""

from __future__ import annotations

import torch

from espalier.core.aggregator import Aggregator
from espalier.core.messages import ChildJoined, Deadline, Order, SetDeadline, Started
from espalier.core.policies import Rules, Structure
from espalier.methods.fedat import TierMerge, Tiers, reversed_weights
from tests.core.fakes import SmallFleet, answer, orders
from tests.methods.test_equivalences import final

CLOUD = 20


class Paced(SmallFleet):
    """Device d takes 10 (d + 1) s for an update; links take none."""

    def update_time(self, device: int, now: float, epoch: int = 0) -> float:
        return 10.0 * (device + 1)

    def model_time(self, src: int, dst: int, now: float) -> float:
        return 0.0


def root(devices: int, tiers: int, first: int = 1) -> tuple[Aggregator, Paced]:
    fleet = Paced(dict.fromkeys(range(devices), CLOUD))
    rules = Rules(structure=Structure(flat=True), pace=Tiers(1, tiers=tiers), merge=TierMerge(tiers, first))
    return Aggregator(CLOUD, rules, fleet), fleet


def test_rare_tiers_weigh_more() -> None:
    # T = (6, 3, 1): weights (.1, .3, .6); of w = (1, 2, 3) that is .1 + .6 + 1.8 = 2.5
    weights = reversed_weights([6, 3, 1])
    assert weights == [0.1, 0.3, 0.6]
    assert sum(w * m for w, m in zip(weights, (1, 2, 3), strict=True)) == 2.5


def test_tiers_are_equal_parts_by_latency() -> None:
    node, _ = root(5, 2)
    node.on(Started(), 0.0)
    assert node.state.memory.state(Tiers()).tier == {0: 0, 1: 0, 2: 0, 3: 1, 4: 1}


def test_a_newcomer_joins_the_tier_that_fits_it() -> None:
    node, fleet = root(5, 2)
    node.on(Started(), 0.0)
    fleet.parents[9] = CLOUD
    node.on(ChildJoined(9), 1.0)
    assert node.state.memory.state(Tiers()).tier[9] == 1


def again(node: Aggregator, actions: list[object], now: float) -> dict[int, Order]:
    (deadline,) = [a for a in actions if isinstance(a, SetDeadline)]
    return orders(node.on(Deadline(deadline.wake), now))


def test_a_tier_goes_on_by_itself() -> None:
    """Two tiers of one device each; models are numbers, the initial one 0."""
    node, fleet = root(2, 2)
    sent = orders(node.on(Started(), 0.0))
    # Tier 0 reports 4: counts (2, 1), weights (1/3, 2/3), w = 4/3 + 0.
    actions = node.on(answer(sent[0], fleet.store.number(4.0), 1, 10.0), 10.0)
    assert fleet.store.numbers[node.state.models[""]] == 4.0 / 3.0
    # It goes on from the new model, without the other.
    next_ = again(node, actions, 10.0)
    assert sorted(next_) == [0] and next_[0].models == node.state.models
    # Tier 1 reports 6: counts (2, 2), w = ½ · 4 + ½ · 6.
    node.on(answer(sent[1], fleet.store.number(6.0), 2, 20.0), 20.0)
    assert fleet.store.numbers[node.state.models[""]] == 5.0


def test_counts_from_zero_lose_the_first_update() -> None:
    node, fleet = root(2, 2, first=0)
    sent = orders(node.on(Started(), 0.0))
    node.on(answer(sent[0], fleet.store.number(4.0), 1, 10.0), 10.0)
    # counts (1, 0): all the weight is on tier 1, which still has the initial model
    assert fleet.store.numbers[node.state.models[""]] == 0.0


def test_one_tier_without_a_pull_is_fedavg_to_the_bit() -> None:
    for fleet in ({"devices": 12, "edges": 3}, {"devices": 12, "edges": 3, "fraction": 0.5}):
        ours = final({"name": "fedat", "tiers": 1, "pull": 0.0}, fleet=fleet)
        assert torch.equal(ours, final("fedavg", fleet=fleet))


def test_one_tier_with_a_pull_is_fedprox_to_the_bit() -> None:
    assert torch.equal(final({"name": "fedat", "tiers": 1, "pull": 0.4}), final({"name": "fedprox", "mu": 0.4}))


def test_more_tiers_than_devices_are_as_many_as_devices() -> None:
    final({"name": "fedat", "tiers": 50})
