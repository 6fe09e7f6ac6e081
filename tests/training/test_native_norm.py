"""The native group normalisation against torch, at every level of the kernels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.training import native

LEVELS = native.levels()


def problem(clients: int, images: int, channels: int, side: int, shift: float = 0.0) -> tuple[Tensor, ...]:
    """Images with channels last, scales, shifts and the result's gradient."""
    draw = torch.Generator().manual_seed(channels + side)
    x = torch.randn(clients * images, channels, side, side, generator=draw) * 2 + shift
    w, b = torch.randn(clients, channels, generator=draw), torch.randn(clients, channels, generator=draw)
    g = torch.randn(x.shape, generator=draw)
    return x.contiguous(memory_format=torch.channels_last), w, b, g.contiguous(memory_format=torch.channels_last)


def library(x: Tensor, w: Tensor, b: Tensor, groups: int, relu: bool) -> Tensor:
    y = torch.cat([F.group_norm(one, groups, w[k], b[k], 1e-5) for k, one in enumerate(x.chunk(len(w)))])
    return F.relu(y) if relu else y


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    ("channels", "groups", "side"),
    [(16, 1, 1), (80, 1, 1), (16, 8, 32), (16, 1, 3), (32, 16, 5), (48, 3, 7), (64, 32, 4), (112, 7, 1)],
)
def test_normalisation_agrees_with_torch(channels: int, groups: int, side: int, relu: bool, level: str) -> None:
    kernels = native.load(level)
    x, w, b, g = problem(2, 3, channels, side)
    truth = [t.double().requires_grad_() for t in (x, w, b)]
    expected = library(truth[0], truth[1], truth[2], groups, relu)
    y, stats = kernels.norm(x, w, b, groups, 1e-5, relu=relu)
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-4)
    expected.backward(g.double())
    found = kernels.norm_backward(x, w, b, g, stats, relu=relu, wants_x=True)
    for mine, theirs in zip(found, truth, strict=True):
        assert mine is not None and theirs.grad is not None
        assert float((mine - theirs.grad).norm()) <= 1e-4 * float(theirs.grad.norm()) + 1e-4
    alone = kernels.norm_backward(x, w, b, g, stats, relu=relu, wants_x=False)
    assert alone[0] is None and torch.equal(alone[1], found[1]) and torch.equal(alone[2], found[2])


@pytest.mark.parametrize("level", LEVELS)
def test_a_mean_far_from_zero_costs_no_precision(level: str) -> None:
    for side, groups in ((16, 4), (1, 1)):
        x, w, b, _ = problem(1, 2, 32, side, shift=1000.0)
        y, _ = native.load(level).norm(x, w, b, groups, 1e-5, relu=False)
        expected = library(x.double(), w.double(), b.double(), groups, False)
        torch.testing.assert_close(y.double(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [1, 7, 16, 37])
def test_a_layer_s_normalisation_agrees_with_torch(rows: int, level: str) -> None:
    kernels = native.load(level)
    x, w, b, g = problem(2, rows, 64, 1, shift=3.0)
    truth = [t.double().requires_grad_() for t in (x, w, b)]
    expected = library(truth[0], truth[1], truth[2], 1, False)
    y, stats = kernels.norm(x, w, b, 1, 1e-5, relu=False)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    expected.backward(g.double())
    found = kernels.norm_backward(x, w, b, g, stats, relu=False, wants_x=True)
    for mine, theirs in zip(found, truth, strict=True):
        assert mine is not None and theirs.grad is not None
        torch.testing.assert_close(mine.double(), theirs.grad, rtol=1e-4, atol=1e-4)
    # Alone, a client computes the same bits.
    own, kept = kernels.norm(x[rows:], w[1:], b[1:], 1, 1e-5, relu=False)
    alone = kernels.norm_backward(x[rows:], w[1:], b[1:], g[rows:], kept, relu=False, wants_x=True)
    assert torch.equal(own, y[rows:]) and alone[0] is not None and found[0] is not None
    assert torch.equal(alone[0], found[0][rows:]) and torch.equal(alone[1], found[1][1:])


@pytest.mark.parametrize("level", LEVELS)
def test_a_client_s_bits_depend_on_no_other_s(level: str) -> None:
    kernels = native.load(level)
    x, w, b, g = problem(3, 4, 32, 6)
    y, stats = kernels.norm(x, w, b, 8, 1e-5, relu=True)
    gx, gw, gb = kernels.norm_backward(x, w, b, g, stats, relu=True, wants_x=True)
    assert gx is not None
    for k in range(3):
        rows, one = slice(4 * k, 4 * k + 4), slice(k, k + 1)
        again, own = kernels.norm(x[rows], w[one], b[one], 8, 1e-5, relu=True)
        back = kernels.norm_backward(x[rows], w[one], b[one], g[rows], own, relu=True, wants_x=True)
        assert back[0] is not None and torch.equal(again, y[rows]) and torch.equal(back[0], gx[rows])
        assert torch.equal(back[1], gw[one]) and torch.equal(back[2], gb[one])


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_not_a_number_stays_with_its_image_and_group(level: str) -> None:
    x, w, b, _ = problem(1, 3, 16, 4)
    x[1, 5, 2, 2] = torch.nan
    y, _ = native.load(level).norm(x, w, b, 4, 1e-5, relu=True)
    assert torch.equal(y.isnan(), library(x, w, b, 4, True).isnan()) and y[1, 4:8].isnan().all()
