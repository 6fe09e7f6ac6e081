"""What policies may look at: the reports that reached a node, its environment, and its own state."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from espalier.core.address import Address
from espalier.core.codec import register
from espalier.core.environment import Environment
from espalier.core.memory import Memory, Remembering
from espalier.core.messages import Order, Record, Report
from espalier.core.store import ModelStore, Ref


@register
@dataclass(frozen=True, slots=True)
class Arrival:
    """A report that reached an aggregator.

    ``staleness`` is the number of merges that the aggregator made between the child's order and its report, whichever
    cohort they were of (0: the child worked on the newest model); a ``stranger`` was dispatched by another aggregator.
    ``start`` are the models that the child was given with its order, where the merge ``compares_with_start``.
    """

    report: Report
    at: float
    staleness: int = 0
    stranger: bool = False
    start: dict[str, Ref] = field(default_factory=dict)

    @property
    def upload(self) -> float:
        """Seconds the report was on its way."""
        return self.at - self.report.sent

    @property
    def seconds(self) -> float:
        """Seconds from the order to the report: the order's way, the work, the report's way."""
        return self.report.download + self.report.compute + self.upload

    def of_auxiliary(self, names: Collection[str]) -> Arrival:
        """Return it with auxiliary vectors of these names in the place of its models, to be merged as models."""
        report = self.report
        found = {name: vector for name, vector in report.auxiliary.items() if name in names}
        samples = dict.fromkeys(found, sum(report.samples.values()))
        return replace(self, report=replace(report, models=found, samples=samples))


def with_auxiliary(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Return reports with the auxiliary vectors that most of them have in the place of their models.

    No single child decides what all others are handed from then on.
    """
    counts = Counter(name for arrival in arrivals for name in arrival.report.auxiliary)
    names = {name for name, count in counts.items() if 2 * count > len(arrivals)}
    return [a.of_auxiliary(names) for a in arrivals if not names.isdisjoint(a.report.auxiliary)]


class View(Remembering):
    """What the policies of one aggregator may look at when they decide.

    Attributes:
        now: Seconds.
        me: The aggregator.
        round: Rounds that this cohort has closed.
        clock: The root's round.
        cohort: The cohort's name.
        models: The aggregator's models by group.
        auxiliary: Its auxiliary vectors by name.
        order: The parent's order (None at the root).
        memory: What the policies remember; see :meth:`state` and :meth:`product`.
        env: The environment.
        notes: What the policies want in the run's record; see :meth:`note`.
        absent: When a round closes, or (buffers) makes room: children that were ordered to work and have not reported.
    """

    __slots__ = (
        "_children", "absent", "auxiliary", "clock", "cohort", "env", "me", "memory", "models", "notes", "now", "order",
        "round",
    )  # fmt: skip

    def __init__(
        self,
        now: float,
        me: Address,
        round: int,
        clock: int,
        cohort: str,
        models: Mapping[str, Ref],
        order: Order | None,
        memory: Memory,
        env: Environment,
    ) -> None:
        self.now, self.me, self.round, self.clock, self.cohort = now, me, round, clock, cohort
        self.models, self.order, self.memory, self.env = models, order, memory, env
        self.notes: list[Record] = []
        self.absent: Sequence[Address] = ()
        self.auxiliary: Mapping[str, Ref] = {}
        self._children: Sequence[Address] | None = None

    def note(self, kind: str, **data: Any) -> None:
        """Write something into the run's record (an event of that kind at this node)."""
        self.notes.append(Record(kind, data))

    @property
    def children(self) -> Sequence[Address]:
        """The children that are concerned (of the cohort; when a round opens, those that are free)."""
        if self._children is None:
            self._children = self.env.children(self.me)
        return self._children

    @children.setter
    def children(self, children: Sequence[Address]) -> None:
        self._children = children

    def loss(self, arrival: Arrival) -> float:
        """Return a report's mean training loss (NaN: nobody knows); in a simulation this computes the training."""
        known, models = arrival.report.loss, arrival.report.models
        return known if known is not None else self.store.loss(next(iter(models.values()))) if models else math.nan

    def of_auxiliary(self) -> View:
        """Return the view with the auxiliary vectors in the place of the models."""
        view = copy(self)
        view.models, view.auxiliary = self.auxiliary, {}
        return view

    @property
    def store(self) -> ModelStore:
        """The model algebra."""
        return self.env.store

    @property
    def is_root(self) -> bool:
        """Whether this aggregator has no parent."""
        return self.env.parent(self.me) is None
