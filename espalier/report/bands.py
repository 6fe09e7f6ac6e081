"""Several seeds' curves as one: mean and standard deviation on a common grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from espalier.report.figures import thin

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Band:
    """A mean over seeds.

    Attributes:
        x: The grid, [P], ascending.
        raw: Each seed's value there, [S, P].
    """

    x: Floats
    raw: Floats

    @property
    def mean(self) -> Floats:
        """The mean over seeds, [P]."""
        found: Floats = self.raw.mean(0)
        return found

    @property
    def std(self) -> Floats:
        """The standard deviation over seeds, [P]; zeros for one seed."""
        found: Floats = self.raw.std(0, ddof=1) if len(self.raw) > 1 else np.zeros(self.raw.shape[1])
        return found


def band(curves: Sequence[tuple[Floats, Floats]], most: int = 150) -> Band | None:
    """Put curves (x, y) on a common grid of at most ``most`` points; None if they have no stretch in common.

    The grid covers only what all curves cover, so a mean is always one over all seeds. Where all curves are known
    at the same points, these are the grid; elsewhere values between two points lie on the straight line between them.
    """
    known = [_clean(x, y) for x, y in curves]
    if not known or not all(len(x) for x, _ in known):
        return None
    start, stop = max(x[0] for x, _ in known), min(x[-1] for x, _ in known)
    if stop < start:
        return None
    grid = np.unique(np.concatenate([x for x, _ in known]))
    grid = grid[(grid >= start) & (grid <= stop)]
    grid = grid[thin(len(grid), most)]
    return Band(grid, np.stack([np.interp(grid, x, y) for x, y in known]))


def _clean(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return the known points, ascending in x; of several at one x, the last."""
    ok = np.isfinite(x) & np.isfinite(y)
    x, y = x[ok], y[ok]
    last = np.append(np.diff(x) > 0, True) if len(x) else np.zeros(0, dtype=bool)
    return x[last], y[last]
