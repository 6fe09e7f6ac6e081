"""How long work takes when the speed changes in steps: exact integration."""

from __future__ import annotations

import math
from collections.abc import Callable

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
