"""What a node does with its own data: train, measure statistics, score models.

A :class:`NodeTrainer` is called from one worker thread. :class:`ArrayTrainer` is the project's trainer on the node's
arrays; `espalier.fleet.node.clients` wraps a user's own code.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from espalier.core.address import Address, host_of
from espalier.core.errors import ConfigError, DataError
from espalier.core.messages import LocalWork
from espalier.core.seeds import key, torch_seed
from espalier.core.serving import proportions, smoothed, temper
from espalier.core.statistics import statistic
from espalier.core.store import Ref
from espalier.fleet.coordinator.manifest import Manifest
from espalier.fleet.node.data import Holdings, Test
from espalier.fleet.node.journal import Journal
from espalier.fleet.node.store import EagerStore
from espalier.policies.privacy import privatise
from espalier.training import metrics as whole
from espalier.training.evaluate import Evaluator
from espalier.training.localdata import PooledData
from espalier.training.losses import BY_KIND, label_offset, resolve
from espalier.training.metrics import figure_names, figures
from espalier.training.models import build
from espalier.training.tally import Evaluation
from espalier.training.trainer import Trainer


@dataclass(frozen=True, eq=False)
class TrainingRequest:
    """A training that a node asked for, with its vectors."""

    device: int
    number: int
    work: LocalWork[Tensor]


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """What a training left: the model, its mean loss, the optimiser's state, and the mini-batches it took."""

    vector: Tensor
    loss: float
    memory: Tensor | None = None
    batches: int = 0


def private(learnt: TrainingResult, start: Tensor, clip: float, noise: float, n_float: int) -> TrainingResult:
    """Clip a training's change and put noise on it, before anybody else sees it.

    The noise is the system's: whoever knows the run's seed must not be able to take it away again.
    """
    noisy = privatise(learnt.vector[:n_float], start[:n_float], clip, noise, system_rng())
    return replace(learnt, vector=torch.cat([noisy, learnt.vector[n_float:]]))


def system_rng() -> np.random.Generator:
    """Return a generator that nobody else can repeat."""
    return np.random.default_rng(secrets.randbits(256))


class NodeTrainer:
    """A node's data and what it can do with them: here none, and nothing, as at an edge, which merges and passes on."""

    samples = 0

    def train(self, request: TrainingRequest) -> TrainingResult:
        """Train on the node's own samples."""
        raise DataError("This node has no samples to train on.")

    def probe(self) -> float:
        """Return the seconds of a mini-batch, as measured now (0: it cannot be told)."""
        return 0.0

    def trial(self, device: int, epochs: int) -> float:
        """Return the share of right answers after so many local epochs from the initial model."""
        raise DataError("This node cannot try the initial model out: that takes the project's own trainer.")

    def measure(self, what: str, vectors: Sequence[Tensor], args: dict[str, Any], rng: np.random.Generator) -> Any:
        """Compute a statistic of the node's own samples."""
        raise DataError("This node has no samples to measure.")

    def score(self, vectors: Sequence[Tensor], where: str) -> list[dict[str, float]]:
        """Score models on the node's ``"test"`` or ``"personal"`` set; an empty list if it has none."""
        return []

    def initial(self, seed: int, index: int) -> Tensor:
        """Return the ``index``-th initial model of a run."""
        raise DataError("This node cannot make the run's initial models: that takes the project's own trainer.")


