"""A barrier with a timeout: how often a child updates, told once for all, and how long its parent waits (Eq. 14)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated

from espalier.core.address import Address
from espalier.core.bounds import Bound, PositiveFloat, PositiveInt
from espalier.core.memory import Memory, Policy, Product
from espalier.core.policies import Assignment, Pace
from espalier.core.view import Arrival, View


def _none() -> float | None:
    return None


#: seconds that the next round is expected to take
PREDICTED_ROUND = Product("predicted time of the round", _none)


def total_time(arrival: Arrival) -> float:
    """Return a child's seconds from dispatch to arrival: download, computation and upload."""
    return arrival.report.download + arrival.report.compute + arrival.upload


@dataclass(frozen=True)
class Abandon(Policy, family="abandon", kind="none"):
    """Nobody is abandoned: the aggregator waits for all that are there."""

    def seconds(self, memory: Memory) -> float | None:
        """Return how long to wait (None: for all)."""
        return None

    def learn(self, memory: Memory, arrivals: Sequence[Arrival]) -> None:
        """Look at a closed round."""


@dataclass(frozen=True)
class Adaptive(Abandon, kind="adaptive"):
    """Eq. (14): ``rho_t`` times the predicted time of the round (AAF provides it); at first, all."""

    needs = (PREDICTED_ROUND,)

    rho_t: Annotated[float, Bound(ge=1)] = 1.5

    def seconds(self, memory: Memory) -> float | None:
        """Return how long to wait."""
        predicted = memory.product(PREDICTED_ROUND)
        return None if predicted is None else self.rho_t * predicted


@dataclass(frozen=True)
class Fixed(Abandon, kind="fixed"):
    """``factor`` times the median child's time in the aggregator's first round (where nothing is predicted)."""

    @dataclass(slots=True)
    class State:
        """The threshold, once it is fixed."""

        threshold: float | None = None

    factor: PositiveFloat = 2.0

    def seconds(self, memory: Memory) -> float | None:
        """Return how long to wait."""
        return memory.state(self).threshold

    def learn(self, memory: Memory, arrivals: Sequence[Arrival]) -> None:
        """Fix the threshold after the first round."""
        state = memory.state(self)
        if state.threshold is None:
            state.threshold = self.factor * median(total_time(a) for a in arrivals)


@dataclass(frozen=True)
class TimedPace(Pace, kind="timed"):
    """A barrier with a timeout: devices do ``leaf`` updates, aggregators ``updates``."""

    leaf: PositiveInt = 1
    abandon: Abandon = field(default_factory=Abandon)

    def check(self) -> None:
        """Refuse work that is none."""
        self.require(self.updates >= 1, "updates", "at least 1")

    def assign(self, view: View, chosen: Sequence[Address]) -> Mapping[Address, Assignment]:
        """Return each child's updates."""
        return {child: Assignment(self.leaf if view.env.is_device(child) else self.updates) for child in chosen}

    def deadline(self, view: View, work: Mapping[Address, Assignment]) -> float | None:
        """Return how long to wait."""
        return self.abandon.seconds(view.memory)

    def learn(self, view: View, arrivals: Sequence[Arrival]) -> None:
        """Let the timeout learn."""
        self.abandon.learn(view.memory, arrivals)

    def overdue(self, memory: Memory, arrival: Arrival) -> None:
        """Look at a report that came after its round had closed without it."""
