"""Mixing by staleness, and limits on it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from espalier.core.aggregator import Aggregator
from espalier.core.messages import BeginRound, ChildLeft, Deadline, MeetCohorts, Record, SetDeadline, Started
from espalier.core.policies import Pace, Rules, Structure, Survey
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.experiment import Experiment
from espalier.methods.hiflash.staleness_control import Climbing, climb
from espalier.policies.asynchronous import VERSIONS, Asynchronous, Mixing, StalenessControl, mixing_rate
from espalier.simulator.runner import Runner
from espalier.simulator.simulation import Simulation
from espalier.testing import BASE
from tests.core.fakes import SmallFleet, answer, orders

CLOUD = 20


@dataclass(frozen=True)
class Fixed(StalenessControl):
    """A limit that never changes."""

    most: float = 0.0

    def limit(self, view: View) -> float:
        return self.most


def test_rate() -> None:
    # ½ · (1 + 3)^-½ = ¼
    assert mixing_rate(0.5, 3, 0.5) == 0.25
    assert mixing_rate(0.6, 0, 0.5) == 0.6
    assert mixing_rate(1.0, 7, 0.0) == 1.0


class Run:
    """A root with edges 10, 11, … whose models are numbers."""

    def __init__(self, merge: Mixing, edges: int = 2) -> None:
        self.fleet = SmallFleet(dict.fromkeys(range(10, 10 + edges), CLOUD))
        self.root = Aggregator(CLOUD, Rules(pace=Asynchronous(1), merge=merge), self.fleet)
        self.now = 0.0
        self.out = orders(self.root.on(Started(), 0.0))
        self.records: list[Record] = []

    def report(self, edge: int, value: float) -> float:
        """Let an edge report a number; return the model afterwards. The edge gets its next order."""
        self.now += 1.0
        actions = self.root.on(answer(self.out[edge], self.fleet.store.number(value), 1, self.now), self.now)
        self.records += [a for a in actions if isinstance(a, Record)]
        (again,) = [a for a in actions if isinstance(a, SetDeadline)]
        self.out |= orders(self.root.on(Deadline(again.wake), self.now))
        return self.fleet.store.numbers[self.root.state.models[""]]


def test_a_stale_report_is_mixed_in_with_less_weight() -> None:
    run = Run(Mixing(0.5, 0.5))
    # Edge 10 reports zeros three times: the model stays 0, but its version is 3.
    assert [run.report(10, 0.0) for _ in range(3)] == [0.0] * 3
    # Edge 11 still had version 0: staleness 3, rate ¼, 0 + ¼ · 4 = 1.
    assert run.report(11, 4.0) == 1.0
    # It got version 4 then, and nobody came between: rate ½, ½ · 1 + ½ · 4 = 2.5
    assert run.report(11, 4.0) == 2.5


def test_under_a_buffer_staleness_is_the_reports_own() -> None:
    # one place in the buffer: 10 reports three times while 11 works, so that 11's report is three merges old
    fleet = SmallFleet({10: CLOUD, 11: CLOUD})
    root = Aggregator(CLOUD, Rules(pace=Pace(1, buffer=1), merge=Mixing(0.5, 0.5)), fleet)
    out = orders(root.on(Started(), 0.0))
    for now in (1.0, 2.0, 3.0):
        root.on(answer(out[10], fleet.store.number(0.0), 1, now), now)
        out |= orders(root.on(Deadline(BeginRound()), now))
    root.on(answer(out[11], fleet.store.number(4.0), 1, 4.0), 4.0)
    # rate ½ · (1 + 3)^-½ = ¼: 0 + ¼ · 4
    assert fleet.store.numbers[root.state.models[""]] == 1.0


def test_one_edge_is_never_stale() -> None:
    run = Run(Mixing(0.5, 0.5, Fixed(0.0)), edges=1)
    assert [run.report(10, 8.0) for _ in range(3)] == [4.0, 6.0, 7.0]


def test_without_discount_the_last_edge_wins() -> None:
    run = Run(Mixing(1.0, 0.0))
    assert [run.report(10, 3.0), run.report(11, 5.0), run.report(10, 7.0)] == [3.0, 5.0, 7.0]


def test_what_is_too_stale_is_thrown_away_but_never_twice_in_a_row() -> None:
    run = Run(Mixing(0.5, 0.0, Fixed(1.0)))
    run.report(10, 0.0)
    run.report(10, 0.0)
    # staleness 2 exceeds 1: nothing changes, and the version stays 2
    assert run.report(11, 8.0) == 0.0
    assert [r.data["staleness"] for r in run.records if r.kind == "stale"] == [2]
    run.report(10, 0.0)
    run.report(10, 0.0)
    # again 2 too old, but it must be taken this time: 0 + ½ · 8
    assert run.report(11, 8.0) == 4.0
    run.report(10, 4.0)
    run.report(10, 4.0)
    assert run.report(11, 100.0) == 4.0


def test_a_child_that_has_left_is_forgotten_also_by_the_merge() -> None:
    run = Run(Mixing(0.5, 0.0, Fixed(0.0)))
    run.report(10, 0.0)
    run.report(11, 8.0)  # too stale: thrown away
    memory = run.root.state.memory
    assert memory.state(Mixing()).dropped == {11} and memory.product(VERSIONS).given == {10: 1, 11: 1}
    run.root.on(ChildLeft(11), 3.0)
    assert not memory.state(Mixing()).dropped and memory.product(VERSIONS).given == {10: 1}


@pytest.mark.parametrize(
    ("limit", "direction", "gain", "before", "expected"),
    [
        (5, 1, 0.2, None, (6, 1)),  # the first step just goes on
        (5, 1, 0.2, 0.2, (6, 1)),
        (5, 1, 0.1, 0.2, (4, -1)),  # it paid less: turn round
        (5, -1, 0.1, 0.2, (6, 1)),
        (10, 1, 0.3, 0.2, (10, 1)),  # at most 2M = 10
        (1, -1, 0.3, 0.2, (1, -1)),  # at least 1
    ],
)
def test_climbing(limit: int, direction: int, gain: float, before: float | None, expected: tuple[int, int]) -> None:
    assert climb(limit, direction, gain, before, 10) == expected


def test_the_climbing_limit_steps_every_so_many_arrivals() -> None:
    class Judged(SmallFleet):
        #: before the run, then at each step
        accuracies = iter((0.0, 0.4, 0.5))

        def accuracy(self, refs: object, where: str, node: int) -> list[float]:
            assert where == "proxy"
            return [next(self.accuracies)]

    run = Run(Mixing(control=Climbing()))
    run.fleet.__class__ = Judged
    run.report(10, 1.0)
    state = run.root.state.memory.state(Climbing())
    assert (state.limit, state.arrivals) == (2, 1)
    run.report(11, 1.0)
    # The clock of the first gain begins with the first arrival, at 1 s: (0.4 - 0) / (2 - 1) = 0.4; the limit goes up.
    assert (state.limit, state.gain) == (3, pytest.approx(0.4))
    run.report(10, 1.0)
    run.report(11, 1.0)
    # (0.5 - 0.4) / 2 s = 0.05, smoothed ½ · 0.05 + ½ · 0.4 = 0.225 < 0.4: turn round.
    assert (state.limit, state.gain, state.direction) == (2, pytest.approx(0.225), -1)


def test_a_control_sees_every_arrival() -> None:
    seen: list[tuple[int, int, bool]] = []

    @dataclass(frozen=True)
    class Watching(StalenessControl):
        def limit(self, view: View) -> float:
            return 0.0

        def observe(self, view: View, arrival: Arrival, staleness: int, kept: bool, models: Mapping[str, Ref]) -> None:
            seen.append((arrival.report.sender, staleness, kept))

    run = Run(Mixing(0.5, 0.5, Watching()))
    run.report(10, 1.0)
    run.report(11, 1.0)
    assert seen == [(10, 0, True), (11, 1, False)]
    assert StalenessControl().limit(None) == math.inf  # type: ignore[arg-type]


FLAT = {"name": "fedavg", "root": {"pace": {"kind": "asynchronous"}, "merge": {"kind": "mixing"}}}
CHURN = {**BASE["world"], "churn": {"kind": "two_state", "working": 0.7, "mean_stay": 20}}


def ran(method: dict[str, Any], **changes: Any) -> Simulation:
    table = {**BASE, "partition": {"kind": "iid"}, "record": {"checkpoint_seconds": None}, **changes}
    runner = Runner(Experiment.build(table).only(method, 0), None)
    runner.run()
    return runner.simulation


def test_a_report_costs_no_look_at_all_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of devices may report to one cloud: its cohorts are listed once per round of theirs, not per report."""
    looks: list[float] = []
    cohorts = Asynchronous.cohorts

    def counted(pace: Asynchronous, view: View) -> Mapping[str, Sequence[int]]:
        looks.append(view.now)
        return cohorts(pace, view)

    monkeypatch.setattr(Asynchronous, "cohorts", counted)
    simulation = ran(FLAT, fleet={"devices": 40, "edges": 1}, stop={"rounds": 3})
    assert simulation.runtime.numbers.trainings.sum() > 100
    assert len(looks) <= 5


