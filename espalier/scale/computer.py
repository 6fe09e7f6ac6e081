"""Computes ledger jobs on a Ray cluster: waves in, models and partial sums out, as from one machine."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from espalier.core.errors import ConfigError
from espalier.core.store import Ref
from espalier.scale import joins
from espalier.scale.batches import Batch, cut, size_for
from espalier.scale.cluster import connect, parse, ray
from espalier.scale.dispatch import Dispatch
from espalier.scale.pool import ActorPool
from espalier.scale.worker import Answer, Holding, TrainCall, WorkerActor, received, tensor
from espalier.simulator.dataviews import Views
from espalier.simulator.jobs import Handed, Job, Outcome, Sum
from espalier.simulator.reduction import PartialSum
from espalier.simulator.task import Task
from espalier.training.trainer import FallbackWarning


class StoredVectors:
    """Vectors in the object store: each goes there once, and is taken out when this process drops it."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[weakref.ref[Tensor], Any]] = {}
        #: the nodes that vectors have gone to, by their ids
        self._nodes: dict[int, set[str]] = {}
        #: vectors put so far, their bytes, and how often one went to another node
        self.puts = 0
        self.bytes = 0
        self.trips = 0

    def reference(self, vector: Tensor) -> Any:
        """Return Ray's reference to a vector."""
        there = self._kept.get(id(vector))
        if there is not None and there[0]() is vector:
            return there[1]
        key = id(vector)
        found = ray().put(vector.detach().numpy())
        self._kept[key] = weakref.ref(vector, partial(self._drop, key)), found
        self.puts += 1
        self.bytes += vector.nbytes
        return found

    def _drop(self, key: int, dead: weakref.ref[Tensor]) -> None:
        if key in self._kept and self._kept[key][0] is dead:
            del self._kept[key]
            self._nodes.pop(key, None)

    def __len__(self) -> int:
        return len(self._kept)

    def distance(self, key: int, node: str) -> int:
        """Return 0 for a vector (by its id) that the node has, else how many nodes have it, and one."""
        nodes = self._nodes.get(key, ())
        return 0 if node in nodes else 1 + len(nodes)

    def went(self, key: int, node: str) -> None:
        """Remember that a node has a vector."""
        nodes = self._nodes.setdefault(key, set())
        self.trips += node not in nodes
        nodes.add(node)


class PlacedActor(WorkerActor):
    """The actor, which also says on which node it is."""

    def set_up(self, holding: Holding) -> dict[str, str]:
        """Set up the worker; return what its numbers depend on, and where it is."""
        return {**super().set_up(holding), "node": ray().get_runtime_context().get_node_id()}


