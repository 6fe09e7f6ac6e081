"""Rounds and surveys of a fixed length, answers that go back to whoever asked, rounds that end with the parent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from espalier.core.address import Address
from espalier.core.aggregator import SURVEY, Aggregator
from espalier.core.codec import pack, refs_in, unpack
from espalier.core.device import Device
from espalier.core.messages import (
    ALL,
    Arrived,
    CloseCohort,
    Closed,
    Deadline,
    OpenCohorts,
    Order,
    Part,
    Record,
    Serve,
    SetDeadline,
    Started,
    Train,
    Trained,
)
from espalier.core.policies import (
    Arrangement,
    Assignment,
    Completion,
    Contribution,
    HandDown,
    Local,
    LocalView,
    Merge,
    Pace,
    Rules,
    Structure,
    Survey,
)
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from tests.core.fakes import SmallFleet, answer, orders, reports

EDGE, CLOUD = 10, 20


@dataclass(frozen=True)
class Hour(Pace):
    """Rounds of exactly 60 s."""

    until_deadline: ClassVar[bool] = True

    def deadline(self, view: View, work: Mapping[Address, Assignment]) -> float | None:
        return 60.0


@dataclass(frozen=True)
class Counting(Merge):
    """Remembers how many reports it merged; keeps the model."""

    @dataclass
    class State:
        merged: list[int] = field(default_factory=list)

    def merge(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
        view.state(self).merged.append(len(arrivals))
        view.note("merged", reports=len(arrivals))
        return {}


@dataclass(frozen=True)
class Asking(Structure):
    """Surveys with a training before every round; arranges nothing."""

    @dataclass
    class State:
        answered: list[Address] = field(default_factory=list)

    seconds: float | None = None

    def survey(self, view: View) -> Survey | None:
        return Survey(None, updates=2, seconds=self.seconds)

    def arrange(self, view: View, answers: Mapping[Address, Arrival]) -> Arrangement | None:
        view.state(self).answered = sorted(answers)
        return None


def started(pace: Pace, structure: Structure | None = None) -> tuple[Aggregator, list[Any]]:
    fleet = SmallFleet({0: CLOUD, 1: CLOUD})
    rules = Rules(pace=pace, merge=Counting(), structure=structure or Structure(flat=True))
    root = Aggregator(CLOUD, rules, fleet)
    return root, root.on(Started(), 0.0)


def test_a_whole_round_waits_for_its_deadline_though_all_have_reported() -> None:
    root, actions = started(Hour())
    assert SetDeadline(60.0, CloseCohort("", 0)) in actions
    for device, order in orders(actions).items():
        assert root.on(answer(order, Ref(0), device + 1, 5.0), 5.0) == []
    closing = root.on(Deadline(CloseCohort("", 0)), 60.0)
    assert any(isinstance(a, Closed) for a in closing)
    assert root.state.memory.state(Counting()).merged == [2]


def test_a_whole_round_closes_even_if_nobody_has_reported() -> None:
    root, _ = started(Hour())
    closing = root.on(Deadline(CloseCohort("", 0)), 60.0)
    assert any(isinstance(a, Closed) for a in closing) and root.state.memory.state(Counting()).merged == [0]
    # what a policy notes is recorded at the node
    assert [a for a in closing if isinstance(a, Record)] == [Record("merged", {"reports": 0})]


def test_a_survey_of_fixed_length_ends_with_the_answers_that_are_there() -> None:
    root, actions = started(Pace(), Asking(flat=True, seconds=80.0))
    asked = orders(actions)
    assert SetDeadline(80.0, CloseCohort(SURVEY, 0)) in actions and all(
        o.back and o.updates == 2 for o in asked.values()
    )
    assert root.on(answer(asked[0], Ref(0), 1, 10.0), 10.0) == []
    opened = root.on(Deadline(CloseCohort(SURVEY, 0)), 80.0)
    assert root.state.memory.state(Asking()).answered == [0]
    assert set(orders(opened)) == {0}  # device 1 still owes its answer
    late = root.on(answer(asked[1], Ref(0), 2, 90.0), 90.0)
    assert isinstance(late[0], Record) and late[0].kind == "dropped"


def test_a_survey_that_all_have_answered_still_takes_its_time() -> None:
    root, actions = started(Pace(), Asking(flat=True, seconds=80.0))
    for device, order in orders(actions).items():
        assert root.on(answer(order, Ref(0), device + 1, 10.0), 10.0) == []
    assert set(orders(root.on(Deadline(CloseCohort(SURVEY, 0)), 80.0))) == {0, 1}


def test_a_survey_without_a_length_ends_with_the_last_answer() -> None:
    root, actions = started(Pace(), Asking(flat=True))
    asked = orders(actions)
    assert root.on(answer(asked[0], Ref(0), 1, 10.0), 10.0) == []
    assert set(orders(root.on(answer(asked[1], Ref(0), 2, 11.0), 11.0))) == {0, 1}


@dataclass(frozen=True)
class Cropped(Local):
    """Sends two numbers of its model when it is surveyed."""

    def done(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Contribution:
        cut = Contribution(stats={"crop": Part(models[""], ((3, 5),))})
        return cut if order.back else super().done(view, order, models)


def test_the_report_of_a_surveys_training_goes_to_whoever_asked() -> None:
    fleet = SmallFleet({0: EDGE, EDGE: CLOUD})
    device = Device(0, Cropped(), Pace(), fleet)
    for back, to in ((True, CLOUD), (False, EDGE)):
        order = Order(1, CLOUD, 0, {ALL: Ref(0)}, 1, 0, 0, 0.0, back=back)
        (train,) = device.on(Arrived(order), 0.0)
        assert isinstance(train, Train)
        (report,) = reports(device.on(Trained(train.token, Ref(7), 1.0, 1), 1.0))
        assert report.to == to
        assert report.models == ({} if back else {ALL: Ref(7)})


def test_a_part_of_a_model_keeps_it_alive_and_can_be_saved() -> None:
    part = Part(Ref(7), ((3, 5), (10, 14)))
    assert part.size == 6
    found: set[int] = set()
    refs_in({"crop": part}, found)
    assert found == {7}
    assert unpack(pack({"crop": part})) == {"crop": part}


@dataclass(frozen=True)
class Mixing(HandDown):
    """Rounds end when the parent's models have come back."""

    closed_by_next_order: ClassVar[Completion] = "order"


def test_a_round_may_end_with_the_parents_models() -> None:
    fleet = SmallFleet({0: EDGE, EDGE: CLOUD})
    edge = Aggregator(EDGE, Rules(hand_down=Mixing()), fleet)
    first = edge.on(Arrived(Order(1, CLOUD, EDGE, {ALL: Ref(0)}, 1, 0, 0, 0.0)), 0.0)
    assert not any(isinstance(a, Closed) for a in first)  # nothing is over yet
    done = edge.on(answer(orders(first)[0], Ref(0), 1, 5.0), 5.0)
    assert reports(done) and not any(isinstance(a, Closed) for a in done)
    second = edge.on(Arrived(Order(2, CLOUD, EDGE, {ALL: Ref(0)}, 1, 1, 1, 6.0)), 6.0)
    # the root's first round is over here; the next opens after the world has had its turn
    assert second == [Serve({ALL: Ref(0)}), Closed(1), SetDeadline(0.0, OpenCohorts())]
    assert set(orders(edge.on(Deadline(OpenCohorts()), 6.0))) == {0}
