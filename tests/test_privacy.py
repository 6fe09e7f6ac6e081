"""The accountant: the library's figures against formulas worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.core.errors import ConfigError
from espalier.privacy import Release, epsilon, noise_for


def by_hand(multiplier: float, count: int, delta: float) -> float:
    """Rényi composition of Gaussian mechanisms: T · α / (2 σ²) at order α, turned into ε.

    ε = T α / (2σ²) + log((α − 1) / α) − (log δ + log α) / (α − 1), at the best α (Canonne et al., 2020).
    """
    alpha = np.linspace(1.01, 2000, 2_000_000)
    spent = count * alpha / (2 * multiplier**2)
    return float(np.min(spent + np.log1p(-1 / alpha) - (math.log(delta) + np.log(alpha)) / (alpha - 1)))


@pytest.mark.parametrize(("multiplier", "count", "delta"), [(1.0, 1, 1e-5), (4.0, 20, 1e-5), (10.0, 100, 1e-6)])
def test_gaussian_composition_by_hand(multiplier: float, count: int, delta: float) -> None:
    expected = by_hand(multiplier, count, delta)
    assert epsilon({Release(multiplier): count}, delta) == pytest.approx(expected, rel=0.01)


def test_known_points() -> None:
    assert epsilon({}, 1e-5) == 0.0
    assert epsilon({Release(1.0): 0}, 1e-5) == 0.0
    assert epsilon({Release(0.0): 1}, 1e-5) == math.inf
    # Two kinds of releases compose to more than either.
    both = epsilon({Release(2.0): 5, Release(3.0): 5}, 1e-5)
    assert both > epsilon({Release(2.0): 5}, 1e-5) > epsilon({Release(3.0): 5}, 1e-5)


def test_sampling_amplifies() -> None:
    all_, some = epsilon({Release(2.0, 50, 50): 10}, 1e-5), epsilon({Release(2.0, 5, 50): 10}, 1e-5)
    assert some < 0.5 * all_


@settings(max_examples=10, deadline=None)
@given(noise=st.floats(0.8, 8.0), rounds=st.integers(1, 40))
def test_more_noise_or_fewer_rounds_cost_less(noise: float, rounds: int) -> None:
    here = epsilon({Release(noise): rounds}, 1e-5)
    assert epsilon({Release(noise * 1.5): rounds}, 1e-5) < here < epsilon({Release(noise): rounds + 5}, 1e-5)


def test_noise_for_a_target() -> None:
    noise = noise_for(8.0, 1e-5, rounds=20, sampled=10, population=100)
    # noise is a multiple of the clipping length; a replaced device moves the sum by twice that.
    assert epsilon({Release(noise / 2, 10, 100): 20}, 1e-5) <= 8.0
    assert epsilon({Release(0.99 * noise / 2, 10, 100): 20}, 1e-5) > 8.0


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0])
def test_delta_must_be_a_probability(delta: float) -> None:
    with pytest.raises(ConfigError, match="delta"):
        epsilon({Release(1.0): 1}, delta)
    with pytest.raises(ConfigError, match="target"):
        noise_for(0.0, 1e-5, 1)
