"""The small Q-network: arithmetic by hand, gradients by differences, and that it learns."""

from __future__ import annotations

import numpy as np
import pytest

from espalier.core.seeds import stream
from espalier.methods.hiflash.q_learning import Learner, Recipe, double_targets, gradients, greedy, network, values
from espalier.methods.hiflash.staleness_proxy import Episode, features, play, pretrain, reward


def test_double_targets_choose_with_one_network_and_value_with_the_other() -> None:
    online, target = np.array([[1.0, 3.0, 2.0]]), np.array([[10.0, 20.0, 30.0]])
    # the online network prefers action 1, the target network says 20: 1 + 0.9 · 20
    assert double_targets(online, target, np.array([1.0]), 0.9).tolist() == [19.0]


def test_values_of_a_network_worked_by_hand() -> None:
    # one input, one hidden unit per layer: relu(2·3 - 1) = 5, relu(5 - 2) = 3, then 3 and -3 + 1
    weights = [np.array(w) for w in ([[2.0]], [-1.0], [[1.0]], [-2.0], [[1.0, -1.0]], [0.0, 1.0])]
    assert values(weights, np.array([3.0])).tolist() == [[3.0, -2.0]]
    assert greedy(weights, np.array([3.0]), 0.0, stream(0, "test")) == 0


def test_gradients_agree_with_differences() -> None:
    rng = stream(0, "test")
    # biases that are not zero: no unit sits on its kink
    weights = [w + 0.1 * rng.standard_normal(w.shape) for w in network(3, 2, rng, hidden=4)]
    states, actions, wanted = rng.standard_normal((5, 3)), np.array([0, 1, 1, 0, 1]), rng.standard_normal(5)

    def loss() -> float:
        return float((((values(weights, states)[np.arange(5), actions] - wanted) ** 2) / 2).mean())

    found = gradients(weights, states, actions, wanted)
    for w, g in zip(weights, found, strict=True):
        for i in range(min(6, w.size)):
            at = w.reshape(-1)
            at[i] += 1e-6
            high = loss()
            at[i] -= 2e-6
            low = loss()
            at[i] += 1e-6
            assert g.reshape(-1)[i] == pytest.approx((high - low) / 2e-6, abs=1e-6)


def test_it_learns_which_action_pays() -> None:
    """Two states, three actions: action 2 pays in the first, action 0 in the second."""
    rng = stream(3, "test")
    learner = Learner(2, 3, rng, Recipe(gamma=0.0, lr=5e-3, decay=300))
    states = np.eye(2)
    for turn in range(600):
        at = turn % 2
        action = learner.choose(states[at])
        paid = float(action == (2, 0)[at])
        learner.learn(states[at], action, paid, states[1 - at])
    assert [greedy(learner.weights, s, 0.0, rng) for s in states] == [2, 0]


def test_reward_and_features() -> None:
    assert reward(0.9, 0.9, 10.0, 10.0) == pytest.approx(-0.1)
    # 64^(-½) - 1 - 0.1 · 2 = 0.125 - 1 - 0.2
    assert reward(0.4, 0.9, 20.0, 10.0) == pytest.approx(-1.075)
    found = features(0.5, 0.1, [0, 2], 1, [5.0, 10.0], 100.0, 10.0)
    # staleness over M = 2: mean ½, spread ½; one of two thrown away; 100 s of 200 · 10 s
    assert found.tolist() == pytest.approx([0.5, 0.1, 0.5, 0.5, 0.5, 0.05, 0.5, 1.0])


def test_an_edge_round_lasts_as_long_as_its_slowest_device() -> None:
    episode = Episode([[2.0, 9.0], []], rounds=3, fraction=1.0, target=0.9)
    rng = stream(0, "test")
    assert episode.duration(0, rng) == 27.0
    assert episode.duration(1, rng) == 1.0


def test_pretraining_is_a_function_of_its_stream_and_the_proxy_learns() -> None:
    episode = Episode([[3.0, 4.0], [5.0, 9.0], [1.0, 30.0]], rounds=2, fraction=0.5, target=0.9)
    first, second = (pretrain(episode, 2, stream(7, "test")) for _ in range(2))
    assert first[1] == second[1]
    assert all(np.array_equal(a, b) for a, b in zip(first[0], second[0], strict=True))
    assert [w.shape for w in first[0][::2]] == [(9, 64), (64, 64), (64, 6)]
    rng = stream(8, "test")
    assert play(episode, Learner(9, 6, rng), first[1], rng) > 0.4
