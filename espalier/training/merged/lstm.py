"""LSTM layers of K clients, stepped through time together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from espalier.training import native
from espalier.training.merged.products import Function, product
from espalier.training.merged.stacked import ForwardPass, Slot, Stacked, Unsupported

Slots = tuple[Slot, Slot, Slot | None, Slot | None]


class _Layer(Function):
    """One direction of one layer: ``x [K, T, B, I]``, states ``[K, B, H]`` to ``[K, T, B, H]``, ``[K, B, H]``.

    Gates are kept in PyTorch's order: input, forget, cell, output.
    """

    @staticmethod
    def forward(ctx: Any, tick: Tensor, x: Tensor, h: Tensor, c: Tensor, slots: Slots) -> tuple[Tensor, Tensor]:
        k, t, b, _ = x.shape
        w_ih, w_hh, b_ih, b_hh = slots
        size = w_hh.data.shape[2]
        flat = x.view(k, t * b, -1)
        if b_ih is not None and b_hh is not None:
            projected = product(flat, w_ih.data.transpose(1, 2), (b_ih.data + b_hh.data).unsqueeze(1))
        else:
            projected = product(flat, w_ih.data.transpose(1, 2))
        gates = projected.view(k, t, b, 4 * size).transpose(0, 1).contiguous()
        hidden, cells, shown = (_apart(x, t + 1, k, b, size) for _ in range(3))
        hidden[0], cells[0] = h, c
        recurrent = w_hh.data.transpose(1, 2)
        ctx.kernels = _kernels(x)
        for step in range(t):
            g = gates[step].baddbmm_(hidden[step], recurrent)
            if ctx.kernels is not None:
                ctx.kernels.lstm(g, *(s[step + i] for s, i in ((cells, 0), (cells, 1), (shown, 1), (hidden, 1))))
                continue
            g[..., : 2 * size].sigmoid_()
            g[..., 2 * size : 3 * size].tanh_()
            g[..., 3 * size :].sigmoid_()
            i, f, n, o = torch.split(g, size, 2)
            cell = torch.mul(f, cells[step], out=cells[step + 1]).addcmul_(i, n)
            torch.mul(o, torch.tanh(cell, out=shown[step + 1]), out=hidden[step + 1])
        ctx.save_for_backward(flat, gates, hidden, cells, shown)
        ctx.slots = slots
        return hidden[1:].transpose(0, 1).contiguous(), cells[t].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        flat, gates, hidden, cells, shown = ctx.saved_tensors
        w_ih, w_hh, b_ih, b_hh = ctx.slots
        t, (k, b, size) = gates.shape[0], shown.shape[1:]
        g_out = grads[0].transpose(0, 1)
        d_cell = grads[1].clone(memory_format=torch.contiguous_format)
        d_hidden = grads[1].new_zeros(k, b, size)
        d_gates = torch.empty_like(gates)
        slope = torch.ops.aten
        for step in reversed(range(t)):
            d_hidden += g_out[step]
            if ctx.kernels is not None:
                ctx.kernels.lstm_backward(gates[step], cells[step], shown[step + 1], d_hidden, d_cell, d_gates[step])
                d_hidden = product(d_gates[step], w_hh.data)
                continue
            i, f, n, o = torch.split(gates[step], size, 2)
            d_i, d_f, d_n, d_o = torch.split(d_gates[step], size, 2)
            d_o.copy_(slope.sigmoid_backward(d_hidden * shown[step + 1], o))
            d_cell += slope.tanh_backward(d_hidden * o, shown[step + 1])
            d_i.copy_(slope.sigmoid_backward(d_cell * n, i))
            d_f.copy_(slope.sigmoid_backward(d_cell * cells[step], f))
            d_n.copy_(slope.tanh_backward(d_cell * i, n))
            d_cell *= f
            d_hidden = product(d_gates[step], w_hh.data)
        joined = d_gates.transpose(0, 1).reshape(k, t * b, 4 * size)
        back = product(joined, w_ih.data).view(k, t, b, -1) if ctx.needs_input_grad[1] else None
        transposed = joined.transpose(1, 2)
        w_ih.add_product(transposed, flat)
        w_hh.add_product(transposed, hidden[:t].transpose(0, 1).reshape(k, t * b, size))
        for bias in (b_ih, b_hh):
            if bias is not None:
                bias.add(joined.sum(1))
        return None, back, d_hidden, d_cell, None


def rule(
    merge: ForwardPass,
    input: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Stacked],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """`torch.lstm` for merged inputs ``[K·B, T, I]`` (or ``[T, K·B, I]``)."""
    if isinstance(hx, Tensor):
        raise Unsupported("an LSTM over a packed sequence mixes the samples")
    ways, k = 2 if bidirectional else 1, merge.clients
    per = 4 if has_biases else 2
    if len(params) != num_layers * ways * per:
        return NotImplemented
    if any(p.slot is None for p in params):
        return NotImplemented
    axis = 0 if batch_first else 1
    split = torch.unflatten(input, axis, (k, -1))
    x = (split.transpose(1, 2) if batch_first else split.transpose(0, 1)).contiguous()
    h0, c0 = (torch.unflatten(s, 1, (k, -1)) for s in hx)
    last_h, last_c = [], []
    for layer in range(num_layers):
        outs = []
        for way in range(ways):
            at = layer * ways + way
            slots = _slots(params[at * per : (at + 1) * per])
            out, cell = _Layer.call(merge.tick, x.flip(1) if way else x, h0[at], c0[at], slots)
            last_h.append(out[:, -1])
            last_c.append(cell)
            outs.append(out.flip(1) if way else out)
        x = outs[0] if ways == 1 else torch.cat(outs, 3)
        if dropout and train and layer + 1 < num_layers and merge.noise is not None:
            time, batch, features = x.shape[1:]
            keep = merge.noise.keep(k, batch, (time, features), dropout, x).view(k, batch, time, features)
            x = x * keep.transpose(1, 2)
    joined = x.transpose(1, 2).flatten(0, 1) if batch_first else x.transpose(0, 1).flatten(1, 2)
    # Contiguous for one client too: how later sums are ordered must not depend on the number of clients.
    return joined.contiguous(), torch.stack(last_h).flatten(1, 2), torch.stack(last_c).flatten(1, 2)


def _apart(x: Tensor, t: int, k: int, b: int, size: int) -> Tensor:
    """An empty ``[t, k, b, size]`` whose rows begin on 16-byte boundaries and do not join into one run of memory.

    Vector and scalar code of tanh round differently, and in one run only the last few elements meet the
    scalar code: whose they are would depend on the number of clients. In rows of their own they do not.
    """
    gap = 0 if b * size % 64 == 0 else 4 - size % 4
    return x.new_empty(t, k, b, size + gap)[..., :size]


def _kernels(x: Tensor) -> native.Kernels | None:
    found = native.kernels()
    return found if found is not None and native.usable(x) else None


def _slots(group: Sequence[Stacked]) -> Slots:
    found = [s.slot for s in group if s.slot is not None]
    return (found[0], found[1], found[2], found[3]) if len(found) == 4 else (found[0], found[1], None, None)
