"""What a host knows of the fleet: its part of the tree, greetings from below, groups from above.

It is the deployed :class:`~espalier.core.environment.Environment`. A host knows everybody below it (each greeting
travels up to the cloud), its parent, and what the cloud told it. Who *reports* to whom is by default who is linked
to whom; a flat structure makes every device report to the cloud, an arrangement may place any node under any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from espalier.core.address import Address, host_of, level_of
from espalier.core.environment import Judge, TreeEnvironment
from espalier.core.errors import ConfigError, ProtocolError
from espalier.core.learning import TrainingFacts
from espalier.core.messages import ChildJoined, ChildLeft, Event
from espalier.core.store import ModelStore, Ref
from espalier.core.tree import Tree
from espalier.fleet.coordinator.manifest import Script
from espalier.fleet.membership import Member
from espalier.fleet.node.trainer import system_rng

#: draws that whoever knows the run's seed must not be able to repeat (`espalier.policies.privacy`)
SECRET = ("private", "privacy")
#: who takes so many times as long as most others is not waited for
TIMES_SLOWER = 10.0
#: events for nodes of this host
Told = list[tuple[Address, Event]]


class Directory(TreeEnvironment):
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
        places_newcomers: bool,
        store: ModelStore,
        judge: Judge,
        training: TrainingFacts,
        pretrained: Callable[[Address, int], float] | None = None,
        script: Script | None = None,
        least_seconds: float | None = None,
    ) -> None:
        self._least = least_seconds
        self.me, self.n_devices, self.n_edges, self.seed = me, n_devices, n_edges, seed
        self.cloud, self.flat, self.places_newcomers = cloud, flat, places_newcomers
        self.store, self._judge = store, judge
        self.tree = Tree(np.zeros(n_devices, dtype=np.int64), self.cloud)
        #: everybody below, and this host itself
        self.members: dict[int, Member] = {}
        #: nodes that an arrangement put somewhere else than under their link's parent
        self.placed: dict[Address, Address] = {}
        #: other devices of the fleet, as the cloud told: who they are and how they are reached
        self.others: dict[int, Member] = {}
        self.at_work: set[int] = set()
        #: what somebody told about links between devices: (from, to) -> seconds for a model
        self.measured: dict[tuple[int, int], float] = {}
        self.places = MeasuredPlaces(self)
        self.training = training
        self.speeds = MeasuredSpeeds(self, lambda samples: training.batches(samples, 1))
        self.links = MeasuredLinks(self) if script is None else ScriptedLinks(self, script.hop)
        self.trials = OwnTrials(me, pretrained)

    # -- changes -------------------------------------------------------------------------------------------

    def joined(self, member: Member) -> Told:
        """A host greeted, for the first time or again; return what nodes of this host must be told."""
        host, old = member.address, self.members.get(member.address)
        if old is not None and old.stamp > member.stamp and old.incarnation == member.incarnation:
            return []
        told: Told = []
        if old is not None and old.incarnation != member.incarnation:
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
        if not self.places_newcomers:
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
        if self.is_device(host) and self.me == self.cloud and self.places_newcomers:
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

    def may_aggregate(self, device: Address) -> bool:
        """Tell whether a device may run an aggregator."""
        member = self.members.get(device)
        return member is not None and member.aggregates

    def busy(self, node: Address) -> bool:
        """Tell whether a device is at work, as far as this host knows."""
        return node in self.at_work

    def credible(self, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return times that members tell of themselves: rounds are planned by them, and they may lie.

        None counts for more than ten times what half of them are, or the least that a round waits in any case. A
        missing link stays one.
        """
        told = seconds[np.isfinite(seconds)]
        if self._least is None or not told.size:
            return seconds
        most = max(self._least, TIMES_SLOWER * float(np.quantile(told, 0.5, method="lower")))
        return np.where(np.isfinite(seconds), np.minimum(seconds, most), seconds)

    def rng(self, *path: str | int) -> np.random.Generator:
        """Return the algorithm's generator at an address; for noise that hides something, the system's."""
        return system_rng() if path[0] in SECRET else super().rng(*path)

    def hops(self, src: Address, dst: Address) -> int:
        """Return the links between two hosts as a simulation counts them: devices reach each other directly."""
        low, high = sorted((host_of(src), host_of(dst)))
        if low == high:
            return 0
        return 2 if self.is_device(low) and high == self.cloud and self.n_edges else 1

    def known(self, host: int) -> Member | None:
        """Return a host that is below, or that the cloud told of (None: nobody has heard of it)."""
        return self.members.get(host) or self.others.get(host)

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


