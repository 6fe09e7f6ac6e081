"""What is going to happen to a host's nodes, kept on disk: deadlines, and on a scripted fleet all that takes time.

What is due at once may wait until an arrangement has been confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from espalier.core.address import Address
from espalier.core.messages import Arrived, Deadline, Event

#: seconds after which a round opens although not everybody has confirmed the new arrangement
SETTLE_SECONDS = 10.0


@dataclass(slots=True)
class Timer:
    """An event of a node; ``waits`` for an arrangement to be confirmed, but not longer than ``due``."""

    id: int
    node: Address
    event: Event
    due: float
    waits: bool = False

    def to_plain(self) -> tuple[Any, ...]:
        """Return it as plain data; ``Timer(*plain)`` is equal to it."""
        return (self.id, self.node, self.event, self.due, self.waits)

    @property
    def wake(self) -> object:
        """What a deadline is for; None if this is none."""
        return self.event.wake if isinstance(self.event, Deadline) else None

    @property
    def order(self) -> tuple[float, bool, int, int]:
        """Its place among others, as in a simulation: messages go before deadlines, those of low numbers first."""
        event = self.event
        sender = event.message.sender if isinstance(event, Arrived) else self.node
        return (round(self.due, 9), isinstance(event, Deadline), sender, self.id)


class Timers:
    """The timers of one host. All is called in the engine's thread."""

    def __init__(self, now: Callable[[], float], saved: Mapping[str, Any]) -> None:
        """Go on from what :meth:`to_plain` said."""
        self._now = now
        self.running: dict[int, Timer] = {t[0]: Timer(*t) for t in saved.get("timers", ())}
        self._count: int = saved.get("count", 0)
        #: letters of an arrangement that are not acknowledged yet: (host, number)
        self._settling: set[tuple[int, int]] = saved.get("settling", set())
        self._new: list[Timer] = []

    def to_plain(self) -> dict[str, Any]:
        """Return all that must outlive the process."""
        running = [t.to_plain() for t in self.running.values()]
        return {"timers": running, "count": self._count, "settling": self._settling}

    def set(self, node: Address, seconds: float, event: Event, *, waits: bool = False) -> None:
        """Set a timer; one that ``waits`` runs out earlier, when an arrangement has been confirmed."""
        self.at(node, self._now() + seconds, event, waits=waits)

    def at(self, node: Address, due: float, event: Event, *, waits: bool = False) -> None:
        """Let something happen to a node at a time."""
        self._count += 1
        timer = Timer(self._count, node, event, due, waits)
        self.running[timer.id] = timer
        self._new.append(timer)

    def pop(self, until: float) -> Timer | None:
        """Take out what is due first, if it is due by then."""
        due = [t for t in self.running.values() if t.due <= until]
        return self.running.pop(min(due, key=lambda t: t.order).id) if due else None

    def has(self, node: Address, wake: object) -> bool:
        """Tell whether a node will be woken by something."""
        return any(t.node == node and t.wake == wake for t in self.running.values())

    def cancel(self, wake: object) -> None:
        """Stop the timers that would wake somebody by something."""
        for old in [t.id for t in self.running.values() if t.wake == wake]:
            del self.running[old]

    def new(self) -> list[Timer]:
        """Return the timers that were set since the last call."""
        found, self._new = self._new, []
        return found

    # -- arrangements --------------------------------------------------------------------------------------

    @property
    def settling(self) -> bool:
        """Whether an arrangement is yet to be confirmed."""
        return bool(self._settling)

    def settle(self, dest: int, number: int) -> None:
        """Let rounds open only when a letter of an arrangement was acknowledged."""
        self._settling.add((dest, number))

    def settled(self, dest: int, number: int) -> list[tuple[Address, Event]]:
        """A host has confirmed its part of an arrangement; return what is due now, if it was the last one."""
        self._settling = {(d, n) for d, n in self._settling if d != dest or n > number}
        due = [] if self._settling else [t for t in self.running.values() if t.waits]
        for timer in due:
            del self.running[timer.id]
        return [(t.node, t.event) for t in due]
