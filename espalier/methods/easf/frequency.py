"""How often a child updates before it reports, told by its parent once and for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from espalier.core.address import Address
from espalier.core.memory import Memory
from espalier.core.policies import Assignment, Pace
from espalier.core.view import Arrival, View
from espalier.methods.easf.abandon import Abandon


@dataclass(frozen=True)
class Timed(Pace, kind="timed"):
    """A barrier with a timeout: devices do ``leaf`` updates, aggregators ``updates``."""

    leaf: int = 1
    abandon: Abandon = field(default_factory=Abandon)

    def check(self) -> None:
        """Refuse work that is none."""
        self.require(self.leaf >= 1, "leaf", "at least 1")
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
