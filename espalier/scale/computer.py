"""Computes ledger jobs on a Ray cluster: waves in, models and partial sums out, as from one machine."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from espalier.core.errors import ConfigError
from espalier.core.store import Ref
from espalier.scale.batches import Batch, SumNode, cut, size_for
from espalier.scale.cluster import connect, parse, ray
from espalier.scale.dispatch import Dispatch
from espalier.scale.pool import ActorPool
from espalier.scale.shards import Key, Nearest, Sharding, ShardName, Store
from espalier.scale.worker import Answer, Holding, JoinCall, PortionCall, TrainCall, WorkerActor, received, tensor
from espalier.simulator.dataviews import Views
from espalier.simulator.jobs import Job, Outcome, RemoteOutcome, Sum
from espalier.simulator.portions import Portion
from espalier.simulator.reduction import PartialSum
from espalier.simulator.task import Task

#: bytes of a model from which workers join sums: Ray brings smaller objects to the driver in any case
FEWEST_BYTES = 100 << 10


class Joins:
    """The sums of a wave that several batches make up: one worker joins their pieces, one finished model comes back.

    Attributes:
        needs: The batches that have a sum's pieces, by the number of its call: those behind the batches'.
        ends: The sum that ends with a job, and the number of its call.
    """

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = batches
        pieces: dict[int, list[tuple[int, int, SumNode]]] = {}
        for number, batch in enumerate(batches):
            for place, node in enumerate(batch.left):
                pieces.setdefault(node.sum, []).append((number, place, node))
        self._pieces = [sorted(found, key=lambda piece: piece[2].stop) for _, found in sorted(pieces.items())]
        first = len(batches)  # the calls of sums come behind those of batches
        self.needs = {first + i: {batch for batch, _, _ in found} for i, found in enumerate(self._pieces)}
        self.ends = {found[-1][2].terms[-1][1]: (found[-1][2].sum, first + i) for i, found in enumerate(self._pieces)}
        self._left: dict[int, list[Any]] = {}
        self._finite: dict[int, bool] = {}

    def calls(self) -> list[Callable[[Any], Any]]:
        """Return the functions that give sums to a worker, once all of their pieces are there."""
        return [partial(self._give, place) for place in range(len(self._pieces))]

    def keep(self, number: int, left: Sequence[Any]) -> None:
        """Remember where the pieces are that a batch leaves."""
        self._left[number] = list(left)

    def heard(self, number: int, answer: Any) -> None:
        """Remember which models of a batch are finite; forget the pieces of a sum that is done."""
        if number < len(self._batches):
            names = self._batches[number].names
            self._finite |= {name: bool(good) for name, good in zip(names, answer.finite, strict=True)}
        else:
            for batch, place, _ in self._pieces[number - len(self._batches)]:
                self._left[batch][place] = None

    def call(self, place: int) -> tuple[JoinCall, list[Any]]:
        """Return what joins a sum, and its pieces."""
        pieces = self._pieces[place]
        terms = tuple((c, self._finite[name]) for _, _, node in pieces for c, name in node.terms)
        call = JoinCall(terms, tuple(len(node.terms) for _, _, node in pieces))
        return call, [self._left[batch][at] for batch, at, _ in pieces]

    def _give(self, place: int, actor: Any) -> Any:
        call, pieces = self.call(place)
        return actor.join.remote(call, *pieces)


class PlacedActor(WorkerActor):
    """The actor, which also says on which node it is."""

    def set_up(self, holding: Holding) -> dict[str, str]:
        """Set up the worker; return what its numbers depend on, and where it is."""
        return {**super().set_up(holding), "node": ray().get_runtime_context().get_node_id()}


class RayComputer:
    """The jobs of one run on a Ray cluster; workers start with the first of them.

    Raises:
        ClusterError: Nobody answers at the address.
    """

    def __init__(self, task: Task, seed: int, views: Views, *, address: str | None, workers: int | None) -> None:
        self._task, self._seed, self._views = task, seed, views
        self._workers = workers
        # At once: an address at which nobody answers shall fail before anything is written.
        connect(address, workers)
        self._shards = Sharding(views)
        self.store = Store(self._shards)
        self.pool: ActorPool | None = None
        #: batches, jobs whose models stayed away, sums that workers joined; bytes back of jobs and of portions
        self.batches = 0
        self.handed = 0
        self.joined = 0
        self.received = 0
        self.answered = 0

    def __call__(
        self, jobs: Sequence[Job], vector: Callable[[Ref], Tensor], optimizer_state: Callable[[Ref], Tensor | None]
    ) -> Iterator[Outcome]:
        """Compute jobs; every model comes back."""
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
        """Compute jobs by name, in their order; of those in ``free`` partial sums come back where that is less."""
        pool = self.open()
        sizes = self._views.partition.sizes
        weights = {name: float(job.work.updates * sizes[job.device]) for name, job in jobs.items()}
        workers = pool.size()
        spec = self._task.spec
        size, join = size_for(spec, len(jobs), workers), spec.model_bytes >= FEWEST_BYTES
        batches = cut(weights, sums, free, workers, size, join)
        joint = Joins(batches)
        home = {name: (number, place) for number, b in enumerate(batches) for place, name in enumerate(b.names)}
        last: dict[int, int] = {}
        for name in jobs:
            last[home[name][0]] = name
        nearest = Nearest(self.store)
        calls = []
        for number, batch in enumerate(batches):
            give, nearest.taken[number] = self._call(batch, jobs, vector, optimizer_state, partial(joint.keep, number))
            calls.append(give)
        dispatch = Dispatch(pool, [*calls, *joint.calls()], joint.needs, joint.heard, nearest)
        answers: dict[int, Answer] = {}
        try:
            for name in jobs:
                number, place = home[name]
                if number not in answers:
                    answers[number] = self._noted(dispatch.take(number))
                outcome = self._outcome(batches[number], answers[number], place)
                if name in joint.ends and isinstance(outcome, RemoteOutcome):
                    key, call = joint.ends[name]
                    outcome.parts |= self._joined(key, len(sums[key].terms), dispatch.take(call))
                yield outcome
                if last[number] == name:
                    del answers[number]
        finally:
            dispatch.drop()

    def workers(self) -> int:
        """Return how many calls are computed at a time."""
        return self.open().size()

    def spread(self, portions: Sequence[Portion]) -> Iterator[Any]:
        """Yield what portions give, in their order."""
        pool, nearest = self.open(), Nearest(self.store)
        calls: list[Callable[[Any], Any]] = []
        for number, portion in enumerate(portions):
            shards = self._shards.of_rows(portion.rows)
            call = PortionCall(portion.function, portion.args, len(portion.models), tuple(self._views.looks), shards)
            calls.append(partial(self._give, "portion", call, portion.models))
            nearest.taken[number] = self._taken(portion.models, shards)
        dispatch = Dispatch(pool, calls, places=nearest)
        try:
            for number in range(len(calls)):
                found = dispatch.take(number)
                self.answered += len(found)
                yield pickle.loads(found)
        finally:
            dispatch.drop()

    def _give(self, method: str, call: Any, vectors: Sequence[Tensor], actor: Any, returns: int = 1) -> Any:
        """Call an actor; only now do models and samples go to the object store."""
        references = [*(self.store.vector(v) for v in vectors), *(self.store.shard(name) for name in call.shards)]
        return getattr(actor, method).options(num_returns=returns).remote(call, *references)

    def _taken(self, vectors: Sequence[Tensor], shards: Sequence[ShardName]) -> dict[Key, int]:
        """Return the bytes of what a call takes along; a vector's id is its own as long as the call holds it."""
        taken: dict[Key, int] = {id(v): v.nbytes for v in vectors}
        return taken | {name: self._shards.nbytes(name) for name in shards}

    def open(self) -> ActorPool:
        """Return the workers, starting them if need be."""
        if self.pool is None:
            holding = ray().put(Holding.of(self._task, self._views, self._seed, self._shards.layouts))
            gpus = 0 if self._task.device == "cpu" else 1
            made = ray().remote(num_cpus=1, num_gpus=gpus, max_restarts=0, max_task_retries=0)(PlacedActor)
            self.pool = ActorPool(made.remote, holding, self._workers, "GPU" if gpus else "CPU")
        return self.pool

    def close(self) -> None:
        """Let the workers go."""
        if self.pool is not None:
            self.pool.close()

    def _call(
        self,
        batch: Batch,
        jobs: Mapping[int, Job],
        vector: Callable[[Ref], Tensor],
        optimizer_state: Callable[[Ref], Tensor | None],
        keep: Callable[[Sequence[Any]], None],
    ) -> tuple[Callable[[Any], Any], dict[Key, int]]:
        """Return the function that gives a batch to a worker, and the bytes of what it takes along.

        Where its edge has been counts as much as all of them: else a first round would scatter an edge's samples.
        ``keep`` gets the places of the pieces that the batch leaves on the cluster.
        """
        mine = tuple(jobs[name] for name in batch.names)
        models = {int(r): vector(r) for job in mine for r in job.work.models.values()}
        states = {int(r): optimizer_state(r) for job in mine if (r := job.work.optimizer_state) is not None}
        memories = {name: state for name, state in states.items() if state is not None}
        for look in {job.look for job in mine}:
            self._views.pool(look)  # samples that cannot be seen so are refused here, where all of them are
        shards, vectors = self._shards.of_jobs(mine), (*models.values(), *memories.values())
        call = TrainCall(batch, mine, tuple(models), tuple(memories), tuple(self._views.looks), shards)

        def give(actor: Any) -> Any:
            self.batches += 1
            if not batch.left:
                return self._give("train", call, vectors, actor)
            # results of their own, which stay where they are until somebody wants them
            answer, *left = self._give("train", call, vectors, actor, 1 + len(batch.left))
            keep(left)
            return answer

        taken = self._taken(vectors, shards)
        edges = {int(self._views.partition.edge[job.device]) for job in mine}
        whole = sum(taken.values())
        return give, taken | {("edge", edge): whole for edge in edges}

    def _joined(self, key: int, terms: int, model: Any) -> dict[tuple[int, int], PartialSum]:
        """Return a sum that a worker has joined as the part that ends it."""
        self.joined += 1
        if model is None:
            return {(key, terms - 1): PartialSum(terms, None, False, self._task.dtype)}
        self.received += model.nbytes
        return {(key, terms - 1): PartialSum(terms, tensor(model).clone(), True, self._task.dtype)}

    def _outcome(self, batch: Batch, answer: Answer, place: int) -> Outcome | RemoteOutcome:
        name, loss = batch.names[place], float(answer.losses[place])
        kept = answer.memories.get(name)
        # A copy: what the ledger keeps must outlive the object store's.
        memory = None if kept is None else tensor(kept).clone()
        if name in answer.vectors:
            return Outcome(tensor(answer.vectors[name]).clone(), loss, memory)
        self.handed += 1
        parts = {
            (node.sum, node.stop - 1): received(answer.parts[number], len(node.terms), self._task.dtype)
            for number, node in enumerate(batch.nodes)
            if node.terms[-1][1] == name
        }
        return RemoteOutcome(bool(answer.finite[place]), parts, loss, memory)

    def _noted(self, answer: Answer) -> Answer:
        arrays = [*answer.vectors.values(), *answer.memories.values(), *(p[0] for p in answer.parts)]
        self.received += sum(a.nbytes for a in arrays if a is not None)
        trainer = self._task.trainer
        if answer.why_not is not None and trainer.batched:
            trainer.give_up(answer.why_not)
        return answer


@dataclass(frozen=True)
class Ray:
    """Train on a Ray cluster.

    Results do not depend on it: a run may begin without it and go on with it, on any number of workers.

    Attributes:
        address: ``HOST:PORT`` of a cluster that this machine is a node of; None starts Ray on this machine.
        workers: Processes that train, one CPU each; None takes every CPU that the cluster has, also those that
            come later.
    """

    address: str | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be, before anything is begun."""
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"workers is {self.workers}; a positive number is accepted.")
        if self.address is not None:
            parse(self.address)

    def computer(self, task: Task, seed: int, views: Views) -> RayComputer:
        """Return what computes the jobs of one run."""
        return RayComputer(task, seed, views, address=self.address, workers=self.workers)
