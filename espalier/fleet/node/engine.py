"""The engine: drives the nodes of one host. Events in, effects out; all is on disk before an effect happens.

    items (letters, timers, finished work, greetings) → nodes say what to do → one transaction → effects:
    acknowledgements, letters to send, timers to set, work to do

It has no network and no clock of its own, and runs in one thread. A batch of items is one transaction; if the
process dies before it, nothing was acknowledged and everything comes again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import save as to_bytes

from espalier.core.address import Address, host_of
from espalier.core.aggregator import Aggregator
from espalier.core.codec import refs_in
from espalier.core.errors import ProtocolError, TrainingError
from espalier.core.messages import (
    ALL,
    Action,
    Alarm,
    Arrange,
    Arrived,
    AwaitSum,
    ChildJoined,
    ChildLeft,
    Deadline,
    Event,
    Lost,
    Measure,
    Message,
    Summed,
    Train,
)
from espalier.core.method import Node
from espalier.core.policies import Rules
from espalier.core.runtime import Runtime
from espalier.core.store import Ref
from espalier.fleet.authority.check import Authority
from espalier.fleet.authority.fields import Receiver
from espalier.fleet.coordinator.manifest import Charter
from espalier.fleet.links.framing import ReceivedLetter
from espalier.fleet.membership import Member
from espalier.fleet.node.environment import Directory, Told
from espalier.fleet.node.events import (
    Acknowledged,
    Call,
    Due,
    Effects,
    Gone,
    Item,
    JobDone,
    Joined,
    Linked,
    Restarted,
    Steward,
    Timer,
)
from espalier.fleet.node.inbox import NOT_A_LETTERS_FAULT, Inbox
from espalier.fleet.node.jobs import JobQueue
from espalier.fleet.node.journal import Journal
from espalier.fleet.node.outbox import Outbox
from espalier.fleet.node.store import EagerStore
from espalier.fleet.node.stragglers import OVERDUE, Stragglers
from espalier.fleet.node.trainer import NodeTrainer
from espalier.fleet.secure.aggregator import SILENT, Sums
from espalier.fleet.secure.child import Hiding
from espalier.policies.privacy import PRIVATE
from espalier.simulator.checkpoint import atomic_write

#: seconds after which a round opens although not everybody has confirmed the new arrangement
SETTLE_SECONDS = 10.0


class Engine:
    """Drives the nodes of one host."""

    def __init__(
        self, me: Member, charter: Charter, journal: Journal, trainer: NodeTrainer, now: Callable[[], float]
    ) -> None:
        self.charter, self.journal, self.trainer, self.now = charter, journal, trainer, now
        self.plan = charter.plan()
        fleet = charter.experiment.fleet
        self.store = EagerStore(
            charter.card.spec, lambda index: trainer.initial(charter.seed, index), journal, self._rejected
        )
        structure = self.plan.root.structure
        self.directory = Directory(
            me.address, fleet.devices, fleet.edges, charter.seed, cloud=charter.cloud,
            flat=structure.flat, plants=structure.plants(), store=self.store,
            judge=lambda refs, where, node, what: self.jobs.judge(refs, where, node, what),
            update_batches=lambda samples: charter.experiment.training.batches(samples, 1),
            pretrained=lambda device, epochs: self.jobs.pretrained(device, epochs),
        )  # fmt: skip
        self.runtime = Runtime(self.plan, self.directory, self, PRIVATE)
        self.jobs = JobQueue(self)
        self.inbox, self.outbox = Inbox(self), Outbox(self)
        self.sums, self.hiding = Sums(self), Hiding(self)
        self.stragglers = Stragglers(self, charter.round_deadline)
        self.store.sums = self.sums.total
        self.steward: Steward
        receiver = Receiver(
            self.directory, self.plan, charter.experiment, self.runtime.nodes, self.runtime.node, lambda: self.frozen
        )
        self.authority = Authority(receiver, journal.get("authority"))
        self._queue: deque[tuple[Address, Event]] = deque()
        plain = journal.get("engine") or {}
        self.timers: dict[int, Timer] = {t[0]: Timer(*t) for t in plain.get("timers", ())}
        self._count: int = plain.get("count", 0)
        self._settling: set[tuple[int, int]] = plain.get("settling", set())
        #: nodes that wait for a secure sum: the event that brings it, and those that came meanwhile
        self._held: dict[Address, list[Event]] = plain.get("held", {})
        self.runtime.served = plain.get("served", {})
        if "numbers" in plain:
            self.runtime.numbers.restore(plain["numbers"])
        #: what nodes served when the last of the run's rounds that count was over for them
        self.final: dict[Address, dict[str, Ref]] = plain.get("final", {})
        #: the run is over: nothing more happens to nodes
        self.frozen = False
        self.effects = Effects()
        saved = journal.get("directory")
        if saved is not None:
            self.directory.restore(saved)
        for key in journal.keys("node "):
            self.runtime.node(int(key.removeprefix("node "))).state = journal.get(key)
        self._touched: set[Address] = set()
        #: what nodes have taken since their states were written, and when
        self._taken: dict[Address, list[tuple[Event, float]]] = {}
        self.directory.joined(me)

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

    def rules(self, address: Address) -> Rules:
        """Return the policies of an aggregator."""
        return self.runtime.rules(address)

    # -- items ---------------------------------------------------------------------------------------------

    def resume(self) -> Effects:
        """Return what an earlier incarnation left undone."""
        effects = Effects(jobs=list(self.jobs.waiting.values()), timers=list(self.timers.values()))
        for dest in self.outbox.delivery.waiting:
            effects.replaced[dest] = self.outbox.letters_to(dest)
        return effects

    def take(self, items: Sequence[Item]) -> Effects:
        """Take what happened, in order, as one transaction; return what is to be done."""
        self.effects = Effects()
        for item in items:
            self._take(item)
            self.drain()
        self._save()
        self.journal.commit()
        return self.effects

    def _take(self, item: Item) -> None:
        match item:
            case ReceivedLetter():
                self.inbox.take(item)
            case Joined(members=members):
                for member in members:
                    self._greeted(member)
                self.steward.changed(members, ())
            case Gone(hosts=hosts):
                for host in hosts:
                    self.tell(self.directory.gone(host))
                self.steward.changed((), hosts)
            case Linked(parent=parent):
                self._linked(parent)
            case Acknowledged(dest=dest, series=series, number=number):
                if self.outbox.delivery.acknowledged(dest, series, number):
                    self.settled(dest, number)
            case Restarted(dest=dest, series=series, above=above):
                self.outbox.renumber(dest, series, above=above)
            case Due(timer=number):
                timer = self.timers.pop(number, None)
                wake = None if timer is None else timer.event.wake
                if isinstance(wake, Alarm) and wake.key.startswith(SILENT):
                    self.sums.due(wake)
                elif timer is not None and wake == OVERDUE:
                    self.stragglers.due(timer.node)
                elif timer is not None:
                    self._queue.append((timer.node, timer.event))
            case JobDone(work=number, result=result, seconds=seconds):
                self.jobs.done(number, result, seconds)
            case Call(what=what):
                what()

    def drain(self) -> None:
        """Let nodes take what waits for them, and what comes of it."""
        while self._queue:
            address, event = self._queue.popleft()
            if self.frozen:
                continue
            held = self._held.get(address)
            if held is not None:
                held.append(event)
            if isinstance(event, ChildLeft):
                self.sums.left(address, event.child)
                self.stragglers.left(address, event.child)
            if held is not None:
                continue
            self._touched.add(address)
            actions = self._asked_of(address, event)
            self.sums.opened(address, actions)
            self.stragglers.ordered(address, actions)
            for action in actions:
                self.runtime.act(address, action)

    def _asked_of(self, address: Address, event: Event) -> list[Action]:
        """Give a node an event; a message that makes no sense to it is refused, and the node is as it was."""
        now = self.now()
        try:
            actions = self.runtime.ask(address, event)
        except Exception as error:
            ours = isinstance(error, NOT_A_LETTERS_FAULT) and not isinstance(error, ProtocolError | TrainingError)
            if ours or not isinstance(event, Arrived):
                raise
            self._put_back(address)
            sender = event.message.sender
            why = f"A {type(event.message).__name__.lower()} of node {sender} makes no sense to {address}: {error!r}."
            self.effects.refused.append((host_of(sender), why))
            return []
        self._taken.setdefault(address, []).append((event, now))
        return actions

    def _put_back(self, address: Address) -> None:
        """Make a node what the journal has, and let it take again what it took since; what came of that is done."""
        self.runtime.nodes.pop(address)
        node, kept = self.runtime.node(address), self.journal.get(f"node {address}")
        if kept is not None:
            node.state = kept
        for event, now in self._taken.get(address, ()):
            node.on(event, now)

    def release(self, node: Address) -> None:
        """Let a node that waited for sums take them, and what came meanwhile."""
        self._queue.extendleft((node, event) for event in reversed(self._held.pop(node, [])))

    def tell(self, told: Told) -> None:
        """Let nodes of this host know what has changed around them."""
        self._queue.extend(told)

    def lost(self, host: int) -> None:
        """Tell nodes of this host that watch another host that it is gone."""
        self._queue.extend((address, Lost(host)) for address in self.runtime.watchers(host))

    def begin(self, node: Address, event: Event) -> None:
        """Give a node an event."""
        self._queue.append((node, event))

    def touch(self, node: Address) -> None:
        """A node's state was changed from outside: it is written at once."""
        self.journal.put(f"node {node}", self.nodes[node].state)
        self._taken.pop(node, None)

    def reborn(self, host: int) -> None:
        """A host that reports here, though it is not linked here, came back without its memory."""
        self.outbox.renumber(host, forget=True)
        self.stumbled(host)

    def _greeted(self, member: Member) -> None:
        old = self.directory.members.get(member.address)
        if old is not None and old.life != member.life:
            # what was meant for an earlier incarnation answers orders that it does not know
            self.outbox.renumber(member.address, forget=True)
        self.tell(self.directory.joined(member))

    def _linked(self, parent: Member) -> None:
        directory = self.directory
        directory.members[self.me] = replace(directory.members[self.me], via=parent.address)
        self.tell(directory.attach(self.me, directory.home(self.me, parent.address)))

    def say(self, dest: int, kind: str, **data: Any) -> int:
        """Say something to another host's runtime; return the letter's number."""
        return self.outbox.say(dest, kind, **data)

    # -- the runtime's ports -------------------------------------------------------------------------------

    def time(self) -> float:
        """Return the seconds since the run began."""
        return self.now()

    def remind(self, node: Address, seconds: float, deadline: Deadline) -> None:
        """Give a node its deadline: what is due at once waits until an arrangement has been confirmed."""
        waits = seconds <= 0 and bool(self._settling)
        if seconds <= 0 and not waits:
            self._queue.append((node, deadline))
            return
        late = 0.0 if self.charter.script is None else self.charter.script.slack
        self.set_timer(node, SETTLE_SECONDS if waits else seconds + late, deadline, waits)

    def send(self, message: Message) -> None:
        """Send a message to a node, of this host or another."""
        self.outbox.send(message)

    def train(self, device: Address, train: Train, number: int) -> None:
        """Begin a training."""
        self.jobs.ask(device, train, number)

    def measure(self, device: Address, measure: Measure, number: int) -> None:
        """Begin a statistic."""
        self.jobs.ask(device, measure, number)

    def await_sum(self, node: Address, wanted: AwaitSum) -> None:
        """Hold back what comes for a node until children have helped to take the masks off their sums."""
        self._held[node] = [Summed(wanted.cohort)]
        if not any([self.sums.ask(models) for models in wanted.groups.values()]):
            self.release(node)

    def serve(self, node: Address, models: dict[str, Ref]) -> None:
        """A node has other models in use."""
        self.steward.served(node, models)

    def close(self, node: Address, progress: int) -> None:
        """A node has closed a round."""
        self.steward.closed(node, progress)

    def waits(self, device: Address) -> bool:
        """Tell whether a lone device must not train yet."""
        return self.steward.waits(device)

    def arrange(self, node: Address, arrange: Arrange) -> None:
        """A node wants the tree or the groups changed."""
        self.steward.arranged(node, arrange)

    def record(self, node: Address, kind: str, data: dict[str, Any]) -> None:
        """Write something into the run's record."""
        self.steward.recorded(node, kind, data)

    # -- timers, arrangements, children --------------------------------------------------------------------

    def set_timer(self, node: Address, seconds: float, deadline: Deadline, waits: bool = False) -> None:
        """Set a timer; one that ``waits`` runs out earlier, when an arrangement has been confirmed."""
        self._count += 1
        timer = Timer(self._count, node, deadline, self.now() + seconds, waits)
        self.timers[timer.id] = timer
        self.effects.timers.append(timer)

    def settle(self, dest: int, number: int) -> None:
        """Let rounds open only when a letter of an arrangement was acknowledged."""
        if dest != self.me:
            self._settling.add((dest, number))

    def settled(self, dest: int, number: int) -> None:
        """A host has confirmed its part of an arrangement; the rounds open after the last one has."""
        self._settling = {(d, n) for d, n in self._settling if d != dest or n > number}
        if not self._settling:
            for timer in [t for t in self.timers.values() if t.waits]:
                del self.timers[timer.id]
                self._queue.append((timer.node, timer.event))

    def stumbled(self, child: Address) -> None:
        """A child has given up its order: it counts as gone and come again."""
        self.directory.at_work.discard(child)
        for address, node in list(self.nodes.items()):
            if not isinstance(node, Aggregator):
                continue
            mine = self.directory.parent(child) == address
            if mine or child in node.state.tickets:
                self._queue.append((address, ChildLeft(child)))
            if mine:
                self._queue.append((address, ChildJoined(child)))

    def offended(self, node: Address, child: Address) -> None:
        """Count an offence of a child that its aggregator cannot see itself."""
        aggregator = self.nodes.get(node)
        if isinstance(aggregator, Aggregator):
            offences = aggregator.state.offences
            offences[child] = offences.get(child, 0) + 1
            self.touch(node)

    def _rejected(self, ref: int) -> None:
        self.steward.recorded(None, "rejected", {"model": ref, "why": "it has numbers that are not finite"})

    # -- saving --------------------------------------------------------------------------------------------

    def held(self) -> set[int]:
        """Return the models that somebody here holds."""
        found: set[int] = set()
        self.outbox.held(found)
        for node in self.nodes.values():
            refs_in(node.state, found)
        self.jobs.held(found)
        self.hiding.held(found)
        refs_in([self.served, self.final, self._held], found)
        return found

    def _save(self) -> None:
        self.steward.save()
        journal = self.journal
        for address in self._touched:
            journal.put(f"node {address}", self.nodes[address].state)
        self._touched.clear()
        self._taken.clear()
        self.store.keep_only(self.held())
        self.outbox.save()
        self.jobs.save()
        self.sums.save()
        self.hiding.save()
        journal.put("now", self.now())
        journal.put("directory", self.directory.save())
        journal.put(
            "engine",
            {
                "timers": [t.to_plain() for t in self.timers.values()], "count": self._count,
                "settling": self._settling, "held": self._held, "served": self.served,
                "final": self.final, "numbers": self.runtime.numbers.save(),
            },
        )  # fmt: skip


def save_models(engine: Engine, models: Mapping[str, Ref], folder: Path, name: str) -> None:
    """Write models as safetensors, one file per group."""
    folder.mkdir(exist_ok=True)
    for group, ref in models.items():
        views = {k: v.clone() for k, v in engine.store.spec.views(engine.store.vector(ref)).items()}
        atomic_write(folder / f"{name if group == ALL else f'{name}-{group}'}.safetensors", to_bytes(views))
