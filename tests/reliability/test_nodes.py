"""What nodes do so that nobody waits for ever: restarts, overtaken orders, newcomers, questions that are not lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from espalier.core.aggregator import Aggregator
from espalier.core.device import Device
from espalier.core.messages import ALL, Arrived, ChildJoined, Measure, Order, Serve, Started, Train, Trained
from espalier.core.policies import Local, Pace, Rules
from tests.core.fakes import SmallFleet, answer, orders, reports

ROOT, EDGE = 20, 11


def order(number: int, sender: int = ROOT, to: int = EDGE, **changes: Any) -> Order:
    found = Order(number, sender, to, {ALL: 0}, 1, 0, 0, 0.0)  # type: ignore[dict-item]
    return replace(found, models={ALL: SmallFleet({}).store.initial()}, **changes)


def test_a_root_that_lost_its_state_goes_on_from_what_it_served() -> None:
    fleet = SmallFleet({0: ROOT, 1: ROOT})
    served = fleet.store.number(7.0)
    root = Aggregator(ROOT, Rules(), fleet)
    actions = root.on(Started({ALL: served}, progress=5, incarnation=1), 3.0)
    assert actions[0] == Serve({ALL: served})
    out = orders(actions)
    assert {o.models[ALL] for o in out.values()} == {served}
    assert all(o.clock == 5 for o in out.values())
    # It counts on: the round that closes next is the sixth.
    for device in (0, 1):
        root.on(answer(out[device], fleet.store.number(1.0), device + 1, 4.0), 4.0)
    assert root.state.progress == 6


def test_no_number_of_an_earlier_life_is_used_again() -> None:
    fleet = SmallFleet({0: ROOT, 1: ROOT})
    old = orders(Aggregator(ROOT, Rules(), fleet).on(Started(), 0.0))
    root = Aggregator(ROOT, Rules(), fleet)
    new = orders(root.on(Started({}, 0, incarnation=1), 1.0))
    assert not {o.id for o in old.values()} & {o.id for o in new.values()}
    # A report that answers the old order is not taken for an answer to the new one.
    root.on(answer(old[0], fleet.store.number(9.0), 1, 2.0), 2.0)
    assert root.state.cohorts[""].waiting.keys() == {0, 1}


def test_an_edge_that_lost_its_state_waits_for_its_parent() -> None:
    fleet = SmallFleet({0: EDGE, EDGE: ROOT})
    edge = Aggregator(EDGE, Rules(), fleet)
    served = fleet.store.number(3.0)
    assert edge.on(Started({ALL: served}, 4, 1), 0.0) == []
    assert edge.state.models == {ALL: served}
    assert edge.state.progress == 4


def test_an_order_that_was_overtaken_is_ignored() -> None:
    fleet = SmallFleet({0: EDGE, EDGE: ROOT})
    edge = Aggregator(EDGE, Rules(), fleet)
    assert orders(edge.on(Arrived(order(6)), 1.0))
    assert edge.on(Arrived(order(3)), 2.0) == []
    assert edge.state.order is not None and edge.state.order.id == 6
    # Another sender's numbers say nothing.
    assert order(3, sender=30).supersedes(order(6))
    device = Device(0, Local(), Pace(), fleet)
    device.on(Arrived(order(6, EDGE, 0)), 1.0)
    assert device.on(Arrived(order(3, EDGE, 0)), 2.0) == []


def test_a_survey_is_not_lost_to_an_order() -> None:
    fleet = SmallFleet({0: EDGE, EDGE: ROOT})
    device = Device(0, Local(), Pace(), fleet)
    (survey,) = device.on(Arrived(order(1, ROOT, 0, back=True)), 0.0)
    assert isinstance(survey, Train)
    assert device.on(Arrived(order(1, EDGE, 0)), 1.0) == []  # it waits
    done = device.on(Trained(survey.token, fleet.store.number(1.0), 1.0, 1), 2.0)
    assert reports(done)[0].to == ROOT
    assert any(isinstance(action, Train) for action in done)  # and now it is the order's turn
    (question,) = Device(1, Local(), Pace(), fleet).on(Arrived(order(1, ROOT, 1, ask="losses", back=True)), 0.0)
    assert isinstance(question, Measure)


@pytest.mark.parametrize("admits", [True, False])
def test_newcomers_in_an_endless_round(admits: bool) -> None:
    fleet = SmallFleet({EDGE: ROOT})
    root = Aggregator(ROOT, Rules(pace=Pace(2**31 - 1, admits=admits)), fleet)
    assert list(orders(root.on(Started(), 0.0))) == [EDGE]
    fleet.parents[12] = ROOT
    assert list(orders(root.on(ChildJoined(12), 5.0))) == ([12] if admits else [])
    # Whoever has an order gets no second one.
    assert orders(root.on(ChildJoined(12), 6.0)) == {}
