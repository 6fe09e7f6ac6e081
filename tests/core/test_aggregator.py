"""The aggregator as a state machine: events in, actions out, no clock and no fleet behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from espalier.core.address import Address
from espalier.core.aggregator import Aggregator
from espalier.core.codec import pack, unpack
from espalier.core.messages import (
    Action,
    Arrange,
    Arrived,
    BeginRound,
    ChildJoined,
    ChildLeft,
    CloseCohort,
    Closed,
    Deadline,
    OpenCohorts,
    Order,
    Record,
    Send,
    Serve,
    SetDeadline,
    Started,
    Word,
)
from espalier.core.policies import (
    Arrangement,
    Assignment,
    Completion,
    HandDown,
    Merge,
    Pace,
    Rules,
    Selection,
    Structure,
    Survey,
)
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from tests.core.fakes import SmallFleet, answer, orders, reports

EDGE, CLOUD = 10, 20


@dataclass(frozen=True)
class Timed(Pace):
    """A barrier with a deadline of 5 s."""

    def deadline(self, view: View, work: Mapping[Address, Assignment]) -> float | None:
        return 5.0


@dataclass(frozen=True)
class Each(Pace):
    """A cohort of its own for each child."""

    def cohorts(self, view: View) -> Mapping[str, Sequence[Address]]:
        return {str(c): [c] for c in view.children}


def edge(pace: Pace, devices: int = 3, **rules: object) -> tuple[Aggregator, SmallFleet]:
    fleet = SmallFleet({**dict.fromkeys(range(devices), EDGE), EDGE: CLOUD})
    return Aggregator(EDGE, Rules(pace=pace, **rules), fleet), fleet  # type: ignore[arg-type]


def order(updates: int = 1, number: int = 1) -> Arrived:
    return Arrived(Order(number, CLOUD, EDGE, {"": Ref(0)}, updates, 7, 7, 0.0))


def opened(node: Aggregator, actions: list[Action], now: float) -> list[Action]:
    """Let the deadline that opens the next round strike at once."""
    for action in actions:
        if isinstance(action, SetDeadline) and isinstance(action.wake, OpenCohorts | BeginRound):
            return node.on(Deadline(action.wake), now)
    raise AssertionError(f"no next round in {actions}")


def test_a_barrier_waits_for_all_and_weighs_by_samples() -> None:
    node, fleet = edge(Pace(2))
    sent = orders(node.on(order(), 1.0))
    assert sorted(sent) == [0, 1, 2]
    assert all(o.updates == 2 and o.clock == 7 for o in sent.values())
    w = [fleet.store.number(x) for x in (1.0, 3.0, 5.0)]
    assert node.on(answer(sent[0], w[0], 1, 2.0), 2.0) == []
    assert node.on(answer(sent[2], w[2], 2, 3.0), 3.0) == []
    actions = node.on(answer(sent[1], w[1], 1, 4.0), 4.0)
    # (1·1 + 1·3 + 2·5) / 4 = 3.5
    (up,) = reports(actions)
    assert fleet.store.numbers[up.models[""]] == 3.5
    # all registered samples: 1 + 2 + 3
    assert up.samples == {"": 6}
    assert (up.order, up.dispatcher, up.to, up.compute) == (1, CLOUD, CLOUD, 3.0)
    assert Closed(1) in actions


def test_several_updates_before_a_report() -> None:
    node, fleet = edge(Pace(1), devices=1)
    actions = node.on(order(updates=3), 0.0)
    for turn in range(3):
        (sent,) = orders(actions).values()
        assert sent.round == turn
        actions = node.on(answer(sent, fleet.store.number(1.0), 1, turn + 1.0), turn + 1.0)
        assert bool(reports(actions)) == (turn == 2)
        if turn < 2:
            actions = opened(node, actions, turn + 1.0)


def test_a_deadline_closes_with_what_is_there_and_a_late_report_is_dropped() -> None:
    node, fleet = edge(Timed(1))
    actions = node.on(order(updates=2), 0.0)
    sent = orders(actions)
    assert SetDeadline(5.0, CloseCohort("", 0)) in actions
    node.on(answer(sent[0], fleet.store.number(4.0), 1, 1.0), 1.0)
    actions = node.on(Deadline(CloseCohort("", 0)), 5.0)
    assert fleet.store.numbers[node.state.models[""]] == 4.0
    # devices 1 and 2 are still at work: only 0 gets the next order
    again = orders(opened(node, actions, 5.0))
    assert sorted(again) == [0]
    dropped = node.on(answer(sent[1], fleet.store.number(9.0), 1, 6.0), 6.0)
    assert [a.data["why"] for a in dropped if isinstance(a, Record)] == ["late"]
    (up,) = reports(node.on(answer(again[0], fleet.store.number(5.0), 1, 7.0), 7.0))
    assert fleet.store.numbers[up.models[""]] == 5.0


def test_a_late_report_is_kept_where_the_pace_says_so_with_its_staleness() -> None:
    seen: list[tuple[int, int, bool]] = []

    @dataclass(frozen=True)
    class Kept(Timed):
        def learn(self, view: View, arrivals: Sequence[Arrival]) -> None:
            seen.extend((a.report.sender, a.staleness, a.stranger) for a in arrivals)

    node, fleet = edge(Kept(1, late="keep"))
    sent = orders(node.on(order(updates=5), 0.0))
    one = fleet.store.number(1.0)
    for device in (0, 1):
        node.on(answer(sent[device], one, 1, 1.0), 1.0)
    later = orders(opened(node, node.on(Deadline(CloseCohort("", 0)), 5.0), 5.0))
    assert sorted(later) == [0, 1]
    node.on(answer(later[0], one, 1, 6.0), 6.0)
    # device 2 was dispatched in round 0 and arrives in round 1: staleness 1
    node.on(answer(sent[2], one, 1, 7.0), 7.0)
    # a device that was dispatched elsewhere in that edge's round 0, and moved here meanwhile
    fleet.parents[5] = EDGE
    node.on(ChildJoined(5), 7.5)
    node.on(answer(replace(sent[2], to=5, id=99), one, 1, 8.0, dispatcher=11), 8.0)
    node.on(answer(later[1], one, 1, 9.0), 9.0)
    assert seen == [(0, 0, False), (1, 0, False), (0, 0, False), (2, 1, False), (5, 1, True), (1, 0, False)]


def test_if_nobody_is_there_at_the_deadline_the_first_report_closes() -> None:
    node, fleet = edge(Timed(1), devices=2)
    sent = orders(node.on(order(), 0.0))
    assert node.on(Deadline(CloseCohort("", 0)), 5.0) == []
    assert reports(node.on(answer(sent[1], fleet.store.number(2.0), 1, 6.0), 6.0))


@dataclass(frozen=True)
class AfterAnswer(HandDown):
    """The last round of an order is closed when the next order comes."""

    closed_by_next_order: ClassVar[Completion] = "last round"


def test_the_last_round_of_an_order_is_closed_with_the_next() -> None:
    node, fleet = edge(Pace(1), devices=1, hand_down=AfterAnswer())
    w = fleet.store.number(2.0)
    sent = orders(opened(node, node.on(order(updates=2), 0.0), 0.0))
    first = node.on(answer(sent[0], w, 1, 1.0), 1.0)
    assert Closed(1) in first
    sent = orders(opened(node, first, 1.0))
    second = node.on(answer(sent[0], w, 1, 2.0), 2.0)
    assert reports(second) and not any(isinstance(a, Closed) for a in second)
    merged = fleet.store.number(9.0)
    nxt = Arrived(Order(2, CLOUD, EDGE, {"": merged}, 2, 8, 8, 3.0))
    assert node.on(nxt, 3.0)[:2] == [Serve({"": merged}), Closed(2)]


def test_a_child_that_leaves_is_not_awaited() -> None:
    node, fleet = edge(Pace(1), devices=2)
    sent = orders(node.on(order(), 0.0))
    node.on(answer(sent[0], fleet.store.number(2.0), 1, 1.0), 1.0)
    del fleet.parents[1]
    assert reports(node.on(ChildLeft(1), 2.0))


def test_if_all_who_were_asked_leave_the_others_are_asked() -> None:
    node, fleet = edge(Pace(1), devices=4, selection=Selection(count=1))
    (first,) = orders(node.on(order(), 0.0))
    del fleet.parents[first]
    (second,) = orders(node.on(ChildLeft(first), 1.0))
    assert second != first


def test_an_empty_edge_says_so_and_wakes_when_a_device_joins() -> None:
    node, fleet = edge(Pace(1), devices=0)
    (empty,) = reports(node.on(order(), 0.0))
    assert empty.models == {} and empty.stats == {}
    fleet.parents[3] = EDGE
    (wake,) = node.on(ChildJoined(3), 5.0)
    assert isinstance(wake, Send) and isinstance(wake.message, Word)
    assert (wake.message.kind, wake.message.to) == ("awake", CLOUD)
    assert sorted(orders(node.on(order(number=2), 6.0))) == [3]


def test_a_root_does_not_wait_for_an_empty_edge_and_takes_it_back() -> None:
    fleet = SmallFleet({10: CLOUD, 11: CLOUD, 0: 10})
    root = Aggregator(CLOUD, Rules(pace=Pace(1)), fleet)
    actions = root.on(Started(), 0.0)
    assert isinstance(actions[0], Serve)
    sent = orders(actions)
    assert root.on(answer(sent[11], None, 0, 1.0), 1.0) == []
    actions = root.on(answer(sent[10], fleet.store.number(1.0), 1, 2.0), 2.0)
    assert sorted(orders(opened(root, actions, 2.0))) == [10]
    assert root.on(Arrived(Word("awake", 11, CLOUD, 3.0)), 3.0) == []
    waiting = root.state.cohorts[""].waiting
    (number,) = waiting.values()
    back = answer(replace(sent[10], id=number), fleet.store.number(2.0), 1, 4.0)
    assert sorted(orders(opened(root, root.on(back, 4.0), 4.0))) == [10, 11]


def test_a_stalled_root_goes_on_when_an_edge_wakes() -> None:
    fleet = SmallFleet({10: CLOUD})
    root = Aggregator(CLOUD, Rules(), fleet)
    sent = orders(root.on(Started(), 0.0))
    assert root.on(answer(sent[10], None, 0, 1.0), 1.0) == []
    assert sorted(orders(root.on(Arrived(Word("awake", 10, CLOUD, 9.0)), 9.0))) == [10]


def test_a_newer_order_replaces_an_older_one() -> None:
    node, fleet = edge(Pace(1), devices=1)
    (old,) = orders(node.on(order(), 0.0)).values()
    # device 0 is still out: the new round waits for its report, which then closes nothing old
    assert orders(node.on(order(number=2), 1.0)) == {}
    actions = node.on(answer(old, fleet.store.number(1.0), 1, 2.0), 2.0)
    (again,) = orders(actions).values()
    (up,) = reports(node.on(answer(again, fleet.store.number(8.0), 1, 3.0), 3.0))
    assert up.order == 2


def test_a_cohort_per_child_goes_on_without_the_others() -> None:
    fleet = SmallFleet({10: CLOUD, 11: CLOUD})
    root = Aggregator(CLOUD, Rules(pace=Each(1)), fleet)
    sent = orders(root.on(Started(), 0.0))
    actions = root.on(answer(sent[10], fleet.store.number(1.0), 1, 1.0), 1.0)
    # one arrival of two cohorts is no whole round yet
    assert Closed(0) in actions
    again = orders(opened(root, actions, 1.0))
    assert sorted(again) == [10]
    root.on(answer(again[10], fleet.store.number(2.0), 1, 2.0), 2.0)
    actions = root.on(answer(sent[11], fleet.store.number(3.0), 1, 3.0), 3.0)
    assert Closed(1) in actions


def test_a_survey_comes_before_the_round_and_its_answers_arrange_the_tree() -> None:
    @dataclass(frozen=True)
    class Sorted(Structure):
        def survey(self, view: View) -> Survey | None:
            return Survey("size") if view.round == 0 else None

        def arrange(self, view: View, answers: Mapping[Address, Arrival]) -> Arrangement | None:
            if not answers:
                return None
            groups = {d: "big" if a.report.stats["size"] > 1 else "" for d, a in answers.items()}
            return Arrangement(groups=groups, note={"why": "test"})

    fleet = SmallFleet({0: CLOUD, 1: CLOUD})
    root = Aggregator(CLOUD, Rules(structure=Sorted(flat=True)), fleet)
    asked = orders(root.on(Started(), 0.0))
    assert {o.ask for o in asked.values()} == {"size"}
    assert all(not o.models for o in asked.values())
    root.on(answer(asked[0], None, 0, 1.0, stats={"size": 1}), 1.0)
    actions = root.on(answer(asked[1], None, 0, 2.0, stats={"size": 2}), 2.0)
    (arranged,) = [a for a in actions if isinstance(a, Arrange)]
    assert arranged.groups == {0: "", 1: "big"}
    assert sorted(orders(opened(root, actions, 2.0))) == [0, 1]


def test_a_device_that_dies_during_a_survey_is_not_awaited() -> None:
    @dataclass(frozen=True)
    class Curious(Structure):
        def survey(self, view: View) -> Survey | None:
            return Survey("size") if view.round == 0 else None

    fleet = SmallFleet({0: CLOUD, 1: CLOUD})
    root = Aggregator(CLOUD, Rules(structure=Curious(flat=True)), fleet)
    asked = orders(root.on(Started(), 0.0))
    root.on(answer(asked[0], None, 0, 1.0, stats={"size": 1}), 1.0)
    del fleet.parents[1]
    assert sorted(orders(root.on(ChildLeft(1), 2.0))) == [0]


def test_the_state_is_plain_data() -> None:
    node, fleet = edge(Timed(1, late="keep"))
    sent = orders(node.on(order(updates=5), 0.0))
    node.on(answer(sent[0], fleet.store.number(1.0), 1, 1.0), 1.0)
    again = Aggregator(EDGE, node.rules, fleet, unpack(pack(node.state)))
    assert again.state == node.state
    first, second = node.on(Deadline(CloseCohort("", 0)), 5.0), again.on(Deadline(CloseCohort("", 0)), 5.0)
    assert [type(a) for a in first] == [type(a) for a in second]
    assert replace(node.state, models={}) == replace(again.state, models={})


class Noting(Merge):
    """Writes down who was merged, and how stale."""

    seen: list[tuple[Address, int]]

    def merge(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
        self.seen.append([(a.report.sender, a.staleness) for a in arrivals])  # type: ignore[arg-type]
        return super().merge(view, arrivals)


def noting() -> tuple[Noting, list[list[tuple[Address, int]]]]:
    seen: list[list[tuple[Address, int]]] = []
    merge = Noting()
    object.__setattr__(merge, "seen", seen)
    return merge, seen


def root(pace: Pace, devices: int, merge: Merge) -> Aggregator:
    fleet = SmallFleet(dict.fromkeys(range(devices), CLOUD))
    return Aggregator(CLOUD, Rules(pace=pace, merge=merge, structure=Structure(flat=True)), fleet)


def test_staleness_counts_the_merges_of_all_cohorts() -> None:
    # Devices 0 and 1 are cohorts of their own. Device 0 is merged twice while device 1 works: 1's report is 2 merges
    # old, and 0's next one, ordered before that merge, 1.
    merge, seen = noting()
    cloud = root(Each(), 2, merge)
    out = orders(cloud.on(Started(), 0.0))
    for now in (1.0, 2.0):
        cloud.on(answer(out[0], Ref(0), 1, now), now)
        out |= orders(cloud.on(Deadline(OpenCohorts()), now))
    cloud.on(answer(out[1], Ref(0), 2, 3.0), 3.0)
    cloud.on(answer(out[0], Ref(0), 1, 4.0), 4.0)
    assert seen == [[(0, 0)], [(0, 0)], [(1, 2)], [(0, 1)]]


def test_a_buffer_closes_a_round_after_so_many_reports() -> None:
    # Three devices at work, a buffer of 2. Devices 0 and 1 fill it; both are given the new model. Then 2 (which worked
    # on through the first merge: staleness 1) and 0 fill the next one.
    merge, seen = noting()
    cloud = root(Pace(buffer=2), 3, merge)
    out = orders(cloud.on(Started(), 0.0))
    assert set(out) == {0, 1, 2}
    assert not orders(cloud.on(answer(out[0], Ref(0), 1, 1.0), 1.0)), "who has reported waits for the merge"
    cloud.on(answer(out[1], Ref(0), 2, 2.0), 2.0)
    again = orders(cloud.on(Deadline(BeginRound()), 2.0))
    assert set(again) == {0, 1} and {o.round for o in again.values()} == {1}
    cloud.on(answer(out[2], Ref(0), 3, 3.0), 3.0)
    cloud.on(answer(again[0], Ref(0), 1, 4.0), 4.0)
    assert seen == [[(0, 0), (1, 0)], [(2, 1), (0, 0)]]


def test_a_buffer_that_admits_gives_work_at_once() -> None:
    merge, seen = noting()
    cloud = root(Pace(buffer=3, admits=True), 2, merge)
    out = orders(cloud.on(Started(), 0.0))
    first = orders(cloud.on(answer(out[0], Ref(0), 1, 1.0), 1.0))
    assert set(first) == {0}
    second = orders(cloud.on(answer(first[0], Ref(0), 1, 2.0), 2.0))
    cloud.on(answer(second[0], Ref(0), 1, 3.0), 3.0)
    assert seen == [[(0, 0), (0, 0), (0, 0)]], "a fast child may fill it alone"


def test_a_buffer_larger_than_the_fleet_closes_when_all_have_reported() -> None:
    merge, seen = noting()
    cloud = root(Pace(buffer=9), 2, merge)
    out = orders(cloud.on(Started(), 0.0))
    cloud.on(answer(out[0], Ref(0), 1, 1.0), 1.0)
    cloud.on(answer(out[1], Ref(0), 1, 2.0), 2.0)
    assert seen == [[(0, 0), (1, 0)]]


def test_an_edges_buffer_keeps_what_comes_between_two_orders() -> None:
    merge, seen = noting()
    node, _ = edge(Pace(buffer=1), 2, merge=merge)
    out = orders(node.on(order(), 0.0))
    (up,) = reports(node.on(answer(out[0], Ref(0), 1, 1.0), 1.0))
    assert up.to == CLOUD and node.on(answer(out[1], Ref(0), 2, 2.0), 2.0) == []
    (up,) = reports(node.on(order(number=2), 3.0))
    assert seen == [[(0, 0)], [(1, 1)]]


def test_auxiliary_vectors_are_merged_handed_down_and_reported() -> None:
    # Samples 1 and 2: (1·3 + 2·9) / 3 = 7. They are no models: nothing of them is served.
    node, fleet = edge(Pace(), 2)
    given = fleet.store.number(5.0)
    sent = replace(order().message, auxiliary={"c": given})
    out = orders(node.on(Arrived(sent), 0.0))
    assert all(o.auxiliary == {"c": given} for o in out.values())
    for child, value in ((0, 3.0), (1, 9.0)):
        said = {"auxiliary": {"c": fleet.store.number(value)}}
        actions = node.on(answer(out[child], Ref(0), child + 1, 1.0, **said), 1.0)
    (up,) = reports(actions)
    assert fleet.store.numbers[up.auxiliary["c"]] == 7.0
    assert [a.models for a in actions if isinstance(a, Serve)] == [{"": up.models[""]}]
    assert unpack(pack(node.state)) == node.state


@dataclass(frozen=True)
class Slowest(Selection, kind="test_slowest"):
    """Draws the child that was slowest, and notes every loss."""

    @dataclass(slots=True)
    class State:
        seconds: dict[Address, float] = field(default_factory=dict)
        losses: dict[Address, float] = field(default_factory=dict)

    def pick(self, view: View) -> list[Address]:
        known = view.state(self).seconds
        return [max(known, key=lambda c: known[c])] if known else list(view.children)

    def learn(self, view: View, arrivals: Sequence[Arrival]) -> None:
        state = view.state(self)
        state.seconds |= {a.report.sender: a.seconds for a in arrivals}
        state.losses |= {a.report.sender: view.loss(a) for a in arrivals}


def test_a_selection_sees_losses_and_times() -> None:
    # The order's way, the work and the report's way: 1 + 4 + (3 - 2) = 6 s; device 1 takes 2 + 4 + 1 = 7 s.
    fleet = SmallFleet(dict.fromkeys(range(2), CLOUD))
    rules = Rules(selection=Slowest(), structure=Structure(flat=True))
    cloud = Aggregator(CLOUD, rules, fleet)
    out = orders(cloud.on(Started(), 0.0))
    for child, way, loss in ((0, 1.0, None), (1, 2.0, 0.25)):
        said = answer(out[child], Ref(0), child + 1, 2.0, download=way, compute=4.0, loss=loss)
        cloud.on(said, 3.0)
    known = cloud.state.memory.state(rules.selection)  # type: ignore[arg-type, var-annotated]
    # what the report says, or else what the store knows of the training (the fake one's losses are 0)
    assert known.seconds == {0: 6.0, 1: 7.0} and known.losses == {0: 0.0, 1: 0.25}
    assert set(orders(cloud.on(Deadline(BeginRound()), 3.0))) == {1}
