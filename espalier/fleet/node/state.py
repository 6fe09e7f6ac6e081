"""The state of one host: what all parts of its engine share, and nothing of what the parts do.

Nodes and their models, the directory of the fleet, timers, events that wait for nodes, effects that are yet to happen.
The parts (inbox, outbox, jobs, secure sums, stragglers) are given this and each other, never the engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from espalier.core.address import Address
from espalier.core.aggregator import Aggregator
from espalier.core.codec import refs_in
from espalier.core.messages import Arrived, ChildJoined, ChildLeft, Event, Lost, Message
from espalier.core.method import Node
from espalier.core.runtime import Ports, Runtime
from espalier.core.store import Ref
from espalier.fleet.coordinator.manifest import Manifest
from espalier.fleet.membership import Member
from espalier.fleet.node.environment import Directory, Told
from espalier.fleet.node.events import Effects, HostControl
from espalier.fleet.node.journal import Journal
from espalier.fleet.node.store import EagerStore
from espalier.fleet.node.timers import Timers
from espalier.fleet.node.trainer import ModelTrials, NodeTrainer
from espalier.policies.privacy import PRIVATE


class HostState:
    """What the parts of one host's engine share. All is called in the engine's thread.

    Attributes:
        conduct: What differs between the cloud and everybody else; set before the first item is taken.
        effects: What is to be done once the present transaction is on disk.
        final: What nodes served when the last of the run's rounds that count was over for them.
        frozen: Whether the run is over: nothing more happens to nodes.
    """

    def __init__(
        self,
        me: Member,
        manifest: Manifest,
        journal: Journal,
        trainer: NodeTrainer,
        now: Callable[[], float],
        ports: Ports,
    ) -> None:
        """Go on from a journal; ``ports`` does what nodes ask for."""
        self.manifest, self.journal, self.trainer, self._clock = manifest, journal, trainer, now
        #: on a scripted fleet, the time of what is happening
        self._moment: float | None = None
        self.plan = manifest.plan()
        self.store = EagerStore(
            manifest.card.spec, lambda index: trainer.initial(manifest.seed, index), journal, self._rejected
        )
        self.trials = ModelTrials(me.address, trainer, self.store, journal)
        fleet, structure = manifest.experiment.fleet, self.plan.root.structure
        self.directory = Directory(
            me.address, fleet.devices, fleet.edges, manifest.seed, cloud=manifest.cloud,
            flat=structure.flat, places_newcomers=structure.places_newcomers(),
            store=self.store, judge=self.trials.judge,
            training=manifest.experiment.training,
            pretrained=self.trials.pretrained, script=manifest.script, least_seconds=manifest.round_deadline,
        )  # fmt: skip
        self.runtime = Runtime(self.plan, self.directory, ports, PRIVATE)
        self.conduct: HostControl
        self.effects = Effects()
        self.frozen = False
        self.queue: deque[tuple[Address, Event]] = deque()
        plain = journal.get("engine") or {}
        self.timers = Timers(self.now, plain)
        #: nodes that wait for a secure sum: the event that brings it, and those that came meanwhile
        self.held_back: dict[Address, list[Event]] = plain.get("held", {})
        self.runtime.served = plain.get("served", {})
        if "numbers" in plain:
            self.runtime.numbers.restore(plain["numbers"])
        self.final: dict[Address, dict[str, Ref]] = plain.get("final", {})
        saved = journal.get("directory")
        if saved is not None:
            self.directory.restore(saved)
        for key in journal.keys("node "):
            self.runtime.node(int(key.removeprefix("node "))).state = journal.get(key)
        #: nodes whose states are yet to be written
        self.touched: set[Address] = set()
        #: what nodes have taken since their states were written, and when
        self.taken: dict[Address, list[tuple[Event, float]]] = {}
        self.directory.joined(me)

    def now(self) -> float:
        """Return fleet time; on a scripted fleet that of what is happening, however late it is."""
        return self._clock() if self._moment is None else self._moment

    @property
    def me(self) -> int:
        """This host's address."""
        return self.directory.me

    @property
    def nodes(self) -> dict[Address, Node]:
        """The nodes of this host."""
        return self.runtime.nodes

    @property
    def served(self) -> dict[Address, dict[str, Ref]]:
        """The models in use at this host's nodes (and, at the cloud, at a root on a device)."""
        return self.runtime.served

    # -- events for nodes ----------------------------------------------------------------------------------

    def begin(self, node: Address, event: Event) -> None:
        """Give a node an event."""
        self.queue.append((node, event))

    def arrive(self, message: Message) -> None:
        """Give a node a message: at once, or on a scripted fleet when its way is over."""
        hop = 0.0 if self.manifest.script is None else self.manifest.script.hop
        way = hop * self.directory.hops(message.sender, message.to)
        self.happen(message.to, message.sent + way, Arrived(message))

    def happen(self, node: Address, at: float, event: Event) -> None:
        """Give a node an event: at once, or on a scripted fleet at its time."""
        if self.manifest.script is None:
            self.begin(node, event)
        else:
            self.timers.at(node, at, event)

    def tell(self, told: Told) -> None:
        """Let nodes of this host know what has changed around them."""
        self.queue.extend(told)

    def lost(self, host: int) -> None:
        """Tell nodes of this host that watch another host that it is gone."""
        self.queue.extend((address, Lost(host)) for address in self.runtime.watchers(host))

    def release(self, node: Address) -> None:
        """Let a node that waited for sums take them, and what came meanwhile."""
        self.queue.extendleft((node, event) for event in reversed(self.held_back.pop(node, [])))

    def gave_up(self, child: Address) -> None:
        """A child has given up its order: it counts as gone and come again."""
        self.directory.at_work.discard(child)
        for address, node in list(self.nodes.items()):
            if not isinstance(node, Aggregator):
                continue
            mine = self.directory.parent(child) == address
            if mine or child in node.state.tickets:
                self.begin(address, ChildLeft(child))
            if mine:
                self.begin(address, ChildJoined(child))

    def offended(self, node: Address, child: Address) -> None:
        """Count an offence of a child that its aggregator cannot see itself."""
        aggregator = self.nodes.get(node)
        if isinstance(aggregator, Aggregator):
            offences = aggregator.state.offences
            offences[child] = offences.get(child, 0) + 1
            self.touch(node)

    def settle(self, dest: int, number: int) -> None:
        """Let rounds open only when a letter of an arrangement was acknowledged."""
        if dest != self.me:
            self.timers.settle(dest, number)

    def settled(self, dest: int, number: int) -> None:
        """A host has confirmed its part of an arrangement; the rounds open after the last one has."""
        self.queue.extend(self.timers.settled(dest, number))

    def _rejected(self, ref: int) -> None:
        data = {"model": ref, "why": "it has numbers that are not finite"}
        child = self.store.sender(ref)
        self.conduct.record(None, "rejected", data if child is None else data | {"child": child})

    # -- the nodes' states on disk -------------------------------------------------------------------------

    def touch(self, node: Address) -> None:
        """A node's state was changed from outside: it is written at once."""
        self.journal.put(f"node {node}", self.nodes[node].state)
        self.taken.pop(node, None)

    def put_back(self, address: Address) -> None:
        """Make a node what the journal has, and let it take again what it took since; what came of that is done."""
        self.runtime.nodes.pop(address)
        node, kept = self.runtime.node(address), self.journal.get(f"node {address}")
        if kept is not None:
            node.state = kept
        for event, now in self.taken.get(address, ()):
            node.on(event, now)

    def refs(self, found: set[int]) -> None:
        """Add the models that nodes hold, serve or wait for."""
        for node in self.nodes.values():
            refs_in(node.state, found)
        refs_in([self.served, self.final, self.held_back, [t.event for t in self.timers.running.values()]], found)

    def save(self) -> None:
        """Bring the journal up to date (it is not committed here)."""
        journal = self.journal
        for address in self.touched:
            journal.put(f"node {address}", self.nodes[address].state)
        self.touched.clear()
        self.taken.clear()
        journal.put("now", self._clock())
        journal.put("directory", self.directory.save())
        plain: dict[str, Any] = {
            "held": self.held_back, "served": self.served, "final": self.final,
            "numbers": self.runtime.numbers.save(),
        }  # fmt: skip
        journal.put("engine", self.timers.to_plain() | plain)
