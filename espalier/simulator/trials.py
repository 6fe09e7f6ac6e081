"""What only a computation beside the run can tell: trial trainings, gradients, distillation, models judged.

None of it costs virtual time. A trial training can be done at any time before the run. Gradients are measured, like an
accuracy, for theory beside practice: no device could send them for free. Distillation happens at a server.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from espalier.core.address import Address, host_of
from espalier.core.errors import ConfigError
from espalier.core.messages import LocalWork
from espalier.core.seeds import key, stream
from espalier.core.store import Ref
from espalier.data.partition import Partition
from espalier.simulator.conditions import Conditions
from espalier.simulator.dataviews import Look, Views
from espalier.simulator.environment import Fleet
from espalier.simulator.ledger import Ledger
from espalier.simulator.metrics import Scores, alike
from espalier.simulator.portions import Portion, Portions
from espalier.simulator.task import Task
from espalier.training.losses import distillation_loss, ensemble, resolve
from espalier.training.tally import Evaluation
from espalier.training.trainer import Trainer
from espalier.training.work import Pool
from espalier.world.drift import Concept

#: test samples on which trial trainings are judged
JUDGED_SAMPLES = 500
#: the samples that a server has to distil with, at most, as a share of all that devices have
PROXY_SHARE = 0.05
#: models of trial trainings that are held at once
TRIAL_BLOCK = 16
#: a trial training's accuracy means something from so many times chance on; epochs after which it is given up
TELLING_CHANCES, MOST_TRIAL_EPOCHS = 1.5, 64
_GRADIENT_BATCH = 256


@dataclass(frozen=True, eq=False)
class AnsweredPool:
    """Samples of another pool with answers of one's own: row r is ``base[rows[r]], answers[r]``."""

    base: Pool
    rows: Tensor
    answers: Tensor

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return samples and answers."""
        return self.base.gather(self.rows[rows])[0], self.answers[rows]


class SimulatedTrials:
    """Implements :class:`espalier.core.environment.Trials` on the data of a simulated fleet.

    Args:
        task: Data, model and training.
        partition: Who holds which samples.
        views: What devices' data look like.
        ledger: The models.
        seed: The run's.
        concepts: Returns every device's concept at the beginning: the concepts, and which is whose.
        look: Returns the number of the look that a device's data have now.
        portions: Computes trial trainings, on workers if there are any.
    """

    def __init__(
        self,
        task: Task,
        partition: Partition,
        views: Views,
        ledger: Ledger,
        seed: int,
        concepts: Callable[[], tuple[Sequence[Concept], NDArray[np.int64]]],
        look: Callable[[int], int],
        portions: Portions | None = None,
    ) -> None:
        self._portions = portions or Portions(task, views)
        self._task, self._partition, self._views, self._ledger = task, partition, views, ledger
        self._seed, self._concepts, self._look = seed, concepts, look
        self._pretrained = cache(self._pretrain)
        self._distillers: dict[float, Trainer] = {}

    # -- trial trainings -----------------------------------------------------------------------------------

    def pretraining_accuracy(self, device: int, epochs: int) -> float:
        """Return the share of right answers after ``epochs`` local epochs from the initial model."""
        return _share(self._pretrained(epochs)[device])

    def pretraining_answers(self, device: int, epochs: int) -> list[float]:
        """Return how that model spreads its answers over the classes."""
        found = self._pretrained(epochs)[device]
        if found.correct is None:
            raise ConfigError('Answers are counted of a classifier only; set balance = "accuracy".')
        return [float(v) for v in found.confusion.sum(0) / found.count.sum()]

    def epochs_above_chance(self) -> int:
        """Return after how many epochs (1, 2, 4 …) the devices' mean accuracy is 1.5 times chance."""
        epochs = 1
        while (found := self._pretrained(epochs))[0].correct is not None and epochs <= MOST_TRIAL_EPOCHS:
            accuracies = [_share(evaluation) for evaluation in found]
            if np.mean(accuracies) >= TELLING_CHANCES / len(found[0].count):
                return epochs
            epochs *= 2
        raise ConfigError(
            f"No pre-training of up to {MOST_TRIAL_EPOCHS} epochs brings the devices' models above chance; "
            'set pretrain = "epochs".'
        )

    def label_shares(self, device: int) -> list[float]:
        """Return the shares of a device's labels (of its cells, where there are no classes)."""
        counts = self._partition.histogram[device]
        return [float(v) for v in counts / counts.sum()]

    def _pretrain(self, epochs: int) -> list[Evaluation]:
        """Train all devices once; the models are dropped, their evaluations remain."""
        task, views, seed, part = self._task, self._views, self._seed, self._partition
        rows = np.sort(stream(seed, "pretraining").permutation(len(task.dataset.cell_test))[:JUDGED_SAMPLES])
        start = task.initial(seed, 0)
        concepts, which = self._concepts()
        looks = [views.number(Look(concepts[int(c)], int(p))) for c, p in zip(which, part.concept, strict=True)]
        portions = []
        for first in range(0, part.n_devices, TRIAL_BLOCK):
            block = list(enumerate(looks[first : first + TRIAL_BLOCK], first))
            own = np.concatenate([views.rows(*one) for one in block])
            portions.append(Portion(_tried, (block, epochs, seed, rows), [start], {"train": own, "test": rows}))
        return [evaluation for found in self._portions.computed(portions) for evaluation in found]

    # -- gradients -----------------------------------------------------------------------------------------

    def gradients(self, model: Ref, devices: Sequence[int]) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """Return each device's mean loss ``[n]`` and its gradient ``[n, parameters]`` at a model, without dropout."""
        task, views = self._task, self._views
        module = copy.deepcopy(task.module).eval()
        task.spec.load(module, self._ledger.vector(model))
        loss = resolve(task.loss)
        parameters = list(module.parameters())
        losses = np.empty(len(devices))
        found = np.empty((len(devices), task.spec.n_params), dtype=np.float32)
        for i, device in enumerate(devices):
            look = self._look(device)
            rows = torch.from_numpy(np.ascontiguousarray(views.rows(device, look)))
            pool = views.pool(look)
            total = 0.0
            module.zero_grad()
            for at in range(0, len(rows), _GRADIENT_BATCH):
                x, y = pool.gather(rows[at : at + _GRADIENT_BATCH])
                x = x.to(task.dtype) if x.is_floating_point() else x
                y = y.to(task.dtype) if y.is_floating_point() else y
                part = loss(module(x), y).sum() / len(rows)
                part.backward()  # type: ignore[no-untyped-call]
                total += float(part.detach())
            losses[i] = total
            flat = [torch.zeros_like(p).reshape(-1) if p.grad is None else p.grad.reshape(-1) for p in parameters]
            found[i] = torch.cat(flat).numpy()
        return losses, found

    # -- distillation --------------------------------------------------------------------------------------

    @cached_property
    def proxy_rows(self) -> NDArray[np.int64]:
        """The proxy set: training rows that no device holds, a twentieth as many as the devices have at most.

        More would let a server learn from its own data what its devices could not teach it.
        """
        part = self._partition
        parts = [part.indices] if part.validation is None else [part.indices, part.validation.indices]
        held = np.concatenate(parts)
        free = np.setdiff1d(np.arange(len(self._task.dataset.cell_train)), held)
        most = max(1, int(PROXY_SHARE * len(held)))
        if len(free) <= most:
            return free
        return np.sort(stream(self._seed, "proxy").choice(free, most, replace=False))

    def distilled(
        self,
        student: Ref,
        teachers: Sequence[tuple[float, Ref]],
        *,
        temperature: float,
        updates: int,
        clock: int,
        number: int,
    ) -> Ref:
        """Return the student after it was trained to answer like the weighted teachers on the proxy set."""
        task, ledger = self._task, self._ledger
        if len(self.proxy_rows) == 0:
            raise ConfigError(
                "Distillation needs a proxy set, samples that no device holds, but the partition deals all of them: "
                "set partition.fraction below 1."
            )
        if task.dataset.kind == "regression":
            raise ConfigError("Distillation blends class probabilities; a regression has none.")
        pool = task.dataset.pool("train")
        vectors = ledger.vectors([student, *(ref for _, ref in teachers)])
        logits = task.evaluator.logits(list(vectors[1:]), pool, self.proxy_rows)
        answers = ensemble(logits, [rho for rho, _ in teachers], temperature)
        if temperature not in self._distillers:
            self._distillers[temperature] = Trainer(task.module, distillation_loss(temperature))
        job = task.training.job(
            LocalWork(start=vectors[0], updates=updates, clock=clock),
            AnsweredPool(pool, torch.from_numpy(self.proxy_rows), answers),
            np.arange(len(self.proxy_rows)),
            key(self._seed, "distil", number),
            unit="epoch",
        )
        (result,) = self._distillers[temperature].run([job])
        return ledger.put(result.vector)


