"""Paces with a timeout: how often a child updates, and how long its parent waits (Eq. 14).

`TimedPace` tells the frequency once for all. RAF sets it from a child's last times, and nobody adapts in between: Yang,
Gan, Cao, Wang. Optimizing Aggregation Frequency for Hierarchical Model Training in Heterogeneous Edge Computing. IEEE
Transactions on Mobile Computing 22(7), 2023; as EASF's comparison describes and uses it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated, Literal

from espalier.core.address import Address
from espalier.core.bounds import Bound, NonNegativeFloat, PositiveFloat, PositiveInt
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
    """A barrier with a timeout: devices do ``leaf`` updates, aggregators ``updates``.

    Attributes:
        least: Seconds before which nobody is abandoned: on a real fleet times vary by more than can be predicted.
    """

    leaf: PositiveInt = 1
    abandon: Abandon = field(default_factory=Abandon)
    least: NonNegativeFloat = 0.0

    def check(self) -> None:
        """Refuse work that is none."""
        self.require(self.updates >= 1, "updates", "at least 1")

    def assign(self, view: View, chosen: Sequence[Address]) -> Mapping[Address, Assignment]:
        """Return each child's updates."""
        return {child: Assignment(self.leaf if view.env.is_device(child) else self.updates) for child in chosen}

    def deadline(self, view: View, work: Mapping[Address, Assignment]) -> float | None:
        """Return how long to wait."""
        seconds = self.abandon.seconds(view.memory)
        return None if seconds is None else max(self.least, seconds)

    def learn(self, view: View, arrivals: Sequence[Arrival]) -> None:
        """Let the timeout learn."""
        self.abandon.learn(view.memory, arrivals)

    def overdue(self, memory: Memory, arrival: Arrival) -> None:
        """Look at a report that came after its round had closed without it."""


def frequencies(
    computing: Mapping[int, float], transfer: Mapping[int, float], updates: Mapping[int, int], most: int, base: str
) -> dict[int, int]:
    """Return each child's updates: as many as fit into the slowest child's time.

    ``T = max_i(t_comp,i + t_tran,i)``, ``f_i = max(1, floor((T - t_tran,i) / (t_comp,i / f_i)))``, at most ``most``.

    Args:
        computing: Seconds that each child computed.
        transfer: Seconds of its download and upload.
        updates: Updates that it did.
        most: The upper bound.
        base: ``measured``: T of the round as it was; ``single``: T of one update each.
    """
    single = {c: computing[c] / max(1, updates[c]) for c in computing}
    basis = computing if base == "measured" else single
    slowest = max(basis[c] + transfer[c] for c in computing)
    found = {}
    for child, one in single.items():
        spare = slowest - transfer[child]
        if one > 0:
            found[child] = max(1, min(most, math.floor(min(spare / one + 1e-9, most))))
        else:
            found[child] = most if spare > 0 else 1  # where nothing takes any time there is none to fill
    return found


@dataclass(frozen=True)
class RAF(TimedPace, kind="raf"):
    """RAF: the first round one update each, then as many as fit into the slowest child's time.

    ``base = "single"`` measures the slowest child by one update, so that a round does not stay long because it was.
    """

    @dataclass(slots=True)
    class State:
        """Each child's updates."""

        frequencies: dict[Address, int] = field(default_factory=dict)

    f_max: PositiveInt = 20
    base: Literal["measured", "single"] = "measured"

    def assign(self, view: View, chosen: Sequence[Address]) -> Mapping[Address, Assignment]:
        """Return each child's updates; new pairs begin with one."""
        known = view.state(self).frequencies
        return {child: Assignment(known.get(child, 1)) for child in chosen}

    def learn(self, view: View, arrivals: Sequence[Arrival]) -> None:
        """Set the frequencies of those that reported."""
        super().learn(view, arrivals)
        reports = {a.report.sender: a for a in arrivals}
        found = frequencies(
            {c: a.report.compute for c, a in reports.items()},
            {c: a.report.download + a.upload for c, a in reports.items()},
            {c: a.report.updates for c, a in reports.items()},
            self.f_max,
            self.base,
        )
        view.state(self).frequencies.update(found)

    def forget(self, memory: Memory, child: Address) -> None:
        """A new pair starts over."""
        memory.state(self).frequencies.pop(child, None)
