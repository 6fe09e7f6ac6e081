"""An edge that has nobody to work gives its order back, and takes part again when it is told to."""

from __future__ import annotations

from dataclasses import replace

from espalier.core.aggregator import Aggregator
from espalier.core.messages import Arrived, ChildJoined, ChildLeft, Order, Send, Word
from espalier.core.policies import Pace, Rules
from espalier.core.store import Ref
from tests.core.fakes import SmallFleet, answer, orders, reports

EDGE, OTHER, CLOUD = 10, 11, 20


def order(number: int = 1) -> Arrived:
    return Arrived(Order(number, CLOUD, EDGE, {"": Ref(0)}, 1, 0, 0, 0.0))


def deserted(late: str) -> tuple[Aggregator, SmallFleet, Order]:
    """Return an edge whose only device left in the middle of a round, and the order that the device got."""
    fleet = SmallFleet({0: EDGE, EDGE: CLOUD})
    node = Aggregator(EDGE, Rules(pace=Pace(1, late=late)), fleet)  # type: ignore[arg-type]
    (sent,) = orders(node.on(order(), 0.0)).values()
    del fleet.parents[0]
    (empty,) = reports(node.on(ChildLeft(0), 1.0))
    assert empty.order == 1 and not empty.models
    return node, fleet, sent


def test_devices_that_come_meanwhile_wait_for_the_next_order() -> None:
    node, fleet, _ = deserted("drop")
    for device, says in ((3, 1), (4, 0)):
        fleet.parents[device] = EDGE
        actions = node.on(ChildJoined(device), 2.0)
        # the first one wakes the edge; nobody gets work of an order that was given back
        assert [a.message.kind for a in actions if isinstance(a, Send) and isinstance(a.message, Word)] == [
            "awake"
        ] * says
        assert not orders(actions)
    assert sorted(orders(node.on(order(2), 3.0))) == [3, 4]


def test_a_late_report_that_comes_meanwhile_wakes_it_and_is_merged_later() -> None:
    node, fleet, sent = deserted("keep")
    fleet.parents[5], fleet.at_work = EDGE, {5}
    node.on(ChildJoined(5), 2.0)
    # The newcomer is still at work for another edge: there is nobody to order, and the order goes back again.
    assert reports(node.on(order(2), 3.0))[0].order == 2
    fleet.at_work = set()
    report = answer(replace(sent, id=99), fleet.store.number(6.0), 6, 4.0, sender=5, dispatcher=OTHER)
    (awake,) = node.on(report, 4.0)
    assert isinstance(awake, Send) and isinstance(awake.message, Word)
    # With the third order the round has a report already and a device to order.
    (again,) = orders(node.on(order(3), 5.0)).values()
    (up,) = reports(node.on(answer(again, fleet.store.number(0.0), 6, 6.0), 6.0))
    # 6 samples each, the late one undiscounted here: (6 + 0) / 2
    assert up.order == 3 and fleet.store.numbers[up.models[""]] == 3.0