def _tried(
    task: Task,
    views: Views,
    models: Sequence[Tensor],
    block: Sequence[tuple[int, int]],
    epochs: int,
    seed: int,
    rows: NDArray[np.int64],
) -> list[Evaluation]:
    """Train some devices (each with its look) from the initial model, and judge them on test rows."""
    work = LocalWork(start=models[0], updates=epochs)
    jobs = [
        task.training.job(work, views.pool(look), views.rows(device, look), key(seed, "pretraining", device), "epoch")
        for device, look in block
    ]
    vectors = [result.vector for result in task.trainer.run(jobs)]
    return task.evaluator.run(vectors, views.samples("test", None), rows, task.dataset.cell_test[rows])


def _share(evaluation: Evaluation) -> float:
    """Return the share of right answers; where answers are not right or wrong, a share that falls with the loss."""
    if evaluation.correct is not None:
        return float(evaluation.correct.sum() / evaluation.count.sum())
    return 1.0 / (1.0 + evaluation.loss)


#: samples that a server holds to judge models by: drawn from all training samples, none of the test
PROXY_SAMPLES = 500

#: rows by the look that they are seen with (None: as they are)
Rows = dict[int | None, NDArray[np.int64]]


class SimulatedJudge:
    """Evaluates models on the sets of a simulation's nodes.

    Args:
        fleet: The tree and the partition.
        views: What devices' data look like.
        conditions: What they look like now.
        scores: Evaluates.
        n_train: How many training samples there are.
        n_test: How many test samples there are.
    """

    def __init__(
        self, fleet: Fleet, views: Views, conditions: Conditions, scores: Scores, n_train: int, n_test: int
    ) -> None:
        self._fleet, self._views, self._conditions, self._scores = fleet, views, conditions, scores
        self._n_train, self._n_test = n_train, n_test

    def __call__(self, refs: Sequence[Ref], where: str, node: Address, what: str) -> list[float]:
        """Return each model's accuracy (or main figure), or its ``loss``, on a node's set."""
        part, tree = self._fleet.partition, self._fleet.tree
        of: Literal["train", "test"] = "train"
        rows: Rows
        if where == "personal" and part.edge_tests is not None:
            # a server above edges has their sets together
            below = [e for e in range(part.n_edges) if node in tree.path(self._fleet.edge_host(e))]
            of, rows = "test", self._personal(below)
        elif where in ("personal", "validation") and part.validation is not None:
            rows = self._held_out(tree.leaves(node) if where == "personal" else [host_of(node)])
        elif where == "proxy":
            drawn = stream(self._fleet.seed, "data", "proxy").permutation(self._n_train)[:PROXY_SAMPLES]
            rows = {None: np.sort(drawn)}
        elif where == "test":
            of, rows = "test", {None: np.arange(self._n_test)}
        else:
            raise ConfigError(
                f"Node {node} has no set {where!r}: choose a partition that holds one out "
                "(PHE-FL's layouts hold out personal sets, partition.val_fraction a device's own)."
            )
        scores = self._scores.on_rows(refs, rows, of)
        return [s.loss if what == "loss" else s.main for s in scores]

    def _personal(self, edges: Sequence[int]) -> Rows:
        """Return the rows by which edges choose their models, by the look that their devices have."""
        part = self._fleet.partition
        assert part.edge_tests is not None
        found: dict[int | None, list[NDArray[np.int64]]] = {}
        for (edge, look), _ in alike(part.edge.astype(np.int64), self._conditions.looks):
            if edge in edges:
                own = part.edge_tests.personal[edge]
                found.setdefault(look, []).append(self._views.tested(part.n_devices + edge, own, look))
        return {look: np.unique(np.concatenate(rows)) for look, rows in found.items()}

    def _held_out(self, devices: Sequence[int]) -> Rows:
        """Return the rows that devices hold out, by the look of their data."""
        found: dict[int | None, list[NDArray[np.int64]]] = {}
        for device in devices:
            look = self._conditions.look(device)
            found.setdefault(look, []).append(self._views.held_out(device, look))
        return {look: np.concatenate(rows) for look, rows in found.items()}