class ArrayTrainer(NodeTrainer):
    """The project's own trainer on arrays in memory."""

    def __init__(
        self,
        manifest: Manifest,
        holdings: Holdings,
        allowed: Sequence[str] = (),
        metrics: Sequence[str] = (),
        sample_metrics: Sequence[str] = (),
    ) -> None:
        """Build the model that the manifest names.

        Args:
            manifest: What the fleet does.
            holdings: This node's data.
            allowed: Code of the user's own (``package.module:name``) that may be imported here.
            metrics: What is measured of a whole test set, besides what is measured anyway.
            sample_metrics: The same, a mean over samples.
        """
        card = manifest.card
        measured = {path: "task.metrics" for path in (*metrics, *sample_metrics) if ":" in path}
        for path, what in (manifest.code | measured).items():
            if path not in allowed:
                raise ConfigError(
                    f"The fleet's {what} is {path!r}, code of its own; allow it on this node with --allow-model {path}."
                )
        self._manifest, self._held = manifest, holdings
        self._training = manifest.experiment.training
        dtype = self._training.dtype
        module = build(card.model, input_shape=card.input_shape, n_classes=card.n_classes, **card.options).to(dtype)
        self._dtype = dtype
        loss = resolve(card.loss or BY_KIND[card.kind])
        self._trainer = Trainer(module, loss, half=self._training.half)
        figured = (*figure_names(card.kind, holdings.metric_names), "loss")
        own = whole.resolve(sample_metrics, card.kind, figured, by_sample=True)
        kind: Any = card.kind
        self._evaluator = Evaluator(module, kind, card.n_cells, metric=holdings.metric, own=own, loss=loss)
        self._summed = (*(holdings.metric_names or (("mse",) if card.kind == "regression" else ())), *own)
        self._metrics = whole.resolve(metrics, card.kind, (*figured, *own))
        self.samples = holdings.samples
        self._serve = manifest.plan().serve
        self._fits()

    def _fits(self) -> None:
        """Refuse data that are not of the fleet's task."""
        card, held = self._manifest.card, self._held
        pool, rows = (held.pool, held.rows) if held.pool is not None else (None, held.rows)
        if pool is None and held.test is not None:
            pool, rows = held.test.pool, held.test.rows
        if pool is None:
            return
        x, y = pool.gather(torch.from_numpy(np.ascontiguousarray(rows[:1])))
        if tuple(x.shape[1:]) != card.input_shape:
            raise DataError(
                f"A sample of this node has shape {tuple(x.shape[1:])}; the fleet's task has {card.input_shape}."
            )
        if card.kind == "classification":
            highest = int(pool.gather(torch.from_numpy(np.ascontiguousarray(rows)))[1].max())
            if y.ndim != 1 or highest >= card.n_classes:
                raise DataError(f"A label of this node is {highest}; the fleet's task has 0…{card.n_classes - 1}.")

    def initial(self, seed: int, index: int) -> Tensor:
        """Return the ``index``-th initial model."""
        return self._trainer.initial(torch_seed(seed, "initial", index)).to(self._dtype)

    def train(self, request: TrainingRequest) -> TrainingResult:
        """Train on the node's rows."""
        if self._held.pool is None:
            raise DataError("This node has no samples to train on.")
        seed = key(self._manifest.seed, "train", request.device, request.number)
        job = self._training.job(request.work, self._held.pool, self._held.rows, seed)
        result = next(iter(self._trainer.run([job])))
        batches = self._training.batches(self.samples, request.work.updates)
        return TrainingResult(result.vector, result.loss, result.optimizer_state, batches)

    def probe(self) -> float:
        """Time a few mini-batches."""
        if self._held.pool is None:
            return 0.0
        steps, start = 4, self.initial(self._manifest.seed, 0)
        jobs = [
            self._training.job(LocalWork(start=start, updates=n), self._held.pool, self._held.rows, 0, unit="step")
            for n in (1, steps)
        ]
        next(iter(self._trainer.run(jobs[:1])))  # the first call pays for what later ones have ready
        begun = time.perf_counter()
        next(iter(self._trainer.run(jobs[1:])))
        return (time.perf_counter() - begun) / steps

    def trial(self, device: int, epochs: int) -> float:
        """Train a model of this node's own and test it: on the samples that everybody shares, if it has them."""
        assert self._held.pool is not None
        work = LocalWork(start=self.initial(self._manifest.seed, 0), updates=epochs)
        seed = key(self._manifest.seed, "pretraining", device)
        job = self._training.job(work, self._held.pool, self._held.rows, seed, unit="epoch")
        result = next(iter(self._trainer.run([job])))
        test = self._held.trial or self._held.test or Test(self._held.pool, self._held.rows, _zeros(self._held.rows))
        found = self._evaluator.run([result.vector], test.pool, test.rows, test.cells)[0]
        return float(found.correct.sum() / found.count.sum()) if found.correct is not None else 1 / (1 + found.loss)

    def measure(self, what: str, vectors: Sequence[Tensor], args: dict[str, Any], rng: np.random.Generator) -> Any:
        """Compute a registered statistic."""
        found, held, card = statistic(what), self._held, self._manifest.card
        if held.pool is None:
            raise DataError("This node has no samples to measure.")
        local = PooledData(
            card.kind, card.n_cells, self._training.batch_size, self._evaluator, held.pool, held.rows,
            held=held.held, cells=held.cells, rng=rng,
        )  # fmt: skip
        return found.compute(local, list(vectors) if found.models else [], **args)

    def score(self, vectors: Sequence[Tensor], where: str) -> list[dict[str, float]]:
        """Score models on the test or the personal set."""
        test = self._held.personal if where == "personal" else self._held.test
        if where == "validation" and self._held.pool is not None and len(self._held.held):
            test = Test(self._held.pool, self._held.held, np.zeros(len(self._held.held), dtype=np.int64))
        if test is None or len(test.rows) == 0:
            return []
        if where == "test" and self._serve.prior != "none" and self._manifest.card.kind == "classification":
            found = [self._served(vector, test) for vector in vectors]
        else:
            found = self._evaluator.run(list(vectors), test.pool, test.rows, test.cells)
        rows = [self._figures(one, test.mix) for one in found]
        if where == "test" and self._metrics:
            y = test.pool.gather(torch.from_numpy(np.ascontiguousarray(test.rows)))[1]
            for row, vector in zip(rows, vectors, strict=True):
                row |= whole.measured(self._metrics, self._evaluator.logits([vector], test.pool, test.rows)[0], y)
        return rows

    def _served(self, vector: Tensor, test: Test) -> Evaluation:
        """Judge a model that is used with this node's label prior."""
        factor, offset = 1.0, None
        if self._serve.prior == "estimated":
            drawn = system_rng().choice(test.rows, size=self._serve.inputs, p=_row_shares(test))
            likely = self._evaluator.logits([vector], test.pool, drawn)[0].double().softmax(1)
            offset = torch.from_numpy(smoothed(proportions(likely.numpy()), self._serve.smoothing)).log()
        elif self._held.pool is not None:
            labels = self._held.pool.gather(torch.from_numpy(np.ascontiguousarray(self._held.rows)))[1]
            offset = label_offset(labels, self._manifest.card.n_classes, 1.0, self._serve.smoothing)
            factor = self._factor(vector, offset) if self._serve.prior == "validated" else 1.0
        return self._evaluator.run([vector], test.pool, test.rows, test.cells, factor=factor, offset=offset)[0]

    def _factor(self, vector: Tensor, prior: Tensor) -> float:
        """Return by what a model's answers count beside the prior, by the samples held out, else those trained on."""
        pool, held = self._held.pool, self._held.held if len(self._held.held) else self._held.rows
        assert pool is not None
        rows = np.ascontiguousarray(held[: self._serve.inputs])
        logs = self._evaluator.logits([vector], pool, rows)[0].double().log_softmax(1)
        return temper(logs.numpy(), pool.gather(torch.from_numpy(rows))[1].numpy(), prior.double().numpy())

    def _figures(self, found: Evaluation, mix: NDArray[np.float32] | None) -> dict[str, float]:
        """Return a model's figures under a test distribution ``mix [n_cells]`` (None: as the samples are)."""
        # cells are labels where there is a distribution over them
        truth = None if mix is None else np.arange(len(found.count))
        weights = found.count if mix is None else mix
        row = figures(found, weights[None], self._manifest.card.kind, self._summed, truth)
        return {name: float(values[0]) for name, values in row.items()}


