"""Time in pieces: how long work takes when the speed changes in steps, exactly; spells that come once per window."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from espalier.world.draws import Field

#: The seconds one unit of work takes from a moment on, and the moment until which that holds.
Pace = tuple[float, float]


def seconds(pace: Callable[[float], Pace], work: float, start: float) -> float:
    """Return how long ``work`` units take from ``start`` on.

    Args:
        pace: ``pace(t)`` gives the seconds per unit at ``t`` (inf: paused) and the time, later than
            ``t``, until which it stays so (inf: for ever).
        work: Units of work (mini-batches, bytes).
        start: Virtual time in seconds.

    Returns:
        Seconds, or inf if the work never ends.
    """
    if work <= 0:
        return 0.0
    at, left = start, work
    while True:
        each, until = pace(at)
        needed = left * each
        if at + needed <= until:
            return needed if at == start else at - start + needed
        if until == math.inf:
            return math.inf
        left -= (until - at) / each
        at = until
        if left <= 0:
            return at - start


def step(now: float, period: float) -> tuple[int, float]:
    """Return which period ``now`` lies in, and when the next one begins (always later than ``now``)."""
    index = math.floor(now / period)
    # Rounding may put a boundary on either side of its own quotient.
    while (index + 1) * period <= now:
        index += 1
    while index * period > now:
        index -= 1
    return index, (index + 1) * period


@dataclass(frozen=True)
class Bursts:
    """One spell in each window of ``every`` seconds, Exp(``mean``) long, cut at ``every``."""

    field: Field
    mean: float
    every: float

    def spell(self, window: int, *who: int) -> tuple[float, float]:
        """Return when the spell of a window begins and ends; the end may lie in the next window."""
        begin = (window + self.field.at(*who, window, 0)) * self.every
        length = -self.mean * math.log1p(-self.field.at(*who, window, 1))
        return begin, begin + min(length, self.every)

    def state(self, now: float, *who: int) -> tuple[bool, float]:
        """Tell whether ``now`` lies in a spell, and when that may change (always later than ``now``)."""
        window, _ = step(now, self.every)
        for near in range(max(0, window - 1), window + 1):
            begin, end = self.spell(near, *who)
            if begin <= now < end:
                return True, end
            if now < begin:
                return False, begin
        return False, self.spell(window + 1, *who)[0]
