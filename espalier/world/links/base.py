"""The links family, and the way a message takes between devices, edges and the cloud."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from espalier.core.bounds import NonNegativeFinite, PositiveFinite
from espalier.core.spec import Spec
from espalier.world.shape import Hop, Shape, Tier

#: How uploads at one edge share its uplink: each has its own (private), one after another at full rate
#: (time_shared), or all at once with an equal part each (equal_share).
Uplink = Literal["private", "time_shared", "equal_share"]
#: Whether an order from device to device takes time, as a report does, or reaches all at once.
Broadcast = Literal["free", "paid"]

#: One value for all, or the ends ``(low, high)`` of a uniform draw.
Range = float | tuple[float, float]


def ends(value: Range) -> tuple[float, float]:
    """Return the two ends of a range."""
    return value if isinstance(value, tuple) else (value, value)


def ordered(value: Range, *, above: float = -math.inf, strict: bool = False, finite: bool = False) -> bool:
    """Tell whether a range is in order and lies at or above (``strict``: above) a bound.

    An infinite end is only in order as a single value: nothing can be drawn up to infinity.
    """
    low, high = ends(value)
    if low > high or (math.isinf(high) and (finite or low != high)):
        return False
    return low > above if strict else low >= above


def check_link(spec: Spec, bandwidth: Range, latency: Range) -> None:
    """Refuse the ``bandwidth`` and ``latency`` of a specification that are no link."""
    spec.require(ordered(bandwidth, above=0, strict=True), "bandwidth", "bytes per second > 0, or [low, high]")
    spec.require(ordered(latency, above=0, finite=True), "latency", "seconds ≥ 0, or [low, high]")


class BoundLinks(ABC):
    """How long messages take, and which way they go: stored and forwarded at each host, hop after hop.

    Attributes:
        uplink: How uploads at one edge share its uplink.
        relays: Whether devices pass on messages for each other, so that :meth:`without` matters.
        broadcast: Whether orders from device to device take time, as reports do, or go out to all at once.
    """

    uplink: Uplink = "private"
    relays = False
    broadcast: Broadcast = "paid"

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    @abstractmethod
    def hop(self, tier: Tier, src: int, dst: int, nbytes: int, now: float) -> float:
        """Return the seconds of one hop that begins at ``now``; inf if there is no such link."""

    @abstractmethod
    def matrix(self, devices: NDArray[np.int64], nbytes: int) -> NDArray[np.float64]:
        """Return the seconds between each pair of the devices, [n, n]; 0 on the diagonal, inf if absent."""

    @abstractmethod
    def neighbours(self, device: int) -> NDArray[np.int64]:
        """Return the devices with a direct link to a device, ascending."""

    def path(self, src: int, dst: int) -> tuple[Hop, ...]:
        """Return the way between two devices: one hop; a graph of devices overrides it."""
        return ((Tier.DEV_DEV, src, dst),)

    def time(self, src: int, dst: int, nbytes: int, now: float, via: int | None = None) -> float:
        """Return the seconds of a message over its whole path, latency included; inf without a path.

        ``via`` is the edge's host number that a message between a device and the cloud passes
        (default: the edge at which the device started).
        """
        total = 0.0
        for tier, a, b in self._way(src, dst, via):
            total += self.hop(tier, a, b, nbytes, now + total)
        return total

    def hops(self, src: int, dst: int, via: int | None = None) -> tuple[Hop, ...]:
        """Return the hops that a message pays, in order; empty to itself and where there is no path."""
        way = self._way(src, dst, via)
        return way if all(math.isfinite(self.hop(t, a, b, 0, 0.0)) for t, a, b in way) else ()

    def at(self, epoch: int) -> BoundLinks:
        """Return the links of a global round, where they are redrawn per round; else itself."""
        return self

    def without(self, absent: frozenset[int]) -> BoundLinks:
        """Return the links when these devices are gone; itself unless devices relay."""
        return self

    def claims(self, device: int, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what a device says of its links, given what they truly take: the same, unless it lies."""
        return seconds

    def _way(self, src: int, dst: int, via: int | None) -> tuple[Hop, ...]:
        shape = self.shape
        if src == dst:
            return ()
        device, server = min(src, dst), max(src, dst)
        if shape.is_device(server):
            return self.path(src, dst)
        if shape.is_device(device):
            middle = server
            if server == shape.cloud and shape.n_edges:
                middle = shape.home_host(device) if via is None else via
            up: tuple[Hop, ...] = ((Tier.DEV_EDGE, device, middle),)
            if middle != server:
                up = (*up, (Tier.EDGE_CLOUD, middle, server))
            return up if device == src else _reversed(up)
        if not (shape.is_edge(src) and shape.is_edge(dst)):
            return ((Tier.EDGE_CLOUD, src, dst),)
        return ((Tier.EDGE_CLOUD, src, shape.cloud), (Tier.EDGE_CLOUD, shape.cloud, dst))


def _reversed(way: tuple[Hop, ...]) -> tuple[Hop, ...]:
    return tuple((tier, b, a) for tier, a, b in reversed(way))


class Links(Spec, ABC, family="links"):
    """How long messages take."""

    @abstractmethod
    def bind(self, shape: Shape) -> BoundLinks:
        """Return the links of one fleet under one seed."""


@dataclass(frozen=True)
class Signal(Spec, family="signal"):
    """Signal strength: what distance and obstacles leave of a radio link's bandwidth.

    The log-distance model: the signal-to-noise ratio falls by ``10 · exponent`` dB per decade of distance and scatters
    by log-normal shadowing; Shannon's formula turns it into a share of the bandwidth that the link would have under the
    best signal.

    Attributes:
        reach_db: Signal-to-noise ratio in dB at the nominal reach of the radio.
        best_db: The ratio from which on the full bandwidth is had.
        exponent: Path-loss exponent (2 in free space, 3 to 4 in buildings).
        shadowing_db: Standard deviation of the shadowing in dB.
    """

    reach_db: float = 5.0
    best_db: float = 30.0
    exponent: PositiveFinite = 3.0
    shadowing_db: NonNegativeFinite = 4.0

    def check(self) -> None:
        """Refuse values outside the model."""
        self.require(self.best_db > self.reach_db, "best_db", f"above reach_db = {self.reach_db!r}")

    def share(self, distance: NDArray[np.float64], reach: float, shadow: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the share of the bandwidth, in (0, 1].

        Args:
            distance: Between the two ends, in the unit of ``reach``.
            reach: The nominal reach of the radio.
            shadow: Standard normal numbers.
        """
        near = np.maximum(np.asarray(distance, dtype=np.float64) / reach, 1e-6)
        ratio_db = self.reach_db - 10 * self.exponent * np.log10(near) + self.shadowing_db * shadow
        ratio_db = np.minimum(ratio_db, self.best_db)
        return np.asarray(np.log1p(_linear(ratio_db)) / np.log1p(_linear(self.best_db)), dtype=np.float64)


def _linear(decibel: NDArray[np.float64] | float) -> NDArray[np.float64]:
    return np.asarray(10.0 ** (np.asarray(decibel) / 10.0), dtype=np.float64)
