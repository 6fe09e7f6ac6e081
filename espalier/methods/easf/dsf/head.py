"""The aggregator that a device runs for a cluster: any level, also the root."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from espalier.core.address import host_of
from espalier.core.aggregator import Aggregator
from espalier.core.aggregator_state import AggregatorState
from espalier.core.messages import (
    ALL,
    Action,
    Arrange,
    Arrived,
    ChildJoined,
    ChildLeft,
    Deadline,
    Event,
    Order,
    Report,
    Send,
    Serve,
    Word,
)
from espalier.core.method import Speaker
from espalier.core.store import Ref
from espalier.core.view import Arrival
from espalier.methods.easf.dsf import messages
from espalier.methods.easf.paces import TimedPace


class ClusterHead(Aggregator):
    """An aggregator that may become the root, or stop, when its device's agent says so.

    Messages of its own device: `BECOME_ROOT` (from the given round and model on) and `RESET` (forget all). A report
    with a ``root_round`` brings a model to begin with as the root.
    """

    hears: ClassVar[Mapping[str, Speaker]] = {messages.BECOME_ROOT: "own", messages.RESET: "own"}

    def on(self, event: Event, now: float) -> list[Action]:
        """Take one event; return what is to be done."""
        match event:
            case Arrived(message=Word(kind=messages.BECOME_ROOT, data=data)):
                return self._become_root(data["round"], data["model"], now)
            case Arrived(message=Word(kind=messages.RESET)):
                self.state = AggregatorState(orders=self.state.orders)
                return []
            case Arrived(message=Report(order=0, stats={"root_round": root_round}) as report):
                return self._become_root(root_round, report.models[ALL], now)
            case Arrived(message=Report() as report):
                self._notice(report, now)
            case Deadline() if not self.state.models:
                return []  # set before it was reset
            case ChildJoined(child=child):
                # A new pair starts over, also if this host was away when the child left it.
                self.rules.pace.forget(self.state.memory, child)
                self.state.tickets.pop(child, None)
                self._membership_changed()
            case ChildLeft():
                self._membership_changed()
        return super().on(event, now)

    def _membership_changed(self) -> None:
        """Another child has come, or one has gone: the other pairs go on as they were."""

    def _notice(self, report: Report, now: float) -> None:
        """Let the pace know of a report that comes too late (it is dropped, but says how long its child took)."""
        ticket, pace = self.state.tickets.get(report.sender, {}).get(report.order), self.rules.pace
        if ticket is None or not report.models or not isinstance(pace, TimedPace):
            return
        cohort = self.state.cohorts.get(ticket.cohort)
        if cohort is not None and cohort.waiting.get(report.sender) != report.order:
            pace.overdue(self.state.memory, Arrival(report, now))

    def _become_root(self, root_round: int, model: Ref | None, now: float) -> list[Action]:
        state = self.state
        if state.models and state.order is None:
            return []  # it is the root already
        self.state = AggregatorState(
            models={ALL: model if model is not None else self.env.store.initial()},
            rounds=root_round,
            progress=root_round,
            orders=self._first_order(now),
        )
        return [Arrange({}, {}, self.me), Serve(dict(self.state.models)), *self._begin(now)]

    def _first_order(self, now: float) -> int:
        """Return the number before the first order: none of an earlier incarnation is used again."""
        return max(self.state.orders, int(now * 1000) << 20)

    def _begin(self, now: float) -> list[Action]:
        # Said in every round: of two trees that met, the one that stays is the run's.
        return [Arrange({}, {}, self.me), *super()._begin(now)]

    def _on_order(self, order: Order, now: float) -> list[Action]:
        if order.sender != self.env.parent(self.me):
            return []  # of a parent that it had before: the message was slow
        if self.state.order is None or self.state.order.sender != order.sender:
            # Who still works on an earlier order gets the new one too: a new parent's model supersedes. The same
            # parent's does not: who was too late for a round would start over in each, and never be done.
            self.state.tickets.clear()
            self.state.orders = self._first_order(now)
        model = next(iter(order.models.values()))
        news = Word(messages.NEW_MODEL, self.me, host_of(self.me), now, {"round": order.clock, "model": model})
        return [Send(news), *super()._on_order(order, now)]


class ForgetfulHead(ClusterHead):
    """One whose pairs all start over, with one update, whenever a child comes or goes."""

    def _membership_changed(self) -> None:
        for child in self.env.children(self.me):
            self.rules.pace.forget(self.state.memory, child)
