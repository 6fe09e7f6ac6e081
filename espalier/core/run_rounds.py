"""Which round a run is in, when models are evaluated and when the run ends: what is asked for, and keeping to it.

:class:`RunRounds` stands where the run is conducted: in the simulation, at a fleet's cloud.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from espalier.core.address import Address
from espalier.core.bounds import Bound, PositiveFloat, PositiveInt
from espalier.core.method import Plan
from espalier.core.runtime import RuntimeEnvironment
from espalier.core.spec import Spec

DEFAULT_ROUNDS = 20


@dataclass(frozen=True)
class RunLimits(Spec, family="stop"):
    """When a run ends: after so many rounds or so many virtual seconds, whatever comes first.

    A round is more work in one method than in another. With ``budget = "time"`` the methods of a comparison have equal
    virtual time: the first of them closes ``rounds``, the others end when it did, seed by seed. With
    ``budget = "rounds"`` each closes ``rounds``. Neither ``rounds`` nor ``seconds`` given: 20 rounds, and equal time.

    Attributes:
        rounds: Rounds of the root.
        seconds: Virtual seconds.
        budget: What the methods of a comparison have alike.
    """

    rounds: PositiveInt | None = None
    seconds: PositiveFloat | None = None
    budget: Literal["time", "rounds"] | None = None

    def check(self) -> None:
        """Refuse a run without an end."""
        if self.rounds is None and self.seconds is None:
            object.__setattr__(self, "rounds", DEFAULT_ROUNDS)
            object.__setattr__(self, "budget", self.budget or "time")
        object.__setattr__(self, "budget", self.budget or "rounds")
        self.require(self.budget == "rounds" or self.rounds is not None, "budget", "'rounds' where no rounds are given")

    def done(self, rounds: int, seconds: float) -> float:
        """Return the share of a run that is done, 0 … 1: the larger one of its rounds and of its seconds."""
        return min(1.0, max(rounds / (self.rounds or math.inf), seconds / (self.seconds or math.inf)))


@dataclass(frozen=True)
class EvaluationSchedule(Spec, family="evaluate"):
    """When models are evaluated, and what is measured besides.

    Where every device has a model of its own (Standalone, Ditto, FedRep), judging them all after each round takes
    longer than training them: see ``share`` and ``rows``.

    Attributes:
        every: Rounds of the root between two evaluations.
        seconds: Virtual seconds between two evaluations, in place of rounds.
        by_source: Whether it is also measured, at the end, how each device does with the global model, its edge's, its
            cluster's, and with its own after local training (which takes a training per device).
        prior: Whether it is also measured, at every evaluation, how devices and edges do that use their models with
            their known label priors: with and without, out of one run.
        share: In a simulation, devices' own models are judged when it takes at most this part of the run's passes over
            samples (a training step counts as three), and at the end. Each figure is exact; there are fewer.
        rows: Each device's own model is judged on so many test rows, drawn once from the device's own test
            distribution, as clients' own test sets are in most of the literature: the mean over devices stays unbiased,
            while their spread and the worst tenth also hold the draw's chance (not where label priors or mixtures are
            served).
    """

    every: PositiveInt = 1
    seconds: PositiveFloat | None = None
    by_source: bool = False
    prior: bool = False
    share: Annotated[float, Bound(gt=0, lt=1, words="a part of the run, between 0 and 1")] | None = None
    rows: PositiveInt | None = None


class RunSteps(Protocol):
    """What follows when the rounds of a run go on."""

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        ...

    def present(self) -> int:
        """Return how many devices are there."""
        ...

    def reached(self, round: int) -> None:
        """The run has closed so many rounds."""
        ...

    def evaluate(self) -> None:
        """Evaluate the models in use."""
        ...

    def end(self) -> None:
        """End the run."""
        ...

    def proceed(self, device: Address) -> None:
        """Let a lone device that waited train on."""
        ...


class RunRounds:
    """Which round a run is in: the root's, the slowest edge's, or that of devices which train alone.

    Devices that train alone train in step: one that has done a round waits until all that are there have done it. So a
    round means the same training for all of them, the slowest decides how long it takes, and what the world does at a
    round (drift) finds all of them there. One that was away trains on without waiting until it has caught up.

    Attributes:
        closed: Rounds closed so far, by node.
        done: Rounds of the whole run.
        left_out: Who is not waited for until it has caught up: on a real fleet a member may say nothing.
    """

    def __init__(
        self, plan: Plan, env: RuntimeEnvironment, limits: RunLimits, schedule: EvaluationSchedule, steps: RunSteps
    ) -> None:
        self._clock, self._env, self._steps = plan.clock, env, steps
        self._limits, self._schedule = limits, schedule
        self.closed: dict[Address, int] = {}
        self.done = 0
        self.left_out: set[Address] = set()
        self._waiting: set[Address] = set()

    def restore(self, done: int, closed: dict[Address, int], present: Iterable[int]) -> None:
        """Become what was saved; these devices are there."""
        self.done, self.closed = done, closed
        if self._clock == "device":
            self._waiting = {d for d in present if closed.get(d, 0) > done}

    def close(self, node: Address, progress: int) -> None:
        """A node has closed a round."""
        self.closed[node] = progress
        if progress > self.done:
            self.left_out.discard(node)
        if self._clock == "root" and node == self._env.tree.root:
            self._reach(progress)
        elif self._clock == "edge" and self._is_edge(node):
            self._slowest()

    def behind(self, devices: Iterable[Address]) -> set[Address]:
        """Return whom alone all others wait for, be it edges or, of those that are there, devices."""
        there, ahead = set(devices) - self.left_out, self._waiting
        if self._clock == "edge":
            there = self._edges()
            ahead = {edge for edge in there if self.closed.get(edge, 0) > self.done}
        return there - ahead if ahead else set()

    def leave_out(self, nodes: Iterable[Address]) -> None:
        """Go on without some edges or devices, until they have caught up."""
        self.left_out.update(nodes)
        self._slowest()
        self._together()

    def _edges(self) -> set[Address]:
        """Return the edges whose rounds count: servers between edges and cloud may have nothing to do."""
        tree = self._env.tree
        return {a for a in tree.aggregators() if self._is_edge(a) and tree.has_children(a)} - self.left_out

    def _slowest(self) -> None:
        """The run has closed as many rounds as its slowest edge, where its rounds are the edges'."""
        if self._clock == "edge":
            self._reach(min((self.closed.get(edge, 0) for edge in self._edges()), default=0))

    def _is_edge(self, node: Address) -> bool:
        return self._env.n_devices <= node < self._env.n_devices + self._env.n_edges

    def waits(self, device: Address) -> bool:
        """Tell whether a device that would train now has to wait; it proceeds when it may."""
        if self._clock != "device" or self.closed.get(device, 0) <= self.done:
            return False
        self._waiting.add(device)
        self._together(device)
        return self._steps.over or self.closed[device] > self.done

    def gone(self, device: Address) -> None:
        """A device is no longer there: perhaps it was the one that all waited for."""
        self.left_out.discard(device)
        if self._clock == "device":
            self._waiting.discard(device)
            self._together()

    def forget(self, device: Address) -> None:
        """A device has lost its state: it starts over."""
        if self._clock == "device":
            self._waiting.discard(device)
            self.closed.pop(device, None)

    def _together(self, last: Address | None = None) -> None:
        """Begin the next round if all devices wait; ``last`` goes on by itself."""
        if not self._waiting or len(self._waiting) < self._steps.present() - len(self.left_out):
            return
        self._reach(min(self.closed[d] for d in self._waiting))
        ready = sorted(d for d in self._waiting if self.closed[d] <= self.done)
        self._waiting.difference_update(ready)
        for device in ready:
            if device != last and not self._steps.over:
                self._steps.proceed(device)

    def _reach(self, done: int) -> None:
        """The run has closed so many rounds: models are evaluated or the run ends."""
        if done <= self.done:
            return
        self.done = done
        self._steps.reached(done)
        if self._limits.rounds is not None and done >= self._limits.rounds:
            self._steps.end()
        elif self._schedule.seconds is None and done % self._schedule.every == 0:
            self._steps.evaluate()

    def next_evaluation(self, now: float) -> float | None:
        """Return when models are evaluated next, if that goes by time: the end has its own, which is not doubled."""
        if self._schedule.seconds is None:
            return None
        at, end = now + self._schedule.seconds, self._limits.seconds
        return at if end is None or at < end * (1 - 1e-9) else None

    def out_of_time(self, now: float) -> bool:
        """Tell whether the run's time has run out."""
        return self._limits.seconds is not None and now >= self._limits.seconds
