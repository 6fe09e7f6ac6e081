"""What devices of a simulation compute: the world says how long it takes, the ledger when it is really computed."""

from __future__ import annotations

from torch import Tensor

from espalier.core.address import Address
from espalier.core.messages import Measure, Measured, Train, Trained
from espalier.core.statistics import statistic
from espalier.simulator.attacks import Attacks
from espalier.simulator.clock import NODE, ToNode
from espalier.simulator.dataviews import Views
from espalier.simulator.environment import SimulationContext
from espalier.simulator.jobs import Job
from espalier.simulator.ledger import Ledger
from espalier.simulator.task import Task
from espalier.training.localdata import PooledData

#: run-time noise is drawn by the number of a job; statistics have numbers of their own, from here on
FIRST_STATISTIC = 1 << 32


class SimulatedWork:
    """Implements :class:`espalier.core.runtime.DeviceWork` under virtual time."""

    def __init__(self, context: SimulationContext, task: Task, views: Views, ledger: Ledger, attacks: Attacks) -> None:
        self._fleet, self._presence, self._conditions = context.fleet, context.presence, context.conditions
        self._clock, self._recorder, self._usage = context.clock, context.recorder, context.usage
        self._task, self._views, self._ledger, self._attacks = task, views, ledger, attacks
        self._spans = context.spans

    def train(self, device: Address, train: Train, number: int) -> None:
        """Write a training down; it is done when the world says."""
        look = self._attacks.look(device, self._conditions.look(device))
        ref = self._ledger.submit(Job(device, number, train, look))
        rows = len(self._views.rows(device, look)) if look else self._fleet.samples(device)
        batches = self._task.training.batches(rows, train.updates)
        self._usage.steps += batches
        seconds = self._conditions.compute().duration(device, batches, self._clock.now, number)
        self._busy(device, "train", seconds, Trained(train.token, ref, seconds, train.updates))

    def measure(self, device: Address, measure: Measure, number: int) -> None:
        """Compute a statistic; the device has it when the world says."""
        found = statistic(measure.what)
        look = self._attacks.look(device, self._conditions.look(device))
        rows, pool = self._views.rows(device, look), self._views.pool(look)
        rng = self._fleet.rng("statistic", measure.what, device, number)
        data, batch_size = self._task.dataset, self._task.training.batch_size
        cells = None if data.kind == "classification" else data.cell_train[rows]
        local = PooledData(
            data.kind, data.n_cells, batch_size, self._task.evaluator, pool, rows,
            held=self._views.held_out(device, look), cells=cells, rng=rng,
        )  # fmt: skip
        vectors: list[Tensor] = list(self._ledger.vectors(measure.models)) if measure.models and found.models else []
        values = found.compute(local, vectors, **measure.args)
        batches = found.batches(-(-len(rows) // batch_size), len(vectors))
        now, seconds = self._clock.now, 0.0
        if batches:
            seconds = self._conditions.compute().duration(device, batches, now, FIRST_STATISTIC + number)
        self._busy(device, "measure", seconds, Measured(measure.token, values, seconds))

    def _busy(self, device: Address, kind: str, seconds: float, done: Trained | Measured) -> None:
        """Let a device be at work for some seconds, and be told then what came of it."""
        now = self._clock.now
        self._fleet.working[device] = True
        self._usage.spent(device, kind, seconds)
        if self._spans and seconds > 0:
            self._recorder.span(device, kind, now, now + seconds)
        self._clock.push(now + seconds, NODE, ToNode(device, done, self._presence.incarnation(device)))
