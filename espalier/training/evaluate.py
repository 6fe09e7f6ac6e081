"""Evaluation: several models on the same rows, counted per cell.

A *cell* is the label a test distribution goes by: the class, a region, a city. Counts per cell serve
every edge's and device's own test distribution, so each distinct model is evaluated once.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from espalier.core.errors import ConfigError, TrainingError
from espalier.core.params import ParamSpec
from espalier.training import chunks
from espalier.training.host import keep_pages, one_thread
from espalier.training.losses import BY_KIND, IGNORED, Loss, checked, mse, resolve
from espalier.training.merged.probe import MergePlan, probe
from espalier.training.merged.replica import Replica
from espalier.training.merged.stacked import Stack, Unsupported
from espalier.training.sequential import cast, put
from espalier.training.trainer import FallbackWarning
from espalier.training.work import Pool

Kind = Literal["classification", "regression", "segmentation"]
Metric = Callable[[Tensor, Tensor], Tensor]

_MOST_MODELS = 8
"""Models that run as one: their common batches are large already, more would only leave the cache."""


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean squared error of outputs and targets ``[n, ...]`` as one metric, ``[n, 1]``."""
    return mse(outputs, y).unsqueeze(1)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One model's counts.

    Attributes:
        count: Samples per cell, int64 ``[n_cells]``.
        loss_sum: Summed loss per cell, float64 ``[n_cells]``.
        correct: Classification: right answers per cell, int64 ``[n_cells]``. Else None.
        confusion: Classification: answers per cell, int64 ``[n_cells, n_classes]``. Segmentation: pixels
            per cell, true and predicted class, int64 ``[n_cells, n_classes, n_classes]``. Else empty.
        sums: Regression: summed metrics per cell, float64 ``[n_cells, n_metrics]``. Else empty.
        answers: Classification, if asked for: the class that each row was given, int32 ``[n_rows]``. Else empty.
        losses: Each row's loss, if asked for, float32 ``[n_rows]``. Else empty.
        outputs: Each row's outputs, if asked for, ``[n_rows, …]``. Else empty.
    """

    count: NDArray[np.int64]
    loss_sum: NDArray[np.float64]
    correct: NDArray[np.int64] | None
    confusion: NDArray[np.int64]
    sums: NDArray[np.float64]
    answers: NDArray[np.int32]
    losses: NDArray[np.float32]
    outputs: NDArray[np.float32]

    @property
    def loss(self) -> float:
        """Mean loss over all samples."""
        return float(self.loss_sum.sum() / self.count.sum())


class Evaluator:
    """Evaluates flat vectors of one model.

    Attributes:
        batched: Whether several models run merged; False once the model turned out not to allow it.
    """

    def __init__(
        self,
        module: nn.Module,
        kind: Kind,
        n_cells: int,
        *,
        batch: int = 512,
        metric: Metric | None = None,
        loss: Loss | None = None,
    ) -> None:
        """Prepare to evaluate a module, which is copied and never changed.

        Args:
            module: The model.
            kind: What its outputs are.
            n_cells: Number of cells.
            batch: Rows computed at once, for every model of a chunk.
            metric: Regression: ``(outputs, y) -> per-sample metrics [n, m]``; the squared error by default.
            loss: The loss that is summed; by default the kind's own.
        """
        if kind not in BY_KIND:
            raise ConfigError(f"kind is {kind!r}; accepted: {', '.join(repr(k) for k in BY_KIND)}.")
        if n_cells < 1 or batch < 1:
            raise ConfigError(f"n_cells is {n_cells} and batch is {batch}; positive numbers are accepted.")
        self._module = copy.deepcopy(module).eval()
        self._spec = ParamSpec.of(self._module)
        self._kind, self._cells, self._batch = kind, n_cells, batch
        self._metric = metric or squared_error
        self._loss = resolve(loss or BY_KIND[kind])
        self._replicas: dict[torch.dtype, Replica] = {}
        self.batched = True
        keep_pages()

    def run(
        self,
        vectors: Sequence[Tensor],
        pool: Pool,
        rows: NDArray[np.int64],
        cells: NDArray[np.int64],
        *,
        each: bool = False,
        outputs: bool = False,
        offset: Tensor | None = None,
    ) -> list[Evaluation]:
        """Evaluate every vector on the rows, ``cells[i]`` being the cell of ``rows[i]``.

        A vector given several times (the same object) is computed once. With ``each``, what became of each row is
        kept, so that any part of the rows can be judged without evaluating again; ``outputs`` keeps the outputs.
        ``offset [C]`` (a log prior) is added to every row's outputs.
        """
        if len(cells) != len(rows):
            raise TrainingError(f"cells has {len(cells)} entries for {len(rows)} rows; one cell per row is accepted.")
        if len(cells) and not 0 <= int(cells.min()) <= int(cells.max()) < self._cells:
            raise TrainingError(f"cells lie in [{cells.min()}, {cells.max()}]; 0 to {self._cells - 1} is accepted.")
        distinct = {id(v): v for v in vectors}
        tallies = {key: _Tally(self._kind, self._cells, self._metric, each, outputs) for key in distinct}
        keys = list(distinct)
        for models, cut, found, y in self._outputs(list(distinct.values()), pool, rows):
            here = torch.from_numpy(np.asarray(cells[cut], dtype=np.int64))
            found = found if offset is None else found + offset.to(found)
            losses = self._losses(found, y)
            for place, model in enumerate(models):
                tallies[keys[model]].add(found[place], y, here, losses[place])
        done = {key: tally.done() for key, tally in tallies.items()}
        return [done[id(v)] for v in vectors]

    def mean_loss(self, vectors: Sequence[Tensor], pool: Pool, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Mean loss of every vector over the rows, ``[len(vectors)]``."""
        sums = np.zeros(len(vectors))
        for models, _, outputs, y in self._outputs(vectors, pool, rows):
            sums[models] += self._losses(outputs, y).double().sum(1).numpy()
        return sums / len(rows)

    def logits(self, vectors: Sequence[Tensor], pool: Pool, rows: NDArray[np.int64]) -> Tensor:
        """Outputs of every vector on the rows, ``[len(vectors), len(rows), ...]``."""
        parts: dict[int, list[Tensor]] = {i: [] for i in range(len(vectors))}
        for models, _, outputs, _ in self._outputs(vectors, pool, rows):
            for place, model in enumerate(models):
                parts[model].append(outputs[place])
        return torch.stack([torch.cat(p) for p in parts.values()])

    def _losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Loss per model and sample ``[K, n]`` of outputs ``[K, n, ...]``."""
        with torch.no_grad():  # a loss may have parameters of its own
            return torch.stack([checked(self._loss(one, y), len(y)) for one in outputs])

    def _outputs(
        self, vectors: Sequence[Tensor], pool: Pool, rows: NDArray[np.int64]
    ) -> Iterator[tuple[list[int], slice, Tensor, Tensor]]:
        """Yield models' indices, a slice of the rows, outputs ``[K, n, ...]`` and targets ``[n, ...]``."""
        if len(rows) == 0:
            raise TrainingError("rows is empty; an evaluation needs at least one row.")
        for number, vector in enumerate(vectors):
            if vector.shape != (self._spec.size,):
                raise TrainingError(
                    f"Vector {number} has shape {tuple(vector.shape)}; ({self._spec.size},) is accepted for this model."
                )
        index = torch.from_numpy(np.asarray(rows, dtype=np.int64))
        size = min(_MOST_MODELS, chunks.size_for(self._spec))
        for first in range(0, len(vectors), size):
            models = list(range(first, min(first + size, len(vectors))))
            chosen = [vectors[m] for m in models]
            forward = self._forward(chosen, pool, index)
            for at in range(0, len(rows), self._batch):
                cut = slice(at, min(at + self._batch, len(rows)))
                x, y = (cast(t, chosen[0].dtype) for t in pool.gather(index[cut]))
                with torch.no_grad(), one_thread():
                    outputs = forward(x)
                yield models, cut, outputs, y

    def _forward(self, vectors: list[Tensor], pool: Pool, rows: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a function from inputs ``[n, ...]`` to the models' outputs ``[K, n, ...]``."""
        replica = self._replica(vectors[0].dtype, pool, rows)
        if replica is None:
            return lambda x: torch.stack([self._alone(v, x) for v in vectors])
        stack = Stack(self._spec, vectors).views(len(vectors))
        replica.bind(stack, {})

        def forward(x: Tensor) -> Tensor:
            merged = x.unsqueeze(0).expand(len(vectors), *x.shape).flatten(0, 1)
            return torch.unflatten(replica.forward(merged, len(vectors)), 0, (len(vectors), -1))

        return forward

    def _alone(self, vector: Tensor, x: Tensor) -> Tensor:
        module = self._module.to(vector.dtype)
        put(module, self._spec, vector)
        out: Tensor = module(x)
        return out

    def _replica(self, dtype: torch.dtype, pool: Pool, rows: Tensor) -> Replica | None:
        if self.batched and dtype not in self._replicas:
            x, y = pool.gather(rows[:16])
            try:
                with one_thread():
                    plan: MergePlan = probe(self._module, self._spec, None, x, y, dtype)
            except Unsupported as refusal:
                self.batched = False
                warnings.warn(
                    f"{type(self._module).__name__} is evaluated one model at a time: {refusal}. "
                    "The results are the same.",
                    FallbackWarning,
                    stacklevel=2,
                )
            else:
                self._replicas[dtype] = Replica(self._module, self._spec, dtype, training=False, plan=plan.calls)
        return self._replicas.get(dtype) if self.batched else None


class _Tally:
    """Counts of one model, batch by batch."""

    def __init__(self, kind: Kind, cells: int, metric: Metric, each: bool, outputs: bool) -> None:
        self._kind, self._cells, self._metric, self._each, self._keep = kind, cells, metric, each, outputs
        self._outputs: list[Tensor] = [torch.zeros(0)]
        self._answers: list[Tensor] = [torch.zeros(0, dtype=torch.int32)]
        self._losses: list[Tensor] = [torch.zeros(0)]
        self._count = torch.zeros(cells, dtype=torch.int64)
        self._loss = torch.zeros(cells, dtype=torch.float64)
        self._correct = torch.zeros(cells, dtype=torch.int64)
        self._confusion = torch.zeros(0, dtype=torch.int64)
        self._sums = torch.zeros(0, dtype=torch.float64)

    def add(self, outputs: Tensor, y: Tensor, cells: Tensor, losses: Tensor) -> None:
        """Count a batch: outputs and targets ``[n, ...]``, cells and losses ``[n]``."""
        self._count += torch.bincount(cells, minlength=self._cells)
        self._loss.index_add_(0, cells, losses.double())
        if self._each:
            self._losses.append(losses.float())
        if self._keep:
            self._outputs.append(outputs.float())
        if self._kind == "regression":
            values = self._metric(outputs, y).double()
            if not len(self._sums):
                self._sums = torch.zeros(self._cells, values.shape[1], dtype=torch.float64)
            self._sums.index_add_(0, cells, values)
            return
        classes = outputs.shape[1]
        answers = outputs.argmax(1)
        if self._kind == "classification":
            right = answers == y
            self._correct += torch.bincount(cells[right], minlength=self._cells)
            if self._each:
                self._answers.append(answers.int())
            shape, places = [self._cells, classes], cells * classes + answers
        else:
            valid = y != IGNORED
            pixels = cells.view(-1, 1, 1) * classes * classes + y * classes + answers
            shape, places = [self._cells, classes, classes], pixels[valid]
        counted = torch.bincount(places, minlength=math.prod(shape)).view(shape)
        self._confusion = self._confusion + counted if len(self._confusion) else counted

    def done(self) -> Evaluation:
        """What was counted."""
        correct = self._correct.numpy() if self._kind == "classification" else None
        counts = self._count.numpy(), self._loss.numpy()
        rows = torch.cat(self._answers).numpy(), torch.cat(self._losses).numpy()
        outputs = torch.cat(self._outputs[1:]).numpy() if self._keep else self._outputs[0].numpy()
        return Evaluation(*counts, correct, self._confusion.numpy(), self._sums.numpy(), *rows, outputs)
