"""How fast devices train: speeds drawn once per device (constant, uniform, rate, truncated normal), or measured."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from espalier.core.bounds import Bound, PositiveFinite, PositiveInt
from espalier.core.errors import WorldError
from espalier.core.spec import Spec
from espalier.world import piecewise
from espalier.world.draws import Field, between, whole
from espalier.world.piecewise import Pace
from espalier.world.shape import Shape
from espalier.world.traces import Steps, number


class BoundCompute(ABC):
    """How long training takes: its pace, over whose steps durations integrate exactly. Seconds and mini-batches."""

    @abstractmethod
    def pace(self, device: int, now: float) -> Pace:
        """Return the seconds per batch now (inf: paused) and until when that holds."""

    def unburdened(self, device: int, now: float) -> float:
        """Return the seconds per batch that a probe would measure now, outside busy spells."""
        return self.pace(device, now)[0]

    def load(self, device: int, job: int) -> float:
        """Return the factor on a job's work (run-time noise); ``job`` is the number of the device's job."""
        return 1.0

    def nominal(self, device: int, batches: float, now: float) -> float:
        """Return what the device itself would estimate now: no noise, no busy spells."""
        return batches * self.unburdened(device, now)

    def duration(self, device: int, batches: float, start: float, job: int) -> float:
        """Return what the work really takes from ``start`` on."""
        work = batches * self.load(device, job)
        return piecewise.seconds(lambda t: self.pace(device, t), work, start)

    def at(self, epoch: int) -> BoundCompute:
        """Return the compute of a global round, where it is redrawn per round; else itself."""
        return self


class Compute(Spec, ABC, family="compute"):
    """How fast devices train."""

    @abstractmethod
    def bind(self, shape: Shape) -> BoundCompute:
        """Return the compute of one fleet under one seed."""


class Wrapped(BoundCompute):
    """A bound compute that changes another one; by itself it changes nothing."""

    def __init__(self, inner: BoundCompute) -> None:
        self.inner = inner

    def pace(self, device: int, now: float) -> Pace:
        """Return the inner pace."""
        return self.inner.pace(device, now)

    def unburdened(self, device: int, now: float) -> float:
        """Return the inner estimate for one batch."""
        return self.inner.nominal(device, 1.0, now)

    def load(self, device: int, job: int) -> float:
        """Return the inner factor."""
        return self.inner.load(device, job)

    def at(self, epoch: int) -> BoundCompute:
        """Return the same change around the inner compute of a global round."""
        inner = self.inner.at(epoch)
        if inner is self.inner:
            return self
        other = copy.copy(self)
        other.inner = inner
        return other


class Steady(BoundCompute):
    """Every device has its own speed, which never changes.

    ``spec.draw(shape)`` gives the seconds per batch, [N]; it is called when first needed.
    """

    def __init__(self, spec: Drawn, shape: Shape) -> None:
        self._spec, self._shape = spec, shape

    @cached_property
    def _units(self) -> NDArray[np.float64]:
        units = self._spec.draw(self._shape)
        units.setflags(write=False)
        return units

    def pace(self, device: int, now: float) -> Pace:
        """Return the device's seconds per batch, for ever."""
        return float(self._units[device]), math.inf


class Drawn(Compute):
    """A compute model with one number per device."""

    @abstractmethod
    def draw(self, shape: Shape) -> NDArray[np.float64]:
        """Return the seconds per batch of every device, [N]."""

    def bind(self, shape: Shape) -> BoundCompute:
        """Return the drawn speeds of one fleet."""
        return Steady(self, shape)


@dataclass(frozen=True)
class Constant(Drawn, kind="constant"):
    """The same speed for all: ``seconds`` per batch (0: training takes no time)."""

    seconds: Annotated[float, Bound(ge=0, lt=math.inf, words="a finite number ≥ 0 (seconds per batch)")] = 0.0

    def draw(self, shape: Shape) -> NDArray[np.float64]:
        """Return the one value N times."""
        return np.full(shape.n_devices, self.seconds)


