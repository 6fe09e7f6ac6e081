from __future__ import annotations

import math

import numpy as np
import pytest

from espalier.methods.d2d.clusters import Clusters
from espalier.methods.d2d.theory import (
    affordable_feature_time,
    gradient_mismatch,
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


def test_when_a_cheaper_feature_pays():
    # D21: 16/16.7·(50+100+30) − (100+30) = 42.46 (the paper, with unrounded R: 43.0).
    assert affordable_feature_time(16, 16.7, 50, 100, 30) == pytest.approx(42.5, abs=0.05)
    # Table 12, benchmark B on Dir(0.1): 16/22.3·180 − 130 < 0: it never pays …
    assert affordable_feature_time(16, 22.3, 50, 100, 30) < 0
    # … and could not unless φ took longer than (22.3/16 − 1)·130 = 51.2 (paper 51.4).
    assert needed_phi_time(16, 22.3, 100, 30) == pytest.approx(51.2, abs=0.05)
    assert affordable_feature_time(16, 22.3, needed_phi_time(16, 22.3, 100, 30), 100, 30) == pytest.approx(0)