@pytest.mark.parametrize(
    "method", [FLAT, {"name": "hiflash"}, {"name": "fedat"}, {"name": "flhc", "after": 2, "every": 2}]
)
def test_rounds_are_counted_of_those_who_are_there(method: dict[str, Any]) -> None:
    simulation = ran(method, fleet={"devices": 20, "edges": 4}, world=CHURN, stop={"rounds": 8})
    assert simulation.recorder.connection.execute("SELECT count(*) FROM events WHERE kind = 'gone'").fetchone()[0] > 5
    for node in simulation.nodes.values():
        if isinstance(node, Aggregator):
            assert node.state.cohort_rounds == sum(c.round for c in node.state.cohorts.values())
            for child, out in node.state.tickets.items():
                assert out and simulation.fleet.parent(child) == node.me


def test_children_that_meet_do_not_wait_for_who_is_gone() -> None:
    fleet = SmallFleet({10: CLOUD, 11: CLOUD})
    root = Aggregator(CLOUD, Rules(pace=Asynchronous(1, meet=1), merge=Mixing(1.0, 0.0)), fleet)
    out = orders(root.on(Started(), 0.0))
    # 10 has reported and waits for 11, which leaves: 10 goes on.
    root.on(answer(out[10], fleet.store.number(3.0), 1, 1.0), 1.0)
    assert orders(root.on(Deadline(MeetCohorts()), 1.0)) == {}
    fleet.parents.pop(11)
    (again,) = [a for a in root.on(ChildLeft(11), 2.0) if isinstance(a, SetDeadline)]
    assert orders(root.on(Deadline(again.wake), 2.0)).keys() == {10}


