"""Drives an engine in a thread of its own: batches of items in, effects out.

The event loop never waits for the disk: what happens is queued, a batch of it is one transaction in the engine's
thread, and the loop carries out what comes of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from espalier.core.errors import ProtocolError
from espalier.fleet.node.engine import Engine
from espalier.fleet.node.events import Call, Effects, Item

T = TypeVar("T")

#: items that are one transaction at most
BATCH_ITEMS = 256


class Driver:
    """The engine's queue and thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "espalier-engine")
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
                raise ProtocolError("Something happened to a node that has no charter yet.")
            effects = await self.at_once(partial(found.take, batch))
            answers, self._answers = self._answers, []
            for future, value in answers:
                _settle(future, value, None)
            carry_out(effects)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()


def _settle(future: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
