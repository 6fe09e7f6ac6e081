"""Label priors and mixtures: expectation maximisation against numbers worked by hand, and on a known mixture."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.core.errors import ConfigError
from espalier.core.method import Setting, make, override
from espalier.core.serving import Serving, proportions, smoothed, temper


def test_smoothed_shares_by_hand() -> None:
    # 3 and 1 of four, a tenth even over three labels: 0.9 * (3/4, 1/4, 0) + 0.1/3.
    assert smoothed([3, 1, 0], 0.1).tolist() == pytest.approx([0.708333, 0.258333, 0.033333], abs=1e-6)
    assert smoothed([0, 0], 0.1).tolist() == [0.5, 0.5]


def test_a_factor_by_hand() -> None:
    # Two labels, an even prior, log-odds of 0.1 that are right 99 times of 100. Of factors 2^e the likeliest has
    # sigmoid(0.1 f) nearest to 0.99, log-odds 4.6: f = 46; 32 costs log(1 + e^-3.2) + 0.01 * 3.2 = 0.0719 a sample, 64
    # costs log(1 + e^-6.4) + 0.01 * 6.4 = 0.0657. Over 100 samples 64 wins 0.62 nats but is one octave further off:
    # 6^2/2 - 5^2/2 = 5.5 nats. So it is 32.
    logs = np.tile([0.1, 0.0], (100, 1))
    labels = np.array([0] * 99 + [1])
    assert temper(logs, labels, [0.0, 0.0]) == 32.0
    # Ten times as many samples win 6.2 nats: 64.
    assert temper(np.tile(logs, (10, 1)), np.tile(labels, 10), [0.0, 0.0]) == 64.0


def test_few_samples_that_any_factor_gets_right_change_nothing() -> None:
    assert temper([[2.0, 0.0]] * 5, [0] * 5, np.log([0.99, 0.01])) == 1.0
    assert temper(np.zeros((0, 2)), [], [0.0, 0.0]) == 1.0


def test_a_timid_model_is_heard_beside_a_sharp_prior() -> None:
    # A model that is always right but hardly says so, and a prior of 9 : 1: as it is, the prior overrules it on the
    # rare label. The factor lets it be heard, and every sample is answered rightly.
    labels = np.array([0] * 90 + [1] * 10)
    logs, prior = np.where(np.eye(2)[labels] > 0, 0.2, 0.0), np.log([0.9, 0.1])
    factor = temper(logs, labels, prior)
    assert ((logs + prior).argmax(1) == labels).mean() == 0.9
    assert ((factor * logs + prior).argmax(1) == labels).all()


def test_certain_answers_are_counted() -> None:
    assert proportions([[1, 0], [1, 0], [0, 1]]).tolist() == pytest.approx([2 / 3, 1 / 3])


def test_one_step_by_hand() -> None:
    # From even shares: sample 1 belongs to the first with 3/4, sample 2 with 1/2: (3/4 + 1/2)/2 = 0.625.
    assert proportions([[3, 1], [1, 1]], most=1).tolist() == pytest.approx([0.625, 0.375])


def test_the_shares_behind_unlabelled_inputs_are_found() -> None:
    # Two classes of Gaussian inputs around -1 and 1: an even classifier says p(1|x) = 1 / (1 + exp(-2x)). Inputs come
    # from a world in which the second label has a share of 0.9.
    rng = np.random.default_rng(0)
    labels = rng.random(20_000) < 0.9
    x = rng.standard_normal(20_000) + np.where(labels, 1.0, -1.0)
    second = 1.0 / (1.0 + np.exp(-2.0 * x))
    likely = np.stack([1.0 - second, second], axis=1)
    found = proportions(likely)
    assert found[1] == pytest.approx(0.9, abs=0.01)
    # With that prior the classifier makes fewer errors than without.
    plain, served = second > 0.5, likely[:, 1] * found[1] > likely[:, 0] * found[0]
    assert (served == labels).mean() > (plain == labels).mean() + 0.04


@given(st.lists(st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3), min_size=1, max_size=8))
def test_proportions_are_shares(likelihoods: list[list[float]]) -> None:
    found = proportions(likelihoods)
    assert found.sum() == pytest.approx(1.0) and (found >= 0).all()


def test_whose_model() -> None:
    assert Serving().sources("edge") == ("edge",) and Serving().sources("root") == ("cluster",)
    assert Serving(model="global").sources("edge") == ("global",)
    assert Serving(model="mixture").sources("root") == ("cluster", "edge", "own")
    setting = Setting(n_devices=8, n_edges=2, n_classes=10)
    plan = override(make("hierfavg").plan(setting), {"serve": {"model": "edge", "prior": "known"}})
    assert (plan.serves, plan.serve.prior) == ("edge", "known")


def test_impossible_values_are_refused() -> None:
    for wrong in ({"smoothing": 0.0}, {"inputs": 0}, {"prior": "guessed"}, {"modell": "edge"}):
        with pytest.raises(ConfigError):
            Serving.build(wrong, "serve")
