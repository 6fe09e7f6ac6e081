"""The cloud's hand on the tree: who belongs where, who must be told, and since when.

A change of the tree takes effect host by host. Rounds open only when everybody concerned has confirmed it (or after
some seconds), so that nobody orders a child that another has already taken over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from espalier.core.address import Address, host_of, level_of
from espalier.core.messages import ALL, Arrange
from espalier.fleet.membership import Member
from espalier.fleet.node.engine import Engine
from espalier.record.database import Recorder


class Arranger:
    """Arranges the tree of one run. All is called in the engine's thread."""

    def __init__(self, engine: Engine, recorder: Recorder, plain: dict[str, Any]) -> None:
        """Go on from what :meth:`to_plain` said."""
        self._engine, self._recorder = engine, recorder
        #: devices on their way to another edge
        self._moving: dict[int, int] = plain.get("moving", {})
        #: who reported to whom when it was last written down
        self._parents: dict[Address, Address | None] = plain.get("parents", {})
        #: the edge where each device began
        self._homes: dict[int, int] = plain.get("homes", {})
        #: devices that know of the others
        self._introduced: set[int] = plain.get("introduced", set())

    def to_plain(self) -> dict[str, Any]:
        """Return all that must outlive the process."""
        return {
            "moving": self._moving, "parents": self._parents, "homes": self._homes, "introduced": self._introduced,
        }  # fmt: skip

    def hosts(self) -> list[int]:
        """Return everybody but the cloud."""
        return sorted(h for h in self._engine.directory.members if h != self._engine.me)

    # -- hosts that come and go ----------------------------------------------------------------------------------

    def changed(self, joined: Sequence[Member], gone: Sequence[int], started: bool) -> None:
        """Hosts came or went: tell those who have to do with them."""
        engine, directory = self._engine, self._engine.directory
        self.introduce(joined, gone, started)
        for member in joined:
            self._note_home(member)
            self._note_parent(member.address)
            if self._moving.get(member.address) == member.via:
                del self._moving[member.address]
                engine.settled(-1 - member.address, 1)
            if member.role == "edge" and directory.groups():
                engine.say(member.address, "groups", groups=directory.groups())
            parent = directory.parent(member.address)
            if parent is not None and member.address in directory.placed and host_of(parent) != engine.me:
                engine.say(host_of(parent), "new_incarnation", host=member.address)
        for host in gone:
            engine.lost(host)
            for node, parent in list(self._parents.items()):
                if parent is None:
                    continue
                if host_of(node) == host and host_of(parent) not in (host, engine.me):
                    engine.say(host_of(parent), "release", child=node)
                elif host_of(parent) == host != host_of(node) and level_of(parent) and directory.places_newcomers:
                    # its head is gone: back to where its link leads
                    engine.say(host_of(node), "place", node=node, parent=None)
                self._note_parent(node)

    def introduce(self, joined: Sequence[Member], gone: Sequence[int], started: bool) -> None:
        """Tell devices of each other, where they may have to do with each other."""
        engine, members = self._engine, self._engine.directory.members
        devices = {h: m for h, m in members.items() if m.role == "device"}
        if engine.directory.places_newcomers and not any(m.aggregates for m in devices.values()):
            return
        news = [m.to_plain() for m in joined if m.role == "device"]
        lost = [h for h in gone if engine.directory.is_device(h)]
        fresh = {m.address for m in joined if m.address not in self._introduced}
        for host in devices:
            known = host in self._introduced and host not in fresh
            told = news if known else [m.to_plain() for m in devices.values()]
            if started and (told or lost):
                engine.say(host, "roster", joined=told, gone=lost)
        self._introduced = set(devices) if started else set()

    def _note_parent(self, node: Address) -> None:
        tree = self._engine.directory.tree
        parent = tree.parent(node)
        if self._parents.get(node, -1) != parent:
            self._parents[node] = parent
            group = tree.group(node) if self._engine.directory.is_device(node) else ALL
            self._recorder.move(self._engine.now(), node, parent, group)

    def _note_home(self, member: Member) -> None:
        """Write down where a device begins; which labels it has nobody here knows."""
        if member.role != "device" or member.address in self._homes:
            return
        directory = self._engine.directory
        edge = member.via - directory.n_devices
        self._homes[member.address] = edge if 0 <= edge < directory.n_edges else 0
        cells = np.zeros(self._engine.manifest.card.n_cells, dtype="<i4").tobytes()
        self._recorder.devices([(member.address, self._homes[member.address], member.samples, cells)])

    # -- arrangements ------------------------------------------------------------------------------------------

    def arrange(self, node: Address, arrange: Arrange) -> None:
        """Change the tree and the groups; rounds open when everybody concerned has confirmed it."""
        engine, directory = self._engine, self._engine.directory
        for child, parent in arrange.parents.items():
            self._place(child, parent, node)
        if arrange.root is not None and arrange.root != directory.tree.root and self._is_followed(arrange.root):
            directory.tree.root = arrange.root
            for host in self.hosts():
                engine.say(host, "root", root=arrange.root)
        changed = {int(d): g for d, g in arrange.groups.items() if directory.group(d) != g}
        if changed:
            directory.set_groups(changed)
            for device, group in changed.items():
                self._recorder.move(engine.now(), device, directory.parent(device), group)
            heads = {host_of(p) for p in directory.placed.values()}
            for host in self.hosts():
                if host >= directory.n_devices or host in heads:
                    engine.settle(host, engine.say(host, "groups", groups=changed))

    def _is_followed(self, claimant: Address) -> bool:
        """Tell whether others have put themselves under a node that says it is the root, and under none more of them.

        Each device chooses its own place only: nobody becomes the root by its own word. Of two trees that meet, the
        larger one's root is the run's; roots say so again in every round.
        """
        directory = self._engine.directory
        devices = [host for host in directory.members if directory.is_device(host)]
        followers = Counter(self._top(device) for device in devices)
        least = 1 if len(devices) == 1 else 2
        return followers[claimant] >= least and followers[claimant] == max(followers.values())

    def _top(self, node: Address) -> Address:
        """Return the aggregator of a device at the top of a node's tree, or the node."""
        directory = self._engine.directory
        while (parent := directory.parent(node)) is not None and directory.is_device(host_of(parent)):
            node = parent
        return node

    def _place(self, node: Address, parent: Address | None, by: Address) -> None:
        """Put a node somewhere, and tell the hosts concerned (but not the one that chose it itself)."""
        engine, directory = self._engine, self._engine.directory
        old, member = directory.parent(node), directory.members.get(host_of(node))
        if old == parent or member is None:
            return
        over = directory.members.get(host_of(parent)) if parent is not None else None
        if over is not None and over.role == "edge" and level_of(node) == 0 and member.via != parent:
            # the link itself moves: the new edge greets it, and the old one hears of it
            self._moving[node] = over.address
            engine.settle(-1 - node, 1)
            number = engine.say(
                node, "place", node=node, parent=parent, endpoint=over.endpoint, name=over.name, relink=True
            )
            engine.settle(node, number)
            return
        engine.tell(directory.place(node, parent))
        self._note_parent(node)
        host = host_of(node)
        told: list[tuple[int, int]] = []
        endpoint, name = (over.endpoint, over.name) if over is not None else ("", "")
        if host not in (engine.me, host_of(by)):
            told.append((host, engine.say(host, "place", node=node, parent=parent, endpoint=endpoint, name=name)))
        if parent is not None and host_of(parent) not in (engine.me, host_of(by)):
            samples = directory.samples(node)
            told.append((host_of(parent), engine.say(
                host_of(parent), "adopt", child=node, parent=parent, samples=samples, name=member.name)))  # fmt: skip
        # a host that adopts a child for another of its nodes lets go of it by that alone
        heir = None if parent is None else host_of(parent)
        if old is not None and host_of(old) not in (engine.me, host, heir):
            told.append((host_of(old), engine.say(host_of(old), "release", child=node)))
        for dest, number in told:
            engine.settle(dest, number)
