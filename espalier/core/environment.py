"""What a node can find out without sending a message of its own: small protocols that both runtimes implement.

The simulator answers from the world, the fleet from what its members have measured and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from espalier.core.address import Address
from espalier.core.learning import TrainingFacts
from espalier.core.seeds import stream
from espalier.core.store import ModelStore, Ref
from espalier.core.tree import NOBODY, Tree

Floats = NDArray[np.float64]
#: evaluates models on a node's own set: (models, which set, node, "accuracy" or "loss")
Judge = Callable[[Sequence[Ref], str, Address, str], list[float]]


class Places(Protocol):
    """Where servers and devices are."""

    @property
    def cloud(self) -> Address:
        """The cloud's address."""
        ...

    def edges(self) -> list[Address]:
        """Return the edge servers, ascending."""
        ...

    def edge_of(self, device: Address) -> Address:
        """Return the edge at which a device is now."""
        ...

    def neighbours(self, device: Address) -> list[Address]:
        """Return the devices that a device reaches directly, ascending."""
        ...

    def answers(self, host: int) -> bool:
        """Tell whether a host answers now."""
        ...


class Speeds(Protocol):
    """How long devices train. ``epoch`` counts global rounds, where speeds are redrawn with them."""

    def batch_time(self, device: Address, now: float) -> float:
        """Return the seconds that one mini-batch usually takes."""
        ...

    def update_time(self, device: Address, now: float, epoch: int = 0) -> float:
        """Return the seconds that one update (a local epoch or step) usually takes."""
        ...

    def update_batches(self, device: Address) -> int:
        """Return the mini-batches of one update."""
        ...


class LinkTimes(Protocol):
    """How long a model is on its way."""

    @property
    def uplink(self) -> Literal["private", "time_shared", "equal_share"]:
        """How the devices of an edge share its uplink: each has its own, they take turns, or each gets a part."""
        ...

    @property
    def broadcast(self) -> Literal["free", "paid"]:
        """Whether what a head tells its whole cluster costs time."""
        ...

    def model_time(self, src: Address, dst: Address, now: float) -> float:
        """Return the seconds of a model between a device and a server, or between servers."""
        ...

    def delay(self, src: Address, dst: Address, now: float) -> float:
        """Return the seconds of a model between two devices (infinite: they cannot reach each other)."""
        ...

    def delays(self, devices: Sequence[Address], nbytes: int | None = None) -> Floats:
        """Return the seconds of a message (by default a model) between all pairs of devices, [n, n]."""
        ...

    def hop_count(self, src: Address, dst: Address) -> float:
        """Return the hops between two devices (infinite: they cannot reach each other)."""
        ...

    def link_report(self, device: Address, epoch: int) -> Floats:
        """Return the seconds of a model from a device to every device, as the device says they are, [N]."""
        ...


class Trials(Protocol):
    """What only a computation beside the run can tell."""

    def pretraining_accuracy(self, device: Address, epochs: int) -> float:
        """Return the share of right answers after a trial training of the initial model on a device's data alone."""
        ...

    def pretraining_answers(self, device: Address, epochs: int) -> Sequence[float]:
        """Return how a trial training's model spreads its answers over the classes, on samples common to all."""
        ...

    def epochs_above_chance(self) -> int:
        """Return how many epochs a trial training takes until the devices' mean accuracy is well above chance."""
        ...

    def label_shares(self, device: Address) -> Sequence[float]:
        """Return the label shares of a device's data: an oracle, for theory only."""
        ...

    def gradients(self, model: Ref, devices: Sequence[Address]) -> tuple[Floats, NDArray[np.float32]]:
        """Return devices' losses [n] and their gradients [n, parameters] at a model: measured, for theory only."""
        ...

    def distilled(
        self,
        student: Ref,
        teachers: Sequence[tuple[float, Ref]],
        *,
        temperature: float,
        updates: int,
        clock: int,
        number: int,
    ) -> Ref:
        """Return the student after it was trained to answer like the weighted teachers on a server's proxy set.

        ``updates`` are epochs, ``clock`` decides the learning rate, ``number`` the order of the samples.
        """
        ...


