"""The event queue of virtual time: a heap keyed (time, priority, sequence), so ties are deterministic."""

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
    """An event for a node. ``life`` is the host's life it belongs to: a host that died misses it."""

    node: Address
    event: Event
    life: int = 0


@register
@dataclass(frozen=True, slots=True)
class ToWorld:
    """A change of the world: a kind and plain data."""

    kind: str
    data: dict[str, Any] = field(default_factory=dict)


Entry = tuple[float, int, int, ToNode | ToWorld]


class Queue:
    """What is going to happen."""

    def __init__(self) -> None:
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

    def pop(self) -> tuple[float, ToNode | ToWorld]:
        """Take out what happens next."""
        time, _, _, what = heapq.heappop(self._heap)
        return time, what

    @property
    def next_time(self) -> float:
        """When the next thing happens (inf: never)."""
        return self._heap[0][0] if self._heap else float("inf")

    def entries(self) -> list[Entry]:
        """Everything that is going to happen, in no particular order."""
        return self._heap

    def save(self) -> dict[str, Any]:
        """Return the queue as plain data."""
        return {"sequence": self._sequence, "heap": list(self._heap)}

    def restore(self, plain: dict[str, Any]) -> None:
        """Become the queue that :meth:`save` described."""
        self._sequence = plain["sequence"]
        self._heap = list(plain["heap"])
