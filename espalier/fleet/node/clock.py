"""Fleet time: seconds since the run began, the same on every host up to half a round trip."""

from __future__ import annotations

import time


class FleetClock:
    """The cloud's clock is set once; others set theirs by the cloud's through their parents.

    A scripted fleet's clock may be slower than real time (`espalier.fleet.coordinator.manifest.Script`).
    """

    def __init__(self) -> None:
        self._slowdown = 1.0
        self._offset = -time.monotonic()
        self._last = 0.0
        self._trip = float("inf")
        self._set_at = 0.0

    def slow(self, slowdown: float) -> None:
        """Count one second in so many real ones; what was heard before is forgotten."""
        if slowdown != self._slowdown:
            now = self._offset + time.monotonic() / self._slowdown
            self._slowdown, self._trip, self._last = slowdown, float("inf"), 0.0
            self._offset = now - time.monotonic() / slowdown

    def begin(self, epoch: float) -> None:
        """Count from a moment (seconds since 1970), which a restart remembers."""
        self._offset = (time.time() - epoch - time.monotonic()) / self._slowdown

    def resume(self, last: float) -> None:
        """Go on from an earlier incarnation's last moment, until a parent (or `begin`) says how late it really is."""
        self._offset, self._last = last - time.monotonic() / self._slowdown, last

    def heard(self, now: float, sent: float) -> float:
        """Set the clock by what a parent's clock said; ``sent`` is when it was asked (`monotonic`). Return the trip."""
        arrived = time.monotonic()
        trip = arrived - sent
        # A quicker answer is a better one; an old one no longer counts, for clocks drift.
        if trip <= self._trip or arrived - self._set_at > 300:
            self._trip, self._set_at = trip, arrived
            self._offset = now + (trip / 2 - arrived) / self._slowdown
        return trip

    def now(self) -> float:
        """Return fleet time; it never goes back."""
        self._last = max(self._last, self._offset + time.monotonic() / self._slowdown)
        return self._last

    def until(self, due: float) -> float:
        """Return the real seconds until a moment of fleet time (0 if it is past)."""
        return max(0.0, due - self.now()) * self._slowdown
