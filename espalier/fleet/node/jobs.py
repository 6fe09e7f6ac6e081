"""PendingJob for a host's worker: trainings, statistics and scores that were asked for, and what comes of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from espalier.core.address import Address, host_of
from espalier.core.codec import refs_in
from espalier.core.device import Device
from espalier.core.errors import ConfigError
from espalier.core.messages import Measure, Measured, Train, Trained
from espalier.core.store import Ref
from espalier.fleet.node.events import PendingJob, ScoreModels
from espalier.fleet.node.trainer import TrainingRequest, TrainingResult, private, system_rng
from espalier.privacy.budget import is_private

if TYPE_CHECKING:
    from espalier.fleet.node.engine import Engine


class JobQueue:
    """The work of one host. All is called in the engine's thread."""

    def __init__(self, engine: Engine) -> None:
        """Go on with what an earlier incarnation left undone."""
        self._engine = engine
        #: a trainer does one thing at a time, and a policy's question comes from another thread than the worker's
        self._training = threading.Lock()
        plain = engine.journal.get("works") or {}
        self.waiting: dict[int, PendingJob] = {w[0]: PendingJob.of_plain(w) for w in plain.get("waiting", ())}
        self._count: int = plain.get("count", 0)
        self._private = is_private(engine.plan)

    # -- to do ---------------------------------------------------------------------------------------------

    def ask(self, address: Address, action: Train | Measure, number: int) -> None:
        """A device wants to train, or to know a statistic of its data."""
        engine = self._engine
        if self._private:
            # before anything of it can leave this host
            life, numbers = engine.directory.members[engine.me].life, engine.runtime.numbers
            jobs, revealed = int(numbers.trainings[address]), int(numbers.revealed[address])
            engine.say(engine.directory.cloud, "spent", life=life, jobs=jobs, revealed=revealed)
        if isinstance(engine.runtime.node(address), Device):
            # a device minds only its newest order
            for old in [
                w.id for w in self.waiting.values() if w.node == address and not isinstance(w.action, ScoreModels)
            ]:
                del self.waiting[old]
        self.assign(address, action, number)

    def assign(self, address: Address, action: Train | Measure | ScoreModels, number: int = 0) -> None:
        """Give the worker something to do."""
        self._count += 1
        work = PendingJob(self._count, address, action, number, self._engine.now())
        self.waiting[work.id] = work
        self._engine.effects.jobs.append(work)

    def perform(self, work: PendingJob) -> Callable[[], Any] | None:
        """Return the computation that a piece of work means, for the worker's thread (None: nobody wants it now)."""
        todo = self._computation(work) if work.id in self.waiting else None
        if todo is None:
            return None

        def alone() -> Any:
            with self._training:
                return todo()

        return alone

    def _computation(self, work: PendingJob) -> Callable[[], Any]:
        action, trainer, store = work.action, self._engine.trainer, self._engine.store
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
        rng = system_rng() if noisy else self._engine.directory.rng("statistic", action.what, work.node, work.number)
        return lambda: trainer.measure(action.what, vectors, action.args, rng)

    # -- done ----------------------------------------------------------------------------------------------

    def done(self, number: int, result: Any, seconds: float) -> None:
        """Tell whoever asked what came out of a piece of work, or that it failed."""
        engine, work = self._engine, self.waiting.pop(number, None)
        if work is None:
            return
        if isinstance(result, Exception):
            self._failed(work, result)
            return
        if isinstance(work.action, ScoreModels):
            engine.steward.scored(work, result)
            return
        if engine.charter.script is not None and isinstance(result, TrainingResult):
            seconds = engine.charter.script.batch * result.batches
        engine.steward.worked(work, seconds)
        token = work.action.token
        if not isinstance(result, TrainingResult):
            engine.begin(work.node, Measured(token, result, seconds))
            return
        mine = replace(engine.directory.members[engine.me], samples=engine.trainer.samples)
        if result.batches:
            mine = replace(mine, seconds_per_batch=seconds / result.batches)
        engine.tell(engine.directory.joined(mine))
        ref = engine.store.learnt(result.vector, result.loss, result.memory)
        engine.begin(work.node, Trained(token, ref, seconds, work.action.updates))

    def _failed(self, work: PendingJob, error: Exception) -> None:
        """Nobody need wait for a training that failed; the device takes part again from the next round on."""
        engine = self._engine
        engine.steward.recorded(work.node, "failed", {"why": f"{type(error).__name__}: {error}"})
        if isinstance(work.action, ScoreModels):
            return
        parent = engine.directory.parent(work.node)
        node = engine.runtime.node(work.node)
        order = node.state.order if isinstance(node, Device) else None
        waiting = {host_of(a) for a in (parent, None if order is None else order.sender) if a is not None}
        if isinstance(node, Device):
            node.state.order = None
            engine.touch(work.node)
        for host in sorted(waiting):
            engine.say(host, "stumbled", node=work.node)

    # -- at once ---------------------------------------------------------------------------------------------

    def judge(self, refs: Sequence[Ref], where: str, node: Address, what: str) -> list[float]:
        """Evaluate models on a node's own set, because a policy wants to know now."""
        engine = self._engine
        found: list[dict[str, float]] = []
        if host_of(node) == engine.me:
            with self._training:
                found = engine.trainer.score([engine.store.vector(r) for r in refs], where)
        if not found:
            raise ConfigError(
                f"Node {node} has no set {where!r} to evaluate models on; give it one with --data (x_test and y_test)."
            )
        main = "loss" if what == "loss" else next(n for n in found[0] if n != "loss")
        return [f[main] for f in found]

    def pretrained(self, device: Address, epochs: int) -> float:
        """Return how well this device's data alone teach the initial model; tried out once."""
        engine = self._engine
        kept = engine.journal.get("pretrained") or {}
        if epochs not in kept:
            with self._training:
                kept[epochs] = engine.trainer.trial(device, epochs)
            engine.journal.put("pretrained", kept)
        return float(kept[epochs])

    # -- saving ----------------------------------------------------------------------------------------------

    def held(self, found: set[int]) -> None:
        """Add the models that work under way needs."""
        refs_in([w.to_plain() for w in self.waiting.values()], found)

    def save(self) -> None:
        """Bring the journal up to date (it is not committed here)."""
        plain = {"waiting": [w.to_plain() for w in self.waiting.values()], "count": self._count}
        self._engine.journal.put("works", plain)