def test_a_survey_does_not_wait_for_who_is_gone() -> None:
    """A cloud of asynchronous edges asks devices, which are nobody's cohort there."""

    @dataclass(frozen=True)
    class Asking(Structure):
        def survey(self, view: View) -> Survey | None:
            return Survey("size") if view.round == 0 else None

    fleet = SmallFleet({0: 10, 1: 10, 10: CLOUD})
    root = Aggregator(CLOUD, Rules(pace=Asynchronous(1), merge=Mixing(1.0, 0.0), structure=Asking()), fleet)
    asked = orders(root.on(Started(), 0.0))
    assert asked.keys() == {0, 1}
    assert root.on(answer(asked[0], None, 0, 1.0, stats={"size": 1}), 1.0) == []
    fleet.parents.pop(1)
    assert orders(root.on(ChildLeft(1), 2.0)).keys() == {10}


@pytest.mark.parametrize("name", ["hiflash", "feduc"])
def test_devices_that_leave_while_they_are_asked_stop_nobody(name: str) -> None:
    churn = {"kind": "two_state", "working": 0.5, "mean_stay": 4}
    world = {**BASE["world"], "churn": churn, "links": {"kind": "uniform", "latency": 0.5}}
    simulation = ran({"name": name, "reach": "all"}, fleet={"devices": 20, "edges": 4}, world=world, stop={"rounds": 5})
    assert simulation.round == 5
