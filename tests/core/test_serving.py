"""Label priors and mixtures: expectation maximisation against numbers worked by hand, and on a known mixture."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.core.errors import ConfigError
from espalier.core.method import Setting, make, override
from espalier.core.serving import Serving, proportions, smoothed


def test_smoothed_shares_by_hand() -> None:
    # 3 and 1 of four, a tenth even over three labels: 0.9 * (3/4, 1/4, 0) + 0.1/3.
    assert smoothed([3, 1, 0], 0.1).tolist() == pytest.approx([0.708333, 0.258333, 0.033333], abs=1e-6)
    assert smoothed([0, 0], 0.1).tolist() == [0.5, 0.5]


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
