"""The aggregator: a state machine that runs rounds over its children and merges what they report.

The same class is an edge, the cloud, any level between, and the head of a device-to-device cluster::

    order from the parent (or the start, at the root)
      └─ [root: survey, arrange] ─ open a round: select → assign → hand down → orders
           └─ reports, late reports, deadlines, children that come and go
                └─ close: merge, serve ─ enough? → report to the parent, wait
                                        └ else  → open the next round

The class stands in three files, to be read in this order: what it remembers (:mod:`espalier.core.aggregator_state`),
how rounds open and close (:mod:`espalier.core.rounds`), and here what happens meanwhile: orders and reports, late ones
among them, and children that come and go. Every event has its method (``_on_order``, ``_on_report``, …), which returns
what is to be done.
"""

from __future__ import annotations

from collections.abc import Sequence

from espalier.core.address import Address
from espalier.core.aggregator_state import SURVEY, Cohort, Ticket
from espalier.core.messages import (
    Action,
    Arrived,
    BeginRound,
    ChildJoined,
    ChildLeft,
    CloseCohort,
    Closed,
    Deadline,
    Event,
    MeetCohorts,
    OpenChild,
    OpenCohorts,
    Order,
    Record,
    Report,
    Send,
    Serve,
    SetDeadline,
    Started,
    Summed,
    Wake,
    Word,
)
from espalier.core.rounds import Rounds
from espalier.core.view import Arrival


