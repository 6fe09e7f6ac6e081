"""The compute family, and what all its bound members share."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from espalier.core.spec import Spec
from espalier.world import piecewise
from espalier.world.protocols import BoundCompute, Shape


class Compute(Spec, ABC, family="compute"):
    """How fast devices train."""

    @abstractmethod
    def bind(self, shape: Shape) -> BoundCompute:
        """Return the compute of one fleet under one seed."""


class TimedCompute(ABC):
    """A bound compute from its pace: durations integrate over the pace's steps exactly."""

    @abstractmethod
    def pace(self, device: int, now: float) -> piecewise.Pace:
        """Return the seconds per batch now (inf: paused) and until when that holds."""

    @abstractmethod
    def units(self) -> NDArray[np.float64]:
        """Return the nominal seconds per batch of every device at time 0, [N]."""

    def unburdened(self, device: int, now: float) -> float:
        """Return the seconds per batch that a probe would measure now, outside busy spells."""
        return self.pace(device, now)[0]

    def load(self, device: int, job: int) -> float:
        """Return the factor on a job's work; 1 without noise."""
        return 1.0

    def nominal(self, device: int, batches: float, now: float) -> float:
        """Return what the device itself would estimate now, in seconds."""
        return batches * self.unburdened(device, now)

    def duration(self, device: int, batches: float, start: float, job: int) -> float:
        """Return what the work really takes, in seconds."""
        work = batches * self.load(device, job)
        return piecewise.seconds(lambda t: self.pace(device, t), work, start)

    def at(self, epoch: int) -> BoundCompute:
        """Return itself: the same in every global round."""
        return self


class Wrapped(TimedCompute):
    """A bound compute that changes another one; by itself it changes nothing."""

    def __init__(self, inner: BoundCompute) -> None:
        self.inner = inner

    def pace(self, device: int, now: float) -> piecewise.Pace:
        """Return the inner pace."""
        return self.inner.pace(device, now)

    def unburdened(self, device: int, now: float) -> float:
        """Return the inner estimate for one batch."""
        return self.inner.nominal(device, 1.0, now)

    def load(self, device: int, job: int) -> float:
        """Return the inner factor."""
        return self.inner.load(device, job)

    def units(self) -> NDArray[np.float64]:
        """Return the inner units."""
        return self.inner.units()

    def at(self, epoch: int) -> BoundCompute:
        """Return the same change around the inner compute of a global round."""
        inner = self.inner.at(epoch)
        if inner is self.inner:
            return self
        other = copy.copy(self)
        other.inner = inner
        return other
