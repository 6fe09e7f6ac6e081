"""Calls under way: given to whoever is free, and again to others if a worker is lost.

A call is a pure function of what it carries, so it may be computed anywhere and any number of times. A call may
need what others leave on the cluster: it is given when they are answered, and they again if what they left is lost.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from types import MappingProxyType
from typing import Any

from espalier.core.errors import ClusterError, TrainingError
from espalier.scale.cluster import ray
from espalier.scale.pool import LOG, TRIES, ActorPool, PooledActor, last_line, result
from espalier.scale.shards import Nearest

_ANSWERS_AHEAD = 4
"""Answers per worker that may wait for their turn."""

_PATIENCE_SECONDS = 300.0
"""Seconds without any worker after which a run gives up."""


_LOOK_AHEAD = 1024
"""Calls among which a worker's next one is chosen."""


class Dispatch:
    """Calls under way; :meth:`take` returns their answers, each once."""

    def __init__(
        self,
        pool: ActorPool,
        calls: Sequence[Callable[[Any], Any]],
        needs: Mapping[int, AbstractSet[int]] = MappingProxyType({}),
        heard: Callable[[int, Any], None] = lambda number, answer: None,
        places: Nearest | None = None,
    ) -> None:
        """Begin; ``needs`` names the calls that others need, ``heard`` is called with every answer as it comes.

        With ``places``, a worker is given the nearest of the next calls, which changes no answer.
        """
        self._places = places
        self._pool, self._calls, self._needs, self._heard = pool, dict(enumerate(calls)), needs, heard
        #: calls that cannot be given yet, and what they still wait for
        self._held = {number: set(needed) for number, needed in needs.items()}
        self._users: dict[int, set[int]] = {}
        for number, needed in needs.items():
            for other in needed:
                self._users.setdefault(other, set()).add(number)
        self._todo = deque(number for number in self._calls if number not in needs)
        self._under_way: dict[Any, tuple[PooledActor, int]] = {}
        self._answers: dict[int, Any] = {}
        self._taken: set[int] = set()
        self._tries: dict[int, int] = {}

    def take(self, number: int) -> Any:
        """Return the answer to one call, as soon as it is there.

        Raises:
            TrainingError: It cannot be computed.
            ClusterError: No worker is there to compute it.
        """
        seen = time.monotonic()
        while number not in self._answers:
            self._pool.tend()
            self._give(number)
            if self._hear() or self._pool.present:
                seen = time.monotonic()
            elif time.monotonic() - seen > _PATIENCE_SECONDS:
                raise ClusterError(
                    f"No worker could be had for {_PATIENCE_SECONDS:.0f} s: the cluster has {_resources()}. Add a node "
                    "or free some CPUs; what was done until the last checkpoint is saved (espalier resume)."
                )
        self._give(number)
        self._taken.add(number)
        return self._answers.pop(number)

    def drop(self) -> None:
        """Forget all that is under way; workers finish what they have."""
        for pooled, number in self._under_way.values():
            pooled.calls.remove(number)
        self._under_way.clear()
        self._todo.clear()

    def _give(self, wanted: int) -> None:
        """Give calls to free workers, not too far ahead of what is taken, and never fewer than is waited for."""
        window = _ANSWERS_AHEAD * max(1, self._pool.present)
        while self._todo:
            number = self._todo[0]
            ahead = len(self._under_way) + len(self._answers)
            pooled = self._pool.free()
            pressing = number <= wanted or self._urgent(number)
            if pooled is None or (ahead >= window and not pressing):
                return
            place = 0 if pressing else self._nearest(pooled.node, window)
            number = self._todo[place]
            del self._todo[place]
            pooled.calls.append(number)
            self._under_way[self._calls[number](pooled.actor)] = (pooled, number)
            if self._places is not None:
                self._places.went(number, pooled.node)

    def _nearest(self, node: str, window: int) -> int:
        """Return the place of the call to be given to a node: the first of those that are nearest.

        The first ones are waited for soon, so no more are looked at than may be answered ahead.
        """
        if self._places is None:
            return 0
        distances: list[int] = []
        for number in islice(self._todo, min(window, _LOOK_AHEAD)):
            distances.append(self._places.distance(number, node))
            if not distances[-1]:
                break
        return distances.index(min(distances))

    def _hear(self) -> bool:
        """Wait for answers for a while; return whether there was one."""
        done = self._pool.listen(list(self._under_way))
        for reference in done:
            self._answered(reference)
        return bool(done)

    def _answered(self, reference: Any) -> None:
        pooled, number = self._under_way.pop(reference)
        try:
            answer = result(reference)
        except ray().exceptions.RayError as error:
            if number in self._needs and isinstance(getattr(error, "cause", error), ray().exceptions.ObjectLostError):
                pooled.calls.remove(number)
                self._renew(number, error)
            else:
                self._lose(pooled, number, error)
            return
        pooled.calls.remove(number)
        self._heard(number, answer)
        if number not in self._taken:
            self._answers[number] = answer
        self._settle(number)

    def _settle(self, number: int) -> None:
        """A call is answered: those that needed it may be given; it is kept as long as it may be wanted again."""
        for other in self._needs.get(number, ()):
            self._users[other].discard(number)
            if not self._users[other]:
                del self._calls[other]
        if not self._users.get(number):
            self._calls.pop(number, None)
        for user in self._users.get(number, ()):
            if user in self._held:
                self._held[user].discard(number)
                if not self._held[user]:
                    del self._held[user]
                    self._todo.appendleft(user)

    def _urgent(self, number: int) -> bool:
        """Tell whether a call may be given ahead of its turn: it is a last step, or it is given once more."""
        return number in self._needs or number in self._taken or number in self._answers

    def _renew(self, number: int, error: Exception) -> None:
        """What a call needs is lost with the node where it was: it is computed again."""
        self._try_again(number, error)
        LOG.warning("a node was lost with what others need; it is computed again (%s)", type(error).__name__)
        self._held[number] = set(self._needs[number])
        under_way = {other for _, other in self._under_way.values()}
        again = self._held[number] - under_way - set(self._todo)
        self._todo.extendleft(sorted(again, reverse=True))
        self._pool.again += len(again)

    def _lose(self, pooled: PooledActor, number: int, error: Exception) -> None:
        """A worker is gone: what it had is given to others, first of all the call at which it was lost."""
        self._try_again(number, error)
        self._pool.dismiss(pooled)
        LOG.warning("a worker was lost; its jobs are given to others (%s)", type(error).__name__)
        for reference in [r for r, (other, _) in self._under_way.items() if other is pooled]:
            del self._under_way[reference]
        self._todo.extendleft(sorted(pooled.calls, reverse=True))
        self._pool.again += len(pooled.calls)
        pooled.calls = []

    def _try_again(self, number: int, error: Exception) -> None:
        """Count a failure of a call.

        Raises:
            TrainingError: It has failed too often.
        """
        self._tries[number] = self._tries.get(number, 0) + 1
        if self._tries[number] >= TRIES:
            raise TrainingError(
                f"{TRIES} workers were lost over the same batch of jobs; the last: {last_line(error)}. If they ran out "
                "of memory, give each worker more of it (fewer --workers per node)."
            ) from error


def _resources() -> str:
    found = ray().cluster_resources()
    free = ray().available_resources()
    return f"{found.get('CPU', 0):.0f} CPUs, {free.get('CPU', 0):.0f} of them free"
