from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from espalier.core.address import role
from espalier.core.errors import ConfigError
from espalier.core.messages import ChildJoined, ChildLeft
from espalier.fleet.membership import Member
from espalier.fleet.node.environment import Directory
from espalier.settings import Training

# four devices 0 … 3, edges 4 and 5, the cloud is 6
N, E, CLOUD = 4, 2, 6


def directory(me: int, flat: bool = False, batches: int = 1) -> Directory:
    store: Any = None
    return Directory(
        me, N, E, 0, cloud=CLOUD, flat=flat, places_newcomers=True,
        store=store, judge=lambda refs, where, node, what: [],
        training=Training(updates=1, unit="epoch", batch_size=-(-10 // batches)),
    )  # fmt: skip


def device(number: int, via: int, stamp: int = 1, incarnation: int = 1, **more: Any) -> Member:
    return Member(number, f"d{number}", "device", incarnation, stamp, via, 10 * (number + 1), **more)


def edge(number: int) -> Member:
    return Member(number, f"e{number}", "edge", 1, 1, CLOUD)


def test_an_edge_hears_of_its_own_children_only() -> None:
    one = directory(4)
    one.attach(4, CLOUD)
    assert one.joined(device(0, 4)) == [(4, ChildJoined(0))]
    assert one.joined(device(0, 4, stamp=2)) == [], "it greets again"
    assert one.joined(device(1, 4)) == [(4, ChildJoined(1))]
    assert one.children(4) == [0, 1]
    assert one.samples(4) == 10 + 20
    assert one.gone(0) == [(4, ChildLeft(0))]
    assert one.samples(4) == 20
    assert one.gone(0) == []


def test_the_cloud_knows_everybody() -> None:
    one = directory(CLOUD)
    assert one.joined(edge(4)) == [(CLOUD, ChildJoined(4))]
    one.joined(edge(5))
    for number in range(4):
        assert one.joined(device(number, 4 + number % 2)) == []
    assert one.devices() == [0, 1, 2, 3]
    assert (one.samples(4), one.samples(5), one.samples(CLOUD)) == (40, 60, 100)
    # it moves, and its samples with it
    assert one.joined(device(0, 5, stamp=2)) == []
    assert (one.samples(4), one.samples(5)) == (30, 70)
    assert one.joined(device(0, 4, stamp=1)) == [], "old news"
    assert one.parent(0) == 5
    # an edge that is gone takes its devices with it; the root need not wait for their answers either
    told = one.gone(5)
    assert (CLOUD, ChildLeft(5)) in told
    assert {(CLOUD, ChildLeft(d)) for d in (0, 1, 3)} <= set(told)
    assert one.devices() == [2]


def test_flat_devices_report_to_the_cloud() -> None:
    one = directory(CLOUD, flat=True)
    assert one.joined(edge(4)) == []
    assert one.joined(device(0, 4)) == [(CLOUD, ChildJoined(0))]
    assert one.children(CLOUD) == [0]


def test_one_that_forgot_everything_is_gone_and_come_again() -> None:
    one = directory(4)
    one.joined(device(0, 4))
    assert one.joined(device(0, 4, stamp=1, incarnation=2)) == [(4, ChildLeft(0)), (4, ChildJoined(0))]


def test_an_arrangement_puts_a_device_under_another() -> None:
    one = directory(CLOUD)
    for member in (edge(4), edge(5), *(device(n, 4) for n in range(3))):
        one.joined(member)
    head = role(1, 1)
    assert one.place(head, CLOUD) == [(CLOUD, ChildJoined(head))]
    assert one.place(0, head) == []
    assert one.place(1, head) == []
    assert (one.samples(head), one.samples(4)) == (10 + 20, 30)
    one.joined(device(0, 5, stamp=2))
    assert one.parent(0) == head, "a link that moves does not change the arrangement"
    # the head dies: its role with it, its children are back under their links' parents
    told = one.gone(1)
    assert (CLOUD, ChildLeft(head)) in told
    assert one.parent(0) == 5
    assert one.place(2, None) == []


def test_who_is_busy() -> None:
    one = directory(4)
    one.joined(device(0, 4, busy=True))
    assert one.busy(0)
    one.joined(device(0, 4, stamp=2))
    assert not one.busy(0)


def test_places_speeds_and_links_are_measured() -> None:
    one = directory(CLOUD, batches=3)
    for member in (edge(4), device(0, 4, seconds_per_batch=0.5, model_seconds=0.2), device(1, 4, model_seconds=0.3)):
        one.joined(member)
    assert one.places.cloud == CLOUD
    assert one.places.edges() == [4]
    assert one.places.edge_of(0) == 4
    assert one.places.neighbours(0) == [1]
    assert one.places.answers(1) and not one.places.answers(3)
    assert one.speeds.batch_time(0, 0.0) == 0.5
    assert one.speeds.update_time(0, 0.0) == 1.5
    assert one.links.model_time(0, 4, 0.0) == 0.2
    assert one.links.model_time(4, 1, 0.0) == 0.3
    # between two devices: up and down, unless somebody measured the way itself
    assert one.links.model_time(0, 1, 0.0) == 0.5
    one.measured[0, 1] = 0.05
    np.testing.assert_allclose(one.links.delays([0, 1]), [[0, 0.05], [0.5, 0]])
    with pytest.raises(ConfigError, match="node 1"):
        one.trials.pretraining_accuracy(1, 1)


def test_it_is_saved_and_restored(tmp_path: Path) -> None:
    one = directory(CLOUD)
    for member in (edge(4), *(device(n, 4, busy=n == 2) for n in range(4))):
        one.joined(member)
    one.place(role(1, 1), CLOUD)
    one.place(0, role(1, 1))
    one.set_groups({2: "blue"})
    again = directory(CLOUD)
    again.restore(one.save())
    assert again.save() == one.save()
    assert again.children(CLOUD) == one.children(CLOUD)
    assert again.group(2) == "blue"
    assert again.samples(CLOUD) == 100
    assert again.busy(2)
