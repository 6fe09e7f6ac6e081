from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.core.errors import ConfigError
from espalier.core.seeds import stream
from espalier.methods.d2d.alignment import cosines, gram
from espalier.methods.d2d.spectral import (
    adapted_similarity,
    merge_singletons,
    scaled_times,
    similarity,
    spectral_clusters,
)
from espalier.methods.d2d.theory import gradient_mismatch

from .digits import digits_fleet


def test_times_are_scaled_over_the_fleet():
    assert scaled_times([10, 20, 15]).tolist() == [0.0, 1.0, 0.5]
    assert scaled_times([7, 7]).tolist() == [0.0, 0.0]


def test_similarities_by_hand():
    # t = (0,1), φ orthogonal: F = (0,1,0) and (1,0,1), ‖ΔF‖ = √3, σ = 1: exp(−√3/2) = 0.4206.
    # A+: exp(−1/2) + exp(+√2/2) = 0.6065 + 2.0281 = 2.6346.
    alike = cosines(gram(np.eye(2), [1, 1]))
    assert similarity([0, 1], alike, 1.0)[0, 1] == pytest.approx(0.4206, abs=5e-5)
    assert adapted_similarity([0, 1], alike, 1.0, 1.0)[0, 1] == pytest.approx(2.6346, abs=5e-5)


def test_four_clients():
    # φ = (e1,e1,−e1,−e1), t = (0,1,0,1): A keeps like directions together, A+ mixes them and keeps like times.
    alike = cosines(gram(np.array([[1.0], [1.0], [-1.0], [-1.0]]), np.ones(4)))
    t = [0, 1, 0, 1]
    a = spectral_clusters(similarity(t, alike, 0.5), 2, stream(0, "a"))
    plus = spectral_clusters(adapted_similarity(t, alike, 0.5, 0.8), 2, stream(0, "a"))
    assert sorted(m.tolist() for m in a.members) == [[0, 1], [2, 3]]
    assert sorted(m.tolist() for m in plus.members) == [[0, 2], [1, 3]]


def test_singletons_join_the_most_similar_cluster():
    # Device 4 is alone; its mean similarity to {0,1} is 0.5, to {2,3} (0.1+0.7)/2 = 0.4.
    affinity = np.eye(5)
    affinity[4, :4] = affinity[:4, 4] = [0.5, 0.5, 0.1, 0.7]
    assert merge_singletons(np.array([0, 0, 1, 1, 2]), affinity).tolist() == [0, 0, 1, 1, 0]


@given(st.lists(st.integers(0, 6), min_size=2, max_size=10), st.integers(0, 100))
def test_nobody_is_left_alone(labels, seed):
    n = len(labels)
    affinity = stream(seed, "affinity").random((n, n))
    merged = merge_singletons(np.array(labels, dtype=np.int64), affinity + affinity.T)
    assert np.unique(merged, return_counts=True)[1].min() >= 2


@given(st.integers(2, 25), st.integers(1, 8), st.integers(0, 20))
@settings(max_examples=25, deadline=None)
def test_clusters_hold_everybody(n, u, seed):
    rng = stream(seed, "spectral", n)
    alike = cosines(gram(rng.standard_normal((n, 3)), np.ones(n)))
    for affinity in (similarity(rng.random(n), alike, 1.0), adapted_similarity(rng.random(n), alike, 1.0, 0.8)):
        clusters = spectral_clusters(affinity, min(u, n), rng)
        assert clusters.n_devices == n
        assert len(clusters) <= min(u, n)
        assert clusters.sizes.min() >= 2


def test_identical_devices_are_one_cluster():
    clusters = spectral_clusters(similarity(np.zeros(6), np.ones((6, 6)), 1.0), 3, stream(0, "same"))
    assert clusters.n_devices == 6


def test_a_width_too_small_to_compute_with_is_refused():
    with pytest.raises(ConfigError, match=r"sigma_ft is 0\.01"):
        adapted_similarity([0, 1], np.eye(2), 1.0, 0.01)


def test_digits_alike_or_mixed_clusters():
    # The paper's reason for A+: A lowers ε_{i,c} and raises ε_{c,g}, A+ the other way round (Table 9).
    fleet = digits_fleet()
    alike = cosines(gram(fleet.gradients, fleet.samples))
    a = spectral_clusters(similarity(fleet.compute, alike, 0.5), 8, stream(0, "a"))
    plus = spectral_clusters(adapted_similarity(fleet.compute, alike, 0.5, 0.8), 8, stream(0, "a"))
    one = gradient_mismatch(fleet.gradients, fleet.samples, a).means
    two = gradient_mismatch(fleet.gradients, fleet.samples, plus).means
    assert one[0] > two[0]
    assert one[1] < two[1]
