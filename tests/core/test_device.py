"""The device as a state machine: orders, questions, and what waits for what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from espalier.core.codec import pack, unpack
from espalier.core.device import Device
from espalier.core.messages import ALL, Arrived, Measure, Measured, Order, Send, Serve, Train, Trained
from espalier.core.policies import Contribution, Local, LocalView, Pace, Progress
from espalier.core.store import Ref
from tests.core.fakes import SmallFleet, reports

EDGE, OTHER, CLOUD = 10, 11, 20


def device() -> tuple[Device, SmallFleet]:
    fleet = SmallFleet({0: EDGE, EDGE: CLOUD, OTHER: CLOUD})
    return Device(0, Local(), Pace(), fleet), fleet


def order(number: int, sender: int = EDGE, ask: str | None = None) -> Arrived:
    return Arrived(Order(number, sender, 0, {} if ask else {"": Ref(0)}, 2, 0, 0, 0.0, ask=ask))


def test_it_trains_and_reports_to_its_parent_of_then() -> None:
    node, fleet = device()
    (train,) = node.on(order(1), 1.0)
    assert isinstance(train, Train) and train.updates == 2
    fleet.parents[0] = OTHER
    (report,) = reports(node.on(Trained(train.token, Ref(5), 3.0, 2), 4.0))
    assert (report.to, report.dispatcher, report.samples, report.download) == (OTHER, EDGE, {"": 1}, 1.0)
    assert node.idle


def test_a_question_waits_for_a_training() -> None:
    node, _ = device()
    (train,) = node.on(order(1), 0.0)
    assert node.on(order(2, CLOUD, "size"), 1.0) == []
    again = Device(0, node.local, node.pace, node.env, unpack(pack(node.state)))
    assert again.state == node.state
    done, asked = node.on(Trained(train.token, Ref(5), 3.0, 2), 3.0)
    assert isinstance(done, Send) and done.message.to == EDGE
    assert isinstance(asked, Measure) and asked.what == "size"
    (answer,) = reports(node.on(Measured(asked.token, {"size": 7}, 0.0), 3.0))
    assert (answer.to, answer.stats) == (CLOUD, {"size": 7})
    assert node.idle


def test_a_training_waits_for_a_question() -> None:
    node, _ = device()
    (asked,) = node.on(order(1, CLOUD, "size"), 0.0)
    assert node.on(order(2), 1.0) == []
    answer, train = node.on(Measured(asked.token, {"size": 7}, 2.0), 2.0)
    assert isinstance(answer, Send) and answer.message.to == CLOUD
    assert isinstance(train, Train)


def test_a_late_order_of_a_parent_it_has_left_does_not_displace_the_present_ones() -> None:
    node, fleet = device()
    fleet.parents[0] = OTHER
    (train,) = node.on(order(5, OTHER), 1.0)
    # sent by the edge before, overtaken on its way: were it taken, the present parent would wait for ever
    assert node.on(order(17, EDGE), 2.0) == []
    (report,) = reports(node.on(Trained(train.token, Ref(5), 3.0, 2), 4.0))
    assert (report.to, report.dispatcher, report.order) == (OTHER, OTHER, 5)


def test_a_newer_training_supersedes_and_the_old_ones_end_is_nothing() -> None:
    node, _ = device()
    (old,) = node.on(order(1), 0.0)
    (new,) = node.on(order(2), 1.0)
    assert node.on(Trained(old.token, Ref(5), 3.0, 2), 3.0) == []
    assert reports(node.on(Trained(new.token, Ref(6), 3.0, 2), 4.0))[0].order == 2
    # It is not forgotten: the next training must not get the number of one that may still end.
    assert not node.idle
    (third,) = node.on(order(3), 5.0)
    assert third.token not in (old.token, new.token)


@dataclass(frozen=True)
class TwoModels(Local, kind="test_two_models"):
    """A shared model and one of the device's own, which is pulled to what was received."""

    @dataclass(slots=True)
    class State:
        own: Ref | None = None

    def train(self, view: LocalView, order: Order) -> Train:
        return Train(start=order.models[ALL], updates=order.updates, name="shared")

    def then(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Train | None:
        if "own" in models:
            return None
        start = view.state(self).own
        received = order.models[ALL]
        return Train(start=received if start is None else start, updates=3, anchor=received, mu=0.5, name="own")

    def done(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Contribution:
        view.state(self).own = models["own"]
        change = view.env.store.combine([(1.0, models["shared"]), (-1.0, order.models[ALL])])
        return Contribution({ALL: models["shared"]}, {"n": 1}, {"change": change}, uses=models["own"])


def test_an_order_may_mean_several_trainings() -> None:
    fleet = SmallFleet({0: EDGE, EDGE: CLOUD})
    node = Device(0, TwoModels(), Pace(), fleet)
    shared, own = fleet.store.number(7.0), fleet.store.number(9.0)
    (first,) = node.on(order(1), 1.0)
    assert isinstance(first, Train) and (first.name, first.updates) == ("shared", 2)
    (second,) = node.on(Trained(first.token, shared, 3.0, 2), 4.0)
    assert isinstance(second, Train) and second.token != first.token
    assert (second.name, second.start, second.anchor, second.mu, second.updates) == ("own", Ref(0), Ref(0), 0.5, 3)
    node = Device(0, node.local, node.pace, node.env, unpack(pack(node.state)))
    serve, send = node.on(Trained(second.token, own, 5.0, 3), 9.0)
    assert serve == Serve({ALL: own})
    (report,) = reports([send])
    # the time is the sum of both, and so are the updates: 3 + 5 seconds, 2 + 3 updates
    assert (report.models, report.compute, report.updates, report.stats) == ({ALL: shared}, 8.0, 5, {"n": 1})
    assert fleet.store.numbers[report.auxiliary["change"]] == 7.0 - 0.0
    # its own model outlives the order, what was trained for the order does not
    assert not node.idle and not node.state.models
    node.on(order(2), 10.0)
    (again,) = node.on(Trained(node.state.token, shared, 3.0, 2), 13.0)
    assert isinstance(again, Train) and again.start == own


def test_a_child_that_decides_does_so_for_the_first_training() -> None:
    class UntilFour(Pace):
        def enough(self, progress: Progress) -> bool:
            return progress.spent >= 4.0

    fleet = SmallFleet({0: EDGE, EDGE: CLOUD})
    node = Device(0, TwoModels(), UntilFour(child_decides=True), fleet)
    (first,) = node.on(order(1), 0.0)
    (more,) = node.on(Trained(first.token, Ref(1), 2.0, 1), 2.0)
    assert isinstance(more, Train) and (more.name, more.start, more.optimizer_state) == ("shared", Ref(1), Ref(1))
    (own,) = node.on(Trained(more.token, Ref(2), 2.0, 1), 4.0)
    assert isinstance(own, Train) and (own.name, own.updates) == ("own", 3)