@dataclass(frozen=True)
class Uniform(Drawn, kind="uniform"):
    """Seconds per batch uniform in [low, high)."""

    low: float
    high: float

    def check(self) -> None:
        """Refuse a range that is not in order."""
        self.require(0 <= self.low <= self.high < math.inf, "high", f"finite and ≥ low = {self.low!r} ≥ 0")

    def draw(self, shape: Shape) -> NDArray[np.float64]:
        """Draw each device's seconds per batch."""
        u = Field.of(shape.seed, "compute", "uniform").many(np.arange(shape.n_devices))
        return between(u, (self.low, self.high))


@dataclass(frozen=True)
class Rate(Drawn, kind="rate"):
    """Batches per second uniform in [low, high); ``whole``: one of the whole numbers low … high."""

    low: float
    high: float
    whole: bool = False

    def check(self) -> None:
        """Refuse a range that is not in order, or whole numbers that are not."""
        self.require(0 < self.low <= self.high < math.inf, "high", f"finite and ≥ low = {self.low!r} > 0")
        if self.whole:
            self.require(self.low.is_integer(), "low", "a whole number when whole = true")
            self.require(self.high.is_integer(), "high", "a whole number when whole = true")

    def draw(self, shape: Shape) -> NDArray[np.float64]:
        """Draw each device's rate and return the seconds per batch."""
        u = Field.of(shape.seed, "compute", "rate").many(np.arange(shape.n_devices))
        pick = whole if self.whole else between
        return 1.0 / pick(u, (self.low, self.high))


@dataclass(frozen=True)
class TruncatedNormal(Drawn, kind="truncated_normal"):
    """A delay from a normal distribution cut to [low, high], drawn once per device (C8).

    Values outside are drawn again, never clipped to the ends; the inverse distribution function gives
    the same law with one draw.

    Attributes:
        mean: Of the distribution, in seconds.
        std: Its standard deviation before it is cut, in seconds.
        low: The shortest delay, in seconds.
        high: The longest delay, in seconds.
        per: What the delay covers: one ``batch``, one ``epoch`` over the device's own batches, or a whole ``training``
            of ``epochs`` epochs over them.
        epochs: See ``per``.
    """

    mean: float
    std: PositiveFinite
    low: float
    high: float
    per: Literal["batch", "epoch", "training"] = "batch"
    epochs: PositiveInt = 1

    def check(self) -> None:
        """Refuse a range that is empty or that the distribution practically never meets."""
        self.require(0 <= self.low < self.high < math.inf, "high", f"finite and > low = {self.low!r} ≥ 0")
        lower, upper = self._tails()
        self.require(upper - lower > 1e-12, "mean", "near enough to [low, high] for a draw to fall there")

    def _tails(self) -> tuple[float, float]:
        lower, upper = ndtr((np.array([self.low, self.high]) - self.mean) / self.std)
        return float(lower), float(upper)

    def draw(self, shape: Shape) -> NDArray[np.float64]:
        """Draw each device's delay and return the seconds per batch."""
        lower, upper = self._tails()
        u = Field.of(shape.seed, "compute", "truncated_normal").many(np.arange(shape.n_devices))
        delay = self.mean + self.std * ndtri(lower + u * (upper - lower))
        delay = np.clip(delay, self.low, self.high)
        if self.per == "batch":
            return delay
        if shape.batches is None:
            raise WorldError(
                f"compute.per = {self.per!r} needs each device's batches per epoch: bind the world with "
                "Shape(batches=...), or use per = 'batch'."
            )
        epochs = self.epochs if self.per == "training" else 1
        return np.asarray(delay / (epochs * np.maximum(shape.batches, 1)), dtype=np.float64)


@dataclass(frozen=True)
class Trace(Compute, kind="trace"):
    """Speeds from a CSV file ``device,time,seconds_per_batch``; a value holds until the device's next.

    With ``cycle`` a trace of M devices stands for more: device i follows the trace's device i mod M.
    """

    file: Path
    cycle: bool = False

    def bind(self, shape: Shape) -> BoundCompute:
        """Read the file and return the fleet's speeds."""
        steps = Steps.read(self.file, shape.n_devices, self.cycle, {"seconds_per_batch": number(0, 1e12)})
        return _Traced(steps, shape.n_devices)


class _Traced(BoundCompute):
    def __init__(self, steps: Steps, n_devices: int) -> None:
        self._steps, self._n = steps, n_devices

    def pace(self, device: int, now: float) -> Pace:
        (seconds,), until = self._steps.at(device, now)
        return float(seconds), until