def _row_shares(test: Test) -> NDArray[np.float64] | None:
    """Return how often each test row comes up under the set's distribution (None: all alike)."""
    if test.mix is None:
        return None
    weights: NDArray[np.float64] = test.mix[test.cells] / np.bincount(test.cells, minlength=len(test.mix))[test.cells]
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def _zeros(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.zeros(len(rows), dtype=np.int64)


class ModelTrials:
    """What policies want to know at once of a host's own data: how good models are, how well the data alone teach."""

    def __init__(self, me: int, trainer: NodeTrainer, store: EagerStore, journal: Journal) -> None:
        self._me, self._trainer, self._store, self._journal = me, trainer, store, journal
        #: a trainer does one thing at a time, and a policy's question comes from another thread than the worker's
        self.training = threading.Lock()

    def judge(self, refs: Sequence[Ref], where: str, node: Address, what: str) -> list[float]:
        """Evaluate models on a node's own set."""
        found: list[dict[str, float]] = []
        if host_of(node) == self._me:
            with self.training:
                found = self._trainer.score([self._store.vector(r) for r in refs], where)
        if not found:
            raise ConfigError(
                f"Node {node} has no set {where!r} to evaluate models on; give it one with --data (x_test and y_test)."
            )
        main = "loss" if what == "loss" else next(n for n in found[0] if n != "loss")
        return [f[main] for f in found]

    def pretrained(self, device: Address, epochs: int) -> float:
        """Return how well this device's data alone teach the initial model; tried out once."""
        kept = self._journal.get("pretrained") or {}
        if epochs not in kept:
            with self.training:
                kept[epochs] = self._trainer.trial(device, epochs)
            self._journal.put("pretrained", kept)
        return float(kept[epochs])
