"""Drifts that go on: a feature that shifts little by little, a class prior that goes round."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

import numpy as np

from espalier.core.bounds import PositiveInt, Share
from espalier.world.drift.concept import ORDINARY, BoundDrift, Clock, Concept, Drift, Staged, drifting
from espalier.world.piecewise import step
from espalier.world.protocols import Shape


@dataclass(frozen=True)
class Gradual(Drift, kind="gradual"):
    """A feature shifts from nothing at ``start`` to ``amount`` at ``end``, in ``levels`` equal steps.

    ``start`` and ``end`` are rounds or seconds, as ``clock`` says; ``amount`` is in the feature's unit
    (brightness and noise: that of the data, rotation: degrees). Steps keep the number of distinct
    concepts, and so of data pools, small.
    """

    feature: Literal["brightness", "noise", "rotation"] = "brightness"
    start: float = 0.0
    end: float = 100.0
    amount: float = 0.3
    fraction: Share = 1.0
    levels: PositiveInt = 10
    clock: Clock = "round"

    def check(self) -> None:
        """Refuse an empty interval and amounts that mean nothing."""
        self.require(0 <= self.start < self.end < math.inf, "end", f"finite and later than start = {self.start!r}")
        self.require(math.isfinite(self.amount), "amount", "a finite number")
        self.require(self.feature != "noise" or self.amount >= 0, "amount", "≥ 0 for noise")

    def bind(self, shape: Shape) -> BoundDrift:
        """Return the drift of one fleet."""
        times = [self.start + (self.end - self.start) * k / self.levels for k in range(1, self.levels + 1)]
        if self.clock == "round":
            times = [float(math.ceil(t)) for t in times]

        def concept(group: int, at: float) -> Concept:
            level = bisect_right(times, at) if group else 0
            return _shifted(self.feature, self.amount * level / self.levels) if level else ORDINARY

        def changes(until: float) -> list[float]:
            return sorted({t for t in times if t <= until})

        return Staged(self.clock, drifting(shape, self.fraction).astype(np.int64), concept, changes)


@dataclass(frozen=True)
class RotatePrior(Drift, kind="rotate_prior"):
    """Every ``period`` rounds (or seconds) the drifting devices' class prior turns by one class."""

    period: float = 10.0
    fraction: Share = 1.0
    clock: Clock = "round"

    def check(self) -> None:
        """Refuse an empty period."""
        least = 1 if self.clock == "round" else 1e-3
        self.require(least <= self.period < math.inf, "period", f"a finite number ≥ {least:g}")

    def bind(self, shape: Shape) -> BoundDrift:
        """Return the drift of one fleet."""

        def concept(group: int, at: float) -> Concept:
            turns, _ = step(at, self.period) if group else (0, 0.0)
            return Concept(shift=turns) if turns else ORDINARY

        def changes(until: float) -> list[float]:
            last, _ = step(until, self.period)
            times = (turn * self.period for turn in range(1, last + 1))
            return [float(math.ceil(t)) for t in times] if self.clock == "round" else list(times)

        return Staged(self.clock, drifting(shape, self.fraction).astype(np.int64), concept, changes)


def _shifted(feature: Literal["brightness", "noise", "rotation"], value: float) -> Concept:
    if feature == "brightness":
        return Concept(brightness=value)
    return Concept(noise=value) if feature == "noise" else Concept(rotation=value)
