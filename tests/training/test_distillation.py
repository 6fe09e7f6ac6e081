"""Multi-teacher distillation: the arithmetic."""

from __future__ import annotations

import math

import pytest
import torch

from espalier.training.losses import distillation_loss, ensemble


def test_the_teachers_answer_by_hand() -> None:
    # softmax((ln 3, 0)) = (.75, .25), softmax((0, 0)) = (.5, .5); weights 1 : 3 give .5625, .4375.
    logits = torch.tensor([[[math.log(3), 0.0]], [[0.0, 0.0]]])
    torch.testing.assert_close(ensemble(logits, [1, 3], 1.0), torch.tensor([[0.5625, 0.4375]]))
    # At T = 2 the first is softmax((ln 3 / 2, 0)) = sqrt(3) : 1 = (.6340, .3660).
    hot = ensemble(logits[:1], [1.0], 2.0)
    assert hot[0, 0] == pytest.approx(math.sqrt(3) / (1 + math.sqrt(3)))


def test_the_loss_by_hand() -> None:
    # KL((.75, .25) || (.5, .5)) = .75 ln 1.5 + .25 ln .5 = .130812; times T^2 = 4.
    loss = distillation_loss(2.0)(torch.zeros(1, 2), torch.tensor([[0.75, 0.25]]))
    assert loss.tolist() == [pytest.approx(4 * 0.130812, abs=1e-5)]
    # A sure teacher: 0 ln 0 is 0, so the loss is ln 2.
    assert distillation_loss(1.0)(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]])).item() == pytest.approx(math.log(2))


def test_agreement_costs_nothing_and_does_not_move_the_student() -> None:
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    loss = distillation_loss(2.0)(logits, ensemble(logits.detach()[None], [1.0], 2.0))
    assert loss.abs().max() < 1e-6
    loss.sum().backward()
    assert logits.grad is not None and logits.grad.abs().max() < 1e-6


def test_pixels_are_averaged() -> None:
    logits = torch.randn(2, 4, 3, 5, 5, generator=torch.Generator().manual_seed(1))
    answers = ensemble(logits, [0.5, 0.5], 2.0)
    assert answers.shape == (4, 3, 5, 5)
    whole = distillation_loss(2.0)(logits[0], answers)
    first = distillation_loss(2.0)(logits[0, :, :, 0, 0], answers[:, :, 0, 0])
    assert whole.shape == first.shape == (4,)
