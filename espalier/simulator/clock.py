"""Virtual time: a heap of what is going to happen, keyed (time, priority, sequence), so ties are deterministic."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any

from espalier.core.address import Address
from espalier.core.codec import register
from espalier.core.errors import EspalierError
from espalier.core.messages import Event

#: at one moment the world changes first, then messages arrive, then deadlines strike
WORLD, NODE, LATE = 0, 1, 2


@register
@dataclass(frozen=True, slots=True)
class ToNode:
    """An event for a node. ``incarnation`` is the host's that it belongs to: a host that died misses it."""

    node: Address
    event: Event
    incarnation: int = 0


@register
@dataclass(frozen=True, slots=True)
class ToWorld:
    """A change of the world: a kind and plain data."""

    kind: str
    data: dict[str, Any] = field(default_factory=dict)


Entry = tuple[float, int, int, ToNode | ToWorld]


class VirtualClock:
    """The time, and what is going to happen.

    Attributes:
        now: Seconds since the run began.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[Entry] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, time: float, priority: int, what: ToNode | ToWorld) -> None:
        """Let something happen at a time."""
        if not time < float("inf"):
            raise EspalierError(f"An event at time {time} can never happen: {what}.")
        heapq.heappush(self._heap, (time, priority, self._sequence, what))
        self._sequence += 1

    def pop(self) -> ToNode | ToWorld:
        """Take out what happens next; it is that time then."""
        self.now, _, _, what = heapq.heappop(self._heap)
        return what

    @property
    def next_time(self) -> float:
        """When the next thing happens (inf: never)."""
        return self._heap[0][0] if self._heap else float("inf")

    def entries(self) -> list[Entry]:
        """Everything that is going to happen, in no particular order."""
        return self._heap

    def save(self) -> dict[str, Any]:
        """Return the clock as plain data."""
        return {"now": self.now, "sequence": self._sequence, "heap": list(self._heap)}

    def restore(self, plain: dict[str, Any]) -> None:
        """Become the clock that :meth:`save` described."""
        self.now, self._sequence = plain["now"], plain["sequence"]
        self._heap = list(plain["heap"])
