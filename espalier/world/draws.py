"""Random numbers with addresses, for a million devices at once.

:func:`espalier.core.seeds.stream` names a generator; a world needs *one number per address* such as
``(device, step)``, in any order, for one device or for all, without keeping what was drawn. A
:class:`Field` takes its 128-bit key from the seed tree and hashes the address with the SplitMix64
mixer (Steele, Lea, Flood 2014): no state, no cache, and the scalar and the array form agree bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from espalier.core.seeds import Part, key

_GOLDEN = 0x9E3779B97F4A7C15
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_STEP = 2.0**-53


@dataclass(frozen=True, slots=True)
class Field:
    """A field of independent numbers, one at each address (a fixed number of whole indices ≥ 0)."""

    low: int
    high: int

    @staticmethod
    def of(seed: int, *path: Part) -> Field:
        """Return the field at an address of the seed tree, under the world's own branch."""
        number = key(seed, "world", *path)
        return Field(number & _MASK, number >> 64)

    def at(self, *index: int) -> float:
        """Return the uniform number in (0, 1) at one address."""
        h = self.low
        for i in index:
            h = _mix((h + (i + 1) * _GOLDEN) & _MASK)
        return ((_mix(h ^ self.high) >> 11) + 0.5) * _STEP

    def many(self, *index: ArrayLike) -> NDArray[np.float64]:
        """Return the uniform numbers in (0, 1) at many addresses; the index arrays broadcast."""
        h: NDArray[np.uint64] = np.array([self.low], dtype=np.uint64)
        one, golden = np.uint64(1), np.uint64(_GOLDEN)
        for i in index:
            h = _mix_array(h + (np.atleast_1d(np.asarray(i)).astype(np.uint64) + one) * golden)
        h = _mix_array(h ^ np.uint64(self.high))
        return ((h >> np.uint64(11)).astype(np.float64) + 0.5) * _STEP


def exponential(u: NDArray[np.float64] | float, mean: float) -> NDArray[np.float64]:
    """Turn uniform numbers into exponential ones with a mean."""
    return np.asarray(-mean * np.log1p(-np.asarray(u)), dtype=np.float64)


def normal(u: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Turn uniform numbers into standard normal ones."""
    return np.asarray(ndtri(u), dtype=np.float64)


def between(u: NDArray[np.float64], ends: tuple[float, float]) -> NDArray[np.float64]:
    """Turn uniform numbers into uniform ones of ``[low, high)``; equal ends (also inf) are exact."""
    low, high = ends
    return np.full(u.shape, low) if low == high else low + u * (high - low)


def whole(u: NDArray[np.float64], ends: tuple[float, float]) -> NDArray[np.float64]:
    """Turn uniform numbers into whole ones, each of ``low … high`` equally likely."""
    low, high = ends
    return np.minimum(np.floor(low + u * (high - low + 1)), high)


def chosen(u: NDArray[np.float64], fraction: float) -> NDArray[np.bool_]:
    """Choose exactly ``round(fraction · n)`` of n: those with the smallest numbers."""
    count = round(fraction * len(u))
    picked = np.zeros(len(u), dtype=np.bool_)
    picked[np.argsort(u, kind="stable")[:count]] = True
    return picked


def _mix(h: int) -> int:
    h = ((h ^ (h >> 30)) * _M1) & _MASK
    h = ((h ^ (h >> 27)) * _M2) & _MASK
    return h ^ (h >> 31)


def _mix_array(h: NDArray[np.uint64]) -> NDArray[np.uint64]:
    h = (h ^ (h >> np.uint64(30))) * np.uint64(_M1)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(_M2)
    return h ^ (h >> np.uint64(31))
