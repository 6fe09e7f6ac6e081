"""What an aggregator remembers of its rounds: plain data, saved with the run."""

from __future__ import annotations

from dataclasses import dataclass, field

from espalier.core.address import Address
from espalier.core.codec import register
from espalier.core.memory import Memory
from espalier.core.messages import Order
from espalier.core.store import Ref
from espalier.core.view import Arrival

#: the cohort of a survey: its answers go to the structure policy, not to a merge
SURVEY = "?"


@register
@dataclass(slots=True)
class Ticket:
    """An order that is out: of which cohort, and how many rounds the aggregator had closed by then.

    ``start`` are the models that went with it, where the merge asks for them.
    """

    cohort: str
    round: int
    start: dict[str, Ref] = field(default_factory=dict)


@register
@dataclass(slots=True)
class Cohort:
    """One round in progress; ``held`` until its deadline, whoever has reported; ``summing``: its merge waits."""

    round: int = 0
    open: bool = False
    opened: float = 0.0
    overdue: bool = False
    held: bool = False
    summing: bool = False
    waiting: dict[Address, int] = field(default_factory=dict)
    arrived: list[Arrival] = field(default_factory=list)


@register
@dataclass(slots=True)
class AggregatorState:
    """All that an aggregator remembers.

    ``tickets`` are the orders that are out, by child and number; ``turns`` is the sum of the cohorts' rounds.
    """

    models: dict[str, Ref] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    auxiliary: dict[str, Ref] = field(default_factory=dict)
    cohorts: dict[str, Cohort] = field(default_factory=dict)
    turns: int = 0
    tickets: dict[Address, dict[int, Ticket]] = field(default_factory=dict)
    order: Order | None = None
    order_at: float = 0.0
    update_at: float = 0.0
    done: int = 0
    rounds: int = 0
    progress: int = 0
    orders: int = 0
    idle: set[Address] = field(default_factory=set)
    offences: dict[Address, int] = field(default_factory=dict)
    asleep: bool = False
    memory: Memory = field(default_factory=Memory)

    def cohort(self, key: str) -> Cohort:
        """Return a cohort, a new one if need be: it begins where the others are."""
        if key not in self.cohorts:
            self.cohorts[key] = Cohort(self.progress)
            self.turns += self.progress
        return self.cohorts[key]

    def end(self, key: str) -> None:
        """Forget a cohort."""
        self.turns -= self.cohorts.pop(key).round

    def advance(self, key: str) -> bool:
        """Count a round of a cohort; tell whether all of them, on average, are a round further."""
        self.cohorts[key].round += 1
        self.turns += 1
        self.rounds += 1
        before, self.progress = self.progress, max(self.progress, self.turns // self.count)
        return self.progress > before

    @property
    def count(self) -> int:
        """The number of cohorts, without that of a survey (which has no rounds)."""
        return len(self.cohorts) - (SURVEY in self.cohorts)
