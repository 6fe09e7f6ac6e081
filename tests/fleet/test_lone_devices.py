"""Devices that train alone on a fleet train in step, as they do in a simulation."""

from __future__ import annotations

from pathlib import Path

import pytest

from espalier.core.messages import Train
from tests.fleet.net import Net, manifest

ROUNDS, DEVICES = 4, 5


def trained_of(net: Net, device: int) -> int:
    """Return how often a device has trained: each training adds one to its own number."""
    return int(net.engines[device].store.vector(net.engines[device].served[device][""])[device])


def trained(net: Net) -> list[int]:
    return [trained_of(net, device) for device in range(DEVICES)]


def fast_first(net: Net, slow: int) -> list[int]:
    """Run a net in which one device works only when nobody else can; return the lead that others ever had over it."""
    leads = []
    for _ in range(20_000):
        if net.coordinator.finished:
            return leads
        mine = [(h, w) for h, w in net.jobs if h == slow and isinstance(w.action, Train)]
        rest = [(h, w) for h, w in net.jobs if (h, w) not in mine]
        if mine and (rest or net.wire):
            net.jobs = rest
            net.step()
            net.jobs += mine
        elif not net.step():
            net.idle()
        closed = net.coordinator.rounds.closed
        leads.append(max(closed.values(), default=0) - closed.get(slow, 0))
    raise AssertionError(f"not over: round {net.coordinator.round}")


def test_every_device_trains_as_often_as_the_slowest(quick: Path) -> None:
    net = Net(manifest(DEVICES, 2, ROUNDS, "standalone"), quick)
    assert max(fast_first(net, slow=3)) == 1
    assert net.coordinator.round == ROUNDS
    assert trained(net) == [ROUNDS] * DEVICES


@pytest.mark.parametrize("seed", range(6))
def test_in_step_whatever_happens_to_the_fleet(quick: Path, seed: int) -> None:
    net = Net(manifest(DEVICES, 2, ROUNDS, "standalone"), quick, seed, trouble=0.2)
    net.run()
    assert trained(net) == [ROUNDS] * DEVICES


def test_nobody_waits_for_a_device_that_is_gone(quick: Path) -> None:
    net = Net(manifest(DEVICES, 2, ROUNDS, "standalone"), quick)
    while len(net.coordinator.rounds.closed) < 2:
        net.step()
    slow = next(d for d in range(DEVICES) if d not in net.coordinator.rounds.closed)
    net.leave(slow)
    net.run()
    assert net.coordinator.round == ROUNDS


def test_a_device_that_comes_later_catches_up(quick: Path) -> None:
    net = Net(manifest(DEVICES, 2, ROUNDS, "standalone"), quick)
    net.leave(1)
    while net.coordinator.round < 2:
        net.step()
    net.incarnations[1] += 1
    net.kill(1, forget=True)
    net.join(1, net.edge_of(1), stamp=2)
    net.run()
    assert trained(net) == [ROUNDS] * DEVICES


def silent(net: Net, host: int, kind: type) -> None:
    """Run with somebody whose work never gets done."""
    for _ in range(20_000):
        if net.coordinator.finished:
            return
        net.jobs = [(h, w) for h, w in net.jobs if h != host or not isinstance(w.action, kind)]
        if not net.step():
            net.idle()
    raise AssertionError(f"not over: round {net.coordinator.round}")


def test_nobody_waits_for_ever_for_a_device_that_says_nothing(quick: Path) -> None:
    # linked, and at work for ever: no device began its second round
    net = Net(manifest(DEVICES, 2, ROUNDS, "standalone"), quick)
    silent(net, 3, Train)
    assert net.coordinator.round == ROUNDS
    assert [trained_of(net, d) for d in range(DEVICES) if d != 3] == [ROUNDS] * (DEVICES - 1)
    assert [e["children"] for e in net.events("overdue")] == [[3]]
    assert net.coordinator.bulletin.late == {3: 1}
