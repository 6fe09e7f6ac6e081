"""The native convolutions of images with channels last against torch, at every level of the kernels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.training import native

LEVELS = native.levels()
#: channels, image, outputs, kernel, stride, padding: layers of ResNets, and shapes on the edge
SHAPES = {
    "stem": (3, (32, 32), 16, (3, 3), 1, [1, 1]),
    "residual": (16, (32, 32), 16, (3, 3), 1, [1, 1]),
    "wide": (64, (8, 8), 64, (3, 3), 1, [1, 1]),
    "halving": (16, (16, 16), 32, (3, 3), 2, [1, 1]),
    "around": (32, (16, 16), 64, (1, 1), 2, [0, 0]),
    "points": (48, (7, 9), 112, (1, 1), 1, [0, 0]),
    "few results": (32, (7, 11), 4, (1, 1), 1, [0, 0]),
    "few channels": (5, (9, 13), 48, (1, 1), 1, [0, 0]),
    "few of both": (3, (8, 9), 19, (1, 1), 1, [0, 0]),
    "each channel": (32, (9, 8), 32, (3, 3), 1, [1, 1]),
    "each channel, halving": (16, (11, 8), 16, (5, 3), 2, [2, 0]),
    "odd image": (16, (13, 11), 48, (3, 5), 2, [1, 2]),
    "no padding": (32, (9, 6), 16, (5, 3), 1, [0, 0]),
    "wide padding": (16, (2, 3), 16, (4, 5), 1, [3, 4]),
    "padding and stride": (16, (5, 7), 32, (5, 4), 3, [4, 3]),
    "places that no weight meets": (16, (8, 7), 16, (2, 2), 3, [0, 1]),
    "one place": (16, (3, 3), 16, (3, 3), 2, [0, 0]),
}
Problem = tuple[Tensor, Tensor, Tensor, Tensor]


def last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def library(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, padding: list[int]) -> Tensor:
    starts, groups = [None] * len(w) if bias is None else bias, x.shape[1] // w.shape[2]
    parts = x.chunk(len(w))
    return torch.cat([F.conv2d(p, w[k], starts[k], stride, padding, groups=groups) for k, p in enumerate(parts)])


def forward(
    kernels: native.Kernels, x: Tensor, w: Tensor, bias: Tensor | None, stride: int, padding: list[int]
) -> Tensor:
    y, where = kernels.conv(x, w, bias, padding, stride=stride, pooled=False)
    assert where is None and y.is_contiguous(memory_format=torch.channels_last)
    return y


def backward(
    kernels: native.Kernels, x: Tensor, w: Tensor, g: Tensor, stride: int, padding: list[int], wants_x: bool = True
) -> tuple[Tensor | None, Tensor, Tensor]:
    return kernels.conv_backward(x, w, g, None, padding, stride=stride, wants_x=wants_x)


def drawn(name: str, clients: int, images: int) -> Problem:
    """Images, weights, biases and the result's gradient."""
    channels, size, outs, window, stride, padding = SHAPES[name]
    draw = torch.Generator().manual_seed(channels + outs)
    x, w = (
        torch.randn(shape, generator=draw)
        for shape in (
            (clients * images, channels, *size),
            (clients, outs, 1 if name.startswith("each channel") else channels, *window),
        )
    )
    bias = torch.randn(clients, outs, generator=draw)
    g = torch.randn(library(x, w, bias, stride, padding).shape, generator=draw)
    return last(x), w, bias, last(g)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", SHAPES)
def test_results_and_gradients_agree_with_torch(name: str, level: str) -> None:
    kernels, how = native.load(level), SHAPES[name][4:]
    x, w, bias, g = drawn(name, 2, 3)
    truth = [t.double().requires_grad_() for t in (x, w, bias)]
    expected = library(truth[0], truth[1], truth[2], *how)
    y = forward(kernels, x, w, bias, *how)
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        forward(kernels, x, w, None, *how), y - bias.repeat_interleave(3, 0)[..., None, None], rtol=1e-4, atol=1e-4
    )
    expected.backward(g.double())
    inward = name != "stem"
    found = backward(kernels, x, w, g, *how, wants_x=inward)
    for mine, theirs in zip(found, truth, strict=True):
        assert theirs.grad is not None
        if mine is not None:
            assert float((mine - theirs.grad).norm()) <= 1e-5 * float(theirs.grad.norm()) + 1e-5
    assert (found[0] is None) == (name == "stem")
    alone = backward(kernels, x, w, g, *how, wants_x=False)
    assert alone[0] is None and torch.equal(alone[1], found[1]) and torch.equal(alone[2], found[2])


