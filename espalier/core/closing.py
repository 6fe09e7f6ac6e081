"""How an aggregator's rounds close: sift, merge, serve; then the next round, or a report to the parent.

A round closes when every child that was ordered has reported or left, or when its deadline has passed and at least
one report is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from espalier.core.address import Address
from espalier.core.aggregator_state import SURVEY
from espalier.core.messages import (
    Action,
    AwaitSum,
    BeginRound,
    Closed,
    MeetCohorts,
    OpenChild,
    OpenCohorts,
    Record,
    Report,
    Send,
    Serve,
    SetDeadline,
)
from espalier.core.opening import Opening
from espalier.core.policies import Progress
from espalier.core.store import Ref
from espalier.core.view import Arrival, View


class Closing(Opening):
    """The part of an aggregator that closes the rounds it has opened."""

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
        return self._close(key, now) if cohort.arrived or cohort.held else []

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
            self.rules.structure.observe(view, arrivals)

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
