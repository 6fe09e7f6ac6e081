"""A node as a service: it takes one run after another, and waits in between.

Each run has a host of its own (`espalier.fleet.node.host`) with state of its own; what stays is the door
(`espalier.fleet.links.door`). The cloud takes its runs from a queue. Everybody else hears of a run from its parent: a
host without a run waits on its link, and one whose run is over makes room for the next.
"""

from __future__ import annotations

from dataclasses import replace

from espalier.core.errors import EspalierError, RunError
from espalier.fleet.certs import Bundle
from espalier.fleet.coordinator.coordinator import Coordinator
from espalier.fleet.coordinator.queue import QueuedRun, RunQueue, RunState
from espalier.fleet.links.door import Door
from espalier.fleet.links.hub import Settings
from espalier.fleet.node.host import Host
from espalier.fleet.node.log import Log
from espalier.simulator.directory import DirectoryLock


class Service:
    """One node, over all its runs.

    Attributes:
        host: The present one.
        current: The run of the queue that goes on, or None.
        queue: The cloud's: what is to be run; None elsewhere, and at a cloud that has one run only.
    """

    def __init__(self, bundle: Bundle, settings: Settings, log: Log, queue: RunQueue | None = None) -> None:
        self._bundle, self._settings, self._log = bundle, settings, log
        self.queue, self.door = queue, Door(bundle)
        self._ending = False
        self.current: QueuedRun | None = None
        self.host = self._next_host()

    async def run(self) -> None:
        """Take runs until :meth:`stop` is called; without a queue, and for a fleet that does not stand, take one.

        Raises:
            EspalierError: What the operator must mend.
        """
        try:
            while True:
                await self._take_run()
                manifest = self.host.manifest
                stands = self.queue is not None or (manifest is None or manifest.standing)
                if self._ending or not stands:
                    return
                self._settings = replace(self._settings, declined=self.host.declined)
                self.host = self._next_host()
        finally:
            await self.door.close()

    def stop(self, why: str, *, returns: bool = False) -> None:
        """End in good order; who ``returns`` soon is waited for."""
        self._ending = True
        self.host.stop(why, returns=returns)

    def look_for_runs(self) -> None:
        """Something was put into the queue: begin with it, unless a run goes on."""
        if self.current is None:
            self.host.stop("a run was submitted")

    def move(self, name: str | None, target: str) -> None:
        """Go to another parent, now and for all runs to come."""
        others = (p for p in self._settings.parents if p != (name, target))
        self._settings = replace(self._settings, parents=((name, target), *others))
        if self.host.parent_link is not None:
            self.host.parent_link.move(name, target)

    # -- one run after another ---------------------------------------------------------------------------------

    def _next_host(self) -> Host:
        settings = self._settings
        if self.queue is not None:
            self.current = self.queue.begin_next()
            if self.current is not None:
                run = self.current
                settings = replace(
                    settings, manifest=run.manifest, directory=run.directory, start_with=run.start_with,
                    numbers=self.queue.numbers(),
                )  # fmt: skip
        return Host(self._bundle, settings, self._log, self.door)

    async def _take_run(self) -> None:
        """Let the present host live; write down what became of the queue's run."""
        run, queue, host = self.current, self.queue, self.host
        # a cloud's directory is a run directory: whoever watches it sees by the lock that the run goes on
        conducts = host.settings.manifest is not None and host.settings.directory is not None
        claim = DirectoryLock(host.settings.directory, shared=True) if conducts else None  # type: ignore[arg-type]
        try:
            await host.run()
        except EspalierError as error:
            if run is None or queue is None or isinstance(error, RunError):
                raise
            self._log("run failed", level="error", run=run.name, why=str(error))
            queue.ended(run, "failed", str(error))
        finally:
            if claim is not None:
                claim.release()
            if queue is not None and host.registry is not None:
                queue.remember(host.registry.numbers())
        conduct = host.conduct
        if run is not None and queue is not None and isinstance(conduct, Coordinator) and conduct.finished:
            state: RunState = "stopped" if conduct.stopped else "finished"
            queue.ended(run, state, conduct.stopped or conduct.stalled, **conduct.summary())