@pytest.mark.parametrize(("level", "half"), [(n, h) for n in LEVELS for h in {False, native.load(n).half}])
@pytest.mark.parametrize("name", ["residual", "odd image", "points", "wide"])
def test_relu_and_pooling_are_taken_along(name: str, level: str, half: bool) -> None:
    kernels, how = native.load(level), SHAPES[name][4:]
    x, w, bias, g = drawn(name, 2, 3)
    if half:
        x, g = last(x.bfloat16()), last(g.bfloat16())
    whole = forward(kernels, x, w, bias, *how).requires_grad_()
    expected = F.max_pool2d(F.relu(whole), 2)
    y, where = kernels.conv(x, w, bias, how[1], stride=how[0], pooled=True)
    assert torch.equal(y, expected)
    g = last(g[:, :, : y.shape[2], : y.shape[3]])
    (slope,) = torch.autograd.grad(expected, whole, g)
    found = kernels.conv_backward(x, w, g, where, how[1], stride=how[0], wants_x=True)
    for mine, theirs in zip(found, backward(kernels, x, w, last(slope), *how), strict=True):
        assert mine is not None
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["residual", "halving", "odd image", "few of both", "each channel, halving"])
def test_a_client_s_bits_depend_on_no_other_s(name: str, level: str) -> None:
    kernels, how = native.load(level), SHAPES[name][4:]
    x, w, bias, g = drawn(name, 3, 4)
    y = forward(kernels, x, w, bias, *how)
    together = backward(kernels, x, w, g, *how)
    other = drawn("wide", 1, 1)
    for k in range(3):
        # Another layer in between leaves other numbers in the kernels' memory.
        backward(kernels, *(torch.full_like(t, torch.nan) for t in (*other[:2], other[3])), 1, [1, 1], wants_x=True)
        rows, one = slice(4 * k, 4 * k + 4), slice(k, k + 1)
        assert torch.equal(forward(kernels, x[rows], w[one], bias[one], *how), y[rows])
        alone = backward(kernels, x[rows], w[one], g[rows], *how)
        for mine, all_of_them, cut in zip(alone, together, (rows, one, one), strict=True):
            assert mine is not None and all_of_them is not None and torch.equal(mine, all_of_them[cut])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [1, 11, 64, 130])
def test_a_linear_layer_over_many_rows_is_a_convolution_of_one_place(rows: int, level: str) -> None:
    kernels, draw = native.load(level), torch.Generator().manual_seed(rows)
    x, w, g = (torch.randn(shape, generator=draw) for shape in ((2, rows, 32), (2, 48, 32), (2, rows, 48)))
    images, slopes = (t.transpose(1, 2).unsqueeze(2) for t in (x, g))
    y = forward(kernels, images, w[..., None, None], None, 1, [0, 0])
    torch.testing.assert_close(y.squeeze(2).mT, x @ w.mT, rtol=1e-4, atol=1e-4)
    gx, gw, gb = backward(kernels, images, w[..., None, None], slopes, 1, [0, 0])
    assert gx is not None and gw is not None
    torch.testing.assert_close(gx.squeeze(2).mT, g @ w, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gw[..., 0, 0], g.mT @ x, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gb, g.sum(1), rtol=1e-4, atol=1e-4)
    frozen = kernels.conv_backward(images, w[..., None, None], slopes, None, [0, 0], wants_x=True, wants_w=False)
    assert frozen[0] is not None and torch.equal(frozen[0], gx) and frozen[1] is None


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_not_a_number_stays_with_its_client_and_image(level: str) -> None:
    kernels, how = native.load(level), SHAPES["halving"][4:]
    x, w, _, g = drawn("halving", 2, 3)
    x[1, 5, 3, 4] = torch.nan
    y = forward(kernels, x, w, None, *how)
    assert torch.equal(y.isnan(), library(x, w, None, *how).isnan()) and y[1].isnan().any()
    g[4, 7, 2, 2] = torch.nan
    gx, gw, gb = backward(kernels, x, w, g, *how)
    assert gx is not None and gx[4].isnan().any() and not gx[[0, 1, 2, 3, 5]].isnan().any()
    assert gw[0].isnan().any() and gw[1, 7].isnan().any() and not gw[1, :7].isnan().any()
    assert gb.isnan().nonzero().tolist() == [[1, 7]]


@pytest.mark.parametrize("level", LEVELS)
def test_no_images_give_no_results_and_no_gradients(level: str) -> None:
    x, w = last(torch.randn(0, 16, 8, 8)), torch.randn(2, 16, 16, 3, 3)
    y = forward(native.load(level), x, w, None, 1, [1, 1])
    assert y.shape == (0, 16, 8, 8)
    gx, gw, gb = backward(native.load(level), x, w, y, 1, [1, 1])
    assert gx is not None and gx.shape == x.shape and not gw.any() and not gb.any()
