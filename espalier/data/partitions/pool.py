"""A shared pool: every device draws its own few rows, and devices may share rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from espalier.core.bounds import PositiveInt
from espalier.core.errors import PartitionError
from espalier.data.dataset import IntArray
from espalier.data.partitions.base import PartitionSpec, Request, RowAssignment
from espalier.data.partitions.fill import draw_cells
from espalier.data.rows import Rows, offsets_of

#: draws with repetition before the few owners that are left draw without
MOST_ROUNDS = 20


@dataclass(frozen=True, kw_only=True)
class SharedPool(PartitionSpec, kind="pool"):
    """Each device draws ``samples`` different rows from the pool; different devices may hold the same row.

    For fleets that are larger than the data: a million devices of ten rows are two arrays.

    Attributes:
        samples: Rows of a device.
        edge_cells: How many cells an edge's devices draw from; None is all of them.
    """

    samples: PositiveInt = 20
    edge_cells: PositiveInt | None = None

    def assign(self, request: Request) -> RowAssignment:
        """Draw every device's rows, edge by edge if edges know only some cells."""
        sizes = np.maximum(1, np.rint(self.samples * request.weights)).astype(np.int64)
        if self.edge_cells is None:
            pools = Rows.of([request.rows])
            return RowAssignment(draw(request.rng("rows"), pools, np.zeros_like(request.edge), sizes), request.edge)
        known = draw_cells(
            request.rng("edges"),
            request.n_edges,
            self.edge_cells,
            np.arange(request.n_cells),
            request.n_cells,
            cover=request.n_edges * self.edge_cells >= request.n_cells,
        )
        cells = request.cells[request.rows]
        pools = Rows.of([request.rows[cell_known[cells]] for cell_known in known])
        return RowAssignment(draw(request.rng("rows"), pools, request.edge, sizes), request.edge)


def draw(rng: np.random.Generator, pools: Rows, which: NDArray[np.int32], sizes: IntArray) -> Rows:
    """Draw ``sizes[i]`` different rows of pool ``which[i]`` for every owner ``i``.

    All owners draw at once with repetition; those that drew a row twice draw again, at most ``MOST_ROUNDS`` times; the
    few that are left (large shares of a small pool) draw one by one without repetition.

    Raises:
        PartitionError: An owner wants more rows than its pool has.
    """
    widths = pools.sizes[which]
    for owner in np.flatnonzero(sizes > widths):
        raise PartitionError(
            f"Device {owner} shall draw {sizes[owner]} different samples from a pool of {widths[owner]}; lower "
            "samples or imbalance, or use more data or cells."
        )
    offsets = offsets_of(sizes)
    picks = np.empty(offsets[-1], np.int64)
    todo = np.arange(len(sizes))
    for _ in range(MOST_ROUNDS):
        places = _places(offsets, todo)
        picks[places] = (rng.random(len(places)) * np.repeat(widths[todo], sizes[todo])).astype(np.int64)
        todo = todo[_repeating(picks[places], sizes[todo], int(widths.max()))]
        if not len(todo):
            break
    for owner in todo:
        picks[offsets[owner] : offsets[owner + 1]] = rng.choice(widths[owner], sizes[owner], replace=False)
    return Rows(offsets, pools.indices[np.repeat(pools.offsets[which], sizes) + picks])


def _places(offsets: IntArray, owners: IntArray) -> IntArray:
    """Where the entries of some owners lie, owner by owner."""
    sizes = offsets[owners + 1] - offsets[owners]
    starts = np.repeat(offsets[owners] - offsets_of(sizes)[:-1], sizes)
    return np.asarray(starts + np.arange(len(starts)))


def _repeating(picks: IntArray, sizes: IntArray, width: int) -> IntArray:
    """Which owners (counted from 0) hold some number twice; all numbers are below ``width``."""
    ordered = np.sort(np.repeat(np.arange(len(sizes)), sizes) * width + picks)
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]] // width)
