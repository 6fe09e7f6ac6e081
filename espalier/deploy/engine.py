"""The engine: drives the nodes of one host. Events in, effects out; all is on disk before an effect happens.

    items (letters, timers, finished work, greetings) → nodes say what to do → one transaction → effects:
    acknowledgements, letters to send, timers to set, work to do

It has no network and no clock of its own, and runs in one thread. A batch of items is one transaction; if the process dies
before it, nothing was acknowledged and everything comes again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from espalier.core.address import Address, host_of
from espalier.core.aggregator import Aggregator
from espalier.core.codec import refs_in
from espalier.core.device import Device
from espalier.core.errors import ConfigError, ProtocolError
from espalier.core.messages import (
    Action,
    Arrange,
    Arrived,
    ChildJoined,
    ChildLeft,
    Closed,
    Deadline,
    Event,
    Measure,
    Measured,
    Message,
    Order,
    Record,
    Report,
    Send,
    Serve,
    SetDeadline,
    Train,
    Trained,
)
from espalier.core.method import Node
from espalier.core.store import Ref
from espalier.deploy import wire
from espalier.deploy.charter import Charter
from espalier.deploy.directory import Directory, Told
from espalier.deploy.encoding import Encoder, decode
from espalier.deploy.items import (
    Acknowledged,
    Call,
    Due,
    Effects,
    Gone,
    Item,
    Joined,
    Linked,
    Restarted,
    Score,
    Steward,
    Tell,
    Timer,
    Work,
    Worked,
)
from espalier.deploy.journal import Journal
from espalier.deploy.learner import Learner, Learnt, Lesson
from espalier.deploy.letters import Arrival, Letter, Part
from espalier.deploy.mail import Mailbox
from espalier.deploy.members import Member
from espalier.deploy.protocol import espalier_pb2 as pb
from espalier.deploy.store import EagerStore

#: seconds after which a round opens although not everybody has confirmed the new arrangement
SETTLE = 10.0


class Engine:
    """Drives the nodes of one host."""

    def __init__(
        self, me: Member, charter: Charter, journal: Journal, learner: Learner, now: Callable[[], float]
    ) -> None:
        self.charter, self.journal, self.learner, self.now = charter, journal, learner, now
        self.plan = charter.plan()
        fleet = charter.experiment.fleet
        self.store = EagerStore(
            charter.card.spec, lambda index: learner.initial(charter.seed, index), journal, self._rejected
        )
        self.directory = Directory(
            me.address, fleet.devices, fleet.edges, charter.seed, flat=self.plan.root.structure.flat,
            store=self.store, judge=self._judge,
        )  # fmt: skip
        self.mail = Mailbox(journal)
        self._encoder = Encoder(charter.compress, lambda name: self.store.vector(Ref(name)))
        self.steward: Steward
        self.nodes: dict[Address, Node] = {}
        self._queue: deque[tuple[Address, Event]] = deque()
        plain = journal.get("engine") or {}
        self.works: dict[int, Work] = {w[0]: Work.of_plain(w) for w in plain.get("works", ())}
        self.timers: dict[int, Timer] = {t[0]: Timer(*t) for t in plain.get("timers", ())}
        self._count: int = plain.get("count", 0)
        self._jobs: dict[Address, int] = plain.get("jobs", {})
        self._asked: dict[Address, int] = plain.get("asked", {})
        self._settling: set[tuple[int, int]] = plain.get("settling", set())
        self.served: dict[Address, dict[str, Ref]] = plain.get("served", {})
        #: the run is over: nothing more happens to nodes
        self.frozen = False
        self._effects = Effects()
        saved = journal.get("directory")
        if saved is not None:
            self.directory.restore(saved)
        for key in journal.keys("node "):
            self.node(int(key.removeprefix("node "))).state = journal.get(key)
        self._touched: set[Address] = set()
        self.directory.joined(me)

    @property
    def me(self) -> int:
        """This host's address."""
        return self.directory.me

    # -- items ---------------------------------------------------------------------------------------------

    def resume(self) -> Effects:
        """Return what an earlier life left undone."""
        effects = Effects(works=list(self.works.values()), timers=list(self.timers.values()))
        for dest in self.mail.waiting:
            effects.replaced[dest] = self._letters_to(dest)
        return effects

    def take(self, items: Sequence[Item]) -> Effects:
        """Take what happened, in order, as one transaction; return what is to be done."""
        self._effects = Effects()
        for item in items:
            self._take(item)
            self._drain()
        self._save()
        self.journal.commit()
        return self._effects

    def _take(self, item: Item) -> None:
        match item:
            case Arrival():
                self._arrived(item)
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
                if self.mail.acknowledged(dest, series, number):
                    self.settled(dest, number)
            case Restarted(dest=dest, series=series):
                if self.mail.renumber(dest, series):
                    self._effects.replaced[dest] = self._letters_to(dest)
            case Due(timer=number):
                timer = self.timers.pop(number, None)
                if timer is not None:
                    self._queue.append((timer.node, timer.event))
            case Worked(work=number, result=result, seconds=seconds):
                self._worked(number, result, seconds)
            case Tell(node=node, event=event):
                self._queue.append((node, event))
            case Call(what=what):
                what()

    def _drain(self) -> None:
        while self._queue:
            address, event = self._queue.popleft()
            if self.frozen:
                continue
            node = self.node(address)
            self._touched.add(address)
            for action in node.on(event, self.now()):
                self.act(address, action)

    def tell(self, told: Told) -> None:
        """Let nodes of this host know what has changed around them."""
        self._queue.extend(told)

    def begin(self, node: Address, event: Event) -> None:
        """Give a node an event."""
        self._queue.append((node, event))

    def reborn(self, host: int) -> None:
        """A host that reports here, though it is not linked here, came back without its memory."""
        if host in self.mail.waiting:
            self.mail.renumber(host, self.mail.series(host), forget=True)
            self._effects.replaced[host] = []
        self.stumbled(host)

    def _greeted(self, member: Member) -> None:
        old = self.directory.members.get(member.address)
        if old is not None and old.life != member.life and member.address in self.mail.waiting:
            # what was meant for its earlier life would only puzzle it
            self.mail.renumber(member.address, self.mail.series(member.address), forget=True)
            self._effects.replaced[member.address] = []
        self.tell(self.directory.joined(member))

    def _linked(self, parent: Member) -> None:
        directory = self.directory
        directory.members[self.me] = replace(directory.members[self.me], via=parent.address)
        if self.me in directory.placed:
            return
        if directory.flat:
            home: Address | None = directory.cloud if directory.is_device(self.me) else None
        else:
            home = parent.address
        self.tell(directory.attach(self.me, home))

    # -- letters -------------------------------------------------------------------------------------------

    def _arrived(self, arrival: Arrival) -> None:
        following: Arrival | None = arrival
        while following is not None:
            fate = self.mail.fate(following)
            if fate == "unknown":
                self._effects.restarts[following.origin] = following.series
                return
            if fate == "new":
                try:
                    self._open(following)
                except ProtocolError as error:
                    # acknowledged all the same: it would be no better the next time
                    self._effects.refused.append((following.origin, str(error)))
                self._drain()
            if fate == "early":
                return
            after = self.mail.take(following) if fate == "new" else None
            self._effects.acks[following.origin] = self.mail.heard(following.origin)
            following = after

    def _open(self, arrival: Arrival) -> None:
        if arrival.content.WhichOneof("kind") == "control":
            kind, data = wire.unpack_control(arrival.content)
            self.steward.control(arrival.origin, kind, data)
            return
        refs = [self.store.put(self._decoded(part, arrival.origin)) for part in arrival.parts]
        message = wire.unpack(arrival.content, refs)
        if host_of(message.sender) != arrival.origin or host_of(message.to) != self.me:
            raise ProtocolError(
                f"A letter of host {arrival.origin} to {self.me} holds a message of {message.sender} to {message.to}: "
                "nobody speaks for another."
            )
        if isinstance(message, Report):
            self._noticed(message)
        elif isinstance(message, Order) and self.directory.is_device(message.to):
            self.steward.ordered(message)
        self._queue.append((message.to, Arrived(message)))

    def _decoded(self, part: Part, origin: int) -> Tensor:
        return decode(part, self.store.spec.size)

    def _noticed(self, report: Report) -> None:
        """Learn from a report how fast its sender and the way to it are."""
        directory, sender = self.directory, report.sender
        directory.at_work.discard(sender)
        member = directory.members.get(sender)
        if member is None or not report.models:
            return
        way = max(0.0, (report.download + self.now() - report.sent) / 2)
        batches = self.charter.experiment.training.batches(member.samples, report.updates)
        speed = report.compute / batches if batches and directory.is_device(sender) else member.seconds_per_batch
        directory.members[sender] = replace(member, seconds_per_batch=speed, model_seconds=way)

    def send(self, message: Message) -> None:
        """Send a message to a node, of this host or another."""
        dest = host_of(message.to)
        if isinstance(message, Order) and self.directory.is_device(message.to):
            self.directory.at_work.add(message.to)
        if dest == self.me:
            self._queue.append((message.to, Arrived(message)))
            return
        names: list[int] = []

        def place(ref: Ref) -> int:
            if int(ref) not in names:
                names.append(int(ref))
            return names.index(int(ref))

        content = wire.pack(message, place)
        recipe = [Ref(n) for n in names]
        self._post(dest, content, recipe, [self._encoder.part(n) for n in names])

    def say(self, dest: int, kind: str, **data: Any) -> int:
        """Say something to another host's runtime (to this one's own steward, if it is this host)."""
        if dest == self.me:
            self.steward.control(self.me, kind, data)
            return 0
        return self._post(dest, wire.control(kind, data), [], [])

    def _post(self, dest: int, content: pb.Content, recipe: list[Ref], parts: Sequence[Part]) -> int:
        data = content.SerializeToString()
        if len(data) > self.charter.limits.content_bytes:
            raise ConfigError(
                f"A message to node {dest} has {len(data)} bytes besides its models; limits.content_bytes is "
                f"{self.charter.limits.content_bytes}: raise it."
            )
        letter = self.mail.post(dest, data, recipe, parts)
        if dest in self._effects.replaced:
            self._effects.replaced[dest].append(letter)
        else:
            self._effects.letters.append(letter)
        return letter.number

    def _letters_to(self, dest: int) -> list[Letter]:
        series = self.mail.series(dest)
        return [
            Letter(dest, series, number, content, [self._encoder.part(int(r)) for r in recipe])  # type: ignore[attr-defined]
            for number, (content, recipe) in sorted(self.mail.waiting[dest].items())
        ]

    # -- nodes ---------------------------------------------------------------------------------------------

    def node(self, address: Address) -> Node:
        """Return the node at an address, making it if need be."""
        if address not in self.nodes:
            made = self.plan.node(address, self.directory) if self.plan.node is not None else None
            if made is None and self.directory.is_device(address):
                made = Device(address, self.plan.local, self.plan.child, self.directory)
            elif made is None:
                rules = self.plan.root if address == self.directory.tree.root else self.plan.edge
                made = Aggregator(address, rules, self.directory)
            self.nodes[address] = made
        return self.nodes[address]

    def act(self, address: Address, action: Action) -> None:
        """Do what a node asked for."""
        match action:
            case Send(message=message):
                self.send(message)
            case Train() | Measure():
                self._work(address, action)
            case SetDeadline(seconds=seconds, key=key, number=number):
                self._set(address, seconds, Deadline(key, number))
            case Serve(models=models):
                self.served[address] = models
                self.steward.served(address, models)
            case Closed(progress=progress):
                self.steward.closed(address, progress)
            case Arrange():
                self.steward.arranged(address, action)
            case Record(kind=kind, data=data):
                self.steward.recorded(address, kind, data)

    def _set(self, address: Address, seconds: float, event: Deadline) -> None:
        waits = seconds <= 0 and bool(self._settling)
        if seconds <= 0 and not waits:
            self._queue.append((address, event))
            return
        self._count += 1
        timer = Timer(self._count, address, event, self.now() + (SETTLE if waits else seconds), waits)
        self.timers[timer.id] = timer
        self._effects.timers.append(timer)

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

    # -- work ----------------------------------------------------------------------------------------------

    def _work(self, address: Address, action: Train | Measure) -> None:
        if not self.directory.is_device(address):
            raise ProtocolError(f"Node {address} has no data to train on: only devices train.")
        counts = self._jobs if isinstance(action, Train) else self._asked
        number = counts.get(address, 0)
        counts[address] = number + 1
        if isinstance(self.node(address), Device):
            # a device minds only its newest order
            for old in [w.id for w in self.works.values() if w.node == address and not isinstance(w.action, Score)]:
                del self.works[old]
        self.assign(address, action, number)

    def assign(self, address: Address, action: Train | Measure | Score, number: int = 0) -> None:
        """Give the worker something to do."""
        self._count += 1
        work = Work(self._count, address, action, number, self.now())
        self.works[work.id] = work
        self._effects.works.append(work)

    def perform(self, work: Work) -> Callable[[], Any] | None:
        """Return the computation that a piece of work means, for the worker's thread (None: nobody wants it any more)."""
        if work.id not in self.works:
            return None
        action, learner = work.action, self.learner
        if isinstance(action, Train):
            vector = self.store.vector
            lesson = Lesson(
                work.node, work.number, vector(action.start), action.updates, action.clock,
                None if action.anchor is None else vector(action.anchor), action.mu,
                None if action.memory is None else self.store.memory(action.memory), action.keep_memory, action.args,
            )  # fmt: skip
            return lambda: learner.train(lesson)
        vectors = [self.store.vector(r) for r in action.models]
        if isinstance(action, Score):
            return lambda: learner.score(vectors, "test")
        rng = self.directory.rng("statistic", action.what, work.node, work.number)
        return lambda: learner.measure(action.what, vectors, action.args, rng)

    def _worked(self, number: int, result: Any, seconds: float) -> None:
        work = self.works.pop(number, None)
        if work is None:
            return
        if isinstance(result, Exception):
            self._stumbled(work, result)
            return
        if isinstance(work.action, Score):
            self.steward.scored(work, result)
            return
        if self.charter.scripted is not None and isinstance(result, Learnt):
            seconds = self.charter.scripted * result.batches
        self.steward.worked(work, seconds)
        token = work.action.token
        if isinstance(result, Learnt):
            ref = self.store.learnt(result.vector, result.loss, result.memory)
            if result.batches:
                mine = self.directory.members[self.me]
                self.directory.members[self.me] = replace(mine, seconds_per_batch=seconds / result.batches)
            self._queue.append((work.node, Trained(token, ref, seconds, work.action.updates)))
        else:
            self._queue.append((work.node, Measured(token, result, seconds)))

    def _stumbled(self, work: Work, error: Exception) -> None:
        """A training failed: nobody need wait for it; the device takes part again from the next round on."""
        self.steward.recorded(work.node, "failed", {"why": f"{type(error).__name__}: {error}"})
        if isinstance(work.action, Score):
            return
        parent = self.directory.parent(work.node)
        node = self.node(work.node)
        order = node.state.order if isinstance(node, Device) else None
        waiting = {host_of(a) for a in (parent, None if order is None else order.sender) if a is not None}
        if isinstance(node, Device):
            node.state.order = None
            self._touched.add(work.node)
        for host in sorted(waiting):
            self.say(host, "stumbled", node=work.node)

    def stumbled(self, child: Address) -> None:
        """A child has given up its order: it counts as gone and come again."""
        self.directory.at_work.discard(child)
        for address, node in list(self.nodes.items()):
            if not isinstance(node, Aggregator):
                continue
            mine = self.directory.parent(child) == address
            if mine or any(t.child == child for t in node.state.tickets.values()):
                self._queue.append((address, ChildLeft(child)))
            if mine:
                self._queue.append((address, ChildJoined(child)))

    # -- evaluating ----------------------------------------------------------------------------------------

    def _judge(self, refs: Sequence[Ref], where: str, node: Address, what: str) -> list[float]:
        found: list[dict[str, float]] = []
        if host_of(node) == self.me:
            found = self.learner.score([self.store.vector(r) for r in refs], where)
        if not found:
            raise ConfigError(
                f"Node {node} has no set {where!r} to evaluate models on; give it one with --data (x_test and y_test)."
            )
        main = "loss" if what == "loss" else next(n for n in found[0] if n != "loss")
        return [f[main] for f in found]

    def _rejected(self, ref: int) -> None:
        self.steward.recorded(None, "rejected", {"model": ref, "why": "it has numbers that are not finite"})

    # -- saving --------------------------------------------------------------------------------------------

    def held(self) -> tuple[set[int], set[int]]:
        """Return the models that somebody here holds, and among them those that are still to be sent."""
        held: set[int] = set()
        posted: set[int] = set()
        for node in self.nodes.values():
            refs_in(node.state, held)
        refs_in(list(self.works.values()), held)
        refs_in(self.served, held)
        for letters in self.mail.waiting.values():
            for _, recipe in letters.values():
                refs_in(recipe, posted)
        return held | posted, posted

    def _save(self) -> None:
        self.steward.save()
        journal = self.journal
        for address in self._touched:
            journal.put(f"node {address}", self.nodes[address].state)
        self._touched.clear()
        held, posted = self.held()
        self.store.keep_only(held)
        self._encoder.keep_only(posted)
        self.mail.save()
        journal.put("directory", self.directory.save())
        journal.put(
            "engine",
            {
                "works": [w.to_plain() for w in self.works.values()],
                "timers": [t.to_plain() for t in self.timers.values()], "count": self._count, "jobs": self._jobs,
                "asked": self._asked, "settling": self._settling, "served": self.served,
            },
        )  # fmt: skip
