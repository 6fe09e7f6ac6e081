"""What tests of compute models share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from espalier.world import BoundCompute


def seconds_per_batch(compute: BoundCompute, n: int) -> NDArray[np.float64]:
    """Return what each device estimates for a mini-batch at time 0, [n]."""
    return np.array([compute.nominal(device, 1, 0.0) for device in range(n)])
