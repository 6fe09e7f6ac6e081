"""FedNova: normalisation worked by hand; with equal work it is HierFAVG."""

from __future__ import annotations

import pytest
import torch

from espalier.core.store import Ref
from espalier.methods.fednova import accumulated, effective, normalised_step
from tests.methods.test_equivalences import final

X, Y1, Y2 = Ref(1), Ref(2), Ref(3)


def test_gradients_add_up_to_their_weights() -> None:
    assert accumulated(4, 0.0) == 4.0
    # momentum 0.5, three steps: velocities g1, g2 + g1/2, g3 + g2/2 + g1/4; g1 counts 1.75, g2 1.5, g3 1
    assert accumulated(3, 0.5) == pytest.approx(4.25)


def test_a_step_by_hand() -> None:
    # x = 0, y = (-4, -1) after 4 and 1 steps, equal shares: directions 1 and 1, tau_eff = 2.5, so x - 2.5 = -2.5
    assert effective([0.5, 0.5], [4.0, 1.0]) == 2.5
    values = {X: 0.0, Y1: -4.0, Y2: -1.0}
    terms = normalised_step(X, [Y1, Y2], [0.5, 0.5], [4.0, 1.0])
    assert sum(c * values[ref] for c, ref in terms) == pytest.approx(-2.5)
    # the coefficients sum to one: a model that everybody leaves alone stays
    assert sum(c for c, _ in terms) == pytest.approx(1.0)


def test_equal_work_is_plain_averaging() -> None:
    assert normalised_step(X, [Y1, Y2], [0.3, 0.7], [5.0, 5.0]) == [(0.3, Y1), (0.7, Y2)]
    training = {"training": {"batch_size": 10, "unit": "step", "updates": 3, "lr": 0.1, "precision": "float64"}}
    assert torch.equal(final("fednova", **training), final("hierfavg", **training))


def test_unequal_work_is_not() -> None:
    assert not torch.equal(final("fednova"), final("hierfavg"))
