"""Small runs, and a backend without Ray: batches are cut, computed by workers and put together in this process."""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any
from unittest.mock import patch

from torch import Tensor

from espalier.core.store import Ref
from espalier.data import registry
from espalier.experiment import Experiment
from espalier.scale import shards
from espalier.scale.batches import cut
from espalier.scale.computer import Joins
from espalier.scale.shards import Sharding, ShardName
from espalier.scale.worker import BatchWorker, Holding, PortionCall, TrainCall, received, tensor
from espalier.simulator.dataviews import Views
from espalier.simulator.jobs import Job, Outcome, RemoteOutcome, Sum
from espalier.simulator.portions import Portion
from espalier.simulator.reduction import PartialSum
from espalier.simulator.runner import Runner
from espalier.simulator.task import Backend, Task
from espalier.testing.conformance import BASE

DIGITS = registry.load("digits")
TABLES = ("metrics", "arrays", "traffic", "spans", "moves", "events")


def experiment(method: str | dict[str, Any] = "hierfavg", **changes: Any) -> Experiment:
    """Return a small experiment of one method; it saves itself once per round."""
    record = {"checkpoint_rounds": 1, "checkpoint_seconds": 1000.0}
    return Experiment.build({**BASE, "methods": [method], "record": record, "seeds": [3], **changes})


def run(backend: Backend | None, method: str | dict[str, Any] = "hierfavg", **changes: Any) -> Runner:
    """Run a small experiment in memory."""
    runner = Runner(experiment(method, **changes), None, dataset=DIGITS, backend=backend)
    runner.run()
    return runner


def rows(runner: Runner) -> dict[str, list[tuple[Any, ...]]]:
    """Return all that a run recorded."""
    found = runner.recorder.connection
    return {table: found.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall() for table in TABLES}


class Near:
    """A backend of workers in this process; what goes to them and back is pickled, as Ray does."""

    def __init__(self, workers: int = 2, size: int = 8, join: bool = False, shard_bytes: int = 1 << 14) -> None:
        self.workers, self.size, self.join, self.shard_bytes = workers, size, join, shard_bytes
        #: portions computed, by what they compute, and shards that were sent
        self.portions: Counter[str] = Counter()
        self.shards: set[ShardName] = set()
        self.handed = 0
        #: models and partial sums that came back
        self.back = 0

    def computer(self, task: Task, seed: int, views: Views) -> NearComputer:
        """Return what computes one run's jobs."""
        return NearComputer(self, task, seed, views)


class NearComputer:
    """What :class:`Near` computes with."""

    def __init__(self, near: Near, task: Task, seed: int, views: Views) -> None:
        self._near, self._task, self._views, self._seed = near, task, views, seed
        self._made: BatchWorker | None = None
        with patch.object(shards, "SHARD_BYTES", near.shard_bytes):
            self._shards = Sharding(views)

    @property
    def _worker(self) -> BatchWorker:
        if self._made is None:
            holding = Holding.of(self._task, self._views, self._seed, self._shards.layouts)
            self._made = BatchWorker(pickle.loads(pickle.dumps(holding)))
        return self._made

    def workers(self) -> int:
        return self._near.workers

    def spread(self, portions: Sequence[Portion]) -> Iterator[Any]:
        for portion in portions:
            names = self._shards.of_rows(portion.rows)
            call = PortionCall(portion.function, portion.args, len(portion.models), tuple(self._views.looks), names)
            sent = self._sent(call, portion.models)
            self._near.portions[portion.function.__name__] += 1
            yield pickle.loads(self._worker.portion(*sent))

    def _sent(self, call: Any, vectors: Sequence[Tensor]) -> Any:
        """Return a call with its models and shards as Ray would hand them to a worker."""
        self._near.shards |= set(call.shards)
        found = (call, *(v.numpy() for v in vectors), *(self._shards[name] for name in call.shards))
        call, *arrays = pickle.loads(pickle.dumps(found))
        for array in itertools.chain(*(a if isinstance(a, tuple) else (a,) for a in arrays)):
            array.flags.writeable = False
        return call, *arrays

    def __call__(
        self, jobs: Sequence[Job], vector: Callable[[Ref], Tensor], optimizer_state: Callable[[Ref], Tensor | None]
    ) -> Iterator[Outcome]:
        for outcome in self.summed(dict(enumerate(jobs)), {}, frozenset(), vector, optimizer_state):
            assert isinstance(outcome, Outcome)
            yield outcome

    def summed(
        self,
        jobs: Mapping[int, Job],
        sums: Mapping[int, Sum],
        free: AbstractSet[int],
        vector: Callable[[Ref], Tensor],
        optimizer_state: Callable[[Ref], Tensor | None],
    ) -> Iterator[Outcome | RemoteOutcome]:
        found: dict[int, Outcome | RemoteOutcome] = {}
        near = self._near
        batches = cut(dict.fromkeys(jobs, 1.0), sums, free, near.workers, near.size, near.join)
        joint = Joins(batches)
        for number, batch in enumerate(batches):
            mine = tuple(jobs[n] for n in batch.names)
            models = {int(r): vector(r) for j in mine for r in j.work.models.values()}
            states = {int(r): optimizer_state(r) for j in mine if (r := j.work.optimizer_state) is not None}
            kept = {n: m for n, m in states.items() if m is not None}
            names = self._shards.of_jobs(mine)
            call = TrainCall(batch, mine, tuple(models), tuple(kept), tuple(self._views.looks), names)
            sent = self._sent(call, [*models.values(), *kept.values()])
            answer, *left = pickle.loads(pickle.dumps(self._worker.train(*sent)))
            assert len(left) == len(batch.left)
            joint.keep(number, left)
            joint.heard(number, answer)
            near.back += len(answer.vectors) + len(answer.parts)
            for place, name in enumerate(batch.names):
                state = answer.memories.get(name)
                loss, state = float(answer.losses[place]), None if state is None else tensor(state)
                if name in answer.vectors:
                    found[name] = Outcome(tensor(answer.vectors[name]), loss, state)
                    continue
                self._near.handed += 1
                parts = {
                    (node.sum, node.stop - 1): received(answer.parts[i], len(node.terms), self._task.dtype)
                    for i, node in enumerate(batch.nodes)
                    if node.terms[-1][1] == name
                }
                found[name] = RemoteOutcome(bool(answer.finite[place]), parts, loss, state)
        for name, (key, call_number) in joint.ends.items():
            call, pieces = joint.call(call_number - len(batches))
            model = self._worker.join(*pickle.loads(pickle.dumps((call, *pieces))))
            terms, last = len(sums[key].terms), found[name]
            total = None if model is None else tensor(model)
            assert isinstance(last, RemoteOutcome)
            last.parts[key, terms - 1] = PartialSum(terms, total, model is not None, self._task.dtype)
            near.back += 1
        yield from (found[name] for name in jobs)

    def close(self) -> None:
        """Nothing is left running."""
