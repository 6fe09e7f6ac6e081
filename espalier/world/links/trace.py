"""Measured access links from a CSV file."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from espalier.world import piecewise
from espalier.world.links.base import Links, Routed
from espalier.world.links.tiers import BoundTiers, PerTier
from espalier.world.protocols import BoundLinks, Shape, Tier
from espalier.world.traces import Steps, clock, index, number, read


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
        columns = {
            "device": index(shape.n_devices if not self.cycle else 1 << 62, "device"),
            "time": clock,
            "bandwidth": number(0),
            "latency": number(0, 1e12),
        }
        rows = read(self.file, columns)
        devices, count = np.asarray(rows["device"], dtype=np.int64), shape.n_devices
        if self.cycle:
            named, devices = np.unique(devices, return_inverse=True)
            count = len(named)
        values = list(zip(rows["bandwidth"], rows["latency"], strict=True))
        return _Traced(self, shape, Steps.of(self.file, count, devices, rows["time"], values), count)


class _Traced(Routed):
    def __init__(self, spec: Trace, shape: Shape, steps: Steps, count: int) -> None:
        super().__init__(shape)
        self._tiers = BoundTiers(spec.access, shape)
        self._steps, self._count = steps, count

    def hop(self, tier: Tier, src: int, dst: int, nbytes: int, now: float) -> float:
        if tier is not Tier.DEV_EDGE:
            return self._tiers.hop(tier, src, dst, nbytes, now)
        device = min(src, dst) % self._count

        def pace(at: float) -> piecewise.Pace:
            (bandwidth, _), until = self._steps.at(device, at)
            return (1.0 / float(bandwidth) if bandwidth else math.inf), until

        latency = float(self._steps.at(device, now)[0][1])
        return latency + piecewise.seconds(pace, nbytes, now + latency)

    def matrix(self, devices: NDArray[np.int64], nbytes: int) -> NDArray[np.float64]:
        return self._tiers.matrix(devices, nbytes)

    def neighbours(self, device: int) -> NDArray[np.int64]:
        return self._tiers.neighbours(device)
