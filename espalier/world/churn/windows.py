"""Transitions of any time window from a process that can only be followed forwards.

The process is followed in spans; the last few spans are kept, and a window that lies before them is
found again by following the process from the start. So the answer is a pure function of the window, and
what is kept is only a cache.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict

from espalier.core.errors import WorldError
from espalier.world.churn.base import between, gather
from espalier.world.piecewise import step
from espalier.world.protocols import Transitions

_KEPT = 4


class Followed(ABC):
    """Transitions of a process that is followed from time 0, ``span`` seconds at a time."""

    def __init__(self, span: float) -> None:
        self._span = span
        self._kept: OrderedDict[int, Transitions] = OrderedDict()
        self._reached = 0

    @abstractmethod
    def restart(self) -> None:
        """Go back to time 0."""

    @abstractmethod
    def advance(self, t0: float, t1: float) -> Transitions:
        """Return the transitions in [t0, t1) and go on to t1; called for spans that follow each other."""

    def window(self, t0: float, t1: float) -> Transitions:
        """Return all transitions in [t0, t1), by time."""
        if not math.isfinite(t1):
            raise WorldError(f"churn.window to t1 = {t1!r}: the churn never ends; ask for a finite time.")
        first, last = step(max(0.0, t0), self._span)[0], step(max(0.0, t1), self._span)[0]
        return gather([between(self._block(c), t0, t1) for c in range(first, last + 1)])

    def _block(self, number: int) -> Transitions:
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        if number < self._reached or self._reached == 0:
            self._reached = 0
            self.restart()
        while self._reached <= number:
            begin, end = self._reached * self._span, (self._reached + 1) * self._span
            self._kept[self._reached] = self.advance(begin, end)
            self._reached += 1
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return self._kept[number]
