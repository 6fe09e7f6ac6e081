"""What runs on a worker: the data and the model, held once, and batches of jobs computed from them.

Nothing here knows Ray. A worker computes jobs by the code that a run without workers uses, so a result does not
depend on where it was computed; what crosses between processes is numpy, which the object store shares without copies.
"""

from __future__ import annotations

import math
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from espalier._version import __version__
from espalier.core.store import Ref
from espalier.data.dataset import Dataset
from espalier.data.partition import Partition
from espalier.scale.batches import Batch, SumNode
from espalier.scale.shards import ShardedPool, ShardLayout, ShardName
from espalier.settings import Training
from espalier.simulator.dataviews import Look, Part, Views
from espalier.simulator.jobs import Job, Outcome
from espalier.simulator.reduction import FAN, PartialSum, RunningMerge, is_finite
from espalier.simulator.task import Task
from espalier.training.native import kernels

Array = NDArray[Any]
#: a node's partial sum as it is sent: total, whole or not, coefficient and integer buffers
SentSum = tuple[Array | None, bool, tuple[float, Array] | None]
#: what is left of a sum: a node's partial sum, or the model of a single term
Piece = SentSum | Array
PARTS: tuple[Part, Part] = ("train", "test")


@dataclass(frozen=True, eq=False)
class Holding:
    """All that jobs have in common, as it goes to every worker once.

    Samples are not among it: they come in shards, with the calls that need them.

    Attributes:
        dataset: The dataset but for its samples.
        first: The first input and target, for their shapes.
        layouts: Where training and test rows lie in shards.
        partition: Who holds which rows; what only the driver needs is left out.
        flip: What labels read to an attacker that flips them.
        module: The model.
        figures: The loss, and what is measured besides: arguments of `Task`.
        training: How devices train.
        seed: The run's seed.
        device: What trains.
    """

    dataset: dict[str, Any]
    first: tuple[Array, Array]
    layouts: tuple[ShardLayout, ShardLayout]
    partition: Partition
    flip: NDArray[np.int64] | None
    module: nn.Module
    figures: dict[str, Any]
    training: Training
    seed: int
    device: str

    @staticmethod
    def of(task: Task, views: Views, seed: int, layouts: tuple[ShardLayout, ShardLayout]) -> Holding:
        """Take what workers need of a run."""
        data = task.dataset
        about = {"name": data.name, "kind": data.kind, "n_classes": data.n_classes, "n_cells": data.n_cells}
        part = views.partition
        part = replace(
            part, histogram=part.histogram[:0], test_mix=part.test_mix[:0], validation=None, device_tests=None, names=()
        )
        return Holding(
            {**about, "cell_train": data.cell_train, "cell_test": data.cell_test},
            (data.x_train[:1].numpy(), data.y_train[:1].numpy()), layouts, part, views.flip, task.module,
            {**task.figures, "loss": task.loss}, task.training, seed, task.device,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TrainCall:
    """A batch as it is sent: its jobs, its nodes, and how the devices' data look.

    Attributes:
        batch: Names and nodes.
        jobs: The jobs, in the batch's order.
        models: Names of the models that come with the call, in the order they come.
        memories: Names of the optimiser states that come after them.
        looks: Every look there is so far; a job carries a number of one.
        shards: The shards of samples that come last, by part and number.
    """

    batch: Batch
    jobs: tuple[Job, ...]
    models: tuple[int, ...]
    memories: tuple[int, ...]
    looks: tuple[Look, ...]
    shards: tuple[ShardName, ...]


@dataclass(frozen=True, slots=True)
class PortionCall:
    """A portion of something as it is sent; its models come with it, and then its shards.

    Attributes:
        function: What is to be computed (:class:`~espalier.simulator.portions.Portion`).
        args: What else it takes.
        models: How many models come.
        looks: Every look there is so far.
        shards: The shards that come last, by part and number.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    models: int
    looks: tuple[Look, ...]
    shards: tuple[ShardName, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What comes back.

    Attributes:
        losses: Mean training losses, float64 ``[jobs]``.
        finite: Whether the jobs' models are finite, ``[jobs]``.
        vectors: Models that are in no node, by name.
        memories: Optimiser states that were to be kept, by name.
        parts: The nodes' partial sums, in their order: total, whole or not, coefficient and integer buffers.
        why_not: Why clients do not train merged, or None.
    """

    losses: NDArray[np.float64]
    finite: NDArray[np.bool_]
    vectors: dict[int, Array]
    memories: dict[int, Array]
    parts: tuple[SentSum, ...]
    why_not: str | None


@dataclass(frozen=True, slots=True)
class JoinCall:
    """A sum whose pieces are to be added up.

    Attributes:
        terms: Coefficients, and whether the models are finite.
        counts: How many terms each piece has.
    """

    terms: tuple[tuple[float, bool], ...]
    counts: tuple[int, ...]


class BatchWorker:
    """Computes batches of one run's jobs."""

    def __init__(self, holding: Holding) -> None:
        about = dict(holding.dataset)
        for part in PARTS:  # of the right shapes: samples come with calls
            for name, one in zip("xy", holding.first, strict=True):
                about[f"{name}_{part}"] = tensor(one).expand(len(about[f"cell_{part}"]), *one.shape[1:])
        dataset = Dataset(**about)
        self.task = Task(dataset, holding.module, holding.training, device=holding.device, **holding.figures)
        self._pools = {part: ShardedPool(layout) for part, layout in zip(PARTS, holding.layouts, strict=True)}
        self.views = Views(dataset, holding.partition, holding.seed, (self._pools["train"], self._pools["test"]))
        self.views.flip = holding.flip
        self._compute = self.task.computer_here(holding.seed, self.views)

    @contextmanager
    def _at_hand(self, call: TrainCall | PortionCall, shards: Sequence[Any]) -> Iterator[None]:
        """Have a call's samples, and no longer than it takes: the object store can then let them go."""
        if len(call.looks) > len(self.views.looks):
            self.views.restore(list(call.looks))
        for part, pool in self._pools.items():
            here = [(n, s) for (of, n), s in zip(call.shards, shards, strict=True) if of == part]
            pool.hold((number, (tensor(x), tensor(y))) for number, (x, y) in here)
        try:
            yield
        finally:
            for pool in self._pools.values():
                pool.hold(())

    def portion(self, call: PortionCall, *arrays: Any) -> bytes:
        """Compute a portion; ``arrays`` are its models and then its shards. What it gives comes pickled."""
        models = [tensor(array) for array in arrays[: call.models]]
        with self._at_hand(call, arrays[call.models :]):
            return pickle.dumps(call.function(self.task, self.views, models, *call.args), pickle.HIGHEST_PROTOCOL)

    def train(self, call: TrainCall, *arrays: Any) -> tuple[Answer, *tuple[Piece, ...]]:
        """Compute a batch; ``arrays`` are the call's models, then its optimiser states, then its shards.

        Returns:
            What comes back, and the pieces of sums that are left to be joined.
        """
        vectors = arrays[: len(call.models) + len(call.memories)]
        with self._at_hand(call, arrays[len(vectors) :]):
            return self._trained(call, *vectors)

    def _trained(self, call: TrainCall, *arrays: Array) -> tuple[Answer, *tuple[Piece, ...]]:
        names = call.batch.names
        models = {n: tensor(a) for n, a in zip(call.models, arrays, strict=False)}
        memories = {n: tensor(a) for n, a in zip(call.memories, arrays[len(models) :], strict=True)}
        here, left = call.batch.nodes, call.batch.left
        adding = _Adding((*here, *(node for node in left if len(node.terms) > 1)), self.task)
        single = {node.terms[0][1] for node in left if len(node.terms) == 1}
        losses, finite, vectors, kept = np.full(len(names), math.nan), np.zeros(len(names), bool), {}, {}
        for place, (name, outcome) in enumerate(zip(names, self._outcomes(call, models, memories), strict=True)):
            losses[place] = outcome.loss
            if outcome.optimizer_state is not None:
                kept[name] = outcome.optimizer_state.numpy()
            if adding.wants(name):
                finite[place] = adding.take(name, outcome.vector)
            else:
                finite[place] = name not in single or is_finite(outcome.vector)
                vectors[name] = outcome.vector.numpy()
        parts = adding.parts()
        sums = iter(parts[len(here) :])
        pieces: list[Piece] = [next(sums) if len(n.terms) > 1 else vectors.pop(n.terms[0][1]) for n in left]
        return Answer(losses, finite, vectors, kept, parts[: len(here)], self.task.trainer.why_not), *pieces

    def join(self, call: JoinCall, *pieces: Piece) -> Array | None:
        """Add up the pieces of a sum, in order; return the finished model (None: every term was left out)."""
        running, at = RunningMerge(self.task.spec, len(call.terms)), 0
        for count, piece in zip(call.counts, pieces, strict=True):
            if isinstance(piece, tuple):
                for coefficient, good in call.terms[at : at + count - 1]:
                    running.count(coefficient, good)
                running.count(*call.terms[at + count - 1], received(piece, count, self.task.dtype))
            else:
                running.add([call.terms[at][0]], [tensor(piece)])
            at += count
        return None if running.empty else running.result(None).numpy()

    def _outcomes(
        self, call: TrainCall, models: Mapping[int, Tensor], memories: Mapping[int, Tensor]
    ) -> Iterator[Outcome]:
        def vector(ref: Ref) -> Tensor:
            return models[int(ref)]

        def optimizer_state(ref: Ref) -> Tensor | None:
            return memories.get(int(ref))

        return self._compute(call.jobs, vector, optimizer_state)


class WorkerActor:
    """The actor: empty until a worker is put there, so that a failure to set one up is reported, not just a death."""

    _worker: BatchWorker

    def set_up(self, holding: Holding) -> dict[str, str]:
        """Set up the worker; return what its numbers depend on."""
        self._worker = BatchWorker(holding)
        return arithmetic()

    def portion(self, call: PortionCall, *arrays: Any) -> bytes:
        """Compute a portion."""
        return self._worker.portion(call, *arrays)

    def train(self, call: TrainCall, *arrays: Any) -> Answer | tuple[Answer, *tuple[Piece, ...]]:
        """Compute a batch; what is left to be joined is returned beside the answer, if there is any."""
        found = self._worker.train(call, *arrays)
        return found if call.batch.left else found[0]

    def join(self, call: JoinCall, *pieces: Piece) -> Array | None:
        """Add up the pieces of a sum."""
        return self._worker.join(call, *pieces)


class _Adding:
    """The nodes of a batch in the making; a model is dropped once every node that wants it has it."""

    def __init__(self, nodes: tuple[SumNode, ...], task: Task) -> None:
        self._nodes = nodes
        self._running = [RunningMerge(task.spec, node.of) for node in nodes]
        self._users: dict[int, list[int]] = {}
        for number, node in enumerate(nodes):
            for name in {name for _, name in node.terms}:
                self._users.setdefault(name, []).append(number)
        self._waiting: dict[int, Tensor] = {}
        self._uses = {name: len(users) for name, users in self._users.items()}

    def wants(self, name: int) -> bool:
        """Tell whether nodes take the model of a job."""
        return name in self._users

    def take(self, name: int, vector: Tensor) -> bool:
        """Add a model to the nodes that want it; return whether it is finite, and so was added."""
        self._waiting[name] = vector
        for number in self._users[name]:
            self._advance(number)
        return is_finite(vector)

    def _advance(self, number: int) -> None:
        """Add the terms that wait for a node, by eights: they are added together."""
        node, running = self._nodes[number], self._running[number]
        first = stop = running.next
        while stop < len(node.terms) and node.terms[stop][1] in self._waiting:
            stop += 1
        if stop < len(node.terms):
            stop -= stop % FAN
        if stop <= first:
            return
        terms = node.terms[first:stop]
        running.add([coefficient for coefficient, _ in terms], [self._waiting[name] for _, name in terms])
        for place, (_, name) in enumerate(terms, first + 1):
            if place == len(node.terms) or node.terms[place][1] != name:
                self._uses[name] -= 1
                if not self._uses[name]:
                    del self._waiting[name]

    def parts(self) -> tuple[SentSum, ...]:
        """Return the finished nodes."""
        return tuple(_sent(running.part()) for running in self._running)


def arithmetic() -> dict[str, str]:
    """Return what the last bits of a result depend on, besides the job: machines that agree in it agree in them."""
    return {
        "espalier": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
        "native kernels": "no" if kernels() is None else "yes",
    }


def _sent(part: PartialSum) -> SentSum:
    total = None if part.total is None else part.total.numpy()
    return total, part.whole, None if part.tail is None else (part.tail[0], part.tail[1].numpy())


def received(part: SentSum, terms: int, dtype: torch.dtype) -> PartialSum:
    """Return a part as it was before it was sent; a whole sum's model is copied, for it is kept."""
    total, whole, tail = part
    sums = None if total is None else tensor(total)
    if whole and sums is not None:
        sums = sums.clone()
    return PartialSum(terms, sums, whole, dtype, None if tail is None else (tail[0], tensor(tail[1])))


def tensor(array: Array) -> Tensor:
    """Return an array as a tensor without a copy; what the object store shares must not be written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)
