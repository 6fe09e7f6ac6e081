"""The engine: drives the nodes of one host. Events in, effects out; all is on disk before an effect happens.

    items (letters, timers, finished work, greetings) → nodes say what to do → one transaction → effects:
    acknowledgements, letters to send, timers to set, work to do

It has no network and no clock of its own, and runs in one thread. A batch of items is one transaction; if the
process dies before it, nothing was acknowledged and everything comes again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from espalier.core.address import Address, host_of
from espalier.core.aggregator import Aggregator
from espalier.core.codec import pack, unpack
from espalier.core.messages import (
    Action,
    Alarm,
    Arrange,
    Arrived,
    AwaitSum,
    ChildLeft,
    Deadline,
    Event,
    Measure,
    Message,
    Order,
    Report,
    Summed,
    Train,
)
from espalier.core.store import Ref
from espalier.fleet.authority.check import Authority
from espalier.fleet.authority.fields import Receiver
from espalier.fleet.coordinator.manifest import Manifest
from espalier.fleet.links.framing import ReceivedLetter
from espalier.fleet.membership import Member
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
)
from espalier.fleet.node.inbox import NOT_A_LETTERS_FAULT, Inbox
from espalier.fleet.node.jobs import JobQueue
from espalier.fleet.node.journal import Journal
from espalier.fleet.node.outbox import Outbox
from espalier.fleet.node.state import HostState
from espalier.fleet.node.stragglers import OVERDUE, Stragglers
from espalier.fleet.node.timers import SETTLE_SECONDS, Timer
from espalier.fleet.node.trainer import NodeTrainer
from espalier.fleet.secure.aggregator import SILENT, Sums
from espalier.fleet.secure.child import Masking
from espalier.secure.identity import Credentials


class Engine(HostState):
    """Drives the nodes of one host."""

    def __init__(
        self,
        me: Member,
        manifest: Manifest,
        journal: Journal,
        trainer: NodeTrainer,
        now: Callable[[], float],
        credentials: Credentials | None = None,
    ) -> None:
        """Go on from a journal; ``credentials`` sign what members of secure sums tell each other."""
        super().__init__(me, manifest, journal, trainer, now, self)
        receiver = Receiver(
            self.directory, self.plan, manifest.experiment, self.runtime.nodes, self.runtime.node, lambda: self.frozen
        )
        self.authority = Authority(receiver, journal.get("authority"))
        self.outbox = Outbox(self)
        self.jobs = JobQueue(self, self.outbox)
        self.sums, self.masking = Sums(self, self.outbox, credentials), Masking(self, self.outbox, credentials)
        self.stragglers = Stragglers(self, self.outbox, manifest.round_deadline)
        self.inbox = Inbox(
            self, self.outbox, self.authority, self.sums, self.masking, self.stragglers.reported, self.drain
        )
        self.store.sums = self.sums.total
        #: on a scripted fleet: the newest that has happened (its time, and whether it was a deadline)
        self._newest = (0.0, False)

    # -- items ---------------------------------------------------------------------------------------------

    def resume(self) -> Effects:
        """Return what an earlier incarnation left undone."""
        effects = Effects(jobs=list(self.jobs.waiting.values()), timers=list(self.timers.running.values()))
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
        self.effects.timers = self.timers.new()
        return self.effects

    def _take(self, item: Item) -> None:
        match item:
            case ReceivedLetter():
                self.inbox.take(item)
            case Joined(members=members):
                for member in members:
                    self._greeted(member)
                self.conduct.changed(members, ())
            case Gone(hosts=hosts):
                for host in hosts:
                    self.tell(self.directory.gone(host))
                self.conduct.changed((), hosts)
            case Linked(parent=parent):
                self._linked(parent)
            case Acknowledged(dest=dest, series=series, number=number):
                if self.outbox.delivery.acknowledged(dest, series, number):
                    self.settled(dest, number)
            case Restarted(dest=dest, series=series, above=above):
                self.outbox.renumber(dest, series, above=above)
            case Due(timer=number):
                self._due(number)
            case JobDone(work=number, result=result, seconds=seconds):
                self.jobs.done(number, result, seconds)
            case Call(what=what):
                what()

    def _due(self, number: int) -> None:
        """A timer has run out: let everything happen that is due by now, in order."""
        timer = self.timers.running.get(number)
        if timer is None:
            return
        until = max(self.now(), timer.due)
        while (due := self.timers.pop(until)) is not None:
            if self.manifest.script is not None:
                self._keep_script(due)
            wake = due.wake
            if isinstance(wake, Alarm) and wake.key.startswith(SILENT):
                self.sums.due(wake)
            elif wake == OVERDUE:
                self.stragglers.due(due.node)
            else:
                self.queue.append((due.node, due.event))
            self.drain()
        self._moment = None

    def _keep_script(self, due: Timer) -> None:
        """Let it be the time of what is due; note if something that should have come after it has happened already."""
        self._moment, event = due.due, due.event
        from_afar = isinstance(event, Arrived) and host_of(event.message.sender) != self.me
        if from_afar and due.order[:2] < self._newest:
            self.conduct.record(due.node, "behind", {"seconds": self._clock() - due.due})
        self._newest = max(self._newest, due.order[:2])

    def drain(self) -> None:
        """Let nodes take what waits for them, and what comes of it."""
        while self.queue:
            address, event = self.queue.popleft()
            if self.frozen:
                continue
            held = self.held_back.get(address)
            if held is not None:
                held.append(event)
            if isinstance(event, ChildLeft):
                self.sums.left(address, event.child)
                self.stragglers.left(address, event.child)
            if held is not None:
                continue
            self.touched.add(address)
            actions = self._asked_of(address, event)
            self.sums.opened(address, actions)
            self.stragglers.ordered(address, actions)
            for action in actions:
                self.runtime.act(address, action)

    def _asked_of(self, address: Address, event: Event) -> list[Action]:
        """Give a node an event; a message that makes no sense to it is refused, whether it came now or before."""
        now = self.now()
        try:
            actions = self.runtime.ask(address, event)
        except Exception as error:
            if isinstance(error, NOT_A_LETTERS_FAULT):
                raise
            self.put_back(address)
            found = without_culprit(self, address, event, self.runtime.ask)
            if found is not None:
                culprits, actions = found
            elif isinstance(event, Arrived):
                culprits, actions = {event.message.sender}, []
            else:
                raise
            if not culprits:
                self.conduct.record(address, "rejected", {"why": f"none of a round's reports can be read: {error!r}"})
            for sender in sorted(culprits):
                why = f"What node {sender} sent makes no sense to {address}: {error!r}."
                self.effects.refused.append((host_of(sender), why))
            if found is None:
                return []
        self.taken.setdefault(address, []).append((event, now))
        return actions

    def new_incarnation(self, host: int) -> None:
        """A host that reports here, though it is not linked here, came back without its memory."""
        self.outbox.renumber(host, forget=True)
        self.gave_up(host)

    def _greeted(self, member: Member) -> None:
        old = self.directory.members.get(member.address)
        if old is not None and old.incarnation != member.incarnation:
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
        waits = seconds <= 0 and self.timers.settling
        if seconds <= 0 and not waits:
            self.happen(node, self.now(), deadline)
            return
        self.timers.set(node, SETTLE_SECONDS if waits else seconds, deadline, waits=waits)

    def send(self, message: Message) -> None:
        """Send a message to a node, of this host or another."""
        self.authority.sends(message)
        if isinstance(message, Order) and self.directory.is_device(message.to):
            self.directory.at_work.add(message.to)
        if host_of(message.to) == self.me:
            self.arrive(message)
        elif isinstance(message, Report) and message.models and self.sums.concerns(message.to):
            self.masking.send(message)
        elif self.masking.lets_out(message):
            self.outbox.send(message)

    def train(self, device: Address, train: Train, number: int) -> None:
        """Begin a training."""
        self.jobs.ask(device, train, number)

    def measure(self, device: Address, measure: Measure, number: int) -> None:
        """Begin a statistic."""
        self.jobs.ask(device, measure, number)

    def await_sum(self, node: Address, wanted: AwaitSum) -> None:
        """Hold back what comes for a node until children have helped to take the masks off their sums."""
        self.held_back[node] = [Summed(wanted.cohort)]
        if not any([self.sums.ask(models) for models in wanted.groups.values()]):
            self.release(node)

    def serve(self, node: Address, models: dict[str, Ref]) -> None:
        """A node has other models in use."""
        self.conduct.serve(node, models)

    def close(self, node: Address, progress: int) -> None:
        """A node has closed a round."""
        self.conduct.close(node, progress)

    def waits(self, device: Address) -> bool:
        """Tell whether a lone device must not train yet."""
        return self.conduct.waits(device)

    def arrange(self, node: Address, arrange: Arrange) -> None:
        """A node wants the tree or the groups changed."""
        self.conduct.arrange(node, arrange)

    def record(self, node: Address, kind: str, data: dict[str, Any]) -> None:
        """Write something into the run's record."""
        self.conduct.record(node, kind, data)

    # -- saving --------------------------------------------------------------------------------------------

    def _save(self) -> None:
        self.conduct.save()
        held: set[int] = set()
        for part in (self.outbox, self.jobs, self.masking):
            part.held(held)
        self.refs(held)
        self.store.keep_only(held)
        for kept in (self, self.outbox, self.jobs, self.sums, self.masking, self.stragglers):
            kept.save()
        self.journal.put("authority", self.authority.to_plain())


