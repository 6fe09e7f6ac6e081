"""Linear layers of K clients: three batched products, the weights' step inside the backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from espalier.training.merged.function import Function
from espalier.training.merged.products import product
from espalier.training.merged.slots import Slot
from espalier.training.merged.standin import Stacked

if TYPE_CHECKING:
    from espalier.training.merged.mode import Merge


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, tick: Tensor, x: Tensor, weight: Slot, bias: Slot | None) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.bias = weight, bias
        return product(x, weight.data.transpose(1, 2), None if bias is None else bias.data.unsqueeze(1))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x,), g = ctx.saved_tensors, grads[0].contiguous()
        back = product(g, ctx.weight.data) if ctx.needs_input_grad[1] else None
        ctx.weight.add_product(g.transpose(1, 2), x)
        if ctx.bias is not None:
            ctx.bias.add(g.sum(1))
        return None, back, None, None


def apply(merge: Merge, x: Tensor, weight: Stacked, bias: Stacked | None) -> Tensor:
    """Apply K linear layers to ``x [K, m, in]``; weights ``[out, in]`` and ``[out]`` per client."""
    if all(s is None or s.slot is not None for s in (weight, bias)):
        result: Tensor = _Linear.call(merge.tick, x, weight.slot, bias.slot if bias is not None else None)
        return result
    y = torch.bmm(x, weight.value.transpose(1, 2))
    return y if bias is None else y + bias.value.unsqueeze(1)


def rule(merge: Merge, input: Tensor, weight: Stacked, bias: Stacked | None = None) -> Tensor:
    """`F.linear` for merged inputs ``[K·B, ..., in]``."""
    x = input.reshape(merge.clients, -1, input.shape[-1])
    return apply(merge, x, weight, bias).view(*input.shape[:-1], weight.shape[0])
