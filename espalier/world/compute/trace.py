"""Measured compute speeds from a CSV file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from espalier.world.compute.base import Compute, TimedCompute
from espalier.world.piecewise import Pace
from espalier.world.protocols import BoundCompute, Shape
from espalier.world.traces import Steps, clock, index, number, read


@dataclass(frozen=True)
class Trace(Compute, kind="trace"):
    """Speeds from a CSV file ``device,time,seconds_per_batch``; a value holds until the device's next.

    With ``cycle`` a trace of M devices stands for more: device i follows the trace's device i mod M.
    """

    file: Path
    cycle: bool = False

    def bind(self, shape: Shape) -> BoundCompute:
        """Read the file and return the fleet's speeds."""
        columns = {
            "device": index(shape.n_devices if not self.cycle else 1 << 62, "device"),
            "time": clock,
            "seconds_per_batch": number(0, 1e12),
        }
        rows = read(self.file, columns)
        devices, count = np.asarray(rows["device"], dtype=np.int64), shape.n_devices
        if self.cycle:
            named, devices = np.unique(devices, return_inverse=True)
            count = len(named)
        steps = Steps.of(self.file, count, devices, rows["time"], rows["seconds_per_batch"])
        return _Traced(steps, count, shape.n_devices)


class _Traced(TimedCompute):
    def __init__(self, steps: Steps, count: int, n_devices: int) -> None:
        self._steps, self._count, self._n = steps, count, n_devices

    def pace(self, device: int, now: float) -> Pace:
        value, until = self._steps.at(device % self._count, now)
        return float(value), until

    def units(self) -> NDArray[np.float64]:
        first = np.array([self._steps.at(d, 0.0)[0] for d in range(min(self._count, self._n))])
        return first[np.arange(self._n) % self._count]
