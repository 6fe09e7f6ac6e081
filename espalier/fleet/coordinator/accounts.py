"""Whom the cloud waits for, and how long: at the end of a run, until all that they know has been told, and in rounds.

A device that says nothing must not hold everybody up: once half of those who were asked have answered, the others get
ten times as long as that took, as long as two trainings, and two seconds at least. Nobody is waited for longer than
half a minute.
"""

from __future__ import annotations

from collections.abc import Collection

from espalier.core.address import Address
from espalier.fleet.node.stragglers import patience

#: seconds that anybody is waited for: at most, and at least
LONGEST_SECONDS, SHORTEST_SECONDS = 30.0, 2.0
#: so many times what half of them took, and what the longest training took: who is at work answers after it
TIMES_SLOWER, TRAININGS = 10.0, 2.0


class Accounts:
    """Who has not given account yet, and until when they are waited for. Times are the fleet's, in seconds."""

    def __init__(self, slowdown: float = 1.0) -> None:
        """Wait for nobody; a scripted fleet's second takes so many real ones (``slowdown``)."""
        self._slowdown = slowdown
        self._missing: set[int] = set()
        self._asked, self._asked_at, self._until = 0, 0.0, 0.0

    @property
    def missing(self) -> set[int]:
        """Who has not answered."""
        return self._missing

    def ask(self, hosts: Collection[int], now: float) -> None:
        """Wait for these hosts from now on."""
        self._missing, self._asked, self._asked_at = set(hosts), len(hosts), now
        self._until = now + LONGEST_SECONDS / self._slowdown

    def given(self, host: int, now: float, longest_training: float) -> None:
        """A host has answered; the longest training of the run took so long."""
        if host not in self._missing:
            return
        self._missing.discard(host)
        if self._asked - len(self._missing) == (self._asked + 1) // 2:
            took = now - self._asked_at
            patience = max(SHORTEST_SECONDS / self._slowdown, TIMES_SLOWER * took, TRAININGS * longest_training)
            self._until = min(self._until, self._asked_at + patience)

    def waits(self, present: Collection[int], now: float) -> bool:
        """Tell whether somebody who is there may still answer."""
        return not self._missing.isdisjoint(present) and now < self._until


class Laggards:
    """Who keeps the others' round waiting where rounds are the devices' or the edges' own, and since when.

    The deadline is that of a round over edges (`espalier.fleet.node.stragglers`).
    """

    def __init__(self, least_seconds: float | None) -> None:
        """Wait at least twice so many seconds (None: for ever)."""
        self._least, self._since = least_seconds, 0.0
        #: what each took for its last round, and when it closed it
        self._took: dict[Address, float] = {}
        self._closed: dict[Address, float] = {}

    def begun(self, now: float) -> None:
        """A round begins."""
        self._since = now

    def closed(self, node: Address, now: float) -> None:
        """Somebody has closed a round; edges do not wait for each other, and may be rounds ahead."""
        self._took[node] = now - max(self._since, self._closed.get(node, 0.0))
        self._closed[node] = now

    def late(self, behind: set[Address], now: float) -> set[Address]:
        """Return who of those that all others wait for has taken too long: all of them, or nobody."""
        if self._least is None or not behind:
            return set()
        return behind if now - self._since > 2 * patience(self._took, behind, self._least) else set()
