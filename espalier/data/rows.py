"""Rows of a dataset dealt to many owners, in one pair of arrays (compressed sparse rows).

A million devices are two arrays, not a million objects: owner ``i`` has
``indices[offsets[i]:offsets[i + 1]]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from espalier.data.arrays import IntArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of ``len(offsets) - 1`` owners: ``offsets`` int64 ``[n + 1]``, ``indices`` int64 ``[total]``."""

    offsets: IntArray
    indices: IntArray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> IntArray:
        return self.indices[self.offsets[i] : self.offsets[i + 1]]

    @property
    def sizes(self) -> IntArray:
        """Rows of each owner, int64 ``[n]``."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> IntArray:
        """The owner of each entry of ``indices``."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @staticmethod
    def of(parts: Sequence[IntArray]) -> Rows:
        """Join one array of rows per owner."""
        sizes = np.array([len(p) for p in parts], dtype=np.int64)
        joined = np.concatenate([*parts, np.empty(0, np.int64)]).astype(np.int64)
        return Rows(offsets_of(sizes), joined)

    def histogram(self, cells: IntArray, n_cells: int) -> NDArray[np.int32]:
        """Count each owner's rows by cell, int32 ``[n, n_cells]``."""
        place = self.owners * n_cells + cells[self.indices]
        counts = np.bincount(place, minlength=len(self) * n_cells)
        return counts.astype(np.int32).reshape(len(self), n_cells)

    def keep(self, mask: NDArray[np.bool_]) -> Rows:
        """Keep the entries of ``indices`` where ``mask`` is true."""
        kept = np.bincount(self.owners[mask], minlength=len(self))
        return Rows(offsets_of(kept), self.indices[mask])

    def ranks(self, rng: np.random.Generator) -> IntArray:
        """A random order inside each owner: entry ``j`` is the ``ranks[j]``-th of its owner, from 0."""
        order = np.lexsort((rng.random(len(self.indices)), self.owners))
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order)) - np.repeat(self.offsets[:-1], self.sizes)
        return ranks


def offsets_of(sizes: IntArray) -> IntArray:
    """Offsets ``[n + 1]`` of consecutive parts of these sizes."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def apportion(total: int, weights: FloatArray) -> IntArray:
    """Split a whole number in proportion to weights by largest remainders (ties: lower index first).

    The result sums to ``total`` and differs from the exact shares by less than 1.
    """
    exact = weights * (total / weights.sum())
    whole = np.floor(exact).astype(np.int64)
    short = total - int(whole.sum())
    if short > 0:
        whole[np.argsort(whole - exact, kind="stable")[:short]] += 1
    return np.asarray(whole)


def by_cell(rows: IntArray, cells: IntArray, n_cells: int, rng: np.random.Generator) -> list[IntArray]:
    """Shuffle rows and sort them into one array per cell."""
    shuffled = rng.permutation(rows)
    order = np.argsort(cells[shuffled], kind="stable")
    counts = np.bincount(cells[shuffled], minlength=n_cells)
    return np.split(shuffled[order], np.cumsum(counts)[:-1])


def deal(counts: IntArray, pools: Sequence[IntArray]) -> Rows:
    """Hand out disjoint rows: owner ``i`` gets the next ``counts[i, c]`` rows of ``pools[c]``."""
    owners = [np.repeat(np.arange(len(counts)), counts[:, c]) for c in range(counts.shape[1])]
    rows = np.concatenate([pool[: len(own)] for pool, own in zip(pools, owners, strict=True)])
    order = np.argsort(np.concatenate(owners), kind="stable")
    return Rows(offsets_of(counts.sum(1)), rows[order])


def stratified_mask(cells: IntArray, fraction: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Choose ``fraction`` of the rows, the same share of every cell (largest remainders); bool ``[n]``."""
    counts = np.bincount(cells)
    take = apportion(round(fraction * len(cells)), counts.astype(np.float64))
    mask = np.zeros(len(cells), dtype=np.bool_)
    for rows, n in zip(by_cell(np.arange(len(cells)), cells, len(counts), rng), take, strict=True):
        mask[rows[:n]] = True
    return mask
