"""Independent and identically distributed: rows in random order, cut into parts."""

from __future__ import annotations

from dataclasses import dataclass

from espalier.data.partitions.base import Assignment, PartitionSpec, Request
from espalier.data.rows import Rows, apportion, offsets_of


@dataclass(frozen=True, kw_only=True)
class Iid(PartitionSpec, kind="iid"):
    """Every device gets a random part of all rows; parts are even unless ``imbalance`` says otherwise."""

    def assign(self, request: Request) -> Assignment:
        """Shuffle and cut."""
        request.need(1)
        sizes = 1 + apportion(len(request.rows) - request.n_devices, request.weights)
        rows = Rows(offsets_of(sizes), request.rng("rows").permutation(request.rows))
        return Assignment(rows, request.edge)
