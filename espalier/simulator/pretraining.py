"""How well each device's data alone teach the initial model: a trial training before the run begins.

Some methods tell devices apart by it (EASF, KMA). The trial costs no virtual time, as it can be done at any time
before the run, and its models are dropped; what remains is one number per device, a pure function of the seed.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from espalier.core.seeds import key, stream
from espalier.simulator.dataviews import Look
from espalier.training.evaluate import Evaluation
from espalier.training.work import Job

if TYPE_CHECKING:
    from espalier.simulator.simulation import Simulation

#: test samples on which trials are judged
JUDGED = 500
#: models that are held at once
BLOCK = 16


class Pretraining:
    """Trial trainings of one simulation's devices, all computed when the first is asked for."""

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation
        self._all = cache(self._compute)

    def accuracy(self, device: int, epochs: int) -> float:
        """Return the share of right answers after ``epochs`` local epochs from the initial model."""
        return float(self._all(epochs)[device])

    def _compute(self, epochs: int) -> NDArray[np.float64]:
        sim, task = self.sim, self.sim.task
        cells = task.dataset.cell_test
        rows = np.sort(stream(sim.seed, "pretraining").permutation(len(cells))[:JUDGED])
        pool = task.dataset.pool("test")
        start = task.initial(sim.seed, 0)
        concepts, which = sim.world.drift.concepts(0, 0.0)
        planted = sim.fleet.partition.concept
        looks = [sim.views.number(Look(concepts[int(c)], int(p))) for c, p in zip(which, planted, strict=True)]
        found: list[float] = []
        for first in range(0, sim.fleet.n_devices, BLOCK):
            devices = range(first, min(first + BLOCK, sim.fleet.n_devices))
            jobs = [
                Job(
                    start, sim.views.pool(look), sim.views.rows(device, look), task.training.batch_size,
                    task.training.at(0), key(sim.seed, "pretraining", device), epochs,
                )
                for device, look in zip(devices, looks[first : first + BLOCK], strict=True)
            ]  # fmt: skip
            vectors = [result.vector for result in task.trainer.run(jobs)]
            found += [_share(e) for e in task.evaluator.run(vectors, pool, rows, cells[rows])]
        return np.array(found)


def _share(evaluation: Evaluation) -> float:
    """Return the share of right answers; where answers are not right or wrong, a share that falls with the loss."""
    if evaluation.correct is not None:
        return float(evaluation.correct.sum() / evaluation.count.sum())
    return 1.0 / (1.0 + evaluation.loss)
