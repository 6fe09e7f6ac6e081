"""Two layers of label skew: each edge knows some classes, each of its devices some of those."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from espalier.core.errors import PartitionError
from espalier.data.partitions.base import Assignment, PartitionSpec, Request
from espalier.data.partitions.fill import draw_cells, share
from espalier.data.rows import deal


@dataclass(frozen=True, kw_only=True)
class TwoLevel(PartitionSpec, kind="two_level"):
    """CSAHFL's dual-layer non-IID split (§4.1).

    Each edge draws ``edge_fraction`` of the cells, each of its devices draws ``device_fraction`` of *all*
    cells out of the edge's. EIID is 1.0, ENIID50 is 0.5, ENIID30 is 0.3; the paper's devices hold 0.2. Each
    cell's rows are shared by its holders such that devices come near equal amounts ("the approximate amount
    of training data").

    Attributes:
        edge_fraction: Share of the cells that an edge knows (at least one cell).
        device_fraction: Share of the cells that a device holds (at least one, at most what its edge knows).
        coverage: Every cell is at some edge and every cell of an edge is at some device of it, so that the
            whole problem can be learnt; without it the draws are independent, as the paper's text has it.
    """

    edge_fraction: float = 0.5
    device_fraction: float = 0.2
    coverage: bool = True

    def check(self) -> None:
        """Refuse values that no data can meet."""
        super().check()
        self.require(0 < self.edge_fraction <= 1, "edge_fraction", "in (0, 1]")
        self.require(0 < self.device_fraction <= 1, "device_fraction", "in (0, 1]")

    def assign(self, request: Request) -> Assignment:
        """Draw the edges' cells, then the devices', then share the rows."""
        request.need(1)
        n_cells = request.n_cells
        per_edge = max(1, round(self.edge_fraction * n_cells))
        per_device = max(1, round(self.device_fraction * n_cells))
        if per_device > per_edge:
            raise PartitionError(
                f"A device shall hold {per_device} cells (device_fraction={self.device_fraction}), its edge knows "
                f"only {per_edge} (edge_fraction={self.edge_fraction}); lower device_fraction or raise edge_fraction."
            )
        everything = np.arange(n_cells)
        edges = draw_cells(request.rng("edges"), request.n_edges, per_edge, everything, n_cells, cover=self.coverage)
        held = np.zeros((request.n_devices, n_cells), dtype=np.bool_)
        for e in range(request.n_edges):
            mine = np.flatnonzero(request.edge == e)
            known = np.flatnonzero(edges[e])
            try:
                held[mine] = draw_cells(
                    request.rng("devices", e), len(mine), per_device, known, n_cells, cover=self.coverage
                )
            except PartitionError as error:
                raise PartitionError(f"Edge {e} with {len(mine)} devices: {error}") from None
        pools = request.pools()
        counts = share(held, request.weights, np.array([len(p) for p in pools]))
        return Assignment(deal(counts, pools), request.edge)
