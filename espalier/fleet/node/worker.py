"""The worker: one thread that trains, measures and scores, one thing at a time, training first."""

from __future__ import annotations

import asyncio
import heapq
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from espalier.fleet.node.events import JobDone, PendingJob, ScoreModels

if TYPE_CHECKING:
    from espalier.fleet.node.host import Host


class Worker:
    """Does the engine's work."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._thread = ThreadPoolExecutor(1, "espalier-worker")
        self._waiting: list[tuple[int, int, PendingJob]] = []
        self._task: asyncio.Task[Any] | None = None
        self.seconds = 0.0

    def add(self, work: PendingJob) -> None:
        """Give it something to do."""
        heapq.heappush(self._waiting, (1 if isinstance(work.action, ScoreModels) else 0, work.id, work))
        if self._task is None or self._task.done():
            self._task = self._host.spawn(self._run())

    async def _run(self) -> None:
        host, loop = self._host, asyncio.get_running_loop()
        while self._waiting:
            _, _, work = heapq.heappop(self._waiting)
            assert host.engine is not None
            todo = await host.call(partial(host.engine.jobs.perform, work))
            if todo is None:
                continue
            begun = time.monotonic()
            try:
                result = await loop.run_in_executor(self._thread, todo)
            except Exception as error:  # a user's code may raise anything: the round must not wait for it
                host.log("work failed", level="error", node=work.node, why=f"{type(error).__name__}: {error}")
                result = error
            seconds = time.monotonic() - begun
            pause = self._pause(result, seconds)
            if pause > 0:
                await asyncio.sleep(pause)
            self.seconds += seconds
            host.put(JobDone(work.id, result, seconds + pause))

    def _pause(self, result: Any, seconds: float) -> float:
        """Return how long to wait so that work takes as long as the fleet's script says."""
        charter = self._host.charter
        batches = getattr(result, "batches", 0)
        if charter is None or charter.script is None or not batches:
            return 0.0
        return max(0.0, charter.script.batch * batches - seconds)

    def close(self) -> None:
        """Let go of the thread; what it computes is of no use any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)
