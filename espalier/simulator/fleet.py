"""The fleet as nodes see it: the tree, who is there, who is busy, what is registered.

It is the simulator's :class:`~espalier.core.policies.Environment`: everything here is what a deployed node
would know from its parent's directory and its children's greetings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espalier.core.address import Address, host_of
from espalier.core.errors import ConfigError
from espalier.core.seeds import stream
from espalier.core.store import Ref
from espalier.core.tree import NOBODY, Tree
from espalier.data.partition import Partition
from espalier.simulator.ledger import Ledger
from espalier.world.protocols import BoundLinks, Shape
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
        #: the links of now, who answers now, accuracy after a trial training; set by the simulation
        self.links: Callable[[], BoundLinks] = lambda: world.links
        self.answers: Callable[[int], bool] = lambda host: True
        self.pretrained: Callable[[int, int], float] = lambda device, epochs: 0.0
        #: facts that only the simulation knows, by name
        self.tellers: dict[str, Callable[..., Any]] = {}
        self._links: tuple[int, NDArray[np.float64]] | None = None
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
                return self.world.compute.at(args.get("epoch", 0)).nominal(args["device"], batches, args["now"])
            case "update_time":
                device = args["device"]
                compute = self.world.compute.at(args.get("epoch", 0))
                return compute.nominal(device, self.batches(device), args["now"])
            case "update_batches":
                return self.batches(args["device"])
            case "uplink":
                return self.world.links.uplink
            case "model_time":
                src, dst = host_of(args["src"]), host_of(args["dst"])
                via = self.via(min(src, dst)) if min(src, dst) < self.n_devices else None
                return self.world.links.time(src, dst, self.store.spec.model_bytes, args["now"], via)
            case "link_times":
                links = self.world.links.at(args.get("epoch", 0))
                return links.matrix(np.asarray(args["devices"], dtype=np.int64), self.store.spec.model_bytes)
            case "link_report":
                links = self.world.links.at(args["epoch"])
                return links.claims(args["device"], self._all_links(args["epoch"])[args["device"]])
            case "broadcast":
                return self.world.links.broadcast
            case "neighbours":
                return self._neighbours(args["device"])
            case "delay":
                return self.links().time(args["src"], args["dst"], self.store.spec.model_bytes, args["now"])
            case "hop_count":
                return len(self.links().hops(args["src"], args["dst"])) or math.inf
            case "delays":
                nbytes = args.get("nbytes", self.store.spec.model_bytes)
                return self.links().matrix(np.asarray(args["devices"], dtype=np.int64), nbytes)
            case "answers":
                return self.answers(args["host"])
            case "pretraining_accuracy":
                return self.pretrained(args["device"], args["epochs"])
        if what in self.tellers:
            return self.tellers[what](**args)
        raise ConfigError(f"Nobody in this fleet can tell {what!r}.")

    def _all_links(self, epoch: int) -> NDArray[np.float64]:
        """Return the seconds of a model between all devices in a global round, [N, N]; the last round's are kept."""
        if self._links is None or self._links[0] != epoch:
            devices = np.arange(self.n_devices)
            self._links = (epoch, self.world.links.at(epoch).matrix(devices, self.store.spec.model_bytes))
        return self._links[1]

    def _neighbours(self, device: int) -> list[int]:
        links = self.links()
        found: list[int] = links.neighbours(device).tolist()
        if not found and self.n_devices > 1 and not links.relays:
            some = links.matrix(np.arange(min(50, self.n_devices)), 0)
            if not np.isfinite(some[~np.eye(len(some), dtype=bool)]).any():
                raise ConfigError(
                    "world.links join no two devices, and this method builds its tree among them: choose links of "
                    "kind 'graph', or give dev_dev."
                )
        return found


def _no_judge(refs: Sequence[Ref], where: str, node: Address, what: str) -> list[float]:
    raise ConfigError(f"Nothing is known of the set {where!r} at node {node}.")
