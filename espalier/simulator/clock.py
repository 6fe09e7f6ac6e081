"""Virtual time: a heap of what is going to happen, keyed (time, priority, sequence), so ties are deterministic."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espalier.core.address import Address
from espalier.core.codec import register
from espalier.core.errors import EspalierError
from espalier.core.messages import Event
from espalier.simulator.checkpoint import Saved

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


@register
@dataclass(slots=True)
class WorldBlock:
    """Changes of the world of one kind, by time: arrays that take one place of the heap, not one per change.

    Attributes:
        kind: Of all of them.
        time: When they happen, ascending, [n].
        data: What :class:`ToWorld` says of each, by name, [n] each.
        next: The first that has not happened yet.
    """

    kind: str
    time: NDArray[np.float64]
    data: dict[str, NDArray[Any]]
    next: int = 0

    def take(self) -> ToWorld:
        """Take out the next change."""
        at, self.next = self.next, self.next + 1
        return ToWorld(self.kind, {name: values[at].item() for name, values in self.data.items()})


Entry = tuple[float, int, int, ToNode | ToWorld | WorldBlock]


class VirtualClock(Saved):
    """The time, and what is going to happen.

    Attributes:
        now: Seconds since the run began.
    """

    SAVED = ("now", "_sequence", "_heap")

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

    def push_block(self, block: WorldBlock) -> None:
        """Let changes of the world happen, each in the order in which :meth:`push` would have let it happen."""
        if len(block.time):
            heapq.heappush(self._heap, (float(block.time[0]), WORLD, self._sequence, block))
            self._sequence += len(block.time)

    def pop(self) -> ToNode | ToWorld:
        """Take out what happens next; it is that time then."""
        self.now, priority, sequence, what = self._heap[0]
        if not isinstance(what, WorldBlock):
            heapq.heappop(self._heap)
            return what
        change = what.take()
        if what.next < len(what.time):
            heapq.heapreplace(self._heap, (float(what.time[what.next]), priority, sequence + 1, what))
        else:
            heapq.heappop(self._heap)
        return change

    @property
    def next_time(self) -> float:
        """When the next thing happens (inf: never)."""
        return self._heap[0][0] if self._heap else float("inf")

    def entries(self) -> list[Entry]:
        """Everything that is going to happen, in no particular order."""
        return self._heap
