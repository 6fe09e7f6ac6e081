"""The fleet as nodes see it: the tree, who is there, who is busy, what is registered.

It is the simulator's :class:`~espalier.core.environment.Environment`: everything here is what a deployed node
would know from its parent's directory and its children's greetings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espalier.core.address import Address, host_of
from espalier.core.environment import Judge, TreeEnvironment, Trials
from espalier.core.errors import ConfigError
from espalier.core.learning import TrainingFacts
from espalier.core.tree import NOBODY, Tree
from espalier.data.partition import Partition
from espalier.record.database import Recorder
from espalier.simulator.clock import VirtualClock
from espalier.simulator.conditions import Conditions, Presence
from espalier.simulator.ledger import Ledger
from espalier.simulator.usage import Usage
from espalier.world import BoundCompute, Shape, Uplink
from espalier.world.links.base import Broadcast
from espalier.world.world import BoundWorld


class Fleet(TreeEnvironment):
    """Tree, presence and directory of one simulated fleet."""

    store: Ledger
    places: SimulatedPlaces
    speeds: SimulatedSpeeds
    links: SimulatedLinks
    training: TrainingFacts
    trials: Trials

    def __init__(self, seed: int, shape: Shape, world: BoundWorld, partition: Partition, tiers: Sequence[int]) -> None:
        self.seed = seed
        self.shape = shape
        self.world = world
        self.partition = partition
        self.n_devices, self.n_edges = shape.n_devices, shape.n_edges
        self.cloud = shape.cloud
        self.alive = np.ones(self.n_devices, dtype=bool)
        self.working = np.zeros(self.n_devices, dtype=bool)
        self.location = world.mobility.start(partition.edge.astype(np.int64))
        self.moved = np.zeros(self.n_devices, dtype=np.int64)
        self.tree = Tree(partition.sizes.astype(np.int64), self.cloud)
        self.capable = world.may_aggregate
        self.tiers = tuple(tiers)

    def connect(
        self, store: Ledger, judge: Judge, conditions: Conditions, training: TrainingFacts, trials: Trials
    ) -> None:
        """Take what can be made only once the fleet is there: models, their judge, the world of now, trials."""
        self.store, self._judge, self.training, self.trials = store, judge, training, trials
        self.places = SimulatedPlaces(self, conditions)
        self.speeds = SimulatedSpeeds(self.world.compute, lambda device: training.batches(self.samples(device), 1))
        self.links = SimulatedLinks(self, conditions)

    def plant(self, flat: bool) -> None:
        """Build the given tree: devices under their edges (or under the root), edges under servers."""
        tree, cloud = self.tree, self.cloud
        if not flat:
            below = [self.edge_host(e) for e in range(self.shape.n_edges)]
            above = self.n_devices + self.shape.n_edges
            for width in self.tiers:
                servers = [above + i for i in range(width)]
                for i, node in enumerate(below):
                    tree.attach(node, servers[i * width // len(below)])
                below, above = servers, above + width
            for node in below:
                tree.attach(node, cloud)
        parents = np.full(self.n_devices, cloud) if flat else self.n_devices + self.location
        tree.populate(np.where(self.alive, parents, NOBODY).astype(np.int64))

    def edge_host(self, edge: int) -> int:
        """Return an edge server's host."""
        return self.n_devices + edge

    def via(self, device: int) -> int | None:
        """Return the edge that relays between a device and the cloud now."""
        return self.edge_host(int(self.location[device])) if self.shape.n_edges else None

    # -- the environment of nodes ----------------------------------------------------------------------

    def may_aggregate(self, device: Address) -> bool:
        """Tell whether a device may run an aggregator."""
        return bool(self.capable[device])

    def busy(self, node: Address) -> bool:
        """Tell whether a device is at work."""
        return node < self.n_devices and bool(self.working[node])

    def save(self) -> dict[str, Any]:
        """Return who is there, at work, and where: plain data."""
        return {
            "alive": self.alive.copy(), "working": self.working.copy(), "location": self.location.copy(),
            "moved": self.moved.copy(), "tree": self.tree.to_plain(),
        }  # fmt: skip

    def restore(self, plain: dict[str, Any]) -> None:
        """Become what was saved."""
        self.alive[:], self.working[:] = plain["alive"], plain["working"]
        self.location[:], self.moved[:] = plain["location"], plain["moved"]
        self.tree.restore(plain["tree"])