class MeasuredPlaces:
    """Where servers and devices are, by their greetings: implements :class:`espalier.core.environment.Places`."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self.cloud = directory.cloud

    def edges(self) -> list[Address]:
        """Return the edge servers that are known, ascending; an edge knows itself."""
        members = self._directory.members.values()
        return sorted(m.address for m in members if m.role == "edge") or [self._directory.me]

    def edge_of(self, device: Address) -> Address:
        """Return the edge that a device is linked to."""
        member = self._directory.members.get(device)
        return self.cloud if member is None else member.via

    def neighbours(self, device: Address) -> list[Address]:
        """Return all other devices: on a network everybody reaches everybody."""
        known = self._directory
        return sorted(h for h in {*known.members, *known.others} if known.is_device(h) and h != device)

    def answers(self, host: int) -> bool:
        """Tell whether a host is known to be there."""
        return self._directory.known(host) is not None or host == self.cloud


class MeasuredSpeeds:
    """How long devices train, as they have measured: implements :class:`espalier.core.environment.Speeds`."""

    def __init__(self, directory: Directory, update_batches: Callable[[int], int]) -> None:
        self._directory, self._batches = directory, update_batches

    def batch_time(self, device: Address, now: float) -> float:
        """Return the seconds that a mini-batch took."""
        member = self._directory.members.get(host_of(device))
        return member.seconds_per_batch if member is not None else 0.0

    def update_time(self, device: Address, now: float, epoch: int = 0) -> float:
        """Return the seconds that an update took."""
        return self.update_batches(device) * self.batch_time(device, now)

    def update_batches(self, device: Address) -> int:
        """Return the mini-batches of one update."""
        return self._batches(self._directory.samples(device))


class MeasuredLinks:
    """How long a model is on its way, as measured: implements :class:`espalier.core.environment.LinkTimes`."""

    uplink: Literal["private"] = "private"
    broadcast: Literal["free", "paid"] = "free"

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def model_time(self, src: Address, dst: Address, now: float) -> float:
        """Return the seconds of a model between two hosts: as measured, or by way of their common parent."""
        directory, a, b = self._directory, host_of(src), host_of(dst)
        if (a, b) in directory.measured:
            return directory.measured[a, b]
        one, other = directory.known(a), directory.known(b)
        if one is not None and one.via == b:
            return one.model_seconds
        if other is not None and other.via == a:
            return other.model_seconds
        return sum(m.model_seconds for m in (one, other) if m is not None and m.address != directory.cloud)

    def delay(self, src: Address, dst: Address, now: float) -> float:
        """Return the seconds of a model between two devices (infinite if one is not there)."""
        if src == dst:
            return 0.0
        if self._directory.known(src) is None or self._directory.known(dst) is None:
            return math.inf
        return self.model_time(src, dst, now)

    def delays(self, devices: Sequence[Address], nbytes: int | None = None) -> NDArray[np.float64]:
        """Return the seconds of a message (by default a model) between all pairs of devices, [n, n]."""
        share = 1.0 if nbytes is None else min(1.0, nbytes / self._directory.store.spec.model_bytes)
        return share * np.array([[self.delay(int(a), int(b), 0.0) for b in devices] for a in devices])

    def hop_count(self, src: Address, dst: Address) -> float:
        """Return the hops between two devices: direct, over a common parent, or over the cloud."""
        one, other = self._directory.known(src), self._directory.known(dst)
        if one is None or other is None:
            return math.inf
        if other.endpoint or one.endpoint:
            return 1.0
        return 2.0 if one.via == other.via else 4.0

    def link_report(self, device: Address, epoch: int) -> NDArray[np.float64]:
        """Return the seconds of a model from a device to every device, [N]."""
        return np.array([self.delay(device, d, 0.0) for d in range(self._directory.n_devices)])


class ScriptedLinks(MeasuredLinks):
    """Links of a scripted fleet: every one is as long as every other."""

    broadcast: Literal["free", "paid"] = "paid"

    def __init__(self, directory: Directory, hop_seconds: float) -> None:
        super().__init__(directory)
        self._hop_seconds = hop_seconds

    def model_time(self, src: Address, dst: Address, now: float) -> float:
        """Return the seconds of a model between two hosts."""
        return self._hop_seconds * self._directory.hops(src, dst)

    def delays(self, devices: Sequence[Address], nbytes: int | None = None) -> NDArray[np.float64]:
        """Return the seconds of a message of any size between all pairs of devices, [n, n]."""
        return super().delays(devices)

    def hop_count(self, src: Address, dst: Address) -> float:
        """Return the hops between two devices."""
        return 1.0 if src != dst else 0.0


class OwnTrials:
    """What a host can try out on its own data: implements :class:`espalier.core.environment.Trials`."""

    def __init__(self, me: int, pretrained: Callable[[Address, int], float] | None) -> None:
        self._me, self._pretrained = me, pretrained

    def pretraining_accuracy(self, device: Address, epochs: int) -> float:
        """Return how well this device's data alone teach the initial model."""
        if self._pretrained is None or host_of(device) != self._me:
            raise ConfigError(f"Host {self._me} cannot tell how well node {device} trains.")
        return self._pretrained(device, epochs)

    def pretraining_answers(self, device: Address, epochs: int) -> Sequence[float]:
        """Refuse: hosts tell each other an accuracy only."""
        raise ConfigError('A real fleet is balanced by accuracy only; set balance = "accuracy".')

    def epochs_above_chance(self) -> int:
        """Refuse: no host of a real fleet knows all devices' accuracies."""
        raise ConfigError('Pre-training until all are above chance is for a simulation only; set pretrain = "epochs".')

    def label_shares(self, device: Address) -> Sequence[float]:
        """Refuse: labels stay where they are."""
        raise ConfigError('Label shares can be had in a simulation only; set balance = "accuracy".')

    def gradients(self, model: Ref, devices: Sequence[Address]) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """Refuse: no host of a real fleet has the gradients of all devices."""
        raise ConfigError("Gradients of all devices at one model can be had in a simulation only; switch theory off.")

    def distilled(self, *args: Any, **named: Any) -> Ref:
        """Refuse: a real cloud holds no proxy set."""
        raise ConfigError("Distillation needs a proxy set at the cloud, which a real fleet has not; set distil = 0.")
