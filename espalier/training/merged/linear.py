"""Linear layers of K clients, the weights' step inside the backward pass: native kernels, else batched products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from espalier.training import native
from espalier.training.merged.function import Function
from espalier.training.merged.products import product
from espalier.training.merged.slots import Slot
from espalier.training.merged.standin import Stacked

if TYPE_CHECKING:
    from espalier.training.merged.mode import Merge


class _Native(Function):
    """All clients in one call, and one more for all gradients: the weights pass through the cache once in each."""

    @staticmethod
    def forward(ctx: Any, tick: Tensor, x: Tensor, weight: Slot, bias: Slot | None, kernels: native.Kernels) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        ctx.weight, ctx.bias, ctx.kernels = weight, bias, kernels
        return kernels.linear(x, weight.data, None if bias is None else bias.data)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x,), g, slots = ctx.saved_tensors, grads[0].contiguous(), (ctx.weight, ctx.bias)
        gw, gb = (None if s is None else s.sink for s in slots)
        add = tuple(s is not None and not s.fresh for s in slots)
        back = ctx.kernels.linear_backward(x, ctx.weight.data, g, gw, gb, add=add, wants_x=ctx.needs_input_grad[1])
        for slot in slots:
            if slot is not None:
                slot.fresh = False
        return None, back, None, None, None


class _Products(Function):
    """One batched product of the library for the result, and one for each gradient."""

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
    if weight.slot is None or (bias is not None and bias.slot is None):
        y = torch.bmm(x, weight.value.transpose(1, 2))
        return y if bias is None else y + bias.value.unsqueeze(1)
    slots, kernels = (weight.slot, None if bias is None else bias.slot), native.kernels()
    if kernels is not None and x.shape[1] <= kernels.linear_rows and native.usable(x, weight.slot.data):
        result: Tensor = _Native.call(merge.tick, x, *slots, kernels)
    else:
        result = _Products.call(merge.tick, x, *slots)
    return result


def rule(merge: Merge, input: Tensor, weight: Stacked, bias: Stacked | None = None) -> Tensor:
    """`F.linear` for merged inputs ``[K·B, ..., in]``."""
    x = input.reshape(merge.clients, -1, input.shape[-1])
    return apply(merge, x, weight, bias).view(*input.shape[:-1], weight.shape[0])
