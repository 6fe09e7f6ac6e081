from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from espalier.core.errors import ConfigError
from espalier.core.seeds import stream
from espalier.policies.robust import coordinate_median, krum_scores
from espalier.simulator.attacks import (
    a_little_is_enough,
    false_histogram,
    label_flip,
    little_is_enough_z,
    scaled_noise,
    sign_flip,
)


def test_sign_flip_goes_the_other_way():
    # Start (1,1), update (3,0): the change (2,−1) becomes (−4,2) at scale 2.
    assert sign_flip(torch.tensor([3.0, 0.0]), torch.ones(2), 2.0).tolist() == [-3.0, 3.0]


def test_noise_has_the_length_of_the_change():
    start, update = torch.ones(1000), torch.linspace(0, 2, 1000)
    forged = scaled_noise(update, start, stream(0, "noise"), 3.0)
    assert forged.dtype == torch.float32
    assert (forged - start).norm() == pytest.approx(3 * float((update - start).norm()), rel=1e-5)
    assert torch.equal(forged, scaled_noise(update, start, stream(0, "noise"), 3.0))
    cosine = torch.nn.functional.cosine_similarity(forged - start, update - start, dim=0)
    assert abs(float(cosine)) < 0.15


def test_how_far_colluders_may_go():
    # n = 50, m = 24: they need ⌊50/2⌋+1−24 = 2 of 26 honest updates further out; Φ⁻¹(24/26) = 1.426.
    assert little_is_enough_z(50, 24) == pytest.approx(1.426, abs=5e-4)
    # n = 10, m = 1: 5 of 9 would have to be further out, more than half: nothing to gain.
    assert little_is_enough_z(10, 1) == 0.0


def test_a_little_is_enough_by_hand():
    # Honest (1,5) and (3,5): mean (2,5), standard deviation (1,0); z = 1.5 → (0.5, 5).
    honest = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    assert a_little_is_enough(honest, 1.5).tolist() == [0.5, 5.0]


def test_colluders_hide_from_krum_and_bias_the_median():
    # Why the attack has its name: 20 of 50 agree on one small deviation, which every coordinate's honest
    # spread covers. Krum scores them best of all, and the median moves towards them.
    honest = torch.from_numpy(stream(0, "honest").standard_normal((30, 200)))
    forged = a_little_is_enough(honest, little_is_enough_z(50, 20)).repeat(20, 1)
    everyone = torch.cat([honest, forged])
    assert krum_scores(everyone, 20).argmin() >= 30
    assert coordinate_median(everyone).mean() < coordinate_median(honest).mean() - 0.2


def test_label_flip_maps():
    assert label_flip(4).tolist() == [3, 2, 1, 0]
    assert label_flip(10, {7: 1}).tolist() == [0, 1, 2, 3, 4, 5, 6, 1, 8, 9]
    y = np.array([0, 3, 3])
    assert label_flip(4)[y].tolist() == [3, 0, 0]
    with pytest.raises(ConfigError, match="label 10"):
        label_flip(10, {7: 10})


def test_false_histograms_by_hand():
    counts = [6, 3, 0]
    assert false_histogram(counts).tolist() == [0, 3, 6]
    assert false_histogram(counts, "uniform").tolist() == [3, 3, 3]
    assert false_histogram(counts, "single").tolist() == [0, 0, 9]
    assert false_histogram(counts, "reversed", inflate=10).tolist() == [0, 30, 60]


@given(
    st.lists(st.lists(st.integers(0, 50), min_size=4, max_size=4), min_size=1, max_size=4),
    st.sampled_from(["reversed", "uniform", "single"]),
    st.floats(0.5, 3),
)
def test_false_histograms_keep_the_claimed_total(counts, claim, inflate):
    table = np.array(counts)
    forged = false_histogram(table, claim, inflate)
    assert forged.shape == table.shape
    assert (forged >= 0).all()
    np.testing.assert_allclose(forged.sum(axis=1), np.rint(table.sum(axis=1) * inflate), atol=1)
