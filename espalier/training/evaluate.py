"""Evaluation: several models on the same rows, counted per cell.

A *cell* is the label a test distribution goes by: the class, a region, a city. Counts per cell serve
every edge's and device's own test distribution, so each distinct model is evaluated once.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from espalier.core.errors import ConfigError, TrainingError
from espalier.core.params import ParamSpec
from espalier.training import chunks
from espalier.training.host import keep_pages, one_thread
from espalier.training.losses import BY_KIND, IGNORED, Loss, checked, cross_entropy, mse, resolve
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


def _own_values(name: str, metric: Metric, outputs: Tensor, y: Tensor) -> Tensor:
    """Return a user's metric of each sample ``[n, 1]``; refuse one that gives something else."""
    try:
        found = torch.as_tensor(metric(outputs, y))
    except Exception as error:  # the user's own code may raise anything
        raise TrainingError(f"The metric {name!r} failed: {type(error).__name__}: {error}") from error
    if found.shape != (len(y),):
        raise TrainingError(
            f"The metric {name!r} gave shape {tuple(found.shape)} for {len(y)} samples; one number per sample is "
            "accepted in task.sample_metrics (one number for all: task.metrics)."
        )
    return found.unsqueeze(1)


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


class _ModelRunner:
    """A module of its own, and what computes several models' outputs with it."""

    def __init__(self, module: nn.Module, spec: ParamSpec) -> None:
        self._module, self._spec = module, spec
        self._replicas: dict[torch.dtype, Replica] = {}
        #: the models that are bound to the replica
        self._bound: list[Tensor] = []

    def outputs(self, vectors: list[Tensor], x: Tensor, plan: MergePlan | None) -> Tensor:
        """Return the models' outputs ``[K, n, ...]`` of inputs ``[n, ...]``; without a plan one after the other."""
        with torch.no_grad(), one_thread():
            if plan is None:
                return torch.stack([self._alone(v, x) for v in vectors])
            merged = x.unsqueeze(0).expand(len(vectors), *x.shape).flatten(0, 1)
            out = self._bind(vectors, plan).forward(merged, len(vectors))
            return torch.unflatten(out, 0, (len(vectors), -1))

    def forget(self) -> None:
        """Let the models go that were evaluated last."""
        self._bound = []

    def _alone(self, vector: Tensor, x: Tensor) -> Tensor:
        module = self._module.to(vector.dtype)
        put(module, self._spec, vector)
        out: Tensor = module(x)
        return out

    def _bind(self, vectors: list[Tensor], plan: MergePlan) -> Replica:
        dtype = vectors[0].dtype
        if dtype not in self._replicas:
            self._replicas[dtype] = Replica(self._module, self._spec, dtype, training=False, plan=plan.calls)
        replica = self._replicas[dtype]
        if len(self._bound) != len(vectors) or any(a is not b for a, b in zip(self._bound, vectors, strict=True)):
            replica.bind(Stack(self._spec, vectors).views(len(vectors)), {})
            self._bound = vectors
        return replica


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
        own: Mapping[str, Metric] | None = None,
        last: Metric | None = None,
        loss: Loss | None = None,
        workers: int = 1,
    ) -> None:
        """Prepare to evaluate a module, which is copied and never changed.

        Args:
            module: The model.
            kind: What its outputs are.
            n_cells: Number of cells.
            batch: Rows computed at once, for every model of a chunk.
            metric: Regression: ``(outputs, y) -> per-sample metrics [n, m]``; the squared error by default.
            own: The user's metrics of samples by name, ``(outputs, y) -> [n]``, summed after it (of any kind).
            last: ``(outputs, y) -> [n, m]``, summed after all others.
            loss: The loss that is summed; by default the kind's own.
            workers: Batches computed at the same time, each in a thread of its own; figures do not depend on it.
        """
        if kind not in BY_KIND:
            raise ConfigError(f"kind is {kind!r}; accepted: {', '.join(repr(k) for k in BY_KIND)}.")
        if n_cells < 1 or batch < 1:
            raise ConfigError(f"n_cells is {n_cells} and batch is {batch}; positive numbers are accepted.")
        self._module = copy.deepcopy(module).eval()
        self._spec = ParamSpec.of(self._module)
        self._kind, self._cells, self._batch = kind, n_cells, batch
        values: list[Metric] = [metric or squared_error] if kind == "regression" else []
        values += [partial(_own_values, name, one) for name, one in (own or {}).items()]
        self._values = values if last is None else [*values, last]
        self._loss = resolve(loss or BY_KIND[kind])
        self._plans: dict[torch.dtype, MergePlan] = {}
        self._workers = workers
        self._runners = [_ModelRunner(copy.deepcopy(self._module), self._spec) for _ in range(workers)]
        self._idle: SimpleQueue[_ModelRunner] = SimpleQueue()
        for runner in self._runners:
            self._idle.put(runner)
        self._threads = ThreadPoolExecutor(workers, "espalier-evaluator") if workers > 1 else None
        self.batched = True
        keep_pages()

    def close(self) -> None:
        """End the worker threads; an evaluator that is simply dropped ends them too."""
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)

    def run(
        self,
        vectors: Sequence[Tensor],
        pool: Pool,
        rows: NDArray[np.int64],
        cells: NDArray[np.int64],
        *,
        each: bool = False,
        outputs: bool = False,
        factor: float = 1.0,
        offset: Tensor | None = None,
    ) -> list[Evaluation]:
        """Evaluate every vector on the rows, ``cells[i]`` being the cell of ``rows[i]``.

        A vector given several times (the same object) is computed once. With ``each``, what became of each row is
        kept, so that any part of the rows can be judged without evaluating again; ``outputs`` keeps the outputs.
        Every row's outputs are multiplied by ``factor`` and ``offset [C]`` (a log prior) is added to them.
        """
        if len(cells) != len(rows):
            raise TrainingError(f"cells has {len(cells)} entries for {len(rows)} rows; one cell per row is accepted.")
        if len(cells) and not 0 <= int(cells.min()) <= int(cells.max()) < self._cells:
            raise TrainingError(f"cells lie in [{cells.min()}, {cells.max()}]; 0 to {self._cells - 1} is accepted.")
        distinct = {id(v): v for v in vectors}
        keys = list(distinct)
        done: dict[int, Evaluation] = {}
        tally, counted = _Tally(0, self._kind, self._cells, self._values, each, outputs), range(0)
        for models, cut, found, y in self._outputs(list(distinct.values()), pool, rows):
            if models != counted:
                done |= zip([keys[m] for m in counted], tally.done(), strict=True)
                tally, counted = _Tally(len(models), self._kind, self._cells, self._values, each, outputs), models
            found = found if offset is None else factor * found + offset.to(found)
            tally.add(found, y, torch.from_numpy(np.asarray(cells[cut], dtype=np.int64)), self._losses(found, y))
        done |= zip([keys[m] for m in counted], tally.done(), strict=True)
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
            if self._loss is cross_entropy and outputs.dim() == 3:
                return cross_entropy(outputs.flatten(0, 1), y.repeat(len(outputs))).view(len(outputs), -1)
            return torch.stack([checked(self._loss(one, y), len(y)) for one in outputs])

    def _outputs(
        self, vectors: Sequence[Tensor], pool: Pool, rows: NDArray[np.int64]
    ) -> Iterator[tuple[range, slice, Tensor, Tensor]]:
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
        tasks = [
            (range(first, min(first + size, len(vectors))), slice(at, min(at + self._batch, len(rows))))
            for first in range(0, len(vectors), size)
            for at in range(0, len(rows), self._batch)
        ]
        plan = self._plan(vectors[0].dtype, pool, index) if tasks else None

        def compute(models: range, cut: slice) -> tuple[Tensor, Tensor]:
            chosen = [vectors[m] for m in models]
            runner = self._idle.get()
            try:
                x, y = (cast(t, chosen[0].dtype) for t in pool.gather(index[cut]))
                return runner.outputs(chosen, x, plan), y
            finally:
                self._idle.put(runner)

        try:
            for (models, cut), (outputs, y) in zip(tasks, self._computed(compute, tasks), strict=True):
                yield models, cut, outputs, y
        finally:
            for runner in self._runners:
                runner.forget()

    def _computed(
        self, compute: Callable[[range, slice], tuple[Tensor, Tensor]], tasks: Sequence[tuple[range, slice]]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield what tasks give, in their order, keeping every worker busy and no more than that ahead."""
        if self._threads is None or len(tasks) == 1:
            yield from (compute(*task) for task in tasks)
            return
        waiting: deque[Future[tuple[Tensor, Tensor]]] = deque()
        try:
            for task in tasks:
                waiting.append(self._threads.submit(compute, *task))
                if len(waiting) > 2 * self._workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
            wait(waiting)

    def _plan(self, dtype: torch.dtype, pool: Pool, rows: Tensor) -> MergePlan | None:
        """How to compute models together; None to compute them one after the other."""
        if self.batched and dtype not in self._plans:
            x, y = pool.gather(rows[:16])
            try:
                with one_thread():
                    plan = probe(self._module, self._spec, None, x, y, dtype)
                    Replica(self._module, self._spec, dtype, training=False, plan=plan.calls)
            except Unsupported as refusal:
                self.batched = False
                warnings.warn(
                    f"{type(self._module).__name__} is evaluated one model at a time: {refusal}. "
                    "The results are the same.",
                    FallbackWarning,
                    stacklevel=2,
                )
            else:
                self._plans[dtype] = plan
        return self._plans.get(dtype) if self.batched else None


class _Tally:
    """Counts of some models, batch by batch."""

    def __init__(
        self, models: int, kind: Kind, cells: int, values: Sequence[Metric], each: bool, outputs: bool
    ) -> None:
        self._models, self._kind, self._cells, self._values = models, kind, cells, values
        self._each, self._keep = each, outputs
        self._outputs: list[Tensor] = []
        self._answers: list[Tensor] = [torch.zeros(models, 0, dtype=torch.int32)]
        self._losses: list[Tensor] = [torch.zeros(models, 0)]
        self._count = torch.zeros(cells, dtype=torch.int64)
        self._loss = torch.zeros(models * cells, dtype=torch.float64)
        self._correct = torch.zeros(models * cells, dtype=torch.int64)
        self._confusion = torch.zeros(models, 0, dtype=torch.int64)
        self._sums = torch.zeros(models, 0, dtype=torch.float64)

    def add(self, outputs: Tensor, y: Tensor, cells: Tensor, losses: Tensor) -> None:
        """Count a batch: outputs ``[K, n, ...]``, targets ``[n, ...]``, cells ``[n]`` and losses ``[K, n]``."""
        self._count += torch.bincount(cells, minlength=self._cells)
        # model k's cell c is place k * cells + c, so that each adds its rows in their order
        owner = torch.arange(self._models).view(-1, 1)
        places = owner * self._cells + cells
        self._loss.index_add_(0, places.flatten(), losses.double().flatten())
        if self._each:
            self._losses.append(losses.float())
        if self._keep:
            self._outputs.append(outputs.float())
        if self._values:
            values = torch.stack([torch.cat([m(one, y).double() for m in self._values], 1) for one in outputs])
            if not self._sums.numel():
                self._sums = torch.zeros(self._models, self._cells, values.shape[2], dtype=torch.float64)
            self._sums.flatten(0, 1).index_add_(0, places.flatten(), values.flatten(0, 1))
        if self._kind == "regression":
            return
        classes = outputs.shape[2]
        answers = outputs.argmax(2)
        if self._kind == "classification":
            self._correct += torch.bincount(places[answers == y], minlength=len(self._correct))
            if self._each:
                self._answers.append(answers.int())
            shape, places = [self._models, self._cells, classes], places * classes + answers
        else:
            shape = [self._models, self._cells, classes, classes]
            places = (places.view(self._models, -1, 1, 1) * classes * classes + y * classes + answers)[:, y != IGNORED]
        counted = torch.bincount(places.flatten(), minlength=math.prod(shape)).view(shape)
        self._confusion = self._confusion + counted if self._confusion.numel() else counted

    def done(self) -> list[Evaluation]:
        """What was counted, model by model."""
        return [self._done(k) for k in range(self._models)]

    def _done(self, model: int) -> Evaluation:
        correct = self._correct.view(self._models, -1)[model].numpy() if self._kind == "classification" else None
        loss = self._loss.view(self._models, -1)[model].numpy()
        outputs = torch.cat([part[model] for part in self._outputs]) if self._keep else torch.zeros(0)
        return Evaluation(
            self._count.numpy(), loss, correct, self._confusion[model].numpy(), self._sums[model].numpy(),
            torch.cat([part[model] for part in self._answers]).numpy(),
            torch.cat([part[model] for part in self._losses]).numpy(), outputs.numpy(),
        )  # fmt: skip
