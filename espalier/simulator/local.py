"""A simulated device's own data, as statistics see them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from espalier.simulator.task import Task
from espalier.training.work import Pool


class SimulatedData:
    """Implements :class:`espalier.core.statistics.LocalData` over a pool and rows."""

    def __init__(
        self, task: Task, pool: Pool, rows: NDArray[np.int64], rng: np.random.Generator, held: NDArray[np.int64]
    ) -> None:
        self._task, self._pool, self._rows, self._held = task, pool, rows, held
        self.rng = rng
        self.n_cells = task.dataset.n_cells
        self.batch_size = task.training.batch_size

    def arrays(self) -> tuple[Tensor, Tensor]:
        """Return the samples."""
        return self._pool.gather(torch.from_numpy(np.ascontiguousarray(self._rows)))

    def cells(self) -> NDArray[np.int64]:
        """Return the cell of each sample as the device sees it (its labels, in a classification)."""
        if self._task.dataset.kind == "classification":
            labels: NDArray[np.int64] = self.arrays()[1].numpy()
            return labels
        return self._task.dataset.cell_train[self._rows]

    def losses(self, vectors: Sequence[Tensor]) -> list[float]:
        """Return each model's mean loss on the samples."""
        return list(self._task.evaluator.mean_loss(vectors, self._pool, self._rows))

    def logits(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return each model's outputs on the samples."""
        return self._task.evaluator.logits(vectors, self._pool, self._rows)

    def held_out(self, vectors: Sequence[Tensor]) -> list[float]:
        """Return each model's share of right answers on the held-out samples (of right pixels, in a segmentation)."""
        if len(self._held) == 0 or self._task.dataset.kind == "regression":
            return []
        cells = np.zeros(len(self._held), dtype=np.int64)
        shares = []
        for found in self._task.evaluator.run(vectors, self._pool, self._held, cells):
            assert found.confusion is not None
            if found.correct is not None:
                shares.append(float(found.correct.sum() / found.count.sum()))
            else:
                pixels = found.confusion.sum(0)
                shares.append(float(np.trace(pixels) / max(1, pixels.sum())))
        return shares
