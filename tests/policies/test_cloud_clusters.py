"""Clusters at the cloud: rounds at their own speed, meetings, strays, and what devices learnt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from espalier.core.address import Address
from espalier.core.aggregator import Aggregator
from espalier.core.messages import ALL, Action, Arrange, ChildLeft, Deadline, Order, SetDeadline, Started
from espalier.core.policies import Rules
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.methods.cfl import Bipartition
from espalier.policies.cloud_clusters import (
    MAIN_GROUP,
    ClusterHandDown,
    ClusterPace,
    EqualMerge,
    Regrouping,
    blend,
    group_of,
)
from tests.core.fakes import SmallFleet, answer, orders
from tests.policies.fakes import FakeEnv, arrival, view

CLOUD = 20


@dataclass(frozen=True)
class OddAndEven(Regrouping):
    """After every second round, devices are grouped by parity; the meetings are written down."""

    @dataclass
    class State(Regrouping.State):
        meetings: list[int] = field(default_factory=list)

    every: int = 2

    def regroup(
        self, view: View, answers: Mapping[Address, Arrival]
    ) -> tuple[dict[str, list[Address]], dict[str, Ref]] | None:
        view.state(self).meetings.append(view.clock)
        devices = view.env.devices()
        return (
            {"even": [d for d in devices if d % 2 == 0], "odd": [d for d in devices if d % 2]},
            {name: view.models[group_of(view, d)] for name, d in (("even", 0), ("odd", 1))},
        )


class Driver:
    """Runs a cloud by hand: carries out arrangements and zero-second deadlines, keeps open orders."""

    def __init__(self, devices: int) -> None:
        self.fleet = SmallFleet(dict.fromkeys(range(devices), CLOUD))
        rules = Rules(pace=ClusterPace(meet=2), hand_down=ClusterHandDown(), structure=OddAndEven())
        self.cloud = Aggregator(CLOUD, rules, self.fleet)
        self.open: dict[Address, Order] = {}
        self.now = 0.0
        self.take(self.cloud.on(Started(), 0.0))

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Arrange):
                self.fleet.groups.update(action.groups)
        self.open |= orders(actions)
        for action in actions:
            if isinstance(action, SetDeadline):
                self.take(self.cloud.on(Deadline(action.wake), self.now))

    def report(self, *devices: Address) -> None:
        self.now += 1.0
        for device in devices:
            order = self.open.pop(device)
            self.take(self.cloud.on(answer(order, self.fleet.store.number(device), 1, self.now), self.now))

    def rounds(self) -> dict[str, int]:
        return {k: c.round for k, c in self.cloud.state.cohorts.items()}


def grouped() -> Driver:
    driver = Driver(4)
    driver.report(0, 1, 2, 3)
    driver.report(0, 1, 2, 3)
    return driver


def test_one_group_is_one_barrier_until_clusters_form() -> None:
    driver = Driver(4)
    assert driver.rounds() == {ALL: 0}
    driver.report(0, 1, 2, 3)
    assert driver.rounds() == {ALL: 1}
    driver.report(0, 1, 2, 3)
    # Two rounds are over: the groups are there, and their cohorts go on counting from two.
    assert driver.fleet.groups == {0: "even", 1: "odd", 2: "even", 3: "odd"}
    assert driver.rounds() == {"even": 2, "odd": 2}
    assert {d: next(iter(o.models)) for d, o in driver.open.items()} == driver.fleet.groups


def test_a_fast_cluster_runs_ahead_but_waits_at_the_meeting() -> None:
    driver = grouped()
    driver.report(0, 2)
    assert driver.rounds() == {"even": 3, "odd": 2}
    driver.report(0, 2)
    # The fast one has come to the meeting of round 4 and gets no more work.
    assert driver.rounds() == {"even": 4, "odd": 2}
    assert set(driver.open) == {1, 3}
    driver.report(1, 3)
    assert set(driver.open) == {1, 3}
    driver.report(1, 3)
    assert driver.cloud.state.memory.state(OddAndEven()).meetings == [2, 4]
    assert set(driver.open) == {0, 1, 2, 3}


def test_nobody_waits_for_a_cluster_whose_devices_are_gone() -> None:
    driver = grouped()
    driver.report(0, 2)
    driver.report(0, 2)
    for device in (1, 3):
        del driver.fleet.parents[device]
        driver.open.pop(device)
        driver.take(driver.cloud.on(ChildLeft(device), driver.now))
    assert set(driver.open) == {0, 2}


def test_a_device_of_a_group_that_is_gone_goes_with_the_largest() -> None:
    env = FakeEnv(devices=range(3))
    ref = env.store.initial()
    env.groups = {0: "a", 1: "b", 2: "gone"}
    seen = view(env, {"a": ref, "b": ref})
    seen.provide(MAIN_GROUP, "b")
    assert [group_of(seen, d) for d in range(3)] == ["a", "b", "b"]
    seen.children = [0, 1, 2]
    assert ClusterPace().cohorts(seen) == {"a": [0], "b": [1, 2]}
    assert ClusterHandDown().send(seen, 2) == {"b": ref}
    arranged = OddAndEven(every=100).arrange(seen, {})
    assert arranged is not None and arranged.groups == {2: "b"}


def test_blend_by_hand_and_of_one_model() -> None:
    store = FakeEnv().store
    a, b = store.put([1.0, 0.0]), store.put([4.0, 2.0])
    # (1 * 1 + 2 * 4) / 3 = 3 and (2 * 2) / 3 = 4/3; a's weight comes in two parts.
    mixed = blend(store, [(0.5, a), (2.0, b), (0.5, a)])
    torch.testing.assert_close(store.table[mixed], torch.tensor([3.0, 4 / 3]).double())
    assert blend(store, [(2.0, a), (5.0, a)]) == a


def test_equal_weights() -> None:
    env = FakeEnv()
    a, b = env.store.put([0.0, 0.0]), env.store.put([4.0, 0.0])
    reports = [arrival(1, {"x": a}, 1), arrival(2, {"x": b}, 3)]
    assert EqualMerge().weights(view(env, {}), reports) == {"x": [(0.5, a), (0.5, b)]}


def test_updates_are_measured_from_the_model_that_was_sent() -> None:
    env = FakeEnv(devices=[1, 2])
    start, one, merged = env.store.put([1.0, 1.0]), env.store.put([3.0, 1.0]), env.store.put([3.0, 1.0])
    structure = OddAndEven(every=100)
    seen = view(env, {ALL: start})
    structure.arrange(seen, {})
    seen.models = {ALL: merged}
    structure.learn(seen, [arrival(1, {ALL: one})])
    devices, updates = structure.last_updates(seen, [1, 2])
    assert devices == [1]
    assert updates.tolist() == [[2.0, 0.0]]
    # The next round starts from what was merged.
    two = env.store.put([3.0, 5.0])
    structure.learn(seen, [arrival(2, {ALL: two})])
    assert structure.last_updates(seen, [1, 2])[1].tolist() == [[2.0, 0.0], [0.0, 4.0]]
    assert structure.last_updates(seen, [9])[0] == []


def test_the_places_of_a_second_split_are_mapped_back_to_devices() -> None:
    # A cluster of devices 11, 12, 17, 19: places 0 to 3 inside it. The authors' notebook would name devices 0 to 3.
    env = FakeEnv(devices=[3, 11, 12, 17, 19, 23])
    start = env.store.put([0.0, 0.0])
    ends = {11: [1.0, 0.0], 12: [-1.0, 0.0], 17: [0.9, 0.1], 19: [-0.9, -0.1]}
    updates = {d: (start, env.store.put(v), 4) for d, v in ends.items()}
    env.groups = {d: "2" for d in (*ends, 23)} | {3: "1"}
    seen = view(env, {"1": start, "2": start}, clock=10)
    structure = Bipartition(after=0, eps1=0.4, eps2=0.5)
    state = seen.state(structure)
    state.updates, state.names = updates, 2
    found = structure.regroup(seen, {})
    assert found is not None
    groups, models = found
    # Device 23 was never drawn: it goes with the larger side, the first of equals. Group 1 stays as it is.
    assert groups == {"1": [3], "3": [11, 17, 23], "4": [12, 19]}
    assert models["1"] == start
    # The sides start from their own averages.
    torch.testing.assert_close(env.store.table[models["3"]], torch.tensor([0.95, 0.05]).double())


def test_a_side_that_did_not_work_in_the_last_round_starts_from_the_cluster() -> None:
    env = FakeEnv(devices=[1, 2, 3, 4])
    start = env.store.put([0.0, 0.0])
    ends = {1: ([1.0, 0.0], 5), 2: ([0.9, 0.1], 5), 3: ([-1.0, 0.0], 4), 4: ([-0.9, -0.1], 4)}
    updates = {d: (start, env.store.put(v), r) for d, (v, r) in ends.items()}
    merged = env.store.put([0.5, 0.5])
    seen = view(env, {ALL: merged}, clock=10)
    structure = Bipartition(after=0, eps1=0.4, eps2=0.5)
    seen.state(structure).updates = updates
    found = structure.regroup(seen, {})
    assert found is not None
    torch.testing.assert_close(env.store.table[found[1]["1"]], torch.tensor([0.95, 0.05]).double())
    assert found[1]["2"] == merged
