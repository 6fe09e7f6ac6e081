"""An aggregator's rounds: how they open, how they close, and what follows.

Opening: survey and arrange (at the root), select, assign, hand down, order. A round closes when every child that was
ordered has reported or left, or when its deadline has passed and at least one report is there: sift, merge, serve; then
the next round, or a report to the parent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from espalier.core.address import Address
from espalier.core.aggregator_state import SURVEY, AggregatorState, Cohort, Ticket
from espalier.core.environment import Environment
from espalier.core.messages import (
    Action,
    Arrange,
    AwaitSum,
    BeginRound,
    CloseCohort,
    Closed,
    MeetCohorts,
    OpenChild,
    OpenCohorts,
    Order,
    Record,
    Report,
    Send,
    Serve,
    SetDeadline,
)
from espalier.core.policies import Assignment, Progress, Rules, Survey
from espalier.core.store import Ref
from espalier.core.view import Arrival, View


class Rounds:
    """The part of an aggregator that opens its children's rounds and closes them."""

    def __init__(self, me: Address, rules: Rules, env: Environment, state: AggregatorState | None = None):
        self.me = me
        self.rules = rules
        self.env = env
        self.state = state or AggregatorState()
        self._notes: list[Record] = []

    # -- opening ---------------------------------------------------------------------------------------------------

    def _begin(self, now: float) -> list[Action]:
        """Root: survey if the structure wants to, else arrange at once and open the round."""
        view = self._view("", now)
        survey = self.rules.structure.survey(view)
        if survey is not None:
            return self._survey(survey, now)
        return self._arrange({}, now)

    def _survey(self, survey: Survey, now: float) -> list[Action]:
        devices = self.env.devices() if survey.devices is None else survey.devices
        if survey.seconds is None:
            # a real device may owe its answer for ever: the others wait for it once
            owing = {d for d, out in self.state.tickets.items() if any(t.cohort == SURVEY for t in out.values())}
            devices = [d for d in devices if d not in owing]
        cohort = self.state.cohorts.setdefault(SURVEY, Cohort())
        cohort.open, cohort.opened, cohort.arrived, cohort.waiting = True, now, [], {}
        cohort.overdue, cohort.held = False, survey.seconds is not None
        view = self._view(SURVEY, now)
        actions: list[Action] = []
        for device in devices:
            models = survey.models if survey.models is not None else self.rules.hand_down.send(view, device)
            if survey.ask is not None and survey.models is None:
                models = {}
            auxiliary = {} if survey.ask is not None else self.rules.hand_down.auxiliary(view, device)
            work = Assignment(survey.updates, args=survey.args)
            order = self._order(SURVEY, device, models, work, now, ask=survey.ask, back=True, auxiliary=auxiliary)
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
        cohort.held = self.rules.pace.until_deadline
        if self.rules.pace.buffer is not None:
            return self._maybe_close(key, now)
        view = self._view(key, now)
        view.children = self._available(view.children)
        if not view.children:
            return self._stall(key, now)
        # a round that lasts until its deadline in any case may have nobody at work (D2D: no cluster can finish one)
        chosen = self._picked(view, least=0 if self.rules.pace.until_deadline else 1)
        work = self._assigned(view, chosen)
        actions = [self._send(key, child, share, view) for child, share in work.items()]
        seconds = self.rules.pace.deadline(view, work)
        if seconds is not None:
            actions.append(SetDeadline(max(0.0, seconds), CloseCohort(key, cohort.round)))
        return actions

    def _picked(self, view: View, least: int = 0) -> Sequence[Address]:
        """Return whom the selection draws."""
        drawn: Any = self.rules.selection.pick(view)
        right = isinstance(drawn, Sequence) and len(drawn) >= least and not set(drawn).difference(view.children)
        return self.rules.selection.returned("pick", drawn, right, f"{least} or more of view.children")

    def _assigned(self, view: View, chosen: Sequence[Address]) -> Mapping[Address, Assignment]:
        """Return the work of those whom the selection draws."""
        work: Any = self.rules.pace.assign(view, chosen)
        right = isinstance(work, Mapping) and all(isinstance(w, Assignment) for w in work.values())
        return self.rules.pace.returned("assign", work, right, "an Assignment for each child that it is given")

    def _refill(self, key: str, now: float) -> list[Action]:
        """Give work to free children until as many are at work as the selection draws: those it draws first."""
        view = self._view(key, now)
        view.absent = [c for c, out in self.state.tickets.items() if any(t.cohort == key for t in out.values())]
        drawn = self._picked(view) if view.children else []
        # Unless the pace admits them at once, a child that has reported waits for the merge.
        reported = 0 if self.rules.pace.admits else len(self.state.cohorts[key].arrived)
        wanted = len(drawn) - self._orders_out(key) - reported
        view.children = free = self._available(view.children)
        if wanted <= 0 or not free:
            return [] if self._orders_out(key) else self._stall(key, now)
        order = self.env.rng("refill", self.me, key, self.state.orders).permutation(len(free))
        others = [free[i] for i in order.tolist() if free[i] not in drawn]
        chosen = sorted([*(c for c in drawn if c in free), *others][:wanted])
        work = self._assigned(view, chosen)
        return [self._send(key, child, share, view) for child, share in work.items()]

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
            clock=self._run_round(), sent=now, budget=work.budget, anchor=anchor, ask=ask, args=work.args, back=back,
            auxiliary=auxiliary,
        )  # fmt: skip

    # -- closing ---------------------------------------------------------------------------------------------------

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
        return self._open(key, now) if self._available(self._view(key, now).children) else self._stall(key, now)

    def _stall(self, key: str, now: float) -> list[Action]:
        """Nobody can take an order: wait for those who are out, or tell the parent not to wait."""
        cohort = self.state.cohorts[key]
        if cohort.arrived:
            return self._close(key, now)
        if self._orders_out(key):
            cohort.overdue = True  # the first report closes the round
            return []
        order = self.state.order
        if order is None or self.state.asleep:
            return []
        self.state.asleep = True
        cohort.open = False  # the order is returned unfulfilled; children that come now wait for the next order
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

    def _round_due(self, key: str, number: int, now: float) -> list[Action]:
        """A round has come to its deadline: close it with what has arrived, or with the first report."""
        cohort = self.state.cohorts.get(key)
        if cohort is None or not cohort.open or cohort.round != number:
            return []
        cohort.overdue = True
        return self._close(key, now) if cohort.arrived or cohort.held or key == SURVEY else []

    def _on_summed(self, key: str, now: float) -> list[Action]:
        """The sums that a cohort's merge waited for are there: its round ends."""
        cohort = self.state.cohorts.get(key)
        if cohort is None or not cohort.summing:
            return []
        cohort.summing = False
        view = self._view(key, now)
        view.absent = list(cohort.waiting)
        self._merge(view, cohort.arrived)
        return self._advance(key, now)

    def _merged(self, view: View, arrivals: Sequence[Arrival]) -> Mapping[str, Ref]:
        """Return the merge's models by group."""
        found: Any = self.rules.merge.merge(view, arrivals)
        right = isinstance(found, Mapping) and all(isinstance(model, int) for model in found.values())
        wanted = "a Ref by group, as view.store.combine and view.store.put(vector) make them"
        return self.rules.merge.returned("merge", found, right, wanted)

    def _merge(self, view: View, arrivals: Sequence[Arrival]) -> None:
        state = self.state
        merged, auxiliary = self._merged(view, arrivals), self.rules.merge.auxiliary(view, arrivals)
        view.models = state.models = {**state.models, **merged}
        view.auxiliary = state.auxiliary = {**state.auxiliary, **auxiliary}
        state.samples = self.rules.merge.samples(view, arrivals)
        self.rules.selection.learn(view, arrivals)
        self.rules.pace.learn(view, arrivals)
        if state.order is None:
            self.rules.structure.learn(view, arrivals)

    def _advance(self, key: str, now: float) -> list[Action]:
        """Serve what was merged, and go on: to the next round, or up to the parent."""
        state = self.state
        # Only now: a policy may make the store compute, and what nobody holds is forgotten then.
        state.cohorts[key].arrived = []
        whole = state.advance(key)
        actions: list[Action] = [Serve(self.rules.merge.served(self._view(key, now)))]
        closed_later = self.rules.hand_down.closed_by_next_order
        if state.order is None or closed_later == "nothing":
            actions.append(Closed(state.progress))
        if state.order is None:
            # What the world changes between two rounds (moves, links, drift) happens before the next opens.
            if self.rules.pace.meet is not None:
                return [*actions, SetDeadline(0.0, MeetCohorts())]
            if whole or state.count == 1:
                return [*actions, SetDeadline(0.0, BeginRound())]
            if self.rules.pace.cohort_per_child:
                return [*actions, SetDeadline(0.0, OpenChild(Address(key)))]
            return [*actions, SetDeadline(0.0, OpenCohorts())]
        state.done += 1
        spent, last = now - state.order_at, now - state.update_at
        state.update_at = now
        if self.rules.pace.enough(Progress(state.order, state.done, spent, last, state.memory)):
            return [*actions, self._report(now)]
        if closed_later == "last round":
            actions.append(Closed(state.progress))
        return [*actions, SetDeadline(0.0, OpenCohorts())]

    def _report(self, now: float) -> Action:
        state = self.state
        assert state.order is not None
        order, hand_down = state.order, self.rules.hand_down
        view = self._view("", now)
        models = hand_down.up(view)
        samples = {g: state.samples.get(g, 0) for g in models}
        return Send(
            Report(
                order.id, order.sender, self.me, order.sender, models, samples, state.done, order.round, now,
                download=state.order_at - order.sent, compute=now - state.order_at,
                stats=hand_down.statistics(view), auxiliary=hand_down.auxiliary(view, order.sender),
            )
        )  # fmt: skip

    def _refuse(self, report: Report, why: str) -> Record:
        """Count an offence and put it on record."""
        count = self.state.offences.get(report.sender, 0) + 1
        self.state.offences[report.sender] = count
        return Record(
            "refused", {"node": self.me, "child": report.sender, "why": why, "round": report.round, "offences": count}
        )

    # -- what both look at ------------------------------------------------------------------------------------------

    def _orders_out(self, key: str) -> int:
        """Return how many orders of a cohort are out."""
        return sum(t.cohort == key for out in self.state.tickets.values() for t in out.values())

    def _available(self, children: Sequence[Address]) -> list[Address]:
        """Return the children that can take an order now."""
        # not one set of them all: the cloud may have a thousand orders out and look at one child
        tickets, idle = self.state.tickets, self.state.idle
        left_out = self.rules.guard.left_out(self.state.offences, children)
        free: Sequence[Address] = children
        if tickets or idle or left_out:
            free = [c for c in children if c not in tickets and c not in idle and c not in left_out]
        return [c for c in free if not self.env.busy(c)] if self.rules.pace.keeps_late else list(free)

    def _run_round(self) -> int:
        return self.state.order.clock if self.state.order is not None else self.state.progress

    def _no_round_open(self, now: float) -> bool:
        """Tell whether no cohort that has children is at work."""
        groups = self.rules.pace.cohorts(self._view("", now))
        return bool(groups) and not any(c.open for k, c in self.state.cohorts.items() if k in groups)

    def _view(self, key: str, now: float) -> View:
        state = self.state
        cohort = state.cohorts.get(key)
        rounds = cohort.round if cohort else state.rounds
        view = View(now, self.me, rounds, self._run_round(), key, state.models, state.order, state.memory, self.env)
        view.notes, view.auxiliary = self._notes, state.auxiliary
        if key and key != SURVEY:
            view.children = list(self.rules.pace.members(view, key))
        return view
