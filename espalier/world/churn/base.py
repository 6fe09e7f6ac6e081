"""The churn family, and transitions as arrays."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from espalier.core.errors import WorldError
from espalier.core.spec import Spec
from espalier.world.piecewise import step
from espalier.world.shape import Shape


class Transitions(NamedTuple):
    """Hosts that go and come back, by time: arrays of one length. ``device`` holds host numbers.

    ``silent``: nobody is told. ``forgets``: the outage costs the host its state; said when it goes and when it comes
    back.
    """

    time: NDArray[np.float64]
    device: NDArray[np.int64]
    alive: NDArray[np.bool_]
    silent: NDArray[np.bool_]
    forgets: NDArray[np.bool_]

    def rows(self, which: NDArray[np.int64] | slice) -> Transitions:
        """Return some of the rows."""
        return Transitions(
            self.time[which], self.device[which], self.alive[which], self.silent[which], self.forgets[which]
        )


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


class BoundChurn:
    """Who is there: by itself (``still``) everybody, always. Edges and the cloud are there at the start."""

    still = True

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def initial(self) -> NDArray[np.bool_]:
        """Tell which devices are there at time 0, [N]."""
        return np.ones(self.shape.n_devices, dtype=np.bool_)

    def window(self, t0: float, t1: float) -> Transitions:
        """Return all transitions in [t0, t1), by time."""
        return nothing()


class Churn(Spec, ABC, family="churn"):
    """Who comes and goes."""

    @abstractmethod
    def bind(self, shape: Shape) -> BoundChurn:
        """Return the churn of one fleet under one seed."""


_KEPT_SPANS = 4


class Followed(BoundChurn):
    """Transitions of a process that is followed from time 0, ``span`` seconds at a time."""

    still = False

    def __init__(self, shape: Shape, span: float) -> None:
        super().__init__(shape)
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


_SPAN_SECONDS = 64.0


@dataclass(frozen=True)
class Combined(Churn, kind="combined"):
    """The churns of ``parts`` together, such as devices that come and go and edges that fail."""

    parts: tuple[Churn, ...]

    def check(self) -> None:
        """Refuse fewer than two parts."""
        self.require(len(self.parts) >= 2, "parts", "a list of at least two churns")

    def bind(self, shape: Shape) -> BoundChurn:
        """Return the combined churn of one fleet."""
        return _Combined(shape, [part.bind(shape) for part in self.parts])


class _Combined(Followed):
    def __init__(self, shape: Shape, parts: list[BoundChurn]) -> None:
        super().__init__(shape, _SPAN_SECONDS)
        self.still = all(part.still for part in parts)
        self._parts = parts

    def initial(self) -> NDArray[np.bool_]:
        return np.asarray(np.all([part.initial() for part in self._parts], axis=0))

    def restart(self) -> None:
        # How many causes keep each host away.
        self._down = np.zeros(self.shape.n_hosts, dtype=np.int64)
        self._down[: self.shape.n_devices] = np.sum([~part.initial() for part in self._parts], axis=0)

    def advance(self, t0: float, t1: float) -> Transitions:
        every = gather([part.window(t0, t1) for part in self._parts])
        order = np.argsort(every.device, kind="stable")
        host = every.device[order]
        change = np.where(every.alive[order], -1, 1)
        total = np.cumsum(change)
        first = np.flatnonzero(np.diff(host, prepend=-1))
        # The running sum of all hosts becomes each host's own: subtract what came before its first row.
        before = np.repeat(total[first] - change[first], np.diff(np.append(first, len(host))))
        down = self._down[host] + total - before
        np.add.at(self._down, host, change)
        seen = np.sort(order[((down == 0) & (change < 0)) | ((down == 1) & (change > 0))])
        return every.rows(seen)