def without_culprit(
    state: HostState, address: Address, event: Event, ask: Callable[[Address, Event], list[Action]]
) -> tuple[set[Address], list[Action]] | None:
    """Let a node that has just been put back take an event without the report that it stumbles over.

    What a policy reads of a report (statistics above all) is checked by its reader, who may find it unreadable only
    when somebody else's report or a deadline closes the round. The node takes the same event again without each of its
    reports in turn: the one without which it goes on is refused, and its sender named. If it takes more than one, they
    are those that it stumbles over also where there is no other.

    Returns:
        Who is to blame, and what the node says then. Nobody, if that is not known: it goes on without all that it has.
        None if it cannot take the event without them either.
    """
    node = state.nodes.get(address)
    if not isinstance(node, Aggregator):
        return None
    senders = {a.report.sender for c in node.state.cohorts.values() for a in c.arrived}
    before = pack(node.state)

    def forget(left_out: set[Address]) -> None:
        state.runtime.nodes.pop(address)
        state.runtime.node(address).state = found = unpack(before)
        for cohort in found.cohorts.values():
            cohort.arrived = [a for a in cohort.arrived if a.report.sender not in left_out]
        state.touch(address)

    def without(left_out: set[Address]) -> list[Action] | None:
        forget(left_out)
        try:
            return ask(address, event)
        except Exception:
            return None

    for sender in sorted(senders):
        if (actions := without({sender})) is not None:
            return {sender}, actions
    liars = {sender for sender in senders if without(senders - {sender}) is None}
    if liars != senders and (actions := without(liars)) is not None:
        return liars, actions
    if senders and (actions := without(senders)) is not None:
        return set(), actions
    forget(set())
    return None
