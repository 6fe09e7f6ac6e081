"""How stale a report may be: no limit, a limit that climbs where it pays, a limit that was learnt.

HiFlash (Wu et al., TPDS 2023) lets reinforcement learning choose the limit; the climbing one is ours: it needs
no training and no luck.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from espalier.core.messages import ALL
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.methods.hiflash.q_learning import greedy
from espalier.methods.hiflash.staleness_proxy import Episode, features, pretrain
from espalier.policies.asynchronous import StalenessControl
from espalier.policies.latency import estimate


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

    smoothing: float = 0.5

    def check(self) -> None:
        """Refuse impossible values."""
        self.require(0 < self.smoothing <= 1, "smoothing", "in (0, 1]")

    def limit(self, view: View) -> float:
        """Return the limit of now."""
        return float(self._memory(view)["limit"])

    def _memory(self, view: View) -> dict[str, Any]:
        if "control" not in view.memory:
            view.memory["control"] = {
                "limit": len(view.env.children(view.me)),
                "direction": 1,
                "arrivals": 0,
                "accuracy": view.env.accuracy([view.models[ALL]], "proxy", view.me)[0],
                "time": view.now,
                "gain": None,
            }
        found: dict[str, Any] = view.memory["control"]
        return found

    def observe(self, view: View, arrival: Arrival, staleness: int, kept: bool, models: Mapping[str, Ref]) -> None:
        """Count; step when it is time."""
        memory = self._memory(view)
        memory["arrivals"] += 1
        children = len(view.env.children(view.me))
        if memory["arrivals"] < children or view.now <= memory["time"]:
            return
        accuracy = view.env.accuracy([models[ALL]], "proxy", view.me)[0]
        gain, before = (accuracy - memory["accuracy"]) / (view.now - memory["time"]), memory["gain"]
        if before is not None:
            gain = self.smoothing * gain + (1.0 - self.smoothing) * before
        limit, direction = climb(memory["limit"], memory["direction"], gain, before, 2 * children)
        memory |= {"limit": limit, "direction": direction, "gain": gain}
        memory |= {"arrivals": 0, "accuracy": accuracy, "time": view.now}
        view.note("limit", round=view.round, limit=limit, accuracy=accuracy)


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

    epochs: int = 1
    edge_rounds: int = 1
    fraction: float = 1.0
    target: float = 0.9
    episodes: int = 50
    epsilon: float = 0.05

    def check(self) -> None:
        """Refuse impossible values."""
        self.require(self.episodes >= 1, "episodes", "at least 1")
        self.require(0 <= self.epsilon <= 1, "epsilon", "in [0, 1]")

    def limit(self, view: View) -> float:
        """Return the limit of now."""
        return float(self._memory(view)["limit"])

    def _memory(self, view: View) -> dict[str, Any]:
        if "control" in view.memory:
            found: dict[str, Any] = view.memory["control"]
            return found
        children = list(view.env.children(view.me))
        times = [self._times(view, child) for child in children]
        rng = view.env.rng("dqn", view.me)
        episode = Episode(times, self.edge_rounds, self.fraction, self.target)
        weights, interval = pretrain(episode, self.episodes, rng)
        means = [self.edge_rounds * float(np.mean(t)) if len(t) else 0.0 for t in times]
        view.memory["control"] = {
            "limit": len(children),
            "children": children,
            "weights": weights,
            "interval": interval,
            "times": dict(zip(children, means, strict=True)),
            "accuracy": view.env.accuracy([view.models[ALL]], "proxy", view.me)[0],
            "staleness": [],
            "discarded": 0,
            "decisions": 0,
        }
        return self._memory(view)

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
        memory = self._memory(view)
        report = arrival.report
        if report.sender in memory["times"]:
            memory["times"][report.sender] = report.download + report.compute + arrival.upload
        memory["staleness"].append(staleness)
        memory["discarded"] += int(not kept)
        children = memory["children"]
        if len(memory["staleness"]) < len(children):
            return
        accuracy = view.env.accuracy([models[ALL]], "proxy", view.me)[0]
        state = features(
            accuracy, accuracy - memory["accuracy"], memory["staleness"], memory["discarded"],
            [memory["times"][c] for c in children], view.now, memory["interval"],
        )  # fmt: skip
        rng = view.env.rng("dqn choice", view.me, memory["decisions"])
        action = greedy(memory["weights"], state, self.epsilon, rng)
        memory |= {"limit": action + 1, "accuracy": accuracy, "staleness": [], "discarded": 0}
        memory["decisions"] += 1
        view.note("limit", round=view.round, limit=action + 1, accuracy=accuracy)
