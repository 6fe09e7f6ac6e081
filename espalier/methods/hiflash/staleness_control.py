"""How stale a report may be: no limit, a limit that climbs where it pays, a limit that was learnt.

HiFlash (Wu et al., TPDS 2023) lets reinforcement learning choose the limit; the climbing one is ours: it needs
no training and no luck.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from espalier.core.address import Address
from espalier.core.bounds import PositiveInt, Share, UnitFloat
from espalier.core.environment import estimate
from espalier.core.messages import ALL
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.methods.hiflash.q_learning import Floats, greedy
from espalier.methods.hiflash.staleness_proxy import Episode, features, pretrain
from espalier.policies.asynchronous import StalenessControl


def climb(limit: int, direction: int, gain: float, before: float | None, most: int) -> tuple[int, int]:
    """Return the next limit and direction: go on while the gain does not fall, else turn round.

    Args:
        limit: The limit now.
        direction: +1 or -1.
        gain: Accuracy per second since the last step, smoothed.
        before: The gain of the step before (None: there was none).
        most: The largest limit; the smallest is 1.
    """
    if before is not None and gain < before:
        direction = -direction
    return max(1, min(most, limit + direction)), direction


@dataclass(frozen=True)
class Climbing(StalenessControl, kind="climbing"):
    """Every M arrivals (M: children) the limit goes one step, on while accuracy per second does not fall.

    It begins at M and stays within [1, 2M]. The accuracy is the model's on the server's own small set.
    """

    @dataclass(slots=True)
    class State:
        """The limit of now, the way it went last, and what has come since.

        Attributes:
            begun: Whether the rest is set.
            limit: The largest staleness that is taken.
            direction: Of the last step.
            arrivals: Since then.
            accuracy: At the last step.
            time: When that was.
            gain: Accuracy per second up to it, smoothed.
        """

        begun: bool = False
        limit: int = 0
        direction: int = 1
        arrivals: int = 0
        accuracy: float = 0.0
        time: float = 0.0
        gain: float | None = None

    smoothing: Share = 0.5

    def limit(self, view: View) -> float:
        """Return the limit of now."""
        return float(self._begun(view).limit)

    def _begun(self, view: View) -> State:
        state = view.state(self)
        if not state.begun:
            state.begun, state.limit, state.time = True, len(view.env.children(view.me)), view.now
            state.accuracy = view.env.accuracy([view.models[ALL]], "proxy", view.me)[0]
        return state

    def observe(self, view: View, arrival: Arrival, staleness: int, kept: bool, models: Mapping[str, Ref]) -> None:
        """Count; step when it is time."""
        state = self._begun(view)
        state.arrivals += 1
        children = len(view.env.children(view.me))
        if state.arrivals < children or view.now <= state.time:
            return
        accuracy = view.env.accuracy([models[ALL]], "proxy", view.me)[0]
        gain, before = (accuracy - state.accuracy) / (view.now - state.time), state.gain
        if before is not None:
            gain = self.smoothing * gain + (1.0 - self.smoothing) * before
        state.limit, state.direction = climb(state.limit, state.direction, gain, before, 2 * children)
        state.gain, state.arrivals, state.accuracy, state.time = gain, 0, accuracy, view.now
        view.note("limit", round=view.round, limit=state.limit, accuracy=accuracy)


@dataclass(frozen=True)
class Learnt(StalenessControl, kind="dqn"):
    """A double deep Q-network chooses the limit in {1 … 2M} every M arrivals.

    One run has only tens of decisions, so it is trained before: over ``episodes`` of a small logistic regression on
    this fleet's expected times (see :mod:`espalier.methods.hiflash.staleness_proxy`), then frozen but for ``epsilon``.

    Attributes:
        epochs: Local updates of a device, for the expected times.
        edge_rounds: Rounds of a child per report.
        fraction: Share of a child's devices in each of them.
        target: The accuracy that the reward measures by.
        episodes: Episodes of pre-training.
        epsilon: Share of random choices afterwards.
    """

    @dataclass(slots=True)
    class State:
        """The limit of now, what the network is, and what has come since its last choice.

        Attributes:
            begun: Whether the rest is set.
            limit: The largest staleness that is taken.
            children: The children at the beginning.
            weights: Of the network, by layer.
            interval: Seconds between two arrivals, as the network learnt it.
            times: Seconds that each child takes.
            accuracy: At the last choice.
            staleness: Of the arrivals since.
            discarded: How many of them were thrown away.
            decisions: Choices made.
        """

        begun: bool = False
        limit: int = 0
        children: list[Address] = field(default_factory=list)
        weights: Sequence[Floats] = ()
        interval: float = 0.0
        times: dict[Address, float] = field(default_factory=dict)
        accuracy: float = 0.0
        staleness: list[int] = field(default_factory=list)
        discarded: int = 0
        decisions: int = 0

    epochs: int = 1
    edge_rounds: int = 1
    fraction: float = 1.0
    target: float = 0.9
    episodes: PositiveInt = 50
    epsilon: UnitFloat = 0.05

    def limit(self, view: View) -> float:
        """Return the limit of now."""
        return float(self._begun(view).limit)

    def _begun(self, view: View) -> State:
        state = view.state(self)
        if state.begun:
            return state
        children = list(view.env.children(view.me))
        times = [self._times(view, child) for child in children]
        rng = view.env.rng("dqn", view.me)
        episode = Episode(times, self.edge_rounds, self.fraction, self.target)
        state.weights, state.interval = pretrain(episode, self.episodes, rng)
        means = [self.edge_rounds * float(np.mean(t)) if len(t) else 0.0 for t in times]
        state.begun, state.limit, state.children = True, len(children), children
        state.times = dict(zip(children, means, strict=True))
        state.accuracy = view.env.accuracy([view.models[ALL]], "proxy", view.me)[0]
        return state

    def _times(self, view: View, child: int) -> list[float]:
        """Return the seconds that each device below a child is expected to take for an order."""
        env = view.env
        if env.is_device(child):
            return [estimate(env, view.me, child, self.epochs, view.now).total]
        found: list[float] = []
        for below in env.children(child):
            if env.is_device(below):
                found.append(estimate(env, child, below, self.epochs, view.now).total)
            else:
                found += self._times(view, below)
        return found

    def observe(self, view: View, arrival: Arrival, staleness: int, kept: bool, models: Mapping[str, Ref]) -> None:
        """Count; choose anew when it is time."""
        state, report = self._begun(view), arrival.report
        if report.sender in state.times:
            state.times[report.sender] = report.download + report.compute + arrival.upload
        state.staleness.append(staleness)
        state.discarded += int(not kept)
        if len(state.staleness) < len(state.children):
            return
        accuracy = view.env.accuracy([models[ALL]], "proxy", view.me)[0]
        seen = features(
            accuracy, accuracy - state.accuracy, state.staleness, state.discarded,
            [state.times[c] for c in state.children], view.now, state.interval,
        )  # fmt: skip
        rng = view.env.rng("dqn choice", view.me, state.decisions)
        action = greedy(state.weights, seen, self.epsilon, rng)
        state.limit, state.accuracy, state.staleness, state.discarded = action + 1, accuracy, [], 0
        state.decisions += 1
        view.note("limit", round=view.round, limit=action + 1, accuracy=accuracy)
