"""The workers of a run as Ray actors: hired where the cluster has room, replaced when they are lost.

A worker that dies (its process, or its whole node) costs what it was computing; another one takes its place as soon
as the cluster has room. A node that joins is put to use while the run goes on.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from espalier.core.errors import ClusterError
from espalier.scale.cluster import ray
from espalier.scale.worker import arithmetic

LOG = logging.getLogger("espalier.scale")

TICK_SECONDS = 1.0
"""Seconds between looks at what the cluster has."""

TRIES = 5
"""Failures to start a worker in a row after which something must be wrong, and workers that one batch may cost."""

_CALLS_PER_WORKER = 2
"""Calls that a worker has at once: one to compute, and one to go on with at once."""

_PAUSE_SECONDS = 60.0
"""Seconds until another worker is tried after several could not be started."""


@dataclass(eq=False)
class PooledActor:
    """An actor, the calls that it has, and (once it is there) the node that it is on."""

    actor: Any
    waiting: Any
    calls: list[int] = field(default_factory=list)
    there: bool = False
    node: str = ""


class ActorPool:
    """Actors of one run.

    Args:
        make: Creates an actor (a `WorkerActor`).
        holding: Ray's reference to what its worker holds.
        workers: How many there shall be; None: one per ``unit`` of the cluster.
        unit: ``CPU`` or ``GPU``.
    """

    def __init__(self, make: Callable[[], Any], holding: Any, workers: int | None, unit: str = "CPU") -> None:
        self._make, self._holding = make, holding
        self._workers, self._unit = workers, unit
        self._actors: list[PooledActor] = []
        self._look_at = 0.0
        self._failures = 0
        self._warned = False
        #: workers lost and calls given again, so far
        self.lost = 0
        self.again = 0

    def size(self) -> int:
        """Return how many workers there should be now."""
        if self._workers is not None:
            return self._workers
        return max(1, int(ray().cluster_resources().get(self._unit, 1)))

    def tend(self) -> None:
        """Hire where the cluster has room."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + TICK_SECONDS
        for _ in range(self.size() - len(self._actors)):
            actor = self._make()
            self._actors.append(PooledActor(actor, actor.set_up.remote(self._holding)))

    def free(self) -> PooledActor | None:
        """Return the worker that is there and has the fewest calls, if it can take one more."""
        there = [h for h in self._actors if h.there and len(h.calls) < _CALLS_PER_WORKER]
        return min(there, key=lambda h: len(h.calls), default=None)

    @property
    def actors(self) -> Sequence[PooledActor]:
        """The workers, those that are still coming included."""
        return self._actors

    @property
    def present(self) -> int:
        """How many workers are there."""
        return sum(h.there for h in self._actors)

    def listen(self, references: list[Any]) -> list[Any]:
        """Wait for a while; let workers in that have come, and return those of the references that are done.

        Raises:
            ClusterError: No worker can be started.
        """
        coming = {pooled.waiting: pooled for pooled in self._actors if not pooled.there}
        if not coming and not references:
            time.sleep(TICK_SECONDS / 10)
            return []
        done, _ = ray().wait([*references, *coming], num_returns=1, timeout=TICK_SECONDS)
        for pooled in [coming[reference] for reference in done if reference in coming]:
            try:
                found = result(pooled.waiting)
            except ray().exceptions.RayError as error:
                self._failed(pooled, error)
            else:
                pooled.there, pooled.node, self._failures = True, found.get("node", ""), 0
                self._compare(found)
        return [reference for reference in done if reference not in coming]

    def complete(self) -> None:
        """Wait until all workers are there."""
        while self.present < self.size():
            self.tend()
            self.listen([])

    def _compare(self, found: dict[str, str]) -> None:
        """Warn, once, of a worker whose arithmetic is not this machine's."""
        mine = arithmetic()
        unlike = [f"{k} {found.get(k)} for {mine[k]}" for k in mine if found.get(k) != mine[k]]
        if unlike and not self._warned:
            self._warned = True
            LOG.warning("a worker computes otherwise (%s): the last bits of results may differ", ", ".join(unlike))

    def _failed(self, pooled: PooledActor, error: Exception) -> None:
        """A worker could not be had; a reason to stop if it happens again and again, and no other is there."""
        self._remove(pooled)
        self._failures += 1
        if self._failures < TRIES:
            return
        if not self.present:
            raise ClusterError(
                f"No worker can be started on the cluster: {last_line(error)}. Is espalier installed on every node, in "
                "the same version?"
            ) from error
        LOG.warning("no further worker can be started for now: %s", last_line(error))
        self._look_at = time.monotonic() + _PAUSE_SECONDS

    def dismiss(self, pooled: PooledActor) -> None:
        """A worker is lost: look for another at once."""
        self._remove(pooled)
        self.lost += 1
        self._look_at = 0.0

    def _remove(self, pooled: PooledActor) -> None:
        self._actors.remove(pooled)
        with contextlib.suppress(Exception):
            ray().kill(pooled.actor)

    def close(self) -> None:
        """Let all workers go."""
        actors, self._actors = self._actors, []
        if ray().is_initialized():
            for pooled in actors:
                with contextlib.suppress(Exception):
                    ray().kill(pooled.actor)


def result(reference: Any) -> Any:
    """Return a result; what a worker's code raised is raised as if it had been here, what befell Ray as a RayError."""
    try:
        return ray().get(reference)
    except ray().exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, ray().exceptions.RayError) or not isinstance(cause, Exception):
            raise
        raise cause from error


def last_line(error: BaseException) -> str:
    """Return what an error says in the end: Ray's errors begin with tracebacks."""
    lines = str(error).strip().splitlines()
    return lines[-1].strip().rstrip(".") if lines else type(error).__name__
