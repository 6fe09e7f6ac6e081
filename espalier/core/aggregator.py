"""The aggregator: a state machine that runs rounds over its children and merges what they report.

The same class is an edge, the cloud, any level between, and the head of a device-to-device cluster::

    order from the parent (or the start, at the root)
      └─ [root: survey, arrange] ─ open a round: select → assign → hand down → orders
           └─ reports, late reports, deadlines, children that come and go
                └─ close: merge, serve ─ enough? → report to the parent, wait
                                        └ else  → open the next round

Rounds run per *cohort*: one cohort is a barrier, a cohort per child is full asynchrony, anything between
is a tier or a cluster with a clock of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from espalier.core.address import Address
from espalier.core.environment import Environment
from espalier.core.messages import (
    Action,
    Arrange,
    Arrived,
    AwaitSum,
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
from espalier.core.policies import Assignment, Pace, Progress, Rules, Selection, Survey
from espalier.core.rounds import SURVEY, AggregatorState, Cohort, Ticket
from espalier.core.store import Ref
from espalier.core.view import Arrival, View


class Aggregator:
    """Runs rounds over its children by its rules."""

    def __init__(self, me: Address, rules: Rules, env: Environment, state: AggregatorState | None = None):
        self.me = me
        self.rules = rules
        self.env = env
        self.state = state or AggregatorState()
        self._notes: list[Record] = []

    @property
    def idle(self) -> bool:
        """Whether the node may be forgotten (never: aggregators keep their models)."""
        return False

    def on(self, event: Event, now: float) -> list[Action]:
        """Take one event; return what is to be done."""
        self._notes = []  # of an event that was not taken to its end
        actions = self._take(event, now)
        notes, self._notes = self._notes, []
        return [*notes, *actions]

    def _take(self, event: Event, now: float) -> list[Action]:
        match event:
            case Started():
                return self._start(event, now)
            case Arrived(message=Order() as order):
                return self._ordered(order, now)
            case Arrived(message=Report() as report):
                return self._reported(report, now)
            case Deadline(wake=wake):
                return self._wakes(wake, now)
            case ChildJoined(child=child) | Arrived(message=Word(kind="awake", sender=child)):
                return self._joined(child, now)
            case ChildLeft(child=child):
                return self._left(child, now)
            case Summed(cohort=key):
                return self._summed(key, now)
            case _:
                return []

    # -- the beginning of work ---------------------------------------------------------------------

    def _start(self, event: Started, now: float) -> list[Action]:
        self.state.models, self.state.progress = dict(event.models), event.progress
        # No number of an earlier incarnation is used again: an answer to one must not pass for an answer to another.
        self.state.orders = event.incarnation << 32
        if self.env.parent(self.me) is not None:
            return []  # it is back with what it had served, and waits for its parent's order
        self.state.models = self.state.models or self.rules.initial(self.env.store)
        return [Serve(dict(self.state.models)), *self._begin(now)]

    def _ordered(self, order: Order, now: float) -> list[Action]:
        state = self.state
        if not order.follows(state.order):
            return []  # overtaken on the way by a newer one
        state.order, state.order_at, state.update_at, state.done = order, now, now, 0
        state.models = self.rules.hand_down.receive(self._view("", now), order)
        state.auxiliary = dict(order.auxiliary)
        state.asleep = False
        for cohort in state.cohorts.values():
            cohort.open, cohort.waiting = False, {}
        completes = self.rules.hand_down.completes
        if completes != "nothing" and order.clock > 0:
            # The world may act between two rounds: the next one opens after it has.
            closed = Closed(order.clock if completes == "order" else state.progress)
            return [Serve(dict(state.models)), closed, SetDeadline(0.0, OpenCohorts())]
        return [Serve(dict(state.models)), *self._open_all(now)]

    def _begin(self, now: float) -> list[Action]:
        """Root: survey if the structure wants to, else arrange at once and open the round."""
        view = self._view("", now)
        survey = self.rules.structure.survey(view)
        if survey is not None:
            return self._ask(survey, now)
        return self._arrange({}, now)

    def _ask(self, survey: Survey, now: float) -> list[Action]:
        devices = self.env.devices() if survey.devices is None else survey.devices
        cohort = self.state.cohorts.setdefault(SURVEY, Cohort())
        cohort.open, cohort.opened, cohort.arrived, cohort.waiting = True, now, [], {}
        cohort.overdue, cohort.held = False, survey.seconds is not None
        view = self._view(SURVEY, now)
        actions: list[Action] = []
        for device in devices:
            models = survey.models if survey.models is not None else self.rules.hand_down.send(view, device)
            if survey.ask is not None and survey.models is None:
                models = {}
            beside = {} if survey.ask is not None else self.rules.hand_down.auxiliary(view, device)
            work = Assignment(survey.updates, args=survey.args)
            order = self._order(SURVEY, device, models, work, now, ask=survey.ask, back=True, auxiliary=beside)
            actions.append(Send(order))
        if survey.seconds is not None:
            return [*actions, SetDeadline(survey.seconds, CloseCohort(SURVEY, cohort.round))]
        if not actions:
            cohort.open = False
            return self._arrange({}, now)
        return actions

    def _arrange(self, answers: dict[Address, Arrival], now: float) -> list[Action]:
        actions: list[Action] = []
        arrangement = self.rules.structure.arrange(self._view("", now), answers)
        if arrangement is not None:
            if arrangement.models is not None:
                self.state.models = dict(arrangement.models)
                actions.append(Serve(dict(self.state.models)))
            if arrangement.parents or arrangement.groups:
                actions.append(Arrange(arrangement.parents, arrangement.groups))
            if arrangement.note:
                actions.append(Record("arranged", arrangement.note))
            # The new children are there only once the runtime has applied the arrangement.
            return [*actions, SetDeadline(0.0, BeginRound() if arrangement.again else OpenCohorts())]
        return self._open_all(now)

    # -- rounds --------------------------------------------------------------------------------------

    def _open_all(self, now: float) -> list[Action]:
        actions: list[Action] = []
        groups = self.rules.pace.cohorts(self._view("", now))
        for key in [k for k in self.state.cohorts if k not in groups and k != SURVEY]:
            self.state.end(key)
        cohorts = {key: self.state.cohort(key) for key in groups}
        meet = self.rules.pace.meet
        stage = min((c.round for c in cohorts.values()), default=0) // meet if meet is not None else 0
        for key, cohort in cohorts.items():
            if not cohort.open and (meet is None or cohort.round // meet <= stage):
                actions += self._open(key, now)
        return actions

    def _open(self, key: str, now: float) -> list[Action]:
        cohort = self.state.cohort(key)
        cohort.open, cohort.opened, cohort.overdue, cohort.waiting = True, now, False, {}
        cohort.held = self.rules.pace.whole
        if self.rules.pace.buffer is not None:
            return self._maybe_close(key, now)
        view = self._view(key, now)
        view.children = self._free(view.children)
        if not view.children:
            return self._stall(key, now)
        chosen = self.rules.selection.pick(view)
        work = self.rules.pace.assign(view, chosen)
        actions = [self._send(key, child, share, view) for child, share in work.items()]
        seconds = self.rules.pace.deadline(view, work)
        if seconds is not None:
            actions.append(SetDeadline(max(0.0, seconds), CloseCohort(key, cohort.round)))
        return actions

    def _refill(self, key: str, now: float) -> list[Action]:
        """Give work to free children until as many are at work as the selection draws: those it draws first."""
        view = self._view(key, now)
        drawn = self.rules.selection.pick(view) if view.children else []
        # Unless the pace admits them at once, whoever has reported waits for the merge.
        reported = 0 if self.rules.pace.admits else len(self.state.cohorts[key].arrived)
        wanted = len(drawn) - self._out(key) - reported
        view.children = free = self._free(view.children)
        if wanted <= 0 or not free:
            return [] if self._out(key) else self._stall(key, now)
        order = self.env.rng("refill", self.me, key, self.state.orders).permutation(len(free))
        others = [free[i] for i in order.tolist() if free[i] not in drawn]
        chosen = sorted([*(c for c in drawn if c in free), *others][:wanted])
        work = self.rules.pace.assign(view, chosen)
        return [self._send(key, child, share, view) for child, share in work.items()]

    def _out(self, key: str) -> int:
        """Return how many orders of a cohort are out."""
        return sum(t.cohort == key for out in self.state.tickets.values() for t in out.values())

    def _send(self, key: str, child: Address, work: Assignment, view: View) -> Action:
        """Return the order that gives a child its share of a round."""
        down = self.rules.hand_down
        models, anchor, auxiliary = down.send(view, child), down.anchor(view, child), down.auxiliary(view, child)
        return Send(self._order(key, child, models, work, view.now, anchor=anchor, auxiliary=auxiliary))

    def _order(
        self,
        key: str,
        child: Address,
        models: dict[str, Ref],
        work: Assignment,
        now: float,
        *,
        anchor: Ref | None = None,
        ask: str | None = None,
        back: bool = False,
        auxiliary: dict[str, Ref],
    ) -> Order:
        state = self.state
        cohort = state.cohorts[key]
        state.orders += 1
        start = dict(models) if self.rules.merge.compares_with_start else {}
        state.tickets.setdefault(child, {})[state.orders] = Ticket(key, state.rounds, start)
        cohort.waiting[child] = state.orders
        return Order(
            id=state.orders, sender=self.me, to=child, models=models, updates=work.updates, round=state.rounds,
            clock=self._clock(), sent=now, budget=work.budget, anchor=anchor, ask=ask, args=work.args, back=back,
            auxiliary=auxiliary,
        )  # fmt: skip

    def _reported(self, report: Report, now: float) -> list[Action]:
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
        return self._arrived(key, Arrival(report, now, staleness, stranger=ticket is None, start=start))

    def _ticket(self, report: Report) -> Ticket | None:
        """Take back the ticket that a report answers; None if it answers another aggregator's order, or none."""
        out = self.state.tickets.get(report.sender, {}) if report.dispatcher == self.me else {}
        ticket = out.pop(report.order, None)
        if ticket is not None and not out:
            del self.state.tickets[report.sender]
        return ticket

    def _arrived(self, key: str, arrival: Arrival) -> list[Action]:
        """Take a report into its round; or, if it is late, into the next one, or not at all."""
        cohort, report, pace = self.state.cohorts[key], arrival.report, self.rules.pace
        if cohort.open and not arrival.stranger and cohort.waiting.get(report.sender) == report.order:
            del cohort.waiting[report.sender]
            cohort.arrived.append(arrival)
            return self._maybe_close(key, arrival.at)
        if pace.keeps_late and report.models and key != SURVEY:
            cohort.arrived.append(arrival)
            return self._wake(arrival.at) if self.state.asleep else self._maybe_close(key, arrival.at)
        dropped: list[Action] = [self._drop(report, "stranger" if arrival.stranger else "late")]
        if not arrival.stranger and pace.late == "renew" and cohort.open and not cohort.overdue:
            dropped += self._readmit(key, report.sender, arrival.at)
        return dropped + self._maybe_close(key, arrival.at)

    def _readmit(self, key: str, child: Address, now: float) -> list[Action]:
        view = self._view(key, now)
        if child not in view.children or child in self.state.cohorts[key].waiting:
            return []
        return [self._send(key, child, self.rules.pace.assign(view, [child])[child], view)]

    def _maybe_close(self, key: str, now: float) -> list[Action]:
        cohort = self.state.cohorts[key]
        if not cohort.open or (cohort.held and not cohort.overdue):
            return []
        buffer = self.rules.pace.buffer if key != SURVEY else None
        if buffer is not None:
            full = len(cohort.arrived) >= buffer
            return self._close(key, now) if full else self._refill(key, now)
        if cohort.waiting and not (cohort.overdue and cohort.arrived):
            return []
        if cohort.arrived or key == SURVEY:
            return self._close(key, now)
        # All who were asked are gone or have nothing: ask the others, if there are any.
        return self._open(key, now) if self._free(self._view(key, now).children) else self._stall(key, now)

    def _free(self, children: Sequence[Address]) -> list[Address]:
        """Return the children that can take an order now."""
        cannot = self.state.tickets.keys() | self.state.idle | self.rules.guard.shuns(self.state.offences, children)
        if not self.rules.pace.keeps_late:
            return [c for c in children if c not in cannot] if cannot else list(children)
        return [c for c in children if c not in cannot and not self.env.busy(c)]

    def _stall(self, key: str, now: float) -> list[Action]:
        """Nobody can take an order: wait for those who are out, or tell the parent not to wait."""
        cohort = self.state.cohorts[key]
        if cohort.arrived:
            return self._close(key, now)
        if self._out(key):
            cohort.overdue = True  # the first report closes the round
            return []
        order = self.state.order
        if order is None or self.state.asleep:
            return []
        self.state.asleep = True
        cohort.open = False  # the order is given back: what comes now waits for the next one
        return [Send(Report(order.id, order.sender, self.me, order.sender, {}, {}, 0, order.round, now))]

    def _close(self, key: str, now: float) -> list[Action]:
        state = self.state
        cohort = state.cohorts[key]
        actions: list[Action]
        arrivals = list(cohort.arrived)
        cohort.open = False
        if key == SURVEY:
            actions = self._arrange({a.report.sender: a for a in arrivals}, now)
            cohort.arrived = []
            return actions
        view = self._view(key, now)
        view.absent = list(cohort.waiting)
        refused = self.rules.guard.sift(view, arrivals)
        self._notes += [self._refuse(arrivals[i].report, why) for i, why in sorted(refused.items())]
        if len(refused) < len(arrivals) or not arrivals:
            arrivals = [a for i, a in enumerate(arrivals) if i not in refused]
            sums = self.rules.merge.sums(view, arrivals)
            if sums:
                cohort.arrived, cohort.summing = arrivals, True
                return [AwaitSum(key, sums)]
            self._merge(view, arrivals)
        return self._advance(key, now)

    def _summed(self, key: str, now: float) -> list[Action]:
        """The sums that a cohort's merge waited for are there: its round ends."""
        cohort = self.state.cohorts.get(key)
        if cohort is None or not cohort.summing:
            return []
        cohort.summing = False
        view = self._view(key, now)
        view.absent = list(cohort.waiting)
        self._merge(view, cohort.arrived)
        return self._advance(key, now)

    def _merge(self, view: View, arrivals: Sequence[Arrival]) -> None:
        state = self.state
        merged, beside = self.rules.merge.merge(view, arrivals), self.rules.merge.auxiliary(view, arrivals)
        view.models = state.models = {**state.models, **merged}
        view.auxiliary = state.auxiliary = {**state.auxiliary, **beside}
        state.samples = self.rules.merge.samples(view, arrivals)
        self.rules.selection.learn(view, arrivals)
        self.rules.pace.learn(view, arrivals)
        if state.order is None:
            self.rules.structure.observe(view, arrivals)

    def _advance(self, key: str, now: float) -> list[Action]:
        """Serve what was merged, and go on: to the next round, or up to the parent."""
        state = self.state
        # Only now: a policy may make the store compute, and what nobody holds is forgotten then.
        state.cohorts[key].arrived = []
        whole = state.advance(key)
        actions: list[Action] = [Serve(self.rules.merge.served(self._view(key, now)))]
        completes = self.rules.hand_down.completes
        if state.order is None or completes == "nothing":
            actions.append(Closed(state.progress))
        if state.order is None:
            # What the world changes between two rounds (moves, links, drift) happens before the next opens.
            if self.rules.pace.meet is not None:
                return [*actions, SetDeadline(0.0, MeetCohorts())]
            if whole or state.count == 1:
                return [*actions, SetDeadline(0.0, BeginRound())]
            if self.rules.pace.solo:
                return [*actions, SetDeadline(0.0, OpenChild(Address(key)))]
            return [*actions, SetDeadline(0.0, OpenCohorts())]
        state.done += 1
        spent, last = now - state.order_at, now - state.update_at
        state.update_at = now
        if self.rules.pace.enough(Progress(state.order, state.done, spent, last, state.memory)):
            return [*actions, self._report(now)]
        if completes == "last round":
            actions.append(Closed(state.progress))
        return [*actions, SetDeadline(0.0, OpenCohorts())]

    def _report(self, now: float) -> Action:
        state = self.state
        assert state.order is not None
        order = state.order
        view = self._view("", now)
        models = self.rules.hand_down.up(view)
        samples = {g: state.samples.get(g, 0) for g in models}
        return Send(
            Report(
                order.id, order.sender, self.me, order.sender, models, samples, state.done, order.round, now,
                download=state.order_at - order.sent, compute=now - state.order_at,
                stats=self.rules.hand_down.tell(view), auxiliary=self.rules.hand_down.auxiliary(view, order.sender),
            )
        )  # fmt: skip

    # -- what may happen meanwhile --------------------------------------------------------------------

    def _wakes(self, wake: Wake, now: float) -> list[Action]:
        match wake:
            case BeginRound():
                return self._begin(now)
            case OpenCohorts():
                return self._open_all(now)
            case MeetCohorts():
                surveyed = SURVEY in self.state.cohorts and self.state.cohorts[SURVEY].open
                return [] if surveyed else self._begin(now) if self._rests(now) else self._open_all(now)
            case OpenChild(child=child):
                own = self.state.cohorts.get(str(child))
                return [] if own is None or own.open else self._open(str(child), now)
            case CloseCohort(cohort=key, round=number):
                return self._due(key, number, now)
            case _:
                return []

    def _due(self, key: str, number: int, now: float) -> list[Action]:
        """A round has come to its deadline: close it with what has arrived, or with the first report."""
        cohort = self.state.cohorts.get(key)
        if cohort is None or not cohort.open or cohort.round != number:
            return []
        cohort.overdue = True
        return self._close(key, now) if cohort.arrived or cohort.held else []

    def _joined(self, child: Address, now: float) -> list[Action]:
        """A child came, or woke up: it works from the next round on, or at once if the round has stalled."""
        state = self.state
        state.idle.discard(child)
        if state.asleep:
            return self._wake(now)
        if self.indifferent:
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
        return self._maybe_close(key, now) if buffered else self._readmit(key, child, now)

    def _wake(self, now: float) -> list[Action]:
        """Tell the parent that there is somebody, or something, to work with again."""
        assert self.state.order is not None
        self.state.asleep = False
        return [Send(Word("awake", self.me, self.state.order.sender, now))]

    @property
    def indifferent(self) -> bool:
        """Whether a child that joins changes nothing for now: it may work from the next round on."""
        state = self.state
        if state.asleep:
            return False
        if not state.models or (SURVEY in state.cohorts and state.cohorts[SURVEY].open):
            return True
        if self.rules.pace.admits or len(state.cohorts) != 1:
            return False
        return all(c.waiting or c.arrived or not c.open for c in state.cohorts.values())

    def engaged(self) -> set[Address] | None:
        """Return the children who cannot leave without its doing something about it; None: nobody can."""
        state, pace = self.state, self.rules.pace
        if any(c.open and c.overdue for c in state.cohorts.values()):
            return None
        if state.order is None and (pace.solo or pace.meet is not None):
            return None
        return state.tickets.keys() | {child for c in state.cohorts.values() for child in c.waiting}

    def forget(self, children: Sequence[Address]) -> None:
        """Children have left of whom nothing is expected."""
        self.state.idle.difference_update(children)
        for policy, plain in ((self.rules.selection, Selection.forget), (self.rules.pace, Pace.forget)):
            if type(policy).forget is not plain:  # most remember nothing of a child
                for child in children:
                    policy.forget(self.state.memory, child)

    def _left(self, child: Address, now: float) -> list[Action]:
        state = self.state
        actions: list[Action] = []
        self.forget([child])
        state.tickets.pop(child, None)
        solo = self.rules.pace.solo and state.order is None
        if solo and str(child) in state.cohorts:
            state.end(str(child))
        for key in [SURVEY] if solo else list(state.cohorts):  # of the others only a survey can have waited for it
            cohort = state.cohorts.get(key, Cohort())
            if cohort.waiting.pop(child, None) is not None or (cohort.open and cohort.overdue):
                actions += self._maybe_close(key, now)
        root = state.order is None and bool(state.models)
        if root and self.rules.pace.meet is not None and not actions and self._rests(now):
            # The others waited for a cohort that has nobody left.
            actions.append(SetDeadline(0.0, MeetCohorts()))
        return actions

    # -- helpers -----------------------------------------------------------------------------------------

    def _clock(self) -> int:
        return self.state.order.clock if self.state.order is not None else self.state.progress

    def _rests(self, now: float) -> bool:
        """Tell whether no cohort that has children is at work."""
        groups = self.rules.pace.cohorts(self._view("", now))
        return bool(groups) and not any(c.open for k, c in self.state.cohorts.items() if k in groups)

    def _cohort_of(self, child: Address, now: float) -> str | None:
        if self.rules.pace.solo:
            return str(child)
        groups = self.rules.pace.cohorts(self._view("", now))
        if len(groups) == 1:
            return next(iter(groups))
        return next((key for key, members in groups.items() if child in members), None)

    def _view(self, key: str, now: float) -> View:
        state = self.state
        cohort = state.cohorts.get(key)
        rounds = cohort.round if cohort else state.rounds
        view = View(now, self.me, rounds, self._clock(), key, state.models, state.order, state.memory, self.env)
        view.notes, view.auxiliary = self._notes, state.auxiliary
        if key and key != SURVEY:
            view.children = list(self.rules.pace.members(view, key))
        return view

    def _refuse(self, report: Report, why: str) -> Record:
        """Count an offence and put it on record."""
        count = self.state.offences.get(report.sender, 0) + 1
        self.state.offences[report.sender] = count
        return Record(
            "refused", {"node": self.me, "child": report.sender, "why": why, "round": report.round, "offences": count}
        )

    def _drop(self, report: Report, why: str) -> Action:
        return Record("dropped", {"node": self.me, "child": report.sender, "why": why, "round": report.round})
