"""Evaluation: several models on the same rows, counted per cell.

A *cell* is the label a test distribution goes by: the class, a region, a city. Counts per cell serve
every edge's and device's own test distribution, so each distinct model is evaluated once.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from queue import SimpleQueue
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from espalier.core.errors import ConfigError, TrainingError, warn
from espalier.core.params import ParamSpec
from espalier.training import chunks
from espalier.training.host import keep_pages, one_thread
from espalier.training.losses import BY_KIND, IGNORED, Loss, checked, cross_entropy, mse, resolve
from espalier.training.merged.probe import MergePlan, probe
from espalier.training.merged.replica import Replica
from espalier.training.merged.stacked import Stack, Unsupported
from espalier.training.sequential import cast, put
from espalier.training.tally import BatchCounts, Cut, Evaluation, EvaluationTally
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


class _ModelRunner:
    """A module of its own, and what computes several models' outputs with it."""

    def __init__(self, module: nn.Module, spec: ParamSpec) -> None:
        self._module, self._spec = module, spec
        self._replicas: dict[torch.dtype, Replica] = {}
        #: the models that are bound to the replica
        self._bound: list[Tensor] = []

    def outputs(self, vectors: list[Tensor], x: Tensor, plan: MergePlan | None) -> Tensor:
        """Return the models' outputs of inputs, ``[K, n, ...]`` each; without a plan one after the other."""
        with torch.no_grad(), one_thread():
            if plan is None:
                return torch.stack([self._alone(*one) for one in zip(vectors, x, strict=True)])
            out = self._bind(vectors, plan).forward(x.flatten(0, 1), len(vectors))
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
        batch: Rows that are computed at once.
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
        self._kind, self._cells, self.batch = kind, n_cells, batch
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
        elsewhere: Callable[[Sequence[Tensor], Sequence[Cut]], Iterator[BatchCounts]] | None = None,
    ) -> list[Evaluation]:
        """Evaluate every vector on the rows, ``cells[i]`` being the cell of ``rows[i]``.

        Rows ``[len(vectors), n]`` are each vector's own. A vector given several times (the same object) is computed
        once for common rows. With ``each``, what became of each row is kept, so that any part of the rows can be judged
        without evaluating again; ``outputs`` keeps the outputs. Every row's outputs are multiplied by ``factor`` and
        ``offset [C]`` (a log prior) is added to them. ``elsewhere`` takes the place of :meth:`counted`: it is given the
        distinct vectors and the cuts.
        """
        if cells.shape != rows.shape:
            raise TrainingError(f"cells has {cells.size} entries for {rows.size} rows; one cell per row is accepted.")
        if cells.size and not 0 <= int(cells.min()) <= int(cells.max()) < self._cells:
            raise TrainingError(f"cells lie in [{cells.min()}, {cells.max()}]; 0 to {self._cells - 1} is accepted.")
        self._check(vectors, rows)
        wanted = [id(v) if rows.ndim == 1 else place for place, v in enumerate(vectors)]
        distinct = dict(zip(wanted, vectors, strict=True))
        keys, chosen = list(distinct), list(distinct.values())
        cuts = self._cuts(len(chosen), rows.shape[-1])
        if elsewhere is None:
            counted = self.counted(
                chosen, pool, rows, cells, cuts, each=each, outputs=outputs, factor=factor, offset=offset
            )
        else:
            counted = elsewhere(chosen, cuts)
        done: dict[int, Evaluation] = {}
        tally, models = EvaluationTally(0, self._cells), range(0)
        for (these, cut), counts in zip(cuts, counted, strict=True):
            if these != models:
                done |= zip([keys[m] for m in models], tally.done(), strict=True)
                tally, models = EvaluationTally(len(these), self._cells, each), these
            tally.add(counts, torch.from_numpy(np.asarray(_part(cells, these, cut), dtype=np.int64)))
        done |= zip([keys[m] for m in models], tally.done(), strict=True)
        return [done[key] for key in wanted]

    def counted(
        self,
        vectors: Sequence[Tensor],
        pool: Pool,
        rows: NDArray[np.int64],
        cells: NDArray[np.int64],
        cuts: Sequence[Cut],
        *,
        each: bool = False,
        outputs: bool = False,
        factor: float = 1.0,
        offset: Tensor | None = None,
    ) -> Iterator[BatchCounts]:
        """Yield what is counted of each cut, as :meth:`run` adds it up."""
        for models, cut, found, y in self._outputs(vectors, pool, rows, cuts):
            found = found if offset is None else factor * found + offset.to(found)
            where = torch.from_numpy(np.asarray(_part(cells, models, cut)))
            yield self._counts(len(models), found, y, where, each, outputs)

    def _counts(self, models: int, outputs: Tensor, y: Tensor, cells: Tensor, each: bool, keep: bool) -> BatchCounts:
        """Count a batch: outputs and targets ``[K, n, ...]``, cells ``[n]`` or ``[K, n]``."""
        losses, kept = self._losses(outputs, y), outputs.float() if keep else None
        values = None
        if self._values:
            values = torch.stack(
                [torch.cat([m(*one).double() for m in self._values], 1) for one in zip(outputs, y, strict=True)]
            )
        if self._kind == "regression":
            return BatchCounts(losses, values, outputs=kept)
        places, classes = torch.arange(models).view(-1, 1) * self._cells + cells, outputs.shape[2]
        answers, correct = outputs.argmax(2), None
        if self._kind == "classification":
            correct = torch.bincount(places[answers == y], minlength=models * self._cells)
            shape, places = [models, self._cells, classes], places * classes + answers
        else:
            shape = [models, self._cells, classes, classes]
            places = (places.view(models, -1, 1, 1) * classes * classes + y * classes + answers)[y != IGNORED]
        confusion = torch.bincount(places.flatten(), minlength=math.prod(shape)).view(shape)
        shown = answers.int() if each and self._kind == "classification" else None
        return BatchCounts(losses, values, correct, confusion, shown, kept)

    def mean_loss(self, vectors: Sequence[Tensor], pool: Pool, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Mean loss of every vector over the rows, ``[len(vectors)]``."""
        sums = np.zeros(len(vectors))
        for models, _, outputs, y in self._all_outputs(vectors, pool, rows):
            sums[models] += self._losses(outputs, y).double().sum(1).numpy()
        return sums / len(rows)

    def logits(self, vectors: Sequence[Tensor], pool: Pool, rows: NDArray[np.int64]) -> Tensor:
        """Outputs of every vector on the rows, ``[len(vectors), len(rows), ...]``."""
        parts: dict[int, list[Tensor]] = {i: [] for i in range(len(vectors))}
        for models, _, outputs, _ in self._all_outputs(vectors, pool, rows):
            for place, model in enumerate(models):
                parts[model].append(outputs[place])
        return torch.stack([torch.cat(p) for p in parts.values()])

    def _losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Loss per model and sample ``[K, n]`` of outputs ``[K, n, ...]``."""
        with torch.no_grad():  # a loss may have parameters of its own
            if self._loss is cross_entropy and outputs.dim() == 3:
                return cross_entropy(outputs.flatten(0, 1), y.flatten()).view(len(outputs), -1)
            return torch.stack([checked(self._loss(*one), y.shape[1]) for one in zip(outputs, y, strict=True)])

    def _check(self, vectors: Sequence[Tensor], rows: NDArray[np.int64]) -> None:
        if rows.size == 0:
            raise TrainingError("rows is empty; an evaluation needs at least one row.")
        for number, vector in enumerate(vectors):
            if vector.shape != (self._spec.size,):
                raise TrainingError(
                    f"Vector {number} has shape {tuple(vector.shape)}; ({self._spec.size},) is accepted for this model."
                )

    def _cuts(self, models: int, rows: int) -> list[Cut]:
        """Return what is computed together: some models on a batch of rows."""
        size = min(_MOST_MODELS, chunks.size_for(self._spec))
        return [
            (range(first, min(first + size, models)), slice(at, min(at + self.batch, rows)))
            for first in range(0, models, size)
            for at in range(0, rows, self.batch)
        ]

    def _all_outputs(
        self, vectors: Sequence[Tensor], pool: Pool, rows: NDArray[np.int64]
    ) -> Iterator[tuple[range, slice, Tensor, Tensor]]:
        self._check(vectors, rows)
        return self._outputs(vectors, pool, rows, self._cuts(len(vectors), len(rows)))

    def _outputs(
        self, vectors: Sequence[Tensor], pool: Pool, rows: NDArray[np.int64], tasks: Sequence[Cut]
    ) -> Iterator[tuple[range, slice, Tensor, Tensor]]:
        """Yield models' indices, a slice of the rows, outputs and targets ``[K, n, ...]``."""
        index = np.asarray(rows, dtype=np.int64)
        plan = self._plan(vectors[0].dtype, pool, torch.from_numpy(index.reshape(-1))) if tasks else None

        def compute(models: range, cut: slice) -> tuple[Tensor, Tensor]:
            chosen = [vectors[m] for m in models]
            runner = self._idle.get()
            try:
                part = torch.from_numpy(_part(index, models, cut))
                found = (cast(t, chosen[0].dtype) for t in pool.gather(part.flatten()))
                # rows that all have in common are not copied
                x, y = (t.view(-1, part.shape[-1], *t.shape[1:]).expand(len(models), *[-1] * t.dim()) for t in found)
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
                name = type(self._module).__name__
                warn(f"{name} is evaluated one model at a time: {refusal}. The results are the same.", FallbackWarning)
            else:
                self._plans[dtype] = plan
        return self._plans.get(dtype) if self.batched else None


def _part(rows: NDArray[np.int64], models: range, cut: slice) -> NDArray[np.int64]:
    """Return a part of some models' common rows ``[n]``, or of their own ``[K, n]``."""
    return rows[cut] if rows.ndim == 1 else rows[models.start : models.stop, cut]