class Nearest:
    """Sends batches to a node that has the models which they start from: an edge's batches stay together."""

    def __init__(self, versions: StoredVectors) -> None:
        self._versions = versions
        #: the ids of the vectors that each call takes along
        self.vectors: dict[int, tuple[int, ...]] = {}

    def distance(self, number: int, node: str) -> int:
        """Return 0 where a node has all of a call's models; else it is the farther the more nodes have them."""
        return sum(self._versions.distance(key, node) for key in self.vectors.get(number, ()))

    def went(self, number: int, node: str) -> None:
        """A call is given, and its models with it."""
        for key in self.vectors.get(number, ()):
            self._versions.went(key, node)


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
        self.versions = StoredVectors()
        self.pool: ActorPool | None = None
        #: batches, jobs whose models stayed away, sums that workers joined, and bytes that came back
        self.batches = 0
        self.handed = 0
        self.joined = 0
        self.received = 0

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
    ) -> Iterator[Outcome | Handed]:
        """Compute jobs by name, in their order; of those in ``free`` partial sums come back where that is less."""
        pool = self.open()
        sizes = self._views.partition.sizes
        weights = {name: float(job.work.updates * sizes[job.device]) for name, job in jobs.items()}
        workers = pool.size()
        spec = self._task.spec
        size, join = size_for(spec, len(jobs), workers), spec.model_bytes >= joins.FEWEST_BYTES
        batches = cut(weights, sums, free, workers, size, join)
        joint = joins.Joins(batches)
        home = {name: (number, place) for number, b in enumerate(batches) for place, name in enumerate(b.names)}
        last: dict[int, int] = {}
        for name in jobs:
            last[home[name][0]] = name
        nearest = Nearest(self.versions)
        calls = []
        for number, batch in enumerate(batches):
            give, nearest.vectors[number] = self._call(
                batch, jobs, vector, optimizer_state, partial(joint.keep, number)
            )
            calls.append(give)
        dispatch = Dispatch(pool, [*calls, *joint.calls()], joint.needs, joint.heard, nearest)
        answers: dict[int, Answer] = {}
        try:
            for name in jobs:
                number, place = home[name]
                if number not in answers:
                    answers[number] = self._noted(dispatch.take(number))
                outcome = self._outcome(batches[number], answers[number], place)
                if name in joint.ends and isinstance(outcome, Handed):
                    key, call = joint.ends[name]
                    outcome.parts |= self._joined(key, len(sums[key].terms), dispatch.take(call))
                yield outcome
                if last[number] == name:
                    del answers[number]
        finally:
            dispatch.drop()

    def open(self) -> ActorPool:
        """Return the workers, starting them if need be."""
        if self.pool is None:
            holding = ray().put(Holding.of(self._task, self._views, self._seed))
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
    ) -> tuple[Callable[[Any], Any], tuple[int, ...]]:
        """Return the function that gives a batch to a worker; only then do its models go to the object store.

        With it come the ids of what it takes along, which are those vectors' as long as there is the function. ``keep``
        is told where the pieces will be that the batch leaves on the cluster.
        """
        mine = tuple(jobs[name] for name in batch.names)
        models = {int(r): vector(r) for job in mine for r in job.work.models.values()}
        states = {int(r): optimizer_state(r) for job in mine if (r := job.work.optimizer_state) is not None}
        memories = {name: state for name, state in states.items() if state is not None}
        call = TrainCall(batch, mine, tuple(models), tuple(memories), tuple(self._views.looks))

        def give(actor: Any) -> Any:
            self.batches += 1
            references = [self.versions.reference(v) for v in (*models.values(), *memories.values())]
            if not batch.left:
                return actor.train.remote(call, *references)
            # results of their own, which stay where they are until somebody wants them
            answer, *left = actor.train.options(num_returns=1 + len(batch.left)).remote(call, *references)
            keep(left)
            return answer

        return give, tuple(id(v) for v in (*models.values(), *memories.values()))

    def _joined(self, key: int, terms: int, model: Any) -> dict[tuple[int, int], PartialSum]:
        """Return a sum that a worker has joined as the part that ends it."""
        self.joined += 1
        if model is None:
            return {(key, terms - 1): PartialSum(terms, None, False, self._task.dtype)}
        self.received += model.nbytes
        return {(key, terms - 1): PartialSum(terms, tensor(model).clone(), True, self._task.dtype)}

    def _outcome(self, batch: Batch, answer: Answer, place: int) -> Outcome | Handed:
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
        return Handed(bool(answer.fits[place]), parts, loss, memory)

    def _noted(self, answer: Answer) -> Answer:
        arrays = [*answer.vectors.values(), *answer.memories.values(), *(p[0] for p in answer.parts)]
        self.received += sum(a.nbytes for a in arrays if a is not None)
        trainer = self._task.trainer
        if answer.why_not is not None and trainer.batched:
            trainer.batched, trainer.why_not = False, answer.why_not
            warnings.warn(
                f"{type(self._task.module).__name__} is trained one client at a time: {answer.why_not}. "
                "The results are the same.",
                FallbackWarning,
                stacklevel=2,
            )
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
