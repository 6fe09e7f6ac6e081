"""Jobs for a host's worker: trainings, statistics and scores that were asked for, and what comes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from espalier.core.address import Address, host_of
from espalier.core.codec import refs_in
from espalier.core.device import Device
from espalier.core.messages import Measure, Measured, Train, Trained
from espalier.core.statistics import statistic
from espalier.fleet.node.events import PendingJob, ScoreModels
from espalier.fleet.node.outbox import Outbox
from espalier.fleet.node.state import HostState
from espalier.fleet.node.trainer import TrainingRequest, TrainingResult, private, system_rng
from espalier.privacy import is_private


class JobQueue:
    """The work of one host. All is called in the engine's thread."""

    def __init__(self, state: HostState, outbox: Outbox) -> None:
        """Go on with what an earlier incarnation left undone."""
        self._state, self._outbox = state, outbox
        plain = state.journal.get("works") or {}
        self.waiting: dict[int, PendingJob] = {w[0]: PendingJob.of_plain(w) for w in plain.get("waiting", ())}
        self._count: int = plain.get("count", 0)
        self._private = is_private(state.plan)

    # -- to do ---------------------------------------------------------------------------------------------

    def ask(self, address: Address, action: Train | Measure, number: int) -> None:
        """A device wants to train, or to know a statistic of its data."""
        state = self._state
        if self._private:
            # before anything of it can leave this host
            incarnation, numbers = state.directory.members[state.me].incarnation, state.runtime.numbers
            jobs, revealed = int(numbers.trainings[address]), int(numbers.revealed[address])
            self._outbox.say(state.directory.cloud, "spent", incarnation=incarnation, jobs=jobs, revealed=revealed)
        if isinstance(state.runtime.node(address), Device):
            # a device minds only its newest order
            for old in [
                w.id for w in self.waiting.values() if w.node == address and not isinstance(w.action, ScoreModels)
            ]:
                del self.waiting[old]
        self.assign(address, action, number)

    def assign(self, address: Address, action: Train | Measure | ScoreModels, number: int = 0) -> None:
        """Give the worker something to do."""
        self._count += 1
        work = PendingJob(self._count, address, action, number, self._state.now())
        self.waiting[work.id] = work
        self._state.effects.jobs.append(work)

    def perform(self, work: PendingJob) -> Callable[[], Any] | None:
        """Return the computation that a piece of work means, for the worker's thread (None: nobody wants it now)."""
        todo = self._computation(work) if work.id in self.waiting else None
        if todo is None:
            return None

        def alone() -> Any:
            with self._state.trials.training:
                return todo()

        return alone

    def _computation(self, work: PendingJob) -> Callable[[], Any]:
        action, trainer, store = work.action, self._state.trainer, self._state.store
        if isinstance(action, Train):
            request = TrainingRequest(work.node, work.number, action.resolved(store.vector, store.memory))
            if "private" not in action.args:
                return lambda: trainer.train(request)
            clip, noise = action.args["private"]
            return lambda: private(trainer.train(request), request.work.start, clip, noise, store.spec.n_float)
        vectors = [store.vector(r) for r in action.models]
        if isinstance(action, ScoreModels):
            return lambda: trainer.score(vectors, "test")
        noisy = "noise" in action.args
        rng = system_rng() if noisy else self._state.directory.rng("statistic", action.what, work.node, work.number)
        return lambda: trainer.measure(action.what, vectors, action.args, rng)

    # -- done ----------------------------------------------------------------------------------------------

    def done(self, number: int, result: Any, seconds: float) -> None:
        """Tell whoever asked what came out of a piece of work, or that it failed."""
        state, work = self._state, self.waiting.pop(number, None)
        if work is None:
            return
        if isinstance(result, Exception):
            self._failed(work, result)
            return
        if isinstance(work.action, ScoreModels):
            state.conduct.scored(work, result)
            return
        script, stop = state.manifest.script, state.now()
        if script is not None:
            seconds = script.batch * self._batches(work, result)
            stop = work.at + seconds
        state.conduct.worked(work, seconds, stop)
        token = work.action.token
        if not isinstance(result, TrainingResult):
            state.happen(work.node, stop, Measured(token, result, seconds))
            return
        mine = replace(state.directory.members[state.me], samples=state.trainer.samples)
        if result.batches:
            mine = replace(mine, seconds_per_batch=seconds / result.batches)
        state.tell(state.directory.joined(mine))
        ref = state.store.learnt(result.vector, result.loss, result.memory)
        state.happen(work.node, stop, Trained(token, ref, seconds, work.action.updates))

    def _batches(self, work: PendingJob, result: Any) -> float:
        """Return the mini-batches that work takes on a scripted fleet."""
        if isinstance(result, TrainingResult):
            return result.batches
        state, action = self._state, work.action
        own = state.manifest.experiment.training.batches(state.trainer.samples, 1)
        return statistic(action.what).batches(own, len(action.models))

    def _failed(self, work: PendingJob, error: Exception) -> None:
        """Nobody need wait for a training that failed; the device takes part again from the next round on."""
        state = self._state
        state.conduct.record(work.node, "failed", {"why": f"{type(error).__name__}: {error}"})
        if isinstance(work.action, ScoreModels):
            return
        parent = state.directory.parent(work.node)
        node = state.runtime.node(work.node)
        order = node.state.order if isinstance(node, Device) else None
        waiting = {host_of(a) for a in (parent, None if order is None else order.sender) if a is not None}
        if isinstance(node, Device):
            node.state.order = None
            state.touch(work.node)
        for host in sorted(waiting):
            self._outbox.say(host, "gave_up", node=work.node)

    # -- saving ----------------------------------------------------------------------------------------------

    def held(self, found: set[int]) -> None:
        """Add the models that work under way needs."""
        refs_in([w.to_plain() for w in self.waiting.values()], found)

    def save(self) -> None:
        """Bring the journal up to date (it is not committed here)."""
        plain = {"waiting": [w.to_plain() for w in self.waiting.values()], "count": self._count}
        self._state.journal.put("works", plain)
