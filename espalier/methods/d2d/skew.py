"""Label skew: how far a cluster's label mix is from the fleet's, Σ_l |p_c(l) − p_g(l)| (D15).

It takes the place of the angle where devices report label histograms instead of features, and is what
benchmark B lowers. No factor ½: two disjoint mixes are 2 apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espalier.core.errors import DataError
from espalier.methods.d2d.clusters import Floats, Ints

_BLOCK = 1 << 23


@dataclass(frozen=True, eq=False)
class Skew:
    """Label skew of any cluster of a fleet whose histograms are known.

    Attributes:
        counts: ``[N, C]`` samples per device and label.
        mix: ``[C]`` label mix of the whole fleet.
    """

    counts: Floats
    mix: Floats

    @staticmethod
    def from_counts(counts: NDArray[Any]) -> Skew:
        """Prepare the skews of a fleet from its label histograms ``[N, C]``."""
        table = np.asarray(counts, dtype=np.float64)
        if table.ndim != 2 or not np.isfinite(table).all() or (table < 0).any() or (table.sum(axis=1) <= 0).any():
            raise DataError(
                f"Label histograms of shape {table.shape} must be [N, C] finite counts ≥ 0 with at least "
                "one sample per device; leave empty devices out."
            )
        return Skew(table, table.sum(axis=0) / table.sum())

    def of(self, members: Ints) -> float:
        """Label skew of one cluster, 0 to 2."""
        return float(self._skew(self.counts[members].sum(axis=0)))

    def exchanges(self, first: Ints, second: Ints) -> tuple[Floats, Floats]:
        """Skews of both clusters after every exchange; see `Alignment.exchanges`."""
        return self._after(first, second), self._after(second, first).T

    def _after(self, own: Ints, others: Ints) -> Floats:
        """Skews of ``own`` once its i-th member is replaced by the j-th of ``others``."""
        nobody = np.zeros((1, self.mix.size))
        coming = np.concatenate([self.counts[others], nobody])
        left = self.counts[own].sum(axis=0) - np.concatenate([self.counts[own], nobody])
        # One entry per exchange and label: bounded rows keep large clusters with many labels in memory.
        rows = max(1, _BLOCK // coming.size)
        parts = [self._skew(left[at : at + rows, None] + coming) for at in range(0, len(left), rows)]
        return np.concatenate(parts)

    def _skew(self, counts: Floats) -> Floats:
        """Skew of label counts ``[…, C]``; a cluster without samples has the largest, 2."""
        total = counts.sum(axis=-1, keepdims=True)
        mix = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
        skew: Floats = np.abs(mix - self.mix).sum(axis=-1)
        return np.where(total[..., 0] > 0, skew, 2.0)
