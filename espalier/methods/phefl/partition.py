"""PHE-FL's four distributions over ten edges, and the edges' own test sets (Tables II–IV)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from espalier.core.bounds import Bound
from espalier.core.errors import PartitionError
from espalier.data.dataset import IntArray
from espalier.data.partitions.base import EdgeTest, EdgeTests, PartitionSpec, Request, RowAssignment
from espalier.data.rows import apportion, by_cell, deal

LABELS = 10
LAYOUTS: dict[str, tuple[int, ...]] = {
    "D1": (10,),
    "D2": (2, 2, 2, 2, 2),
    "D3": (3, 1, 1, 1, 1, 1, 1, 1),
    "D4": (1,) * 10,
}
"""Tenths of a label's pool at edge k of the labels k, k + 1, … (mod 10)."""


@dataclass(frozen=True, kw_only=True)
class PheFlLayouts(PartitionSpec, kind="phefl"):
    """Ten edges, ten labels; an edge holds tenths of labels in a cyclic pattern.

    A *unit* is one tenth of a label's training rows; every edge has ten units and every label is dealt out
    whole. With ten devices per edge a device has one unit, hence one label; with five (Figure 4a) it has two
    units, "double the data load […] while maintaining the same edge-level distribution"; with 20, half a
    unit. D2's pattern is not tabulated in the paper and is taken to be cyclic like D3's.

    Test sets: *balanced* is all test rows of the labels an edge holds; *imbalanced* follows the training mix.
    They differ for D3 only, where the imbalanced sets are disjoint over the edges (30 % or 10 % of a label
    each). Both are made; ``test`` chooses which is in use. ``personal`` of an edge's test rows (rounded down,
    drawn once per seed) are for choosing its model, the others for judging it.

    Attributes:
        layout: D1 (one label per edge) … D4 (all labels at every edge).
        test: Which test sets are in use.
        personal: Share of an edge's test rows for personalisation.
    """

    weighted: ClassVar[bool] = False

    layout: Literal["D1", "D2", "D3", "D4"] = "D3"
    test: Literal["balanced", "imbalanced"] = "imbalanced"
    personal: Annotated[float, Bound(ge=0, le=0.9)] = 0.15

    def assign(self, request: Request) -> RowAssignment:
        """Deal the units to the devices and the test rows to the edges."""
        per_edge = request.n_devices // request.n_edges
        if request.n_cells != LABELS or request.n_edges != LABELS:
            raise PartitionError(
                f"The layouts of kind 'phefl' are made for {LABELS} labels at {LABELS} edges; asked were "
                f"{request.n_cells} labels at {request.n_edges} edges."
            )
        if request.n_devices % request.n_edges or (LABELS % per_edge and per_edge % LABELS):
            raise PartitionError(
                f"{request.n_devices} devices at {request.n_edges} edges: accepted are 1, 2, 5, 10, 20, 30, … "
                "devices per edge, so that a device has whole units or an equal part of one."
            )
        pools = request.pools()
        parts = max(1, per_edge // LABELS)
        units = np.repeat(_units(LAYOUTS[self.layout]), parts, axis=1).reshape(request.n_devices, -1)
        counts = np.zeros((request.n_devices, LABELS), np.int64)
        for label, pool in enumerate(pools):
            if len(pool) < LABELS * parts:
                raise PartitionError(
                    f"Label {label} has {len(pool)} samples for {LABELS * parts} equal parts; use more data or fewer "
                    "devices."
                )
            shares = (units == label).sum(1)
            counts[:, label] = apportion(len(pool), shares.astype(np.float64))
        return RowAssignment(deal(counts, pools), request.edge, self._tests(request))

    def _tests(self, request: Request) -> EdgeTests:
        cells = request.dataset.cell_test
        pools = by_cell(np.arange(len(cells)), cells, LABELS, request.rng("test"))
        pattern = _pattern(LAYOUTS[self.layout])
        balanced = [np.concatenate([pools[c] for c in np.flatnonzero(row)]) for row in pattern]
        sets = {"balanced": self._split(request, "balanced", balanced)}
        if self.layout == "D3":
            counts = np.stack(
                [apportion(len(pool), pattern[:, c].astype(np.float64)) for c, pool in enumerate(pools)], 1
            )
            dealt = deal(counts, pools)
            imbalanced = [dealt[e] for e in range(LABELS)]
            sets["imbalanced"] = self._split(request, "imbalanced", imbalanced)
        else:
            sets["imbalanced"] = sets["balanced"]
        return EdgeTests(self.test, sets)

    def _split(self, request: Request, name: str, rows: list[IntArray]) -> EdgeTest:
        return EdgeTest.split(rows, self.personal, [request.rng("test", name, e) for e in range(LABELS)])


def _pattern(layout: tuple[int, ...]) -> IntArray:
    """Units by edge and label, int64 ``[10, 10]``; rows and columns sum to 10."""
    first = np.zeros(LABELS, np.int64)
    first[: len(layout)] = layout
    return np.stack([np.roll(first, e) for e in range(LABELS)])


def _units(layout: tuple[int, ...]) -> IntArray:
    """The label of each of an edge's ten units, int64 ``[10, 10]``, the predominant label first."""
    order = np.repeat(np.arange(len(layout)), layout)
    return np.asarray((order[None] + np.arange(LABELS)[:, None]) % LABELS)
