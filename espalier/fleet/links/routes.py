"""Links and routes of one host: over which link a host is reached now, and who may speak over which link."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from espalier.fleet.links.link import Link, Traffic
from espalier.fleet.membership import Member


@dataclass(eq=False)
class Child:
    """A link from below: the child's address and name, and everybody known to be reached through it.

    ``joined``: it has said over this link that it is here.
    """

    address: int
    name: str
    role: str
    link: Link
    below: set[int] = field(default_factory=set)
    joined: bool = False


class RoutingTable:
    """Who is linked to this host, and where everybody below is."""

    def __init__(self, me: int = 0) -> None:
        self.me = me
        self.parent: Link | None = None
        self.children: dict[int, Child] = {}
        self.peers: dict[int, Link] = {}
        self._of_link: dict[Link, Child] = {}
        #: host -> the child it is reached through
        self._via: dict[int, int] = {}
        self._stamps: dict[int, int] = {}

    # -- links ---------------------------------------------------------------------------------------------

    def add(self, address: int, name: str, role: str, link: Link, stamp: int) -> Link | None:
        """A child has a new link; return the one it had, if any."""
        self._stamps[address] = max(stamp, self._stamps.get(address, -1))
        old = self.children.get(address)
        if old is not None:
            self._of_link.pop(old.link, None)
        child = Child(address, name, role, link, set() if old is None else old.below)
        self.children[address], self._of_link[link] = child, child
        return None if old is None else old.link

    def drop(self, link: Link) -> Child | None:
        """A child's link is over; return the child if it has no newer one."""
        child = self._of_link.pop(link, None)
        if child is None or self.children.get(child.address) is not child:
            return None
        del self.children[child.address]
        return child

    def child(self, link: Link) -> Child | None:
        """Return the child at the other end of a link."""
        return self._of_link.get(link)

    # -- routes ----------------------------------------------------------------------------------------------

    def route(self, host: int) -> Link | None:
        """Return the link that leads to a host: a peer's, a child's, or the one up."""
        if host in self.peers:
            return self.peers[host]
        if host in self._via:
            child = self.children.get(self._via[host])
            return None if child is None else child.link
        return self.parent

    def leads(self, link: Link, host: int) -> bool:
        """Whether what a host says may come over a link."""
        if link is self.parent:
            return host not in self._via
        if self.peers.get(host) is link:
            return True
        child = self._of_link.get(link)
        return child is not None and self._via.get(host) == child.address

    def learn(self, child: int, member: Member) -> tuple[bool, Link | None]:
        """A child says that a host is reached through it.

        Returns:
            Whether that is news, and the link over which the host was reached until now, if it is another one.
        """
        host = member.address
        if self._stamps.get(host, -1) > member.stamp and self._via.get(host) != child:
            return False, None
        before = self._via.get(host)
        moved = None
        if before is not None and before != child:
            moved = self.children[before].link if before in self.children else None
            if before in self.children:
                self.children[before].below.discard(host)
        self._via[host], self._stamps[host] = child, member.stamp
        if child in self.children:
            self.children[child].below.add(host)
        return True, moved

    def forget(self, host: int, *, through: int | None = None) -> bool:
        """A host is gone (said by the child it was reached ``through``); False if it is reached otherwise."""
        if through is not None and self._via.get(host) != through:
            return False
        via = self._via.pop(host, None)
        # who comes with its certificate and without its memory counts its links from the beginning
        self._stamps.pop(host, None)
        if via is not None and via in self.children:
            self.children[via].below.discard(host)
        return via is not None

    def below(self, child: int) -> set[int]:
        """Return every host that is reached through a child, the child included."""
        return {h for h, via in self._via.items() if via == child}

    def stamp(self, host: int) -> int:
        """Return the newest stamp heard of a host."""
        return self._stamps.get(host, -1)

    def recall(self, members: Iterable[Member]) -> None:
        """Remember who was below in an earlier incarnation; their links are yet to come."""
        known = {m.address: m for m in members if m.address != self.me}
        for member in known.values():
            child = member
            while child.via != self.me and child.via in known:
                child = known[child.via]
            self._via[member.address], self._stamps[member.address] = child.address, member.stamp


class SentBytes:
    """The bytes that a host has sent over all its links, those that are over included."""

    def __init__(self, routes: RoutingTable, role: str) -> None:
        self._routes, self._role = routes, role
        self._past: dict[tuple[str, str, str], int] = {}
        self._open: dict[Link, tuple[str, str]] = {}

    def total(self) -> dict[tuple[str, str, str], int]:
        """Return (tier, direction, kind) -> bytes."""
        routes = self._routes
        now: dict[Link, tuple[str, str]] = {}
        if routes.parent is not None:
            now[routes.parent] = ("dev-edge" if self._role == "device" else "edge-cloud", "up")
        for child in routes.children.values():
            now[child.link] = ("dev-edge" if child.role == "device" else "edge-cloud", "down")
        for link in routes.peers.values():
            now[link] = ("dev-dev", "peer")
        for link, key in list(self._open.items()):
            if link not in now:
                self._add(self._past, key, link.traffic)
                del self._open[link]
        self._open |= now
        total = dict(self._past)
        for link, key in self._open.items():
            self._add(total, key, link.traffic)
        return total

    def _add(self, total: dict[tuple[str, str, str], int], key: tuple[str, str], traffic: Traffic) -> None:
        for kind, count in (("model", traffic.models_out), ("ctrl", traffic.control_out)):
            if count:
                total[*key, kind] = total.get((*key, kind), 0) + count
