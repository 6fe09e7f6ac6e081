"""A partition that the user made."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from espalier.core.errors import PartitionError
from espalier.data.dataset import IntArray
from espalier.data.partitions.base import PartitionSpec, Request, RowAssignment
from espalier.data.rows import Rows


@dataclass(frozen=True, kw_only=True)
class Explicit(PartitionSpec, kind="explicit"):
    """Rows and edges as given, from Python or from a file.

    Attributes:
        rows: Each device's training rows.
        edge: The edge of each device; None: consecutive blocks.
        file: Instead of ``rows``: an ``.npz`` with ``offsets [N + 1]``, ``indices``, and optionally ``edge
            [N]``.
    """

    weighted: ClassVar[bool] = False

    rows: tuple[tuple[int, ...], ...] | None = None
    edge: tuple[int, ...] | None = None
    file: Path | None = None

    @staticmethod
    def of(rows: Sequence[ArrayLike], edge: ArrayLike | None = None) -> Explicit:
        """Take one array of training rows per device, and each device's edge."""
        return Explicit(
            rows=tuple(tuple(np.asarray(r, np.int64).reshape(-1).tolist()) for r in rows),
            edge=None if edge is None else tuple(np.asarray(edge, np.int64).reshape(-1).tolist()),
        )

    def check(self) -> None:
        """Refuse two sources, and none."""
        super().check()
        self.require((self.rows is None) != (self.file is None), "rows", "given, or else file, but not both")

    def assign(self, request: Request) -> RowAssignment:
        """Check what was given against the data and the fleet."""
        rows, given = self._read()
        if len(rows) != request.n_devices:
            raise PartitionError(
                f"The given partition has {len(rows)} devices, the run {request.n_devices}; make them agree."
            )
        n = len(request.dataset.cell_train)
        if len(rows.indices) and (rows.indices.min() < 0 or rows.indices.max() >= n):
            raise PartitionError(
                f"The given rows reach from {rows.indices.min()} to {rows.indices.max()}; accepted are 0…{n - 1}."
            )
        if self.fraction < 1.0:
            rows = rows.keep(np.isin(rows.indices, request.rows))
        if given is None:
            return RowAssignment(rows, request.edge)
        edge = np.asarray(given, dtype=np.int32)
        if edge.shape != (request.n_devices,) or edge.min() < 0 or edge.max() >= request.n_edges:
            raise PartitionError(
                f"The given edge column has shape {edge.shape} and values {edge.min()}…{edge.max()}; accepted is one "
                f"of 0…{request.n_edges - 1} for each of {request.n_devices} devices."
            )
        return RowAssignment(rows, edge)

    def _read(self) -> tuple[Rows, ArrayLike | None]:
        if self.rows is not None:
            return Rows.of([np.array(r, dtype=np.int64) for r in self.rows]), self.edge
        try:
            with open(str(self.file), "rb") as raw, np.load(raw, allow_pickle=False) as arrays:
                offsets: IntArray = arrays["offsets"].astype(np.int64)
                indices: IntArray = arrays["indices"].astype(np.int64)
                edge = arrays.get("edge", self.edge)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise PartitionError(
                f"Cannot read the partition {self.file}: {error}. It must be an .npz with offsets and indices."
            ) from None
        if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(indices) or (np.diff(offsets) < 0).any():
            raise PartitionError(f"offsets of {self.file} must rise from 0 to the number of indices, {len(indices)}.")
        return Rows(offsets, indices), edge
