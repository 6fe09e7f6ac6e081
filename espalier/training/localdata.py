"""A device's own samples as statistics see them: rows of a pool, on a simulated device or on a real one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from espalier.training.evaluate import Evaluator
from espalier.training.work import Pool


class PooledData:
    """Implements :class:`espalier.core.statistics.LocalData` over rows of a pool.

    Args:
        kind: ``classification``, ``regression`` or ``segmentation``.
        n_cells: How many cells (classes) there are.
        batch_size: Samples per mini-batch.
        evaluator: Computes losses and answers.
        pool: Samples.
        rows: The device's own.
        held: Rows that it holds out.
        cells: The cell of each row, in a task that is no classification (None: its label).
        rng: For statistics that draw.
    """

    def __init__(
        self,
        kind: str,
        n_cells: int,
        batch_size: int,
        evaluator: Evaluator,
        pool: Pool,
        rows: NDArray[np.int64],
        *,
        held: NDArray[np.int64],
        cells: NDArray[np.int64] | None,
        rng: np.random.Generator,
    ) -> None:
        self._kind, self._evaluator, self._pool, self._rows, self._held = kind, evaluator, pool, rows, held
        self._cells = cells
        self.n_cells, self.batch_size, self.rng = n_cells, batch_size, rng

    def arrays(self) -> tuple[Tensor, Tensor]:
        """Return the samples."""
        return self._pool.gather(torch.from_numpy(np.ascontiguousarray(self._rows)))

    def cells(self) -> NDArray[np.int64]:
        """Return the cell of each sample as the device sees it (its labels, in a classification)."""
        if self._kind == "classification" or self._cells is None:
            labels: NDArray[np.int64] = self.arrays()[1].numpy()
            return labels
        return self._cells

    def losses(self, vectors: Sequence[Tensor]) -> list[float]:
        """Return each model's mean loss on the samples."""
        return list(self._evaluator.mean_loss(vectors, self._pool, self._rows))

    def logits(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return each model's outputs on the samples."""
        return self._evaluator.logits(vectors, self._pool, self._rows)

    def held_out(self, vectors: Sequence[Tensor]) -> list[float]:
        """Return each model's share of right answers on the held-out samples (of right pixels, in a segmentation)."""
        if len(self._held) == 0 or self._kind == "regression":
            return []
        cells = np.zeros(len(self._held), dtype=np.int64)
        shares = []
        for found in self._evaluator.run(vectors, self._pool, self._held, cells):
            assert found.confusion is not None
            if found.correct is not None:
                shares.append(float(found.correct.sum() / found.count.sum()))
            else:
                pixels = found.confusion.sum(0)
                shares.append(float(np.trace(pixels) / max(1, pixels.sum())))
        return shares
