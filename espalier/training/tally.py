"""What is counted of an evaluation: per batch of rows, and added up per model."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One model's counts.

    Attributes:
        count: Samples per cell, int64 ``[n_cells]``.
        loss_sum: Summed loss per cell, float64 ``[n_cells]``.
        correct: Classification: right answers per cell, int64 ``[n_cells]``. Else None.
        confusion: Classification: answers per cell, int64 ``[n_cells, n_classes]``. Segmentation: pixels
            per cell, true and predicted class, int64 ``[n_cells, n_classes, n_classes]``. Else empty.
        sums: Summed metrics of samples per cell, float64 ``[n_cells, n_metrics]``; empty if there are none.
        answers: Classification, if asked for: the class that each row was given, int32 ``[n_rows]``. Else empty.
        losses: Each row's loss, if asked for, float32 ``[n_rows]``. Else empty.
        outputs: Each row's outputs, if asked for, ``[n_rows, …]``. Else empty.
        areas: What ``auc`` is made of (`espalier.training.metrics.pair_areas`), if it was. Else empty.
    """

    count: NDArray[np.int64]
    loss_sum: NDArray[np.float64]
    correct: NDArray[np.int64] | None
    confusion: NDArray[np.int64]
    sums: NDArray[np.float64]
    answers: NDArray[np.int32]
    losses: NDArray[np.float32]
    outputs: NDArray[np.float32]
    areas: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def loss(self) -> float:
        """Mean loss over all samples."""
        return float(self.loss_sum.sum() / self.count.sum())


#: models and rows that are computed together, by their places among those of an evaluation
Cut = tuple[range, slice]


@dataclass(frozen=True, eq=False)
class BatchCounts:
    """What K models made of a batch of n rows.

    Integers are counts. What has fractions is of each row: it is added up in the order of rows, wherever it comes from.

    Attributes:
        losses: Losses ``[K, n]``.
        values: Metrics of samples, float64 ``[K, n, m]``, or None.
        correct: Right answers per model and cell, int64 ``[K · cells]``, or None.
        confusion: As in `Evaluation`, int64 ``[K, …]``, or None.
        answers: The classes that rows were given, int32 ``[K, n]``, or None.
        outputs: Outputs ``[K, n, …]``, or None.
    """

    losses: Tensor
    values: Tensor | None = None
    correct: Tensor | None = None
    confusion: Tensor | None = None
    answers: Tensor | None = None
    outputs: Tensor | None = None


class EvaluationTally:
    """Counts of some models, batch by batch."""

    def __init__(self, models: int, cells: int, each: bool = False) -> None:
        self._models, self._cells, self._each = models, cells, each
        self._outputs: list[Tensor] = []
        self._answers: list[Tensor] = [torch.zeros(models, 0, dtype=torch.int32)]
        self._losses: list[Tensor] = [torch.zeros(models, 0)]
        self._count = torch.zeros(models * cells, dtype=torch.int64)
        self._loss = torch.zeros(models * cells, dtype=torch.float64)
        self._correct: Tensor | None = None
        self._confusion = torch.zeros(models, 0, dtype=torch.int64)
        self._sums = torch.zeros(models, 0, dtype=torch.float64)

    def add(self, found: BatchCounts, cells: Tensor) -> None:
        """Add a batch of rows of these cells: common ``[n]``, or each model's own ``[K, n]``."""
        # model k's cell c is place k * cells + c, so that each adds its rows in their order
        places = (torch.arange(self._models).view(-1, 1) * self._cells + cells).flatten()
        self._count += torch.bincount(places, minlength=len(self._count))
        self._loss.index_add_(0, places, found.losses.double().flatten())
        if self._each:
            self._losses.append(found.losses.float())
        if found.answers is not None:
            self._answers.append(found.answers)
        if found.outputs is not None:
            self._outputs.append(found.outputs)
        if found.values is not None:
            if not self._sums.numel():
                self._sums = torch.zeros(self._models, self._cells, found.values.shape[2], dtype=torch.float64)
            self._sums.flatten(0, 1).index_add_(0, places, found.values.flatten(0, 1))
        if found.correct is not None:
            self._correct = found.correct if self._correct is None else self._correct + found.correct
        if found.confusion is not None:
            self._confusion = self._confusion + found.confusion if self._confusion.numel() else found.confusion

    def done(self) -> list[Evaluation]:
        """Return what was counted, model by model."""
        return [self._done(k) for k in range(self._models)]

    def _done(self, model: int) -> Evaluation:
        correct = None if self._correct is None else self._correct.view(self._models, -1)[model].numpy()
        loss = self._loss.view(self._models, -1)[model].numpy()
        count = self._count.view(self._models, -1)[model].numpy()
        outputs = torch.cat([part[model] for part in self._outputs]) if self._outputs else torch.zeros(0)
        return Evaluation(
            count, loss, correct, self._confusion[model].numpy(), self._sums[model].numpy(),
            torch.cat([part[model] for part in self._answers]).numpy(),
            torch.cat([part[model] for part in self._losses]).numpy(), outputs.numpy(),
        )  # fmt: skip
