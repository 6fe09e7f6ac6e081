"""Timeout abandonment: how long an aggregator waits for its children (EASF, Eq. 14)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from espalier.core.memory import Memory, Policy, Product
from espalier.core.view import Arrival


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

    rho_t: float = 1.5

    def check(self) -> None:
        """Refuse to abandon whoever is on time."""
        self.require(self.rho_t >= 1, "rho_t", "at least 1")

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

    factor: float = 2.0

    def check(self) -> None:
        """Refuse to wait for no time."""
        self.require(self.factor > 0, "factor", "more than 0")

    def seconds(self, memory: Memory) -> float | None:
        """Return how long to wait."""
        return memory.state(self).threshold

    def learn(self, memory: Memory, arrivals: Sequence[Arrival]) -> None:
        """Fix the threshold after the first round."""
        state = memory.state(self)
        if state.threshold is None:
            state.threshold = self.factor * median(total_time(a) for a in arrivals)