class Environment(Protocol):
    """What a node can find out without sending a message of its own."""

    @property
    def store(self) -> ModelStore:
        """The model algebra."""
        ...

    @property
    def places(self) -> Places:
        """Where servers and devices are."""
        ...

    @property
    def speeds(self) -> Speeds:
        """How long devices train."""
        ...

    @property
    def links(self) -> LinkTimes:
        """How long a model is on its way."""
        ...

    @property
    def training(self) -> TrainingFacts:
        """How devices train."""
        ...

    @property
    def trials(self) -> Trials:
        """What only a computation beside the run can tell."""
        ...

    def parent(self, node: Address) -> Address | None:
        """Return the node's parent now."""
        ...

    def children(self, node: Address) -> Sequence[Address]:
        """Return the node's children now, ascending."""
        ...

    def devices(self) -> Sequence[Address]:
        """Return the devices that are registered now, ascending (the root's directory)."""
        ...

    def samples(self, node: Address) -> int:
        """Return the training samples registered below a node."""
        ...

    def group(self, device: Address) -> str:
        """Return the group whose model a device shares."""
        ...

    def may_aggregate(self, device: Address) -> bool:
        """Tell whether a device may run an aggregator."""
        ...

    def is_device(self, node: Address) -> bool:
        """Tell whether a node is a leaf device."""
        ...

    def busy(self, node: Address) -> bool:
        """Tell whether a device is at work (for whomever)."""
        ...

    def credible(self, seconds: Floats) -> Floats:
        """Return times that members tell of themselves, as far as they are believed."""
        ...

    def rng(self, *path: str | int) -> np.random.Generator:
        """Return the algorithm's generator at an address of the seed tree."""
        ...

    def accuracy(self, refs: Sequence[Ref], where: str, node: Address) -> list[float]:
        """Evaluate models on a node's own set: ``"personal"``, ``"validation"`` or ``"proxy"``."""
        ...

    def losses(self, refs: Sequence[Ref], where: str, node: Address) -> list[float]:
        """Return mean losses of models on a node's own set, as :meth:`accuracy`."""
        ...


class TreeEnvironment:
    """What environments of both runtimes answer alike: from the tree, the run's seed and the judge of models."""

    seed: int
    n_devices: int
    tree: Tree
    _judge: Judge

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

    def is_device(self, node: Address) -> bool:
        """Tell whether a node is a leaf device."""
        return 0 <= node < self.n_devices

    def credible(self, seconds: Floats) -> Floats:
        """Return times that members tell of themselves: they are believed."""
        return seconds

    def rng(self, *path: str | int) -> np.random.Generator:
        """Return the algorithm's generator at an address."""
        return stream(self.seed, "algorithm", *path)

    def accuracy(self, refs: Sequence[Ref], where: str, node: Address) -> list[float]:
        """Return accuracies of models on a node's own set."""
        return self._judge(refs, where, node, "accuracy")

    def losses(self, refs: Sequence[Ref], where: str, node: Address) -> list[float]:
        """Return mean losses of models on a node's own set."""
        return self._judge(refs, where, node, "loss")


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of one order: the model's way down, ``updates`` local updates, the model's way up."""

    down: float
    update: float
    updates: int
    up: float

    @property
    def communication(self) -> float:
        """Seconds on the links, t_com."""
        return self.down + self.up

    @property
    def ready(self) -> float:
        """Seconds from dispatch until the device could send its model."""
        return self.down + self.updates * self.update

    @property
    def total(self) -> float:
        """Seconds from dispatch until the report is in."""
        return self.ready + self.up


def estimate(env: Environment, server: Address, device: Address, updates: int, now: float) -> Latency:
    """Return the latency to expect of a device that ``server`` orders to do ``updates`` updates at ``now``.

    It is what the device itself would say after trying one mini-batch (its nominal speed, no noise) and what the links
    take for one model each way.
    """
    down = env.links.model_time(server, device, now)
    up = env.links.model_time(device, server, now)
    return Latency(down, env.speeds.update_time(device, now), updates, up)
