"""A small world to learn a staleness limit in: logistic regression over edges that report at this fleet's times.

Each edge holds samples of Gaussian classes, with a label mix of its own; its reports take as long as its
devices are expected to; the server mixes them in as HiFlash does. An agent chooses the limit every M arrivals and
is rewarded for accuracy and for haste.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from espalier.methods.hiflash.q_learning import Floats, Learner, Weights

#: classes, inputs, samples per edge, held-out samples, gradient steps per report
_CLASSES, _INPUTS, _SAMPLES, _HELD, _STEPS = 10, 16, 80, 400, 5
#: decisions of an episode, and the decisions that the clock is measured by
_DECISIONS, _HORIZON = 40, 200


@dataclass(frozen=True)
class Episode:
    """What an episode needs to know of the fleet.

    Attributes:
        times: For each edge, the seconds that each of its devices is expected to take.
        rounds: Rounds of an edge per report.
        fraction: Share of its devices in each.
        target: The accuracy that the reward measures by.
    """

    times: Sequence[Sequence[float]]
    rounds: int
    fraction: float
    target: float

    @property
    def edges(self) -> int:
        """How many edges report, M."""
        return len(self.times)

    def duration(self, edge: int, rng: np.random.Generator) -> float:
        """Draw the seconds until an edge's next report: each round lasts as long as its slowest device."""
        times = np.asarray(self.times[edge], dtype=np.float64)
        if len(times) == 0:
            return 1.0
        count = max(1, int(self.fraction * len(times) + 1e-9))
        return float(sum(rng.choice(times, count, replace=False).max() for _ in range(self.rounds))) or 1.0


def reward(accuracy: float, target: float, seconds: float, interval: float) -> float:
    """Return ``64^(accuracy - target) - 1 - seconds / (10 · interval)``."""
    return float(64.0 ** (accuracy - target) - 1.0 - 0.1 * seconds / interval)


def features(
    accuracy: float,
    gain: float,
    staleness: Sequence[int],
    discarded: int,
    times: Sequence[float],
    clock: float,
    interval: float,
) -> Floats:
    """Return what a decision is based on, [M + 6].

    Accuracy, its gain since the last decision, mean and spread of the staleness (in units of M), the share of
    reports thrown away, each edge's last time (the slowest: 1), and the clock in units of 200 decisions.
    """
    count = max(1, len(times))
    stale = np.asarray(staleness, dtype=np.float64) / count
    slow = np.asarray(times, dtype=np.float64)
    clock = min(1.0, clock / (_HORIZON * interval))
    rest = [accuracy, gain, stale.mean(), stale.std(), discarded / max(1, len(stale)), clock]
    return np.concatenate((rest, slow / max(float(slow.max(initial=0.0)), 1e-12)))


class _Regression:
    """Edges with Gaussian classes, each with its own mix of labels."""

    def __init__(self, edges: int, rng: np.random.Generator) -> None:
        centres = rng.standard_normal((_CLASSES, _INPUTS))
        mixes = rng.dirichlet(np.full(_CLASSES, 0.3), size=edges)
        self.data = [self._draw(centres, rng.choice(_CLASSES, _SAMPLES, p=m), rng) for m in mixes]
        self.held = self._draw(centres, rng.integers(_CLASSES, size=_HELD), rng)

    @staticmethod
    def _draw(centres: Floats, labels: NDArray[np.int64], rng: np.random.Generator) -> tuple[Floats, NDArray[np.int64]]:
        return centres[labels] + 1.2 * rng.standard_normal((len(labels), _INPUTS)), labels

    def train(self, edge: int, w: Floats) -> Floats:
        x, y = self.data[edge]
        for _ in range(_STEPS):
            z = x @ w
            p = np.exp(z - z.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            p[np.arange(len(y)), y] -= 1.0
            w = w - 0.5 * x.T @ p / len(y)
        return w

    def accuracy(self, w: Floats) -> float:
        x, y = self.held
        return float(((x @ w).argmax(1) == y).mean())


def _mean_interval(episode: Episode, rng: np.random.Generator) -> float:
    """Return the expected seconds of M arrivals: each edge brings one per duration."""
    rate = sum(1.0 / np.mean([episode.duration(e, rng) for _ in range(20)]) for e in range(episode.edges))
    return float(episode.edges / rate)


def play(episode: Episode, agent: Learner, interval: float, rng: np.random.Generator) -> float:
    """Play one episode, learning; return the last accuracy."""
    count = episode.edges
    task = _Regression(count, rng)
    w = np.zeros((_INPUTS, _CLASSES))
    version, limit, last_time = 0, count, 0.0
    given: list[tuple[int, Floats]] = [(0, w)] * count
    times = [episode.duration(e, rng) for e in range(count)]
    heap = [(times[e], e) for e in range(count)]
    heapq.heapify(heap)
    dropped: set[int] = set()
    accuracy = task.accuracy(w)
    state: Floats | None = None
    action = count - 1
    for _ in range(_DECISIONS):
        stale, discarded, now = [], 0, last_time
        for _ in range(count):
            now, edge = heapq.heappop(heap)
            started, model = given[edge]
            age = version - started
            stale.append(age)
            if age <= limit or edge in dropped:
                dropped.discard(edge)
                rate = 0.6 * (1.0 + age) ** -0.5
                w = (1.0 - rate) * w + rate * task.train(edge, model)
                version += 1
            else:
                dropped.add(edge)
                discarded += 1
            given[edge] = (version, w)
            times[edge] = episode.duration(edge, rng)
            heapq.heappush(heap, (now + times[edge], edge))
        found = task.accuracy(w)
        after = features(found, found - accuracy, stale, discarded, times, now, interval)
        if state is not None:
            agent.learn(state, action, reward(found, episode.target, now - last_time, interval), after)
        state, accuracy, last_time = after, found, now
        action = agent.choose(state)
        limit = action + 1
    return accuracy


def pretrain(episode: Episode, episodes: int, rng: np.random.Generator) -> tuple[Weights, float]:
    """Return a trained network and the expected seconds between two decisions, M arrivals."""
    interval = _mean_interval(episode, rng)
    agent = Learner(episode.edges + 6, 2 * episode.edges, rng)
    for _ in range(episodes):
        play(episode, agent, interval, rng)
    return agent.weights, interval
