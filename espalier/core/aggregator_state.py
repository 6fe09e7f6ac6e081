"""What an aggregator remembers of its rounds: plain data, saved with the run.

Rounds run per *cohort*: one cohort is a barrier, a cohort per child is full asynchrony, anything between is a tier or a
cluster whose rounds go on by themselves. An order that is out is a *ticket* until its report comes or its child leaves.
"""

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
    """Children whose rounds run together, and the round that they are in.

    Attributes:
        round: Its number: how many rounds of the cohort have closed.
        open: Whether the round is open.
        opened: When it was opened.
        overdue: Whether the deadline has passed, or nobody else can be asked: the first report closes the round.
        held: Whether it stays open until its deadline, even if everybody has reported.
        summing: Whether it is closed and its merge waits for sums that the children make (secure aggregation).
        waiting: Who was ordered and has not reported, with the order's number.
        arrived: The reports so far; what was late for the round before is among them if the pace keeps it.
    """

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

    Attributes:
        models: What it serves, by group.
        samples: How many samples stand behind each of them.
        auxiliary: Vectors that travel beside the models.
        cohorts: The rounds of its children, by cohort.
        cohort_rounds: The sum of the cohorts' rounds.
        rounds: How many rounds it has closed, of all cohorts; staleness counts in these.
        progress: How many rounds the cohorts have closed on average: at the root, the run's round.
        tickets: The orders that are out, by child and number.
        orders: The number of the last order.
        order: What its own parent wants (None: it is the root, or has heard of nobody yet).
        order_at: When that arrived.
        done: Rounds closed since.
        update_at: When the last of them closed.
        idle: Children that returned their order unfulfilled: they are not asked until they say that they are awake.
        asleep: Whether it has returned its own parent's order unfulfilled.
        offences: How many reports of each child were refused.
        memory: What its policies remember.
    """

    models: dict[str, Ref] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    auxiliary: dict[str, Ref] = field(default_factory=dict)
    cohorts: dict[str, Cohort] = field(default_factory=dict)
    cohort_rounds: int = 0
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
            self.cohort_rounds += self.progress
        return self.cohorts[key]

    def end(self, key: str) -> None:
        """Forget a cohort."""
        self.cohort_rounds -= self.cohorts.pop(key).round

    def advance(self, key: str) -> bool:
        """Count a round of a cohort; tell whether all of them, on average, are a round further."""
        self.cohorts[key].round += 1
        self.cohort_rounds += 1
        self.rounds += 1
        before, self.progress = self.progress, max(self.progress, self.cohort_rounds // self.count)
        return self.progress > before

    @property
    def count(self) -> int:
        """The number of cohorts, without that of a survey (which has no rounds)."""
        return len(self.cohorts) - (SURVEY in self.cohorts)
