"""What disturbs a device's speed: run-time noise, fluctuation, busy spells, a redraw per round.

Each wraps any compute model (``of``), also another modifier.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from espalier.core.bounds import NonNegativeFinite, PositiveFinite, PositiveSeconds
from espalier.core.seeds import key
from espalier.world.compute.speeds import BoundCompute, Compute, Wrapped
from espalier.world.draws import Field, normal
from espalier.world.piecewise import Bursts, Pace, step
from espalier.world.shape import Shape


@dataclass(frozen=True)
class Noise(Compute, kind="noise"):
    """A job takes its estimate times a log-normal number with median 1 (C7)."""

    of: Compute
    sigma: NonNegativeFinite = 0.3

    def bind(self, shape: Shape) -> BoundCompute:
        """Return the noisy compute of one fleet."""
        return _Noise(self.of.bind(shape), self.sigma, Field.of(shape.seed, "compute", "noise"))


class _Noise(Wrapped):
    def __init__(self, inner: BoundCompute, sigma: float, field: Field) -> None:
        super().__init__(inner)
        self._sigma, self._field = sigma, field

    def load(self, device: int, job: int) -> float:
        factor = math.exp(self._sigma * float(normal(self._field.at(device, job))))
        return factor * self.inner.load(device, job)


@dataclass(frozen=True)
class Throttled(Compute, kind="throttled"):
    """Some devices say what the inner model says, and take ``factor`` times as long."""

    of: Compute
    devices: tuple[int, ...]
    factor: PositiveFinite = 2.0

    def bind(self, shape: Shape) -> BoundCompute:
        """Return the compute of one fleet with its throttled devices."""
        return _Throttled(self.of.bind(shape), frozenset(self.devices), self.factor)


class _Throttled(Wrapped):
    def __init__(self, inner: BoundCompute, devices: frozenset[int], factor: float) -> None:
        super().__init__(inner)
        self._devices, self._factor = devices, factor

    def load(self, device: int, job: int) -> float:
        return self.inner.load(device, job) * (self._factor if device in self._devices else 1.0)


@dataclass(frozen=True)
class Fluctuating(Compute, kind="fluctuating"):
    """A device's power is multiplied by U[low, high), redrawn every ``period`` seconds (E16)."""

    of: Compute
    low: float = 0.5
    high: float = 1.5
    period: PositiveSeconds = 20.0

    def check(self) -> None:
        """Refuse a power of zero and empty periods."""
        self.require(0 < self.low <= self.high < math.inf, "high", f"finite and ≥ low = {self.low!r} > 0")

    def bind(self, shape: Shape) -> BoundCompute:
        """Return the fluctuating compute of one fleet."""
        return _Fluctuating(self.of.bind(shape), self, Field.of(shape.seed, "compute", "fluctuating"))


class _Fluctuating(Wrapped):
    def __init__(self, inner: BoundCompute, spec: Fluctuating, field: Field) -> None:
        super().__init__(inner)
        self._spec, self._field = spec, field

    def _power(self, device: int, index: int) -> float:
        return self._spec.low + self._field.at(device, index) * (self._spec.high - self._spec.low)

    def pace(self, device: int, now: float) -> Pace:
        each, until = self.inner.pace(device, now)
        index, turn = step(now, self._spec.period)
        return each / self._power(device, index), min(until, turn)

    def unburdened(self, device: int, now: float) -> float:
        index, _ = step(now, self._spec.period)
        return self.inner.nominal(device, 1.0, now) / self._power(device, index)


@dataclass(frozen=True)
class Busy(Compute, kind="busy"):
    """Training pauses in busy spells: one per ``every`` seconds, Exp(``mean``) seconds long (E16).

    A spell begins at a uniform moment of its window and is cut at ``every`` seconds, so that whether a
    device is busy depends on two windows only.
    """

    of: Compute
    mean: float = 10.0
    every: PositiveSeconds = 100.0

    def check(self) -> None:
        """Refuse spells that leave no time."""
        self.require(0 < self.mean < self.every, "mean", f"> 0 and shorter than every = {self.every!r}")

    def bind(self, shape: Shape) -> BoundCompute:
        """Return the compute of one fleet with its busy spells."""
        bursts = Bursts(Field.of(shape.seed, "compute", "busy"), self.mean, self.every)
        return _Busy(self.of.bind(shape), bursts)


class _Busy(Wrapped):
    def __init__(self, inner: BoundCompute, bursts: Bursts) -> None:
        super().__init__(inner)
        self._bursts = bursts

    def pace(self, device: int, now: float) -> Pace:
        busy, change = self._bursts.state(now, device)
        if busy:
            return math.inf, change
        each, until = self.inner.pace(device, now)
        return each, min(until, change)


@dataclass(frozen=True)
class Redrawn(Compute, kind="redrawn"):
    """The whole inner model is redrawn for every global round, and holds within it (D2D §5.2)."""

    of: Compute

    def bind(self, shape: Shape) -> BoundCompute:
        """Return the compute of round 0; ``at(epoch)`` gives the others."""

        @lru_cache(maxsize=4)
        def rounds(epoch: int) -> BoundCompute:
            return self.of.bind(replace(shape, seed=key(shape.seed, "world", "redrawn", epoch)))

        return _Redrawn(rounds, 0)


class _Redrawn(Wrapped):
    def __init__(self, rounds: Callable[[int], BoundCompute], epoch: int) -> None:
        super().__init__(rounds(epoch))
        self._rounds = rounds

    def at(self, epoch: int) -> BoundCompute:
        return _Redrawn(self._rounds, epoch)
