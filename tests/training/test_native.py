"""The native kernels against torch, and with every shape that a row or a vector can end in."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.training import native


def kernels() -> native.Kernels:
    found = native.kernels()
    assert found is not None, "`make install` builds the kernels"
    return found


def library(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, padding: list[int], pooled: bool
) -> torch.Tensor:
    out = []
    for k in range(len(x)):
        y = F.conv2d(x[k], w[k], None if bias is None else bias[k], padding=padding)
        out.append(F.max_pool2d(F.relu(y), 2) if pooled else y)
    return torch.stack(out)


@settings(max_examples=60)
@given(
    clients=st.integers(1, 3),
    batch=st.integers(1, 4),
    channels=st.tuples(st.integers(1, 9), st.integers(1, 19)),
    size=st.tuples(st.integers(1, 37), st.integers(1, 37)),
    window=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    padding=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    pooled=st.booleans(),
    seed=st.integers(0, 999),
)
def test_convolutions_agree_with_torch(
    clients: int,
    batch: int,
    channels: tuple[int, int],
    size: tuple[int, int],
    window: tuple[int, int],
    padding: tuple[int, int],
    pooled: bool,
    seed: int,
) -> None:
    least = 2 if pooled else 1
    pad = [min(p, k - 1) for p, k in zip(padding, window, strict=True)]
    size = tuple(max(s, k - 2 * p + least - 1) for s, k, p in zip(size, window, pad, strict=True))  # type: ignore[assignment]
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(clients, batch, channels[0], *size, generator=draw).requires_grad_()
    w = torch.randn(clients, channels[1], channels[0], *window, generator=draw).requires_grad_()
    bias = torch.randn(clients, channels[1], generator=draw).requires_grad_()
    expected = library(x.double(), w.double(), bias.double(), pad, pooled)
    y, where = kernels().conv(x.detach(), w.detach(), bias.detach(), pad, pooled=pooled)
    torch.testing.assert_close(y, expected.float(), rtol=1e-4, atol=1e-4)
    g = torch.randn(y.shape, generator=draw)
    expected.backward(g.double())
    found = kernels().conv_backward(x.detach(), w.detach(), g, where, pad, wants_x=True)
    for mine, theirs in zip(found, (x.grad, w.grad, bias.grad), strict=True):
        assert mine is not None and theirs is not None
        # Two windows' numbers may be so near that the rounding decides: then one number moves its gradient.
        assert float((mine - theirs).norm()) <= 1e-4 * float(theirs.norm()) + 1e-3


def test_bias_and_the_input_s_gradient_can_be_left_out() -> None:
    x, w = torch.randn(2, 3, 2, 9, 9), torch.randn(2, 5, 2, 3, 3)
    y, where = kernels().conv(x, w, None, [1, 1], pooled=False)
    torch.testing.assert_close(y, library(x, w, None, [1, 1], False), rtol=1e-4, atol=1e-5)
    gx, gw, gb = kernels().conv_backward(x, w, torch.ones_like(y), where, [1, 1], wants_x=False)
    assert gx is None
    torch.testing.assert_close(gb, torch.full((2, 5), 3 * 81.0))
    alone = kernels().conv_backward(x, w, torch.ones_like(y), where, [1, 1], wants_x=True)
    torch.testing.assert_close(gw, alone[1])


@pytest.mark.parametrize("height", [2, 3, 7, 16])
@pytest.mark.parametrize("width", [2, 5, 31, 32, 33, 66])
def test_pooling_agrees_with_torch(height: int, width: int) -> None:
    x = torch.randn(5, height, width, requires_grad=True)
    expected = F.max_pool2d(F.relu(x), 2)
    y, where = kernels().pool(x.detach())
    assert torch.equal(y, expected)
    g = torch.randn_like(y)
    expected.backward(g)
    assert x.grad is not None
    assert torch.equal(kernels().pool_backward(g, where, x.shape), x.grad)


def test_the_first_of_equals_wins_and_nothing_flows_where_nothing_is_above_zero() -> None:
    x = torch.tensor([[[2.0, 2.0, -1.0, 0.0], [2.0, 1.0, -3.0, -2.0]]])
    y, where = kernels().pool(x)
    assert y.tolist() == [[[2.0, 0.0]]]
    assert where.tolist() == [[[0, 4]]]
    back = kernels().pool_backward(torch.tensor([[[7.0, 9.0]]]), where, x.shape)
    assert back.tolist() == [[[7.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]]


def test_what_is_not_a_number_stays_visible() -> None:
    for place in range(4):
        x = torch.ones(4)
        x[place] = torch.nan
        assert kernels().pool(x.view(1, 2, 2))[0].isnan().all()


def test_a_client_s_bits_do_not_depend_on_its_place() -> None:
    x, w = torch.randn(5, 3, 3, 11, 13), torch.randn(5, 7, 3, 5, 5)
    y, where = kernels().conv(x, w, None, [2, 2], pooled=True)
    g = torch.randn_like(y)
    together = kernels().conv_backward(x, w, g, where, [2, 2], wants_x=True)
    for k in range(5):
        one = slice(k, k + 1)
        again, at = kernels().conv(x[one], w[one], None, [2, 2], pooled=True)
        assert torch.equal(again, y[one])
        alone = kernels().conv_backward(x[one], w[one], g[one], at, [2, 2], wants_x=True)
        assert all(
            torch.equal(a, b[one]) for a, b in zip(alone, together, strict=True) if a is not None and b is not None
        )


def test_they_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPALIER_NATIVE", "0")
    assert native.kernels.__wrapped__() is None
    assert not native.usable(torch.zeros(1, dtype=torch.float64))
