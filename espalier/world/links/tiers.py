"""Links by tier: each device has an access link of its own, each edge a link to the cloud."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from espalier.core.bounds import PositiveFinite
from espalier.core.spec import Spec
from espalier.world import piecewise
from espalier.world.draws import Field, between, normal
from espalier.world.links.base import BoundLinks, Links, Range, Signal, check_link, ends
from espalier.world.shape import Hop, Shape, Tier
from espalier.world.traces import Steps, number


@dataclass(frozen=True)
class TierLink(Spec, family="links.tier"):
    """The links of one tier. Each host's own is drawn once from the ranges.

    Attributes:
        bandwidth: Bytes per second; inf: a message of any size takes the latency only.
        latency: Seconds.
        up: Factor on the bandwidth of the way up (from a device to its edge, from an edge to the cloud).
        signal: If given, the bandwidth shrinks with the device's distance: devices lie uniformly in a
            disc of the radio's reach around their edge.
    """

    bandwidth: Range = math.inf
    latency: Range = 0.0
    up: PositiveFinite = 1.0
    signal: Signal | None = None

    def check(self) -> None:
        """Refuse bandwidths and latencies that are no link."""
        check_link(self, self.bandwidth, self.latency)


@dataclass(frozen=True)
class PerTier(Links, kind="per_tier"):
    """Ranges of bandwidth and latency for each tier.

    Attributes:
        dev_edge: Between a device and its edge.
        edge_cloud: Between an edge and the cloud, and between servers above.
        dev_dev: Between two devices; without it they cannot talk directly.
        shared_backhaul: Whether each device whose messages pass an edge has an even part of the edge's link to the
            cloud: a method whose devices talk to the cloud themselves pays for it, one that merges at the edges does
            not.
    """

    dev_edge: TierLink = field(default_factory=TierLink)
    edge_cloud: TierLink = field(default_factory=TierLink)
    dev_dev: TierLink | None = None
    shared_backhaul: bool = False

    def bind(self, shape: Shape) -> BoundLinks:
        """Return the links of one fleet."""
        return BoundTiers(self, shape)


@dataclass(frozen=True)
class Uniform(Links, kind="uniform"):
    """The same bandwidth (bytes per second) and latency (seconds) on every link of every tier."""

    bandwidth: float = math.inf
    latency: float = 0.0

    def check(self) -> None:
        """Refuse values that are no link."""
        TierLink(self.bandwidth, self.latency)

    def bind(self, shape: Shape) -> BoundLinks:
        """Return the links of one fleet."""
        link = TierLink(self.bandwidth, self.latency)
        return BoundTiers(PerTier(link, link, link), shape)


class _Drawn:
    """The links of one tier, one per host: seconds per byte (as used downwards) and latency."""

    def __init__(self, spec: TierLink, seed: int, tier: Tier, count: int) -> None:
        hosts, draws = np.arange(count), Field.of(seed, "links", tier.value)
        bandwidth = between(draws.many(hosts, 0), ends(spec.bandwidth))
        if spec.signal is not None:
            # The square root makes the points uniform over the disc, not over its radius.
            distance = np.sqrt(draws.many(hosts, 2))
            bandwidth = bandwidth * spec.signal.share(distance, 1.0, normal(draws.many(hosts, 3)))
        self.per_byte = 1.0 / bandwidth
        self.latency = between(draws.many(hosts, 1), ends(spec.latency))
        self.up = spec.up


class BoundTiers(BoundLinks):
    """The per-tier links of one fleet."""

    def __init__(self, spec: PerTier, shape: Shape) -> None:
        super().__init__(shape)
        self._spec = spec

    @cached_property
    def _members(self) -> NDArray[np.int64]:
        """How many devices start at each edge, [E]."""
        home = self.shape.home
        edges = np.arange(self.shape.n_devices) % self.shape.n_edges if home is None else home
        return np.bincount(edges, minlength=self.shape.n_edges)

    @cached_property
    def _access(self) -> _Drawn:
        return _Drawn(self._spec.dev_edge, self.shape.seed, Tier.DEV_EDGE, self.shape.n_devices)

    @cached_property
    def _backhaul(self) -> _Drawn:
        return _Drawn(self._spec.edge_cloud, self.shape.seed, Tier.EDGE_CLOUD, self.shape.cloud - self.shape.n_devices)

    @cached_property
    def _direct(self) -> _Drawn | None:
        if self._spec.dev_dev is None:
            return None
        return _Drawn(self._spec.dev_dev, self.shape.seed, Tier.DEV_DEV, self.shape.n_devices)

    def hop(self, tier: Tier, src: int, dst: int, nbytes: int, now: float) -> float:
        """Return the seconds of one hop; between devices the slower end decides."""
        if tier is Tier.DEV_DEV:
            if self._direct is None:
                return math.inf
            per_byte = max(self._direct.per_byte[src], self._direct.per_byte[dst])
            return float(max(self._direct.latency[src], self._direct.latency[dst]) + nbytes * per_byte)
        # The lower host has the smaller number: a device below its edge, an edge below the cloud.
        row, drawn = min(src, dst), self._access
        if tier is Tier.EDGE_CLOUD:
            row, drawn = row - self.shape.n_devices, self._backhaul
        transfer = nbytes * drawn.per_byte[row]
        return float(drawn.latency[row] + (transfer / drawn.up if src < dst else transfer))

    def hops(self, src: int, dst: int, via: int | None = None) -> tuple[Hop, ...]:
        """Return the hops that a message pays, in order: only between devices there may be no link."""
        apart = self.shape.is_device(src) and self.shape.is_device(dst) and self._direct is None
        return () if apart else self._way(src, dst, via)

    def time(self, src: int, dst: int, nbytes: int, now: float, via: int | None = None) -> float:
        """Return the seconds of a message over its whole path; through a shared backhaul at a part of its rate."""
        seconds = super().time(src, dst, nbytes, now, via)
        if not self._spec.shared_backhaul or self.shape.is_device(src) == self.shape.is_device(dst):
            return seconds
        for tier, a, b in self._way(src, dst, via):
            if tier is Tier.EDGE_CLOUD:
                alone = self.hop(tier, a, b, nbytes, now) - self.hop(tier, a, b, 0, now)
                seconds += alone * (max(1, self._members[min(a, b) - self.shape.n_devices]) - 1)
        return seconds

    def matrix(self, devices: NDArray[np.int64], nbytes: int) -> NDArray[np.float64]:
        """Return the seconds between each pair of the devices, [n, n]."""
        count = len(devices)
        if self._direct is None:
            times = np.full((count, count), math.inf)
        else:
            latency, per_byte = self._direct.latency[devices], self._direct.per_byte[devices]
            times = np.maximum.outer(latency, latency) + nbytes * np.maximum.outer(per_byte, per_byte)
        np.fill_diagonal(times, 0.0)
        return times

    def neighbours(self, device: int) -> NDArray[np.int64]:
        """Return every other device, or none."""
        if self._direct is None:
            return np.empty(0, dtype=np.int64)
        others = np.arange(self.shape.n_devices)
        return np.delete(others, device)


@dataclass(frozen=True)
class Trace(Links, kind="trace"):
    """Access links from a CSV file ``device,time,bandwidth,latency``; a row holds until the device's next.

    Bandwidth in bytes per second (0: the link is gone meanwhile, and transfers wait), latency in
    seconds, that of the moment at which a transfer begins. The other tiers follow ``access``. With
    ``cycle`` a trace of M devices stands for more: device i follows the trace's device i mod M.
    """

    file: Path
    cycle: bool = False
    access: PerTier = field(default_factory=PerTier)

    def bind(self, shape: Shape) -> BoundLinks:
        """Read the file and return the fleet's links."""
        columns = {"bandwidth": number(0), "latency": number(0, 1e12)}
        return _Traced(self, shape, Steps.read(self.file, shape.n_devices, self.cycle, columns))


class _Traced(BoundLinks):
    def __init__(self, spec: Trace, shape: Shape, steps: Steps) -> None:
        super().__init__(shape)
        self._tiers = BoundTiers(spec.access, shape)
        self._steps = steps

    def hop(self, tier: Tier, src: int, dst: int, nbytes: int, now: float) -> float:
        if tier is not Tier.DEV_EDGE:
            return self._tiers.hop(tier, src, dst, nbytes, now)
        device = min(src, dst)

        def pace(at: float) -> piecewise.Pace:
            (bandwidth, _), until = self._steps.at(device, at)
            return (1.0 / float(bandwidth) if bandwidth else math.inf), until

        latency = float(self._steps.at(device, now)[0][1])
        return latency + piecewise.seconds(pace, nbytes, now + latency)

    def matrix(self, devices: NDArray[np.int64], nbytes: int) -> NDArray[np.float64]:
        return self._tiers.matrix(devices, nbytes)

    def neighbours(self, device: int) -> NDArray[np.int64]:
        return self._tiers.neighbours(device)
