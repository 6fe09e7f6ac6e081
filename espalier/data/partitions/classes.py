"""Each device holds rows of k cells only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from espalier.core.errors import PartitionError
from espalier.data.partitions.base import Assignment, PartitionSpec, Request
from espalier.data.partitions.fill import draw_cells, share
from espalier.data.rows import Rows, apportion, by_cell, deal


@dataclass(frozen=True, kw_only=True)
class Classes(PartitionSpec, kind="classes"):
    """Each device draws ``k`` cells; each cell's rows are shared by its holders in near equal amounts.

    With ``overlap`` a device draws its rows from the whole pools of its cells instead, evenly over its cells,
    so that different devices may hold the same row. EASF's fleets need that: they ask for more rows (400–600
    for each of up to 200 devices of 20 newsgroups) than there are.

    Attributes:
        k: Cells of a device.
        coverage: Every cell is at some device (refused if the devices are too few for it).
        overlap: Devices may share rows; then ``samples_per_device`` must be given.
    """

    k: int = 2
    coverage: bool = True
    overlap: bool = False

    def check(self) -> None:
        """Refuse values that no data can meet."""
        super().check()
        self.require(self.k >= 1, "k", "at least 1")
        given = self.samples_per_device is not None
        self.require(given or not self.overlap, "overlap", "false unless samples_per_device says how many to draw")

    def assign(self, request: Request) -> Assignment:
        """Draw the devices' cells, then share the rows or draw them."""
        if self.k > request.n_cells:
            raise PartitionError(f"A device shall hold k={self.k} cells, the data has {request.n_cells}; lower k.")
        held = draw_cells(
            request.rng("cells"),
            request.n_devices,
            self.k,
            np.arange(request.n_cells),
            request.n_cells,
            cover=self.coverage,
        )
        if self.overlap:
            return Assignment(self._draw(request, held), request.edge, capped=True)
        request.need(1)
        pools = request.pools()
        counts = share(held, request.weights, np.array([len(p) for p in pools]))
        return Assignment(deal(counts, pools), request.edge)

    def _draw(self, request: Request, held: NDArray[np.bool_]) -> Rows:
        pools = by_cell(request.rows, request.cells, request.n_cells, request.rng("rows"))
        low, high = self.cap
        rng = request.rng("draws")
        wanted = np.rint(rng.integers(low, high + 1, size=request.n_devices) * request.weights)
        parts = []
        for device in range(request.n_devices):
            mine = np.flatnonzero(held[device])
            quota = apportion(max(self.k, int(wanted[device])), np.ones(self.k))
            for cell, n in zip(mine, quota, strict=True):
                if n > len(pools[cell]):
                    raise PartitionError(
                        f"Device {device} shall draw {n} different samples of cell {cell}, which has "
                        f"{len(pools[cell])}; lower samples_per_device or raise k."
                    )
            draws = [rng.choice(pools[c], n, replace=False) for c, n in zip(mine, quota, strict=True)]
            parts.append(np.concatenate(draws))
        return Rows.of(parts)
