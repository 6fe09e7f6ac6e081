"""Label skew by a Dirichlet draw per cell, as most papers of the field split their data."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from espalier.data.dataset import IntArray
from espalier.data.partitions.base import Assignment, PartitionSpec, Request
from espalier.data.rows import apportion, deal


@dataclass(frozen=True, kw_only=True)
class Dirichlet(PartitionSpec, kind="dirichlet"):
    """Each cell's rows are spread over the devices in proportions drawn from Dirichlet(α).

    Many implementations redraw until the smallest device has enough, which need not end. Here there is one
    draw; devices below ``min_samples`` are then filled up from the largest ones, out of the donor's largest
    cell.

    Attributes:
        alpha: Concentration; small is skewed (0.1), large is nearly IID (100).
        min_samples: The least number of rows of a device.
    """

    alpha: float = 0.5
    min_samples: int = 1

    def check(self) -> None:
        """Refuse values that no data can meet."""
        super().check()
        self.require(0 < self.alpha <= 1e9, "alpha", "more than 0, and at most 1e9 (which is IID)")
        self.require(self.min_samples >= 1, "min_samples", "at least 1")

    def assign(self, request: Request) -> Assignment:
        """Draw the proportions, round them, fill up the smallest devices, deal the rows."""
        request.need(self.min_samples)
        pools = request.pools()
        rng = request.rng("dirichlet")
        counts = np.zeros((request.n_devices, request.n_cells), dtype=np.int64)
        for cell, pool in enumerate(pools):
            # A gamma draw per device is a Dirichlet draw before its normalisation; for tiny α every value may
            # underflow to 0, and then the whole cell goes to one device, which is the limit of small α.
            shares = rng.standard_gamma(self.alpha, request.n_devices) * request.weights
            if not shares.sum() > 0:
                shares[rng.integers(request.n_devices)] = 1.0
            counts[:, cell] = apportion(len(pool), shares)
        fill_up(counts, self.min_samples)
        return Assignment(deal(counts, pools), request.edge)


def fill_up(counts: IntArray, least: int) -> None:
    """Move rows from the largest devices to those with fewer than ``least``, in place.

    Each move takes from the donor's largest cell; a donor never falls below ``least``. Ends because every
    move shortens the total shortfall.

    Args:
        counts: Rows by device and cell, int64 ``[n, n_cells]``, with at least ``n · least`` rows in all.
        least: The least number of rows of a device.
    """
    sizes = counts.sum(1)
    donors = [(-int(size), i) for i, size in enumerate(sizes) if size > least]
    heapq.heapify(donors)
    for device in np.flatnonzero(sizes < least):
        while (short := int(least - sizes[device])) > 0:
            size, donor = heapq.heappop(donors)
            cell = int(counts[donor].argmax())
            moved = min(short, -size - least, int(counts[donor, cell]))
            counts[donor, cell] -= moved
            counts[device, cell] += moved
            sizes[donor] -= moved
            sizes[device] += moved
            if sizes[donor] > least:
                heapq.heappush(donors, (-int(sizes[donor]), donor))
