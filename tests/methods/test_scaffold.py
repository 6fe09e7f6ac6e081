from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from espalier.core.device import Device
from espalier.core.errors import ConfigError
from espalier.core.learning import TrainingFacts
from espalier.core.memory import Memory
from espalier.core.messages import ALL, Arrived, Order, Train, Trained
from espalier.core.method import Setting
from espalier.core.policies import Pace
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.methods.scaffold import (
    VARIATE,
    Controlled,
    Scaffold,
    VariateMerge,
    correction,
    mean_gradient,
    merged_variate,
    new_variate,
)
from tests.core.fakes import SmallFleet, answer, reports
from tests.methods.test_ditto import run
from tests.methods.test_equivalences import final

C, OWN, X, Y, G = Ref(1), Ref(2), Ref(3), Ref(4), Ref(5)


def value(terms: list[tuple[float, Ref]], numbers: dict[Ref, float]) -> float:
    return sum(c * numbers[ref] for c, ref in terms)


def test_the_equations_by_hand() -> None:
    numbers = {C: 0.5, OWN: 0.2, X: 3.0, Y: 2.0, G: 2.5}
    # (3 - 2) / (4 · 0.1) = 2.5; 0.5 - 0.2 = 0.3; 0.2 - 0.5 + 2.5 = 2.2
    assert value(mean_gradient(X, Y, 4, 0.1), numbers) == pytest.approx(2.5)
    assert value(correction(C, OWN), numbers) == pytest.approx(0.3)
    assert value(new_variate(C, OWN, G), numbers) == pytest.approx(2.2)
    assert correction(None, None) == [] and new_variate(None, None, G) == [(1.0, G)]


def test_the_servers_variate_by_hand() -> None:
    numbers = {C: 0.5, X: 3.0, Y: 2.0}
    # a quarter of the samples says 3, a half says 2, a quarter is silent: 0.5 + (3 - 0.5)/4 + (2 - 0.5)/2 = 1.875
    assert value(merged_variate(C, [(0.25, X), (0.5, Y)]), numbers) == pytest.approx(1.875)
    # without a variate before, who is silent counts as zero: 3/4 + 2/2 = 1.75
    assert value(merged_variate(None, [(0.25, X), (0.5, Y)]), numbers) == pytest.approx(1.75)
    # one that counts twice: 3 · 0.75 / 1.5 + 2 · 0.75 / 1.5 = 2.5
    assert value(merged_variate(C, [(0.75, X), (0.75, Y)]), numbers) == pytest.approx(2.5)


def test_the_change_that_the_server_sees_is_the_change_of_the_devices_variate() -> None:
    # c + (c_k+ - c_k) is the reported gradient, so c moves by share · (c_k+ - c_k), the paper's Eq. (5)
    numbers = {C: 0.5, OWN: 0.2, G: 2.5}
    renewed = value(new_variate(C, OWN, G), numbers)
    moved = value(merged_variate(C, [(0.125, G)]), numbers)
    assert moved - numbers[C] == pytest.approx(0.125 * (renewed - numbers[OWN]))


def test_two_orders_of_a_device() -> None:
    # The fake fleet has lr 0.1 and 2 steps per update: 2 updates are 4 steps, 4 · 0.1 = 0.4.
    fleet = SmallFleet({0: 10, 10: 20})
    node, number = Device(0, Controlled(), Pace(), fleet), fleet.store.numbers
    model, trained, common = fleet.store.number(3.0), fleet.store.number(2.0), fleet.store.number(0.5)
    (train,) = node.on(Arrived(Order(1, 10, 0, {ALL: model}, 2, 0, 0, 0.0)), 0.0)
    assert isinstance(train, Train) and train.correction is None
    (report,) = reports(node.on(Trained(train.token, trained, 1.0, 2), 1.0))
    assert number[report.auxiliary[VARIATE]] == pytest.approx((3.0 - 2.0) / 0.4)
    second = Order(2, 10, 0, {ALL: model}, 2, 1, 1, 1.0, auxiliary={VARIATE: common})
    (train,) = node.on(Arrived(second), 1.0)
    # its own variate is 2.5 by now: it is corrected by 0.5 - 2.5 = -2
    assert isinstance(train, Train) and train.correction is not None
    assert number[train.correction] == pytest.approx(-2.0)


def test_an_edge_moves_its_variate_by_shares_of_all_samples() -> None:
    # devices 0, 1, 2 have 1, 2, 3 samples; 0 and 1 report gradients 6 and 3: 6/6 + 2·3/6 = 2
    fleet = SmallFleet({0: 10, 1: 10, 2: 10, 10: 20})
    order = Order(1, 10, 0, {ALL: Ref(0)}, 1, 0, 0, 0.0)
    found = []
    for device, gradient in ((0, 6.0), (1, 3.0)):
        beside = {VARIATE: fleet.store.number(gradient)}
        said = answer(replace(order, to=device), Ref(0), device + 1, 1.0, auxiliary=beside)
        found.append(Arrival(said.message, 1.0))  # type: ignore[arg-type]
    seen = View(1.0, 10, 0, 0, "", {ALL: Ref(0)}, None, Memory(), fleet)
    merged = VariateMerge().auxiliary(seen, found)
    assert fleet.store.numbers[merged[VARIATE]] == pytest.approx(2.0)


def test_without_variates_it_is_hierfavg() -> None:
    # All variates are zero in the first round: nothing is corrected, to the bit.
    assert torch.equal(final("scaffold", stop={"rounds": 1}), final("hierfavg", stop={"rounds": 1}))
    assert not torch.equal(final("scaffold", stop={"rounds": 2}), final("hierfavg", stop={"rounds": 2}))


def test_deeper_trees_give_the_same_average() -> None:
    deep = final("scaffold", fleet={"devices": 12, "edges": 6, "tiers": [3, 2]})
    torch.testing.assert_close(deep, final("scaffold", fleet={"devices": 12, "edges": 1}), rtol=1e-10, atol=1e-11)


def test_variates_cost_as_much_as_models() -> None:
    def nbytes(method: str) -> int:
        return sum(run(method).simulation.usage.bytes.values())

    # the first orders go down without a variate: 12 devices and 3 edges
    assert 1.8 * nbytes("hierfavg") < nbytes("scaffold") < 2 * nbytes("hierfavg")


def test_other_optimisers_are_refused() -> None:
    with pytest.raises(ConfigError, match="plain SGD"):
        Scaffold().plan(Setting(4, 2, 10, training=TrainingFacts(momentum=0.9)))
