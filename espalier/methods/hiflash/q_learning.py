"""A small double deep Q-network, in plain arrays.

van Hasselt, Guez, Silver. Deep Reinforcement Learning with Double Q-learning. AAAI 2016.

Two hidden layers of rectified units; Adam; a ring of past transitions; a target network that follows every so
many steps. The online network chooses the next action, the target network values it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: matrices and biases of the three layers
Weights = list[Floats]


def network(inputs: int, actions: int, rng: np.random.Generator, hidden: int = 64) -> Weights:
    """Return fresh weights (He's initialisation)."""
    out: Weights = []
    for a, b in ((inputs, hidden), (hidden, hidden), (hidden, actions)):
        out += [rng.standard_normal((a, b)) * np.sqrt(2.0 / a), np.zeros(b)]
    return out


def values(weights: Sequence[Floats], states: Floats) -> Floats:
    """Return the value of every action in each state, [n, actions]."""
    return _forward(weights, states)[-1]


def _forward(weights: Sequence[Floats], states: Floats) -> list[Floats]:
    layers = [np.atleast_2d(states)]
    for i in range(0, len(weights), 2):
        out = layers[-1] @ weights[i] + weights[i + 1]
        layers.append(np.maximum(out, 0.0) if i + 2 < len(weights) else out)
    return layers


def greedy(weights: Sequence[Floats], state: Floats, epsilon: float, rng: np.random.Generator) -> int:
    """Return the best action, or with probability ``epsilon`` any."""
    actions = len(weights[-1])
    if rng.random() < epsilon:
        return int(rng.integers(actions))
    return int(values(weights, state)[0].argmax())


def double_targets(online: Floats, target: Floats, rewards: Floats, gamma: float) -> Floats:
    """Return ``r + gamma · Q_target(s', argmax_a Q_online(s', a))``, [n].

    Args:
        online: The online network's values of the next states, [n, actions].
        target: The target network's, [n, actions].
        rewards: Rewards, [n].
        gamma: Discount.
    """
    best = online.argmax(1)
    return np.asarray(rewards + gamma * target[np.arange(len(best)), best])


def gradients(weights: Sequence[Floats], states: Floats, actions: NDArray[np.int64], wanted: Floats) -> Weights:
    """Return the gradients of the mean of ``(Q(s, a) - wanted)² / 2``."""
    layers = _forward(weights, states)
    n = len(actions)
    delta = np.zeros_like(layers[-1])
    rows = np.arange(n)
    delta[rows, actions] = (layers[-1][rows, actions] - wanted) / n
    out: Weights = []
    for i in range(len(weights) - 2, -1, -2):
        out = [layers[i // 2].T @ delta, delta.sum(0), *out]
        if i:
            delta = (delta @ weights[i].T) * (layers[i // 2] > 0)
    return out


@dataclass(frozen=True)
class Recipe:
    """How the network learns."""

    gamma: float = 0.9
    lr: float = 1e-3
    batch: int = 32
    memory: int = 2000
    follow: int = 50
    first: float = 1.0
    last: float = 0.05
    decay: int = 200


class Learner:
    """Trains a network on transitions ``(state, action, reward, next state)``."""

    def __init__(self, inputs: int, actions: int, rng: np.random.Generator, recipe: Recipe | None = None) -> None:
        self.recipe = recipe or Recipe()
        self.rng = rng
        self.weights = network(inputs, actions, rng)
        self._target = [w.copy() for w in self.weights]
        self._first = [np.zeros_like(w) for w in self.weights]
        self._second = [np.zeros_like(w) for w in self.weights]
        self._past: list[tuple[Floats, int, float, Floats]] = []
        self._stored = self._steps = self._choices = 0

    def choose(self, state: Floats) -> int:
        """Return an action; random ones become rarer with every choice."""
        recipe = self.recipe
        share = min(1.0, self._choices / recipe.decay)
        self._choices += 1
        return greedy(self.weights, state, recipe.first + share * (recipe.last - recipe.first), self.rng)

    def learn(self, state: Floats, action: int, reward: float, after: Floats) -> None:
        """Remember a transition and take one step on a batch of past ones."""
        recipe = self.recipe
        if len(self._past) < recipe.memory:
            self._past.append((state, action, reward, after))
        else:
            self._past[self._stored % recipe.memory] = (state, action, reward, after)
        self._stored += 1
        if len(self._past) < recipe.batch:
            return
        chosen = [self._past[i] for i in self.rng.integers(len(self._past), size=recipe.batch)]
        states, nexts = np.array([c[0] for c in chosen]), np.array([c[3] for c in chosen])
        actions, rewards = np.array([c[1] for c in chosen]), np.array([c[2] for c in chosen])
        wanted = double_targets(values(self.weights, nexts), values(self._target, nexts), rewards, recipe.gamma)
        self._step(gradients(self.weights, states, actions, wanted))

    def _step(self, found: Weights) -> None:
        self._steps += 1
        for w, g, first, second in zip(self.weights, found, self._first, self._second, strict=True):
            first += 0.1 * (g - first)
            second += 0.001 * (g * g - second)
            scale = np.sqrt(second / (1.0 - 0.999**self._steps)) + 1e-8
            w -= self.recipe.lr * first / (1.0 - 0.9**self._steps) / scale
        if self._steps % self.recipe.follow == 0:
            self._target = [w.copy() for w in self.weights]
