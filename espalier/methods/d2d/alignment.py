"""How far a cluster is from the fleet: Eq. (3), the angle between learning directions, and label skew.

Cluster and fleet directions are averages weighted by |D_i| (D12), so an angle depends on the features
only through the inner products of the weighted features: with ``K = (nφ)(nφ)ᵀ``, a cluster has
``|φ_c|² ∝ ΣΣ K_ij`` and ``φ_c·φ̄ ∝ Σ_i Σ_j K_ij``. The Gram matrix is computed once per search; after
that an exchange of two devices costs a few lookups, whatever the length of the feature. It is as large
as the link matrix that the server holds anyway.

Label skew, Σ_l |p_c(l) − p_g(l)|, takes the angle's place where devices report label histograms instead of features
(D15), and is what benchmark B lowers. No factor ½: two disjoint mixes are 2 apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from espalier.core.errors import DataError, TrainingError
from espalier.methods.d2d.clusters import Floats, Ints

RESOLUTION_RADIANS = 1e-6
"""Radians below which arccos of a double only returns rounding noise; such an angle counts as zero."""

CANCELLED = 1e-12
"""A sum whose squared length is below this share of its terms' has no direction; its angle is π/2."""

#: how many numbers a temporary array may hold
_GRAM_BLOCK, _SKEW_BLOCK = 1 << 24, 1 << 23


class Alignment(Protocol):
    """How far clusters are from the fleet; smaller is better. Angle and label skew are two readings."""

    def of(self, members: Ints) -> float:
        """Divergence of one cluster."""

    def exchanges(self, first: Ints, second: Ints) -> tuple[Floats, Floats]:
        """Divergence of both clusters after every exchange between them.

        Returns:
            Two arrays ``[n1 + 1, n2 + 1]``. Entry ``(i, j)`` is the divergence once ``first[i]`` and
            ``second[j]`` have changed places; the last row and column stand for "nobody", so the last
            column holds the moves from the first cluster, the last row those from the second, and the
            corner the clusters as they are.
        """


def gram(features: NDArray[Any], weights: ArrayLike) -> Floats:
    """Inner products of the weighted features, in double precision.

    Args:
        features: ``[N, d]`` features φ, any floating type.
        weights: ``[N]`` samples |D_i|, positive.

    Returns:
        ``[N, N]``, scaled by the weights' total; only ratios of its entries matter.
    """
    n = np.asarray(weights, dtype=np.float64)
    scale = (n / n.sum())[:, None]
    total = np.zeros((n.size, n.size))
    # The block bounds the double-precision copy, not the result: a full model feature may be large.
    step = max(1, _GRAM_BLOCK // max(1, n.size))
    for at in range(0, features.shape[1], step):
        part = features[:, at : at + step].astype(np.float64) * scale
        total += part @ part.T
    if not np.isfinite(total).all():
        bad = np.flatnonzero(~np.isfinite(total.diagonal()))
        raise TrainingError(f"The features of devices {bad.tolist()[:10]} are not finite; leave those devices out.")
    return total


def cosines(products: Floats) -> Floats:
    """Pairwise cosines ``[N, N]`` from a Gram matrix; 0 beside a zero feature, 1 on the diagonal."""
    norms = np.sqrt(products.diagonal())
    inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
    result = np.clip(products * inverse[:, None] * inverse, -1.0, 1.0)
    np.fill_diagonal(result, 1.0)
    return result


@dataclass(frozen=True, eq=False)
class Angle:
    """Eq. (3) for any cluster of a fleet whose Gram matrix is known.

    Attributes:
        products: ``[N, N]`` from `gram`.
        toward: ``[N]`` inner product of each weighted feature with the fleet's sum.
        length: Length of the fleet's sum; 0 where the features cancel.
    """

    products: Floats
    toward: Floats
    length: float

    @staticmethod
    def from_gram(products: Floats) -> Angle:
        """Prepare the angles of a fleet from its Gram matrix ``[N, N]``."""
        toward = products.sum(axis=1)
        square = float(toward.sum())
        alive = square > CANCELLED * float(products.trace())
        return Angle(products, toward, float(np.sqrt(square)) if alive else 0.0)

    def of(self, members: Ints) -> float:
        """Eq. (3): angle in radians between a cluster's direction and the fleet's."""
        block = self.products[np.ix_(members, members)]
        return float(self._angle(self.toward[members].sum(), block.sum(), block.trace()))

    def exchanges(self, first: Ints, second: Ints) -> tuple[Floats, Floats]:
        """Angles of both clusters after every exchange; see `Alignment.exchanges`."""
        between = np.zeros((first.size + 1, second.size + 1))
        between[:-1, :-1] = self.products[np.ix_(first, second)]
        return self._after(first, second, between), self._after(second, first, between.T).T

    def _after(self, own: Ints, others: Ints, between: Floats) -> Floats:
        """Angles of ``own`` once its i-th member is replaced by the j-th of ``others``."""
        inside = self.products[np.ix_(own, own)]
        leaving, coming = self._padded(inside.diagonal()), self._padded(self.products[others, others])
        square = (
            inside.sum()
            + (leaving - 2.0 * self._padded(inside.sum(axis=1)))[:, None]
            + (coming + 2.0 * between.sum(axis=0))
            - 2.0 * between
        )
        along = self.toward[own].sum() - self._padded(self.toward[own])[:, None] + self._padded(self.toward[others])
        terms = inside.trace() - leaving[:, None] + coming
        return self._angle(along, square, terms)

    def _angle(self, along: ArrayLike, square: ArrayLike, terms: ArrayLike) -> Floats:
        """Angle from φ_c·φ̄, |φ_c|² and the sum of the members' own squares."""
        dot, q = np.asarray(along, dtype=np.float64), np.asarray(square, dtype=np.float64)
        alive = (q > CANCELLED * np.asarray(terms)) & (self.length > 0)
        length = np.sqrt(np.where(alive, q, 1.0)) * (self.length or 1.0)
        angle = np.arccos(np.clip(np.where(alive, dot / length, 0.0), -1.0, 1.0))
        return np.where(angle < RESOLUTION_RADIANS, 0.0, angle)

    @staticmethod
    def _padded(values: Floats) -> Floats:
        """Append the zero that stands for "nobody"."""
        return np.append(values, 0.0)


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
        rows = max(1, _SKEW_BLOCK // coming.size)
        parts = [self._skew(left[at : at + rows, None] + coming) for at in range(0, len(left), rows)]
        return np.concatenate(parts)

    def _skew(self, counts: Floats) -> Floats:
        """Skew of label counts ``[…, C]``; a cluster without samples has the largest, 2."""
        total = counts.sum(axis=-1, keepdims=True)
        mix = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
        skew: Floats = np.abs(mix - self.mix).sum(axis=-1)
        return np.where(total[..., 0] > 0, skew, 2.0)
