"""Distillation at a simulated server: the proxy set is the training samples that no device holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from espalier.core.errors import ConfigError
from espalier.core.seeds import key
from espalier.core.store import Ref
from espalier.policies.distil import distillation_loss, ensemble
from espalier.training.trainer import Trainer
from espalier.training.work import Job, Pool

if TYPE_CHECKING:
    from espalier.simulator.simulation import Simulation


@dataclass(frozen=True, eq=False)
class AnsweredPool:
    """Samples of another pool with answers of one's own: row r is ``base[rows[r]], answers[r]``."""

    base: Pool
    rows: Tensor
    answers: Tensor

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return samples and answers."""
        return self.base.gather(self.rows[rows])[0], self.answers[rows]


class Distiller:
    """Trains a model to answer as others do."""

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation
        self._trainers: dict[float, Trainer] = {}

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """The training rows that no device holds, neither to train nor to validate."""
        part = self.sim.fleet.partition
        held = [part.indices] if part.validation is None else [part.indices, part.validation.indices]
        return np.setdiff1d(np.arange(len(self.sim.task.dataset.cell_train)), np.concatenate(held))

    def __call__(
        self,
        student: Ref,
        teachers: Sequence[tuple[float, Ref]],
        *,
        temperature: float,
        updates: int,
        clock: int,
        number: int,
    ) -> Ref:
        """Return the student after it was trained to answer like the weighted teachers on the proxy set.

        ``updates`` are epochs, ``clock`` decides the learning rate, ``number`` the order of the samples.
        """
        sim = self.sim
        if len(self.rows) == 0:
            raise ConfigError(
                "Distillation needs a proxy set, samples that no device holds, but the partition deals all of them: "
                "set partition.fraction below 1."
            )
        if sim.task.dataset.kind == "regression":
            raise ConfigError("Distillation blends class probabilities; a regression has none.")
        task, pool = sim.task, sim.task.dataset.pool("train")
        vectors = sim.ledger.vectors([student, *(ref for _, ref in teachers)])
        logits = task.evaluator.logits(list(vectors[1:]), pool, self.rows)
        answers = ensemble(logits, [rho for rho, _ in teachers], temperature)
        if temperature not in self._trainers:
            self._trainers[temperature] = Trainer(task.module, distillation_loss(temperature))
        job = Job(
            start=vectors[0],
            pool=AnsweredPool(pool, torch.from_numpy(self.rows), answers),
            rows=np.arange(len(self.rows)),
            batch_size=task.training.batch_size,
            optimizer=task.training.at(clock),
            seed=key(sim.seed, "distil", number),
            epochs=updates,
        )
        (result,) = self._trainers[temperature].run([job])
        return sim.ledger.put(result.vector)
