"""Embedding tables of K clients: one lookup in the joined table, gradients only for rows that were met."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from espalier.training.merged.function import Function
from espalier.training.merged.slots import Slot
from espalier.training.merged.standin import Stacked

if TYPE_CHECKING:
    from espalier.training.merged.mode import Merge


class _Embedding(Function):
    @staticmethod
    def forward(ctx: Any, tick: Tensor, rows: Tensor, padding: Tensor | None, table: Slot) -> Tensor:
        ctx.save_for_backward(rows, *([] if padding is None else [padding]))
        ctx.table = table
        return table.data.view(-1, table.data.shape[2]).index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
        rows, *padding = ctx.saved_tensors
        g = grads[0]
        if padding:
            # A padding row's gradient is nothing at all, not a small number.
            g = g.masked_fill(padding[0].unsqueeze(1), 0.0)
        ctx.table.settle()
        if ctx.table.sink is not None:
            ctx.table.sink.view(-1, g.shape[1]).index_add_(0, rows, g)
        return None, None, None, None


def rule(
    merge: Merge,
    input: Tensor,
    weight: Stacked,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """`F.embedding` for merged ids ``[K·B, ...]`` and tables ``[V, D]``, giving ``[K·B, ..., D]``."""
    if max_norm is not None or scale_grad_by_freq or sparse:
        return NotImplemented
    words, width = weight.shape
    ids = input.reshape(merge.clients, -1)
    offsets = torch.arange(merge.clients, device=ids.device).unsqueeze(1) * words
    rows = (ids + offsets).view(-1)
    if weight.slot is None:
        found = weight.value.reshape(-1, width).index_select(0, rows)
    else:
        padding = None if padding_idx is None else (ids == padding_idx % words).view(-1)
        found = _Embedding.call(merge.tick, rows, padding, weight.slot)
    return found.view(*input.shape, width)
