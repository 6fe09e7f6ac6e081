"""The native step of an LSTM against torch, at every level of the kernels."""

import pytest
import torch

from espalier.training import native


@pytest.mark.parametrize("level", native.levels())
@pytest.mark.parametrize("size", [1, 7, 16, 35])
def test_a_step_and_its_gradients_agree_with_torch(size: int, level: str) -> None:
    kernels, draw = native.load(level), torch.Generator().manual_seed(size)
    raw = (3 * torch.randn(2, 3, 4 * size, generator=draw)).double().requires_grad_()
    before = torch.randn(2, 3, size + 4, generator=draw)[..., :size]  # rows apart
    start = before.double().requires_grad_()
    i, f, n, o = (part for part in raw.split(size, 2))
    cell = f.sigmoid() * start + i.sigmoid() * n.tanh()
    hidden = o.sigmoid() * cell.tanh()
    gates = raw.detach().float().contiguous()
    found = [torch.full((2, 3, size + 4), torch.nan)[..., :size] for _ in range(3)]
    kernels.lstm(gates, before, *found)
    for mine, true in zip(found, (cell, cell.tanh(), hidden), strict=True):
        torch.testing.assert_close(mine.double(), true.detach(), rtol=1e-5, atol=1e-6)
    g_hidden, g_cell = torch.randn(2, 3, size, generator=draw), torch.randn(2, 3, size, generator=draw)
    torch.autograd.backward([hidden, cell], [g_hidden.double(), g_cell.double()])
    g_gates = torch.full_like(gates, torch.nan)
    kernels.lstm_backward(gates, before, found[1], g_hidden, g_cell, g_gates)
    assert raw.grad is not None and start.grad is not None
    torch.testing.assert_close(g_gates.double(), raw.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(g_cell.double(), start.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("level", native.levels())
def test_large_numbers_saturate_and_what_is_none_stays_none(level: str) -> None:
    gates = torch.tensor([1e4, -1e4, torch.inf, torch.nan]).view(1, 4, 1).repeat(1, 1, 4)
    before = torch.zeros(1, 4, 1)
    cell, shown, hidden = (torch.empty(1, 4, 1) for _ in range(3))
    native.load(level).lstm(gates, before, cell, shown, hidden)
    # Gates that are wide open let the cell through: tanh(inf) = 1; shut ones let nothing through.
    assert cell.flatten().tolist()[:3] == pytest.approx([1.0, 0.0, 1.0]) and cell.flatten()[3].isnan()
