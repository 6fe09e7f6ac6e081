"""The two threads beside a host's event loop: one drives the engine, the other trains.

The event loop never waits for the disk: what happens is queued, a batch of it is one transaction in the engine's
thread, and the loop carries out what comes of it. The worker trains, measures and scores, one thing at a time.
Both compute with one torch thread: helpers of a model-sized sum cost more than they do, and wait by spinning.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import torch

from espalier.core.errors import ProtocolError
from espalier.fleet.node.engine import Engine
from espalier.fleet.node.events import Call, Effects, Item, JobDone, PendingJob, ScoreModels
from espalier.fleet.node.log import Log

T = TypeVar("T")

#: items that are one transaction at most
BATCH_ITEMS = 256


class Driver:
    """The engine's queue and thread."""

    def __init__(self) -> None:
        self._thread = _thread("espalier-engine")
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self._answers: list[tuple[asyncio.Future[Any], Any]] = []

    def put(self, item: Item) -> None:
        """Let something happen to the engine."""
        self._items.put_nowait(item)

    async def call(self, what: Callable[[], T]) -> T:
        """Do something in the engine's thread, as part of a transaction; return what it returned, once that is kept."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def act() -> None:
            try:
                value = what()
            except Exception as error:
                loop.call_soon_threadsafe(_settle, done, None, error)
            else:
                self._answers.append((done, value))

        self.put(Call(act))
        return await done

    async def at_once(self, what: Callable[[], T]) -> T:
        """Do something in the engine's thread, outside of any transaction."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, what)

    async def run(self, engine: Callable[[], Engine | None], carry_out: Callable[[Effects], None]) -> None:
        """Feed the engine, batch by batch, for ever."""
        while True:
            batch = [await self._items.get()]
            while len(batch) < BATCH_ITEMS and not self._items.empty():
                batch.append(self._items.get_nowait())
            found = engine()
            if found is None:
                raise ProtocolError("Something happened to a node that has no manifest yet.")
            effects = await self.at_once(partial(found.take, batch))
            answers, self._answers = self._answers, []
            for future, value in answers:
                _settle(future, value, None)
            carry_out(effects)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()


class Worker:
    """The worker's queue and thread; training goes before scoring."""

    def __init__(
        self, driver: Driver, spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]], log: Log
    ) -> None:
        self._driver, self._spawn, self._log = driver, spawn, log
        self._thread = _thread("espalier-worker")
        self._waiting: list[tuple[int, int, PendingJob]] = []
        self._task: asyncio.Task[Any] | None = None
        self.seconds = 0.0

    def add(self, work: PendingJob, engine: Engine) -> None:
        """Give it something to do for an engine."""
        heapq.heappush(self._waiting, (1 if isinstance(work.action, ScoreModels) else 0, work.id, work))
        if self._task is None or self._task.done():
            self._task = self._spawn(self._run(engine))

    async def _run(self, engine: Engine) -> None:
        loop, jobs = asyncio.get_running_loop(), engine.jobs
        while self._waiting:
            _, _, work = heapq.heappop(self._waiting)
            todo = await self._driver.call(partial(jobs.perform, work))
            if todo is None:
                continue
            begun = time.monotonic()
            try:
                result = await loop.run_in_executor(self._thread, todo)
            except Exception as error:  # a user's code may raise anything: the round must not wait for it
                self._log("work failed", level="error", node=work.node, why=f"{type(error).__name__}: {error}")
                result = error
            seconds = time.monotonic() - begun
            self.seconds += seconds
            self._driver.put(JobDone(work.id, result, seconds))

    def close(self) -> None:
        """Let go of the thread; what it computes is of no use any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _thread(name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, name, torch.set_num_threads, (1,))


def _settle(future: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
