from __future__ import annotations

import math

import numpy as np
import pytest

from espalier.core.errors import TrainingError
from espalier.methods.d2d.clusters import Clusters
from espalier.methods.d2d.theory import (
    affordable_feature_time,
    bound_overall,
    bound_per_round,
    gradient_mismatch,
    largest_lr,
    loss_term,
    mismatch_term,
    needed_phi_time,
    progress_weight,
)

PAIR = Clusters.of([[0, 1], [2]])


def test_mismatch_by_hand():
    # Gradients (0,0), (4,0), (0,6) with samples 1, 1, 2: ∇F = (4 + 0, 12)/4 = (1,3).
    # ∇F_0 = (2,0): ‖(2,0) − (1,3)‖ = √10. ∇F_1 = (0,6): ‖(−1,3)‖ = √10.
    # Devices: (0,0) and (4,0) are 2 from (2,0); the third is its own cluster.
    found = gradient_mismatch(np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 6.0]]), [1, 1, 2], PAIR)
    assert found.cluster_global.tolist() == [pytest.approx(math.sqrt(10))] * 2
    assert found.device_cluster.tolist() == [2.0, 2.0, 0.0]
    assert found.means == (pytest.approx(math.sqrt(10)), pytest.approx(4 / 3))
    assert found.bounds == (pytest.approx(math.sqrt(10)), 2.0)


def test_one_cluster_of_everybody_has_no_gap_to_the_fleet():
    gradients = np.arange(12.0).reshape(4, 3) ** 2
    found = gradient_mismatch(gradients, [1, 2, 3, 4], Clusters.of([range(4)]))
    assert found.cluster_global == pytest.approx([0.0], abs=1e-12)
    alone = gradient_mismatch(gradients, [1, 2, 3, 4], Clusters.of([[0], [1], [2], [3]]))
    assert alone.device_cluster == pytest.approx(np.zeros(4), abs=1e-12)


def test_coefficients_follow_equation_11():
    # D19: ½·ε_ic² + ((r_max+1)/4)·ε_cg², here ½·4 + (5/4)·9 = 13.25; the text after Table 9 swaps them.
    assert mismatch_term(eps_cg=3.0, eps_ic=2.0, r_max=4) == pytest.approx(13.25)


def test_progress_weight_by_hand():
    # γ = 0.1, samples 1, 1, 2, r = (3, 1), h = (2, 4, 5):
    # Σ n_i r_c h_i / Σ n = (1·3·2 + 1·3·4 + 2·1·5)/4 = 28/4 = 7, times 0.1.
    assert progress_weight(0.1, PAIR, [1, 1, 2], [3, 1], [2, 4, 5]) == pytest.approx(0.7)


def test_loss_term_by_hand():
    # Losses 2.0 → 1.5 → 1.4, w = 0.5 and 0.1: (2/0.5·0.5 + 2/0.1·0.1)/2 = (2 + 2)/2.
    assert loss_term([2.0, 1.5, 1.4], [0.5, 0.1]) == pytest.approx(2.0)
    # A round without training is left out of sum and count.
    assert loss_term([2.0, 1.5, 1.5], [0.5, 0.0]) == pytest.approx(2.0)
    with pytest.raises(TrainingError, match="weights"):
        loss_term([2.0, 1.5], [0.0])


def test_bounds_by_hand():
    # Eq. (10): loss 2 (above); 4/3·9 = 12; (4+1)(3+5)/4·0.25 = 2.5; (3+5)/2·(1+0.5) = 6.
    ten = bound_per_round(
        [2.0, 1.5, 1.4], [0.5, 0.1], eps_cg=0.5, eps_ic=1.0, eta=math.sqrt(0.5), g=3.0, r_max=4, h_max=3
    )
    assert (ten.loss, ten.gradient, ten.cluster_global, ten.device_cluster) == pytest.approx((2, 12, 2.5, 6))
    assert ten.total == pytest.approx(22.5)
    # Eq. (11): 2/(2·0.1)·0.6 = 6; spread 0.5/0.1 = 5: 5·12 = 60; γL = 0.2: 5·5/0.8·0.25 = 7.8125;
    # 5/0.4·1.5 = 18.75.
    eleven = bound_overall(
        [2.0, 1.5, 1.4], [0.5, 0.1],
        eps_cg=0.5, eps_ic=1.0, eta=math.sqrt(0.5), g=3.0, r_max=4, lr=0.1, smoothness=2.0,
    )  # fmt: skip
    assert (eleven.loss, eleven.gradient, eleven.cluster_global, eleven.device_cluster) == pytest.approx(
        (6, 60, 7.8125, 18.75)
    )
    with pytest.raises(TrainingError, match="all weights"):
        bound_overall([1, 1], [0.0], eps_cg=0, eps_ic=0, eta=0, g=0, r_max=1, lr=0.1, smoothness=1)


def test_largest_learning_rate_by_hand():
    # L = 2, r = (3, 1), h = (2, 4, 5), samples 1, 1, 2.
    # 1/(r h)_max = 1/12; 1/(h_max+5) = 1/10;
    # cluster 0: mean h² = (4+16)/2 = 10, 3·√(10·9) = 28.46; cluster 1: √(25·10) = 15.8; √6/28.46 = 0.08607.
    # The least is 1/12 = 0.08333, halved by L.
    assert largest_lr(2.0, PAIR, [1, 1, 2], [3, 1], [2, 4, 5]) == pytest.approx(1 / 24)
    assert largest_lr(1.0, PAIR, [1, 1, 2], [0, 0], [2, 4, 5]) == pytest.approx(0.1)


def test_when_a_cheaper_feature_pays():
    # D21: 16/16.7·(50+100+30) − (100+30) = 42.46 (the paper, with unrounded R: 43.0).
    assert affordable_feature_time(16, 16.7, 50, 100, 30) == pytest.approx(42.5, abs=0.05)
    # Table 12, benchmark B on Dir(0.1): 16/22.3·180 − 130 < 0: it never pays …
    assert affordable_feature_time(16, 22.3, 50, 100, 30) < 0
    # … and could not unless φ took longer than (22.3/16 − 1)·130 = 51.2 (paper 51.4).
    assert needed_phi_time(16, 22.3, 100, 30) == pytest.approx(51.2, abs=0.05)
    assert affordable_feature_time(16, 22.3, needed_phi_time(16, 22.3, 100, 30), 100, 30) == pytest.approx(0)
