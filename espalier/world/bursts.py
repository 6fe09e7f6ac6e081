"""Spells that come once per time window: busy devices, links that vanish.

A spell is a pure function of who and of the window's number, so any moment can be asked for directly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from espalier.world.draws import Field
from espalier.world.piecewise import step


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
