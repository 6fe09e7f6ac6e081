"""The churn family, and transitions as arrays."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from espalier.core.errors import WorldError
from espalier.core.spec import Spec
from espalier.world.piecewise import step
from espalier.world.protocols import BoundChurn, Shape, Transition, Transitions


class Churn(Spec, ABC, family="churn"):
    """Who comes and goes."""

    @abstractmethod
    def bind(self, shape: Shape) -> BoundChurn:
        """Return the churn of one fleet under one seed."""


def nothing() -> Transitions:
    """Return no transitions."""
    none = np.empty(0, dtype=np.bool_)
    return Transitions(np.empty(0), np.empty(0, dtype=np.int64), none, none, none)


def gather(parts: list[Transitions]) -> Transitions:
    """Join lists of transitions and sort them by time, then host."""
    parts = [nothing(), *parts]
    every = Transitions(
        np.concatenate([part.time for part in parts]),
        np.concatenate([part.device for part in parts]),
        np.concatenate([part.alive for part in parts]),
        np.concatenate([part.silent for part in parts]),
        np.concatenate([part.forgets for part in parts]),
    )
    return every.rows(np.lexsort((every.device, every.time)))


def between(found: Transitions, t0: float, t1: float) -> Transitions:
    """Return those of [t0, t1)."""
    first, last = np.searchsorted(found.time, (t0, t1), side="left")
    return found.rows(slice(int(first), int(last)))


class Still:
    """Everybody is there, always."""

    still = True

    def __init__(self, shape: Shape) -> None:
        self._n = shape.n_devices

    def initial(self) -> NDArray[np.bool_]:
        """Tell that all devices are there, [N]."""
        return np.ones(self._n, dtype=np.bool_)

    def next(self, host: int, k: int, now: float) -> Transition | None:
        """Return nothing."""
        return None

    def window(self, t0: float, t1: float) -> Transitions:
        """Return nothing."""
        return nothing()


_KEPT_SPANS = 4


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
            while len(self._kept) > _KEPT_SPANS:
                self._kept.popitem(last=False)
        return self._kept[number]
