from __future__ import annotations

import asyncio

import pytest

from espalier.core.errors import ConfigError
from espalier.fleet.coordinator.enrolment import Registry
from espalier.fleet.links.link import Link
from espalier.fleet.links.routes import RoutingTable
from espalier.fleet.membership import Member


def member(address: int, via: int, stamp: int = 1) -> Member:
    return Member(address, f"n{address}", "device", 1, stamp, via)


@pytest.fixture
def links() -> dict[str, Link]:
    async def make() -> dict[str, Link]:
        return {name: Link(name) for name in ("up", "a", "b", "peer")}

    return asyncio.run(make())


def test_a_cloud_reaches_a_device_through_its_edge_and_follows_it(links: dict[str, Link]) -> None:
    roster = RoutingTable(9)
    for address, name in ((5, "a"), (6, "b")):
        roster.add(address, name, "edge", links[name], 1)
        roster.learn(address, Member(address, name, "edge", 1, 1, 9))
    assert roster.learn(5, member(0, 5)) == (True, None)
    assert roster.route(0) is links["a"]
    assert roster.leads(links["a"], 0)
    assert not roster.leads(links["b"], 0), "nobody speaks for a host that is elsewhere"
    # it moves: the old way is told, what it still says over the old way does not count
    assert roster.learn(6, member(0, 6, stamp=2)) == (True, links["a"])
    assert roster.route(0) is links["b"]
    assert roster.learn(5, member(0, 5, stamp=1)) == (False, None), "old news"
    assert not roster.forget(0, through=5)
    assert roster.forget(0, through=6)
    assert roster.route(0) is None


def test_who_comes_back_without_its_memory_is_known_again(links: dict[str, Link]) -> None:
    # one that had made more links before was linked and not there, until the run's end: whoever had stolen its key, and
    # told of 2^64 links, kept the one that replaced it out also after he was revoked
    roster = RoutingTable(5)
    roster.add(0, "d0", "device", links["a"], 1)
    assert roster.learn(0, member(0, 5, stamp=(1 << 64) - 1)) == (True, None)
    roster.drop(links["a"])
    assert roster.forget(0, through=0)
    roster.add(0, "d0", "device", links["b"], 1)
    assert roster.learn(0, member(0, 5, stamp=2)) == (True, None)


def test_an_edge_sends_up_what_is_not_below(links: dict[str, Link]) -> None:
    roster = RoutingTable(5)
    roster.parent = links["up"]
    roster.add(0, "d0", "device", links["a"], 1)
    roster.learn(0, member(0, 5))
    assert roster.route(1) is links["up"]
    assert roster.leads(links["up"], 1)
    assert not roster.leads(links["up"], 0)
    # a lost child is not looked for elsewhere while it is waited for
    child = roster.drop(links["a"])
    assert child is not None
    assert child.address == 0
    assert roster.route(0) is None
    roster.peers[7] = links["peer"]
    assert roster.route(7) is links["peer"]
    assert roster.leads(links["peer"], 7)
    assert not roster.leads(links["peer"], 8)


def test_a_newer_link_replaces_the_one_before(links: dict[str, Link]) -> None:
    roster = RoutingTable(5)
    assert roster.add(0, "d0", "device", links["a"], 1) is None
    assert roster.add(0, "d0", "device", links["b"], 2) is links["a"]
    assert roster.drop(links["a"]) is None, "the old link's end is not the child's"
    assert roster.child(links["b"]) is not None


def test_who_was_below_is_remembered(links: dict[str, Link]) -> None:
    roster = RoutingTable(9)
    roster.recall([member(9, 9), member(5, 9), member(0, 5), member(1, 0)])
    assert roster.below(5) == {0, 1, 5}


def test_numbers_are_given_once_and_for_all() -> None:
    registry = Registry(3, 5)
    assert registry.enrol("d2", "device", 2) == 2
    assert registry.enrol("other", "device", 2) == 0, "the wish is taken"
    assert registry.enrol("d2", "device") == 2
    # edges are 3 and 4, the cloud is 5, servers above the edges follow
    assert [registry.enrol(f"e{i}", "edge", i) for i in (1, 0, 2, 3)] == [4, 3, 6, 7]
    assert registry.enrol("e9", "edge") == 8
    assert registry.enrol("last", "device") == 1
    with pytest.raises(ConfigError, match=r"All 3 devices of fleet\.devices have enrolled"):
        registry.enrol("one too many", "device")
    with pytest.raises(ConfigError, match="was enrolled as a device and comes back as a edge"):
        registry.enrol("d2", "edge")
    with pytest.raises(ConfigError, match="devices and edges may join"):
        registry.enrol("me too", "cloud")
    assert Registry(3, 5, registry.known).enrol("other", "device", 1) == 0


def test_only_listed_names_may_join() -> None:
    registry = Registry(3, 5)
    registry.allowed = frozenset({"d0"})
    assert registry.enrol("d0", "device") == 0
    with pytest.raises(ConfigError, match="not on the list"):
        registry.enrol("d1", "device")