class Aggregator(Rounds):
    """Runs rounds over its children by its rules."""

    @property
    def idle(self) -> bool:
        """Whether the node may be forgotten (never: aggregators keep their models)."""
        return False

    def on(self, event: Event, now: float) -> list[Action]:
        """Take one event; return what is to be done."""
        self._notes = []  # an exception may have left notes of the event before
        actions = self._handle(event, now)
        notes, self._notes = self._notes, []
        return [*notes, *actions]

    def _handle(self, event: Event, now: float) -> list[Action]:
        match event:
            case Started():
                return self._on_start(event, now)
            case Arrived(message=Order() as order):
                return self._on_order(order, now)
            case Arrived(message=Report() as report):
                return self._on_report(report, now)
            case Deadline(wake=wake):
                return self._on_wake(wake, now)
            case ChildJoined(child=child) | Arrived(message=Word(kind="awake", sender=child)):
                return self._on_joined(child, now)
            case ChildLeft(child=child):
                return self._on_left(child, now)
            case Summed(cohort=key):
                return self._on_summed(key, now)
            case _:
                return []

    def _on_start(self, event: Started, now: float) -> list[Action]:
        self.state.models, self.state.progress = dict(event.models), event.progress
        # No number of an earlier incarnation is used again: an answer to one must not pass for an answer to another.
        self.state.orders = event.incarnation << 32
        if self.env.parent(self.me) is not None:
            return []  # it is back with what it had served, and waits for its parent's order
        self.state.models = self.state.models or self.rules.initial(self.env.store)
        return [Serve(dict(self.state.models)), *self._begin(now)]

    def _on_order(self, order: Order, now: float) -> list[Action]:
        state = self.state
        if not order.supersedes(state.order):
            return []  # overtaken on the way by a newer one
        state.order, state.order_at, state.update_at, state.done = order, now, now, 0
        state.models = self.rules.hand_down.receive(self._view("", now), order)
        state.auxiliary = dict(order.auxiliary)
        state.asleep = False
        for cohort in state.cohorts.values():
            cohort.open, cohort.waiting = False, {}
        closes = self.rules.hand_down.closed_by_next_order
        if closes != "nothing" and order.clock > 0:
            # The world may act between two rounds: the next one opens after it has.
            closed = Closed(order.clock if closes == "order" else state.progress)
            return [Serve(dict(state.models)), closed, SetDeadline(0.0, OpenCohorts())]
        return [Serve(dict(state.models)), *self._open_all(now)]

    # -- reports ---------------------------------------------------------------------------------------

    def _on_report(self, report: Report, now: float) -> list[Action]:
        state = self.state
        ticket = self._ticket(report)
        key = self._cohort_of(report.sender, now) if ticket is None else ticket.cohort
        if key is None or key not in state.cohorts:
            return [self._drop(report, "no cohort takes it" if ticket is None else "its cohort is gone")]
        cohort = state.cohorts[key]
        if not report.models and not report.stats:
            state.idle.add(report.sender)
            cohort.waiting.pop(report.sender, None)
            return self._maybe_close(key, now)
        why = self.rules.guard.refuse(self.env, report, None if ticket is None else state.rounds)
        if why is not None:
            if cohort.waiting.get(report.sender) == report.order:
                del cohort.waiting[report.sender]
            return [self._refuse(report, why), *self._maybe_close(key, now)]
        staleness = max(1, state.rounds - report.round) if ticket is None else state.rounds - ticket.round
        start = {} if ticket is None else ticket.start
        return self._take_report(key, Arrival(report, now, staleness, stranger=ticket is None, start=start))

    def _ticket(self, report: Report) -> Ticket | None:
        """Take back the ticket that a report answers; None if it answers another aggregator's order, or none."""
        out = self.state.tickets.get(report.sender, {}) if report.dispatcher == self.me else {}
        ticket = out.pop(report.order, None)
        if ticket is not None and not out:
            del self.state.tickets[report.sender]
        return ticket

    def _take_report(self, key: str, arrival: Arrival) -> list[Action]:
        """Take a report into its round; or, if it is late, into the next one, or not at all."""
        cohort, report, pace = self.state.cohorts[key], arrival.report, self.rules.pace
        if cohort.open and not arrival.stranger and cohort.waiting.get(report.sender) == report.order:
            del cohort.waiting[report.sender]
            cohort.arrived.append(arrival)
            return self._maybe_close(key, arrival.at)
        if pace.keeps_late and report.models and key != SURVEY:
            cohort.arrived.append(arrival)
            return self._tell_awake(arrival.at) if self.state.asleep else self._maybe_close(key, arrival.at)
        dropped: list[Action] = [self._drop(report, "stranger" if arrival.stranger else "late")]
        if not arrival.stranger and pace.late == "renew" and cohort.open and not cohort.overdue:
            dropped += self._order_child(key, report.sender, arrival.at)
        return dropped + self._maybe_close(key, arrival.at)

    def _order_child(self, key: str, child: Address, now: float) -> list[Action]:
        view = self._view(key, now)
        if child not in view.children or child in self.state.cohorts[key].waiting:
            return []
        return [self._send(key, child, self._assigned(view, [child])[child], view)]

    def _drop(self, report: Report, why: str) -> Action:
        return Record("dropped", {"node": self.me, "child": report.sender, "why": why, "round": report.round})

    # -- what may happen meanwhile --------------------------------------------------------------------

    def _on_wake(self, wake: Wake, now: float) -> list[Action]:
        match wake:
            case BeginRound():
                return self._begin(now)
            case OpenCohorts():
                return self._open_all(now)
            case MeetCohorts():
                surveyed = SURVEY in self.state.cohorts and self.state.cohorts[SURVEY].open
                return [] if surveyed else self._begin(now) if self._no_round_open(now) else self._open_all(now)
            case OpenChild(child=child):
                own = self.state.cohorts.get(str(child))
                return [] if own is None or own.open else self._open(str(child), now)
            case CloseCohort(cohort=key, round=number):
                return self._round_due(key, number, now)
            case _:
                return []

    def _on_joined(self, child: Address, now: float) -> list[Action]:
        """A child came, or woke up: it works from the next round on, or at once if the round has stalled."""
        state = self.state
        state.idle.discard(child)
        if state.asleep:
            return self._tell_awake(now)
        if self.ignores_joins:
            return []
        if self.rules.pace.admits:
            return self._admit(child, now)
        key = self._cohort_of(child, now)
        cohort = state.cohorts.get(key) if key is not None else None
        if key is None or (cohort is None and state.order is not None):
            return []
        stalled = cohort is None or (cohort.open and not cohort.waiting and not cohort.arrived)
        return self._open(key, now) if stalled else []

    def _admit(self, child: Address, now: float) -> list[Action]:
        """Give a newcomer work in the round that is open."""
        key = self._cohort_of(child, now)
        if key is None or key not in self.state.cohorts or not self.state.cohorts[key].open:
            return [] if key is None else self._open(key, now)
        buffered = self.rules.pace.buffer is not None
        return self._maybe_close(key, now) if buffered else self._order_child(key, child, now)

    def _cohort_of(self, child: Address, now: float) -> str | None:
        if self.rules.pace.cohort_per_child:
            return str(child)
        groups = self.rules.pace.cohorts(self._view("", now))
        if len(groups) == 1:
            return next(iter(groups))
        return next((key for key, members in groups.items() if child in members), None)

    def _tell_awake(self, now: float) -> list[Action]:
        """Tell the parent that there is somebody, or something, to work with again."""
        assert self.state.order is not None
        self.state.asleep = False
        return [Send(Word("awake", self.me, self.state.order.sender, now))]

    @property
    def ignores_joins(self) -> bool:
        """Whether a child that joins changes nothing for now: it may work from the next round on."""
        state = self.state
        if state.asleep:
            return False
        if not state.models or (SURVEY in state.cohorts and state.cohorts[SURVEY].open):
            return True
        if self.rules.pace.admits or len(state.cohorts) != 1:
            return False
        return all(c.waiting or c.arrived or not c.open for c in state.cohorts.values())

    def awaited(self) -> set[Address] | None:
        """Return the children who cannot leave without its doing something about it; None: nobody can."""
        state, pace = self.state, self.rules.pace
        if any(c.open and c.overdue for c in state.cohorts.values()):
            return None
        if state.order is None and (pace.cohort_per_child or pace.meet is not None):
            return None
        return state.tickets.keys() | {child for c in state.cohorts.values() for child in c.waiting}

    def forget(self, children: Sequence[Address]) -> None:
        """Children have left of whom nothing is expected."""
        self.state.idle.difference_update(children)
        for policy in self.rules.forgetful:
            for child in children:
                policy.forget(self.state.memory, child)

    def _on_left(self, child: Address, now: float) -> list[Action]:
        state = self.state
        actions: list[Action] = []
        self.forget([child])
        state.tickets.pop(child, None)
        solo = self.rules.pace.cohort_per_child and state.order is None
        if solo and str(child) in state.cohorts:
            state.end(str(child))
        for key in [SURVEY] if solo else list(state.cohorts):  # of the others only a survey can have waited for it
            cohort = state.cohorts.get(key, Cohort())
            if cohort.waiting.pop(child, None) is not None or (cohort.open and cohort.overdue):
                actions += self._maybe_close(key, now)
        root = state.order is None and bool(state.models)
        if root and self.rules.pace.meet is not None and not actions and self._no_round_open(now):
            # The others waited for a cohort that has nobody left.
            actions.append(SetDeadline(0.0, MeetCohorts()))
        return actions