@dataclass(frozen=True, slots=True, eq=False)
class SimulationContext:
    """What the parts of a simulation share.

    Attributes:
        world: The world.
        fleet: The tree, where devices are, and who is at work.
        presence: Which hosts are there.
        conditions: Links, speeds and looks of now.
        clock: Virtual time.
        recorder: Where events, moves and spans are written.
        usage: Where bytes and seconds are counted.
        spans: Whether it is recorded how long models travel and devices work.
    """

    world: BoundWorld
    fleet: Fleet
    presence: Presence
    conditions: Conditions
    clock: VirtualClock
    recorder: Recorder
    usage: Usage
    spans: bool


class SimulatedPlaces:
    """Where servers and devices are: implements :class:`espalier.core.environment.Places`."""

    def __init__(self, fleet: Fleet, conditions: Conditions) -> None:
        self._fleet, self._conditions = fleet, conditions
        self.cloud = fleet.cloud

    def edges(self) -> list[Address]:
        """Return the edge servers, ascending."""
        return [self._fleet.edge_host(e) for e in range(self._fleet.shape.n_edges)]

    def edge_of(self, device: Address) -> Address:
        """Return the edge at which a device is now."""
        return self._fleet.edge_host(int(self._fleet.location[device]))

    def neighbours(self, device: Address) -> list[Address]:
        """Return the devices that a device reaches directly."""
        links, n_devices = self._conditions.links(), self._fleet.n_devices
        found: list[int] = links.neighbours(device).tolist()
        if not found and n_devices > 1 and not links.relays:
            some = links.matrix(np.arange(min(50, n_devices)), 0)
            if not np.isfinite(some[~np.eye(len(some), dtype=bool)]).any():
                raise ConfigError(
                    "world.links join no two devices, and this method builds its tree among them: choose links of "
                    "kind 'graph', or give dev_dev."
                )
        return found

    def answers(self, host: int) -> bool:
        """Tell whether a host is there."""
        return self._conditions.answers(host)


class SimulatedSpeeds:
    """How long devices train, by the world: implements :class:`espalier.core.environment.Speeds`."""

    def __init__(self, compute: BoundCompute, update_batches: Callable[[int], int]) -> None:
        self._compute, self._batches = compute, update_batches

    def batch_time(self, device: Address, now: float) -> float:
        """Return the seconds that one mini-batch usually takes."""
        return self._compute.at(0).nominal(device, 1, now)

    def update_time(self, device: Address, now: float, epoch: int = 0) -> float:
        """Return the seconds that one update usually takes."""
        return self._compute.at(epoch).nominal(device, self._batches(device), now)

    def update_batches(self, device: Address) -> int:
        """Return the mini-batches of one update."""
        return self._batches(device)


class SimulatedLinks:
    """How long a model is on its way, by the world: implements :class:`espalier.core.environment.LinkTimes`."""

    def __init__(self, fleet: Fleet, conditions: Conditions) -> None:
        self._fleet, self._conditions = fleet, conditions
        self._model_bytes = fleet.shape.model_bytes or fleet.store.spec.model_bytes
        self._all: tuple[int, NDArray[np.float64]] | None = None

    @property
    def uplink(self) -> Uplink:
        """How the devices of an edge share its uplink."""
        return self._fleet.world.links.uplink

    @property
    def broadcast(self) -> Broadcast:
        """Whether what a head tells its whole cluster costs time."""
        return self._fleet.world.links.broadcast

    def model_time(self, src: Address, dst: Address, now: float) -> float:
        """Return the seconds of a model between a device and a server, or between servers."""
        fleet, one, other = self._fleet, host_of(src), host_of(dst)
        via = fleet.via(min(one, other)) if min(one, other) < fleet.n_devices else None
        return fleet.world.links.time(one, other, self._model_bytes, now, via)

    def delay(self, src: Address, dst: Address, now: float) -> float:
        """Return the seconds of a model between two devices."""
        return self._conditions.links().time(src, dst, self._model_bytes, now)

    def delays(self, devices: Sequence[Address], nbytes: int | None = None) -> NDArray[np.float64]:
        """Return the seconds of a message (by default a model) between all pairs of devices, [n, n]."""
        size = self._model_bytes if nbytes is None else nbytes
        return self._conditions.links().matrix(np.asarray(devices, dtype=np.int64), size)

    def hop_count(self, src: Address, dst: Address) -> float:
        """Return the hops between two devices (infinite: they cannot reach each other)."""
        return len(self._conditions.links().hops(src, dst)) or math.inf

    def link_report(self, device: Address, epoch: int) -> NDArray[np.float64]:
        """Return the seconds of a model from a device to every device, as the device says they are, [N]."""
        links = self._fleet.world.links.at(epoch)
        if self._all is None or self._all[0] != epoch:
            self._all = (epoch, links.matrix(np.arange(self._fleet.n_devices), self._model_bytes))
        return links.claims(device, self._all[1][device])
