"""Signal strength: what distance and obstacles leave of a radio link's bandwidth.

The log-distance model: the signal-to-noise ratio falls by ``10 · exponent`` dB per decade of distance
and scatters by log-normal shadowing; Shannon's formula turns it into a share of the bandwidth that the
link would have under the best signal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from espalier.core.bounds import NonNegativeFinite, PositiveFinite
from espalier.core.spec import Spec


@dataclass(frozen=True)
class Signal(Spec, family="signal"):
    """How signal strength falls.

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
