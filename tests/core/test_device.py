"""The device as a state machine: orders, questions, and what waits for what."""

from __future__ import annotations

from espalier.core.codec import pack, unpack
from espalier.core.device import Device
from espalier.core.messages import Arrived, Measure, Measured, Order, Send, Train, Trained
from espalier.core.policies import Local, Pace
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
