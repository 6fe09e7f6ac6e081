"""Where samples come from."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Pool(Protocol):
    """Samples by row: a dataset's arrays, or a transformed view of them (concept drift)."""

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs ``[n, …]`` and targets ``[n, …]`` of int64 rows ``[n]``; pure, any order."""
        ...
