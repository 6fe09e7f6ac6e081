"""What a host knows of the fleet: its part of the tree, greetings from below, groups from above.

It is the deployed :class:`~espalier.core.policies.Environment`. A host knows everybody below it (each greeting
travels up to the cloud), its parent, and what the cloud told it. Who *reports* to whom is by default who is linked
to whom; a flat structure makes every device report to the cloud, an arrangement may place any node under any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from espalier.core.address import Address, host_of, level_of
from espalier.core.errors import ConfigError, ProtocolError
from espalier.core.messages import ALL, ChildJoined, ChildLeft, Event
from espalier.core.seeds import stream
from espalier.core.store import ModelStore, Ref
from espalier.core.tree import NOBODY, Tree
from espalier.fleet.membership import Member
from espalier.fleet.node.trainer import system_rng

#: draws that whoever knows the run's seed must not be able to repeat (`espalier.policies.privacy`)
SECRET = ("private", "privacy")
#: events for nodes of this host
Told = list[tuple[Address, Event]]
#: evaluates models on a node's own set: (models, which set, node, "accuracy" or "loss")
Judge = Callable[[Sequence[Ref], str, Address, str], list[float]]


class Directory:
    """One host's view of the fleet."""

    def __init__(
        self,
        me: int,
        n_devices: int,
        n_edges: int,
        seed: int,
        *,
        cloud: int,
        flat: bool,
        plants: bool,
        store: ModelStore,
        judge: Judge,
    ) -> None:
        self.me, self.n_devices, self.n_edges, self.seed = me, n_devices, n_edges, seed
        self.cloud, self.flat, self.plants = cloud, flat, plants
        self._store, self._judge = store, judge
        self.tree = Tree(np.zeros(n_devices, dtype=np.int64), self.cloud)
        #: everybody below, and this host itself
        self.members: dict[int, Member] = {}
        #: nodes that an arrangement put somewhere else than under their link's parent
        self.placed: dict[Address, Address] = {}
        #: other devices of the fleet, as the cloud told: who they are and how they are reached
        self.others: dict[int, Member] = {}
        self.at_work: set[int] = set()
        #: who can tell further facts, by name
        self.tellers: dict[str, Callable[..., Any]] = {}
        #: mini-batches of one update on so many samples; set by the engine
        self.batches: Callable[[int], int] = lambda samples: 1
        #: what somebody told about links between devices: (from, to) -> seconds for a model
        self.measured: dict[tuple[int, int], float] = {}

    # -- changes -------------------------------------------------------------------------------------------

    def joined(self, member: Member) -> Told:
        """A host greeted, for the first time or again; return what nodes of this host must be told."""
        host, old = member.address, self.members.get(member.address)
        if old is not None and old.stamp > member.stamp and old.life == member.life:
            return []
        told: Told = []
        if old is not None and old.life != member.life:
            # It came back without its memory: whoever waits for it need not.
            told += self.gone(host)
        self.members[host] = member
        (self.at_work.add if member.busy else self.at_work.discard)(host)
        if self.is_device(host) and int(self.tree.samples[host]) != member.samples:
            parent = self.tree.parent(host)
            self.tree.attach(host, None)
            self.tree.samples[host] = member.samples
            self.tree.attach(host, parent)
        return told + self.attach(host, self._home(member))

    def home(self, host: int, via: int) -> Address | None:
        """Return to whom a host reports whose link leads to ``via``."""
        if host in self.placed:
            return self.placed[host]
        if not self.plants:
            return None
        if self.flat:
            return self.cloud if self.is_device(host) else None
        return via

    def _home(self, member: Member) -> Address | None:
        if member.address == self.me:
            return self.tree.parent(self.me)
        return self.home(member.address, member.via)

    def gone(self, host: int) -> Told:
        """A host left, or was not heard of for too long: with it go its roles and everybody linked below it."""
        if host not in self.members:
            return []
        told: Told = []
        for below in [m.address for m in self.members.values() if m.via == host and m.address not in (host, self.me)]:
            told += self.gone(below)
        del self.members[host]
        self.at_work.discard(host)
        roles = {n for n in (*self.placed, *self.tree.aggregators()) if host_of(n) == host}
        for node in sorted({host, *roles}):
            self.placed.pop(node, None)
            for child in list(self.tree.children(node)):
                member = self.members.get(host_of(child))
                if member is not None:
                    self.placed.pop(child, None)
                    told += self.attach(child, self._home(member) if level_of(child) == 0 else None)
            told += self.attach(node, None)
        if self.is_device(host) and self.me == self.cloud and self.plants:
            # also when it reported elsewhere: the root may wait for its answer to a survey
            told.append((self.cloud, ChildLeft(host)))
        return told

    def place(self, node: Address, parent: Address | None) -> Told:
        """Put a node under another by arrangement (None: back to where its link is)."""
        if parent is None:
            self.placed.pop(node, None)
            member = self.members.get(host_of(node))
            parent = self._home(member) if member is not None and level_of(node) == 0 else None
        else:
            self.placed[node] = parent
        return self.attach(node, parent)

    def attach(self, node: Address, parent: Address | None) -> Told:
        """Make a node report to another; return what nodes of this host must be told."""
        old = self.tree.parent(node)
        if old == parent:
            return []
        self.tree.attach(node, parent)
        told: Told = []
        if old is not None and host_of(old) == self.me:
            told.append((old, ChildLeft(node)))
        if parent is not None and host_of(parent) == self.me:
            told.append((parent, ChildJoined(node)))
        return told

    def set_groups(self, groups: dict[int, str]) -> None:
        """Put devices into groups."""
        for device, group in groups.items():
            if not self.is_device(device):
                raise ProtocolError(f"Node {device} is no device; only devices have groups.")
            self.tree.set_group(device, group)

    def groups(self) -> dict[int, str]:
        """Return every device that is in a group of its own."""
        return {int(d): self.tree.group(int(d)) for d in np.flatnonzero(self.tree.device_group)}

    # -- the environment of nodes ----------------------------------------------------------------------------

    @property
    def store(self) -> ModelStore:
        """The model algebra."""
        return self._store

    def parent(self, node: Address) -> Address | None:
        """Return the node's parent now."""
        return self.tree.parent(node)

    def children(self, node: Address) -> Sequence[Address]:
        """Return the node's children now."""
        return self.tree.children(node)

    def devices(self) -> Sequence[Address]:
        """Return the devices that are known to be in the fleet."""
        found: list[int] = np.flatnonzero(self.tree.device_parent != NOBODY).tolist()
        return found

    def samples(self, node: Address) -> int:
        """Return the training samples registered below a node."""
        return self.tree.registered(node)

    def group(self, device: Address) -> str:
        """Return the group whose model a device shares."""
        return self.tree.group(device) if self.is_device(device) else ALL

    def may_aggregate(self, device: Address) -> bool:
        """Tell whether a device may run an aggregator."""
        member = self.members.get(device)
        return member is not None and member.aggregates

    def is_device(self, node: Address) -> bool:
        """Tell whether a node is a leaf device."""
        return 0 <= node < self.n_devices

    def busy(self, node: Address) -> bool:
        """Tell whether a device is at work, as far as this host knows."""
        return node in self.at_work

    def rng(self, *path: str | int) -> np.random.Generator:
        """Return the algorithm's generator at an address; for noise that hides something, the system's."""
        return system_rng() if path[0] in SECRET else stream(self.seed, "algorithm", *path)

    def accuracy(self, refs: Sequence[Ref], where: str, node: Address) -> list[float]:
        """Return accuracies of models on a node's own set."""
        return self._judge(refs, where, node, "accuracy")

    def losses(self, refs: Sequence[Ref], where: str, node: Address) -> list[float]:
        """Return mean losses of models on a node's own set."""
        return self._judge(refs, where, node, "loss")

    def facts(self, what: str, **args: Any) -> Any:
        """Return a fact of the deployment by name, as measured."""
        match what:
            case "cloud":
                return self.cloud
            case "edges":
                return sorted(m.address for m in self.members.values() if m.role == "edge") or [self.me]
            case "edge_of":
                member = self.members.get(args["device"])
                return self.cloud if member is None else member.via
            case "nominal":
                return args["batches"] * self._speed(args["device"])
            case "update_time":
                return self.facts("update_batches", device=args["device"]) * self._speed(args["device"])
            case "update_batches":
                return self.batches(self.samples(args["device"]))
            case "uplink":
                return "private"
            case "broadcast":
                return "free"
            case "model_time":
                return self._model_time(host_of(args["src"]), host_of(args["dst"]))
            case "link_times":
                devices = [int(d) for d in args["devices"]]
                return np.array([[self._between(a, b) for b in devices] for a in devices])
            case "link_report":
                return np.array([self._between(args["device"], d) for d in range(self.n_devices)])
            case "neighbours":
                return [d for d in self._everybody() if d != args["device"]]
            case "delay":
                return self._between(args["src"], args["dst"])
            case "hop_count":
                return self._hops(args["src"], args["dst"])
            case "delays":
                devices = [int(d) for d in args["devices"]]
                share = min(1.0, args["nbytes"] / self._store.spec.model_bytes) if "nbytes" in args else 1.0
                return share * np.array([[self._between(a, b) for b in devices] for a in devices])
            case "answers":
                return args["host"] in self.members or args["host"] in self.others or args["host"] == self.cloud
        if what in self.tellers:
            return self.tellers[what](**args)
        raise ConfigError(f"Nobody in this fleet can tell {what!r}.")

    def _speed(self, device: Address) -> float:
        member = self.members.get(host_of(device))
        return member.seconds_per_batch if member is not None else 0.0

    def _known(self, host: int) -> Member | None:
        return self.members.get(host) or self.others.get(host)

    def _everybody(self) -> list[int]:
        return sorted(h for h in {*self.members, *self.others} if self.is_device(h))

    def _between(self, src: int, dst: int) -> float:
        """Return the seconds of a model between two devices (infinite if one is not there)."""
        if src == dst:
            return 0.0
        if self._known(src) is None or self._known(dst) is None:
            return float("inf")
        return self._model_time(src, dst)

    def _hops(self, src: int, dst: int) -> float:
        one, other = self._known(src), self._known(dst)
        if one is None or other is None:
            return float("inf")
        if other.endpoint or one.endpoint:
            return 1.0
        return 2.0 if one.via == other.via else 4.0

    def _model_time(self, src: int, dst: int) -> float:
        """Return the seconds of a model between two hosts: as measured, or by way of their common parent."""
        if (src, dst) in self.measured:
            return self.measured[src, dst]
        one, other = self._known(src), self._known(dst)
        if one is not None and one.via == dst:
            return one.model_seconds
        if other is not None and other.via == src:
            return other.model_seconds
        return sum(m.model_seconds for m in (one, other) if m is not None and m.address != self.cloud)

    # -- saving ----------------------------------------------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "members": [m.to_plain() for m in self.members.values()],
            "placed": dict(self.placed),
            "at_work": set(self.at_work),
            "measured": dict(self.measured),
            "others": [m.to_plain() for m in self.others.values()],
            "root": self.tree.root,
            "parent": self.tree.parent(self.me),
            "roles": {n: self.tree.parent(n) for n in self.tree.aggregators() if level_of(n)},
            "parents": {d: self.tree.parent(d) for d in self.devices() if d in self.placed},
            "groups": self.groups(),
        }

    def restore(self, plain: dict[str, Any]) -> None:
        """Become the directory that :meth:`save` described."""
        self.placed = dict(plain["placed"])
        self.measured = dict(plain["measured"])
        self.others = {m[0]: Member(*m) for m in plain["others"]}
        self.tree.root = plain["root"]
        if plain["parent"] is not None:
            self.tree.attach(self.me, plain["parent"])
        for node, parent in plain["roles"].items():
            if parent is not None:
                self.tree.attach(node, parent)
        for member in plain["members"]:
            self.joined(Member(*member))
        for device, parent in plain["parents"].items():
            self.attach(device, parent)
        self.at_work = set(plain["at_work"])
        self.set_groups(plain["groups"])
