"""The fleet as nodes see it: the tree, who is there, who is busy, what is registered.

It is the simulator's :class:`~espalier.core.policies.Environment`: everything here is what a deployed node
would know from its parent's directory and its children's greetings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from espalier.core.address import Address, host_of
from espalier.core.errors import ConfigError
from espalier.core.seeds import stream
from espalier.core.store import Ref
from espalier.core.tree import NOBODY, Tree
from espalier.data.partition import Partition
from espalier.simulator.ledger import Ledger
from espalier.world.protocols import Shape
from espalier.world.world import BoundWorld


class Fleet:
    """Tree, presence and directory of one simulated fleet."""

    store: Ledger

    def __init__(self, seed: int, shape: Shape, world: BoundWorld, partition: Partition, tiers: Sequence[int]) -> None:
        self.seed = seed
        self.shape = shape
        self.world = world
        self.partition = partition
        self.n_devices = shape.n_devices
        self.cloud = shape.cloud
        self.alive = np.ones(self.n_devices, dtype=bool)
        self.working = np.zeros(self.n_devices, dtype=bool)
        self.location = world.mobility.start(partition.edge.astype(np.int64))
        self.moved = np.zeros(self.n_devices, dtype=np.int64)
        self.tree = Tree(partition.sizes.astype(np.int64), self.cloud)
        self.capable = world.capability.may_aggregate()
        self.tiers = tuple(tiers)
        #: mini-batches of one update on a device; set by the simulation
        self.batches: Callable[[int], int] = lambda device: 1
        #: evaluates models on a node's own set; set by the simulation
        self.judge: Callable[[Sequence[Ref], str, Address, str], list[float]] = _no_judge

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

    def parent(self, node: Address) -> Address | None:
        """Return the node's parent now."""
        return self.tree.parent(node)

    def children(self, node: Address) -> Sequence[Address]:
        """Return the node's children now."""
        return self.tree.children(node)

    def devices(self) -> Sequence[Address]:
        """Return the devices that are registered now."""
        found: list[int] = np.flatnonzero(self.tree.device_parent != NOBODY).tolist()
        return found

    def samples(self, node: Address) -> int:
        """Return the training samples registered below a node."""
        return self.tree.registered(node)

    def group(self, device: Address) -> str:
        """Return the group whose model a device shares."""
        return self.tree.group(device)

    def may_aggregate(self, device: Address) -> bool:
        """Tell whether a device may run an aggregator."""
        return bool(self.capable[device])

    def is_device(self, node: Address) -> bool:
        """Tell whether a node is a leaf device."""
        return node < self.n_devices

    def busy(self, node: Address) -> bool:
        """Tell whether a device is at work."""
        return node < self.n_devices and bool(self.working[node])

    def rng(self, *path: str | int) -> np.random.Generator:
        """Return the algorithm's generator at an address."""
        return stream(self.seed, "algorithm", *path)

    def accuracy(self, refs: Sequence[Ref], where: str, node: Address) -> list[float]:
        """Return accuracies of models on a node's own set."""
        return self.judge(refs, where, node, "accuracy")

    def losses(self, refs: Sequence[Ref], where: str, node: Address) -> list[float]:
        """Return mean losses of models on a node's own set."""
        return self.judge(refs, where, node, "loss")

    def facts(self, what: str, **args: Any) -> Any:
        """Return a fact of the deployment by name."""
        match what:
            case "cloud":
                return self.cloud
            case "edges":
                return [self.edge_host(e) for e in range(self.shape.n_edges)]
            case "edge_of":
                return self.edge_host(int(self.location[args["device"]]))
            case "nominal":
                batches = args["batches"]
                return self.world.compute.nominal(args["device"], batches, args["now"])
            case "update_time":
                device = args["device"]
                return self.world.compute.nominal(device, self.batches(device), args["now"])
            case "uplink":
                return self.world.links.uplink
            case "model_time":
                src, dst = host_of(args["src"]), host_of(args["dst"])
                via = self.via(min(src, dst)) if min(src, dst) < self.n_devices else None
                return self.world.links.time(src, dst, self.store.spec.model_bytes, args["now"], via)
            case "link_times":
                links = self.world.links.at(args.get("epoch", 0))
                return links.matrix(np.asarray(args["devices"], dtype=np.int64), self.store.spec.model_bytes)
            case "neighbours":
                return self.world.links.neighbours(args["device"])
        raise ConfigError(f"Nobody in this fleet can tell {what!r}.")


def _no_judge(refs: Sequence[Ref], where: str, node: Address, what: str) -> list[float]:
    raise ConfigError(f"Nothing is known of the set {where!r} at node {node}.")
