"""Who holds which cells, and how a cell's rows are shared among its holders."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from espalier.core.errors import PartitionError
from espalier.data.dataset import IntArray
from espalier.data.rows import FloatArray, apportion

#: of raking, if sizes are not met to a thousandth sooner
MOST_SWEEPS = 200


def draw_cells(
    rng: np.random.Generator, n_sets: int, k: int, allowed: IntArray, n_cells: int, *, cover: bool
) -> NDArray[np.bool_]:
    """Give each of ``n_sets`` sets ``k`` distinct cells out of ``allowed`` at random.

    With ``cover`` every allowed cell is in at least one set: the cells, shuffled, are first dealt out one by
    one to the sets in a shuffled order, then each set is filled up at random.

    Returns:
        Who holds what, bool ``[n_sets, n_cells]``.

    Raises:
        PartitionError: ``k`` exceeds the allowed cells, or the sets are too few to cover them.
    """
    if not 1 <= k <= len(allowed):
        raise PartitionError(f"{k} of {len(allowed)} cells were asked for; accepted are 1 to {len(allowed)}.")
    if cover and n_sets * k < len(allowed):
        raise PartitionError(
            f"{n_sets} holders with {k} cells each cannot cover {len(allowed)} cells; give each more cells, use more "
            "holders, or set coverage to false."
        )
    keys = rng.random((n_sets, len(allowed)))
    if cover:
        sets = rng.permutation(n_sets)[np.arange(len(allowed)) % n_sets]
        keys[sets, rng.permutation(len(allowed))] -= 1.0
    chosen = np.argpartition(keys, k - 1, axis=1)[:, :k]
    held = np.zeros((n_sets, n_cells), dtype=np.bool_)
    held[np.arange(n_sets)[:, None], allowed[chosen]] = True
    return held


def rake(held: NDArray[np.bool_], sizes: FloatArray, totals: IntArray) -> FloatArray:
    """Share each cell's rows among its holders so that the holders' sums come near the wanted sizes.

    Proportional fitting: rows and columns of the table are scaled in turn, at most 200 times; columns last,
    so that each held cell is used up. Where the holdings allow no equal sizes, the nearest ones in that
    sense result.

    Args:
        held: Who holds what, bool ``[n, n_cells]``.
        sizes: Wanted sizes, ``[n]``.
        totals: Rows of each cell, ``[n_cells]``.

    Returns:
        Shares as real numbers, ``[n, n_cells]``, each held column summing to its total.
    """
    table = held.astype(np.float64)
    columns = np.where(held.any(0), totals, 0).astype(np.float64)
    wanted = sizes * (columns.sum() / sizes.sum())
    for _ in range(MOST_SWEEPS):
        table *= (columns / np.maximum(table.sum(0), 1e-300))[None]
        sums = table.sum(1)
        if np.all(np.abs(sums - wanted) <= 1e-3 * wanted):
            break
        table *= (wanted / np.maximum(sums, 1e-300))[:, None]
    table *= (columns / np.maximum(table.sum(0), 1e-300))[None]
    return table


def share(held: NDArray[np.bool_], sizes: FloatArray, totals: IntArray) -> IntArray:
    """Round `rake`'s shares to whole rows: all rows of a held cell are used, every holder gets at least one.

    Raises:
        PartitionError: A cell has fewer rows than holders.
    """
    _enough(held, totals)
    holders = held.sum(0)
    shares = rake(held, sizes, totals)
    counts = held.astype(np.int64)
    for cell in np.flatnonzero(holders):
        column = counts[:, cell]
        # One row each first; the rest in proportion to what the exact shares have above one.
        above = np.maximum(shares[:, cell] - 1.0, 0.0) * held[:, cell]
        rest = int(totals[cell] - holders[cell])
        if rest:
            column += apportion(rest, above if above.sum() > 0 else held[:, cell].astype(np.float64))
    return counts


def deal_evenly(
    held: NDArray[np.bool_], weights: FloatArray, totals: IntArray, limits: FloatArray | IntArray, least: float
) -> IntArray:
    """Deal each cell's rows evenly among its holders, no holder more than its limit, its cells as equal as can be.

    Rows that would go beyond a holder's limit, or make its rarest cell too rare, are left out.

    Args:
        held: Who holds what, bool ``[n, n_cells]``.
        weights: The relative amounts that holders get, ``[n]``.
        totals: Rows of each cell, ``[n_cells]``.
        limits: The most rows that each holder gets, ``[n]``.
        least: What a holder's rarest cell has at least, as a share of its rows divided by its cells.

    Returns:
        Rows of each holder and cell, ``[n, n_cells]``; every holder has at least one of each of its cells.

    Raises:
        PartitionError: A cell has fewer rows than holders, or a limit is below a holder's number of cells.
    """
    _enough(held, totals)
    counts = held.astype(np.int64)
    for cell in np.flatnonzero(held.any(0)):
        rest = int(totals[cell] - held[:, cell].sum())
        if rest:
            counts[:, cell] += apportion(rest, held[:, cell] * weights)
    for i in np.flatnonzero(held.any(1)):
        cells = np.flatnonzero(held[i])
        if limits[i] < len(cells):
            raise PartitionError(
                f"Device {i} holds {len(cells)} cells but gets at most {int(limits[i])} samples; raise "
                "samples_per_device, use more data, or fewer cells per device."
            )
        counts[i, cells] = _levelled(counts[i, cells], int(limits[i]), least)
    return counts


def _levelled(counts: IntArray, limit: int, least: float) -> IntArray:
    """Cut the largest counts to one level, so that the sum keeps the limit and the smallest is not too rare."""
    k, rarest = len(counts), int(counts.min())
    if k > 1:
        # the others may have at most so many that the rarest is a share `least / k` of all
        counts = np.minimum(counts, max(rarest, int(rarest * (k / least - 1) / (k - 1))))
    if counts.sum() <= limit:
        return counts
    order = np.sort(counts)
    rest = limit
    for i, count in enumerate(order):
        level, extra = divmod(rest, k - i)
        if count > level:
            cut = np.minimum(counts, level)
            # what an equal level leaves over goes one each to the first that still have rows
            more = np.flatnonzero(counts > level)[:extra]
            cut[more] += 1
            return cut
        rest -= int(count)
    return counts


def _enough(held: NDArray[np.bool_], totals: IntArray) -> None:
    holders = held.sum(0)
    for cell in np.flatnonzero(holders > totals):
        raise PartitionError(
            f"Cell {cell} has {totals[cell]} samples for {holders[cell]} devices; use fewer devices, more data, or "
            "fewer cells per device."
        )
