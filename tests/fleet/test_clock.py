"""Fleet time: it never goes back, also over a restart."""

from __future__ import annotations

import time
from pathlib import Path

from espalier.fleet.node.clock import FleetClock
from espalier.fleet.node.journal import Journal
from tests.fleet.net import Net, manifest


def test_a_clock_goes_on_from_its_earlier_life_until_its_parent_tells_the_time() -> None:
    clock = FleetClock()
    clock.resume(100.0)
    assert 100.0 <= clock.now() < 101.0
    clock.heard(250.0, sent=time.monotonic())
    assert 250.0 <= clock.now() < 251.0


def test_a_clock_that_was_ahead_stands_still_rather_than_going_back() -> None:
    clock = FleetClock()
    clock.resume(100.0)
    clock.heard(40.0, sent=time.monotonic())
    assert clock.now() == clock.now() == 100.0


def test_the_cloud_does_not_go_back_when_its_systems_clock_was_set_back() -> None:
    clock = FleetClock()
    clock.resume(100.0)
    clock.begin(time.time() - 40.0)
    assert clock.now() == 100.0


def test_every_transaction_keeps_the_time(quick: Path) -> None:
    # An edge that forgot it said that its devices had taken less than no time, and the cloud refused its report.
    net = Net(manifest(4, 2, 2), quick)
    net.run()
    edge = net.engines[4]
    assert isinstance(edge.journal, Journal)
    assert 0 < edge.journal.get("now") <= edge.now()
