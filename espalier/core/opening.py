"""How an aggregator's rounds open: survey and arrange (at the root), select, assign, hand down, order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from espalier.core.address import Address
from espalier.core.aggregator_state import SURVEY, AggregatorState, Cohort, Ticket
from espalier.core.environment import Environment
from espalier.core.messages import (
    Action,
    Arrange,
    BeginRound,
    CloseCohort,
    OpenCohorts,
    Order,
    Record,
    Send,
    Serve,
    SetDeadline,
)
from espalier.core.policies import Assignment, Rules, Survey
from espalier.core.store import Ref
from espalier.core.view import Arrival, View


class Opening(ABC):
    """The part of an aggregator that opens rounds; :class:`espalier.core.closing.Closing` ends them."""

    def __init__(self, me: Address, rules: Rules, env: Environment, state: AggregatorState | None = None):
        self.me = me
        self.rules = rules
        self.env = env
        self.state = state or AggregatorState()
        self._notes: list[Record] = []

    @abstractmethod
    def _maybe_close(self, key: str, now: float) -> list[Action]:
        """Close a cohort's round if nothing more is to be waited for."""

    @abstractmethod
    def _stall(self, key: str, now: float) -> list[Action]:
        """Nobody can take an order: wait for those who are out, or tell the parent not to wait."""

    def _begin(self, now: float) -> list[Action]:
        """Root: survey if the structure wants to, else arrange at once and open the round."""
        view = self._view("", now)
        survey = self.rules.structure.survey(view)
        if survey is not None:
            return self._survey(survey, now)
        return self._arrange({}, now)

    def _survey(self, survey: Survey, now: float) -> list[Action]:
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
        right = isinstance(drawn, Sequence) and len(drawn) >= least and set(drawn) <= set(view.children)
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

    def _orders_out(self, key: str) -> int:
        """Return how many orders of a cohort are out."""
        return sum(t.cohort == key for out in self.state.tickets.values() for t in out.values())

    def _available(self, children: Sequence[Address]) -> list[Address]:
        """Return the children that can take an order now."""
        cannot = self.state.tickets.keys() | self.state.idle | self.rules.guard.left_out(self.state.offences, children)
        if not self.rules.pace.keeps_late:
            return [c for c in children if c not in cannot] if cannot else list(children)
        return [c for c in children if c not in cannot and not self.env.busy(c)]

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
