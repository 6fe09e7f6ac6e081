"""Two-dimensional convolutions of K clients: one library call per client.

Measured inside a training step, columns and one batched product (kept for the weights' gradient, since
a first layer's input needs none) were no faster than the library even for LeNet's single input channel,
and slower from batch 32 up: the columns are 25 times the image and leave the cache before they are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from espalier.training.merged.function import Function
from espalier.training.merged.slots import Slot
from espalier.training.merged.standin import Stacked

if TYPE_CHECKING:
    from espalier.training.merged.mode import Merge


@dataclass(frozen=True)
class _Geometry:
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int


class _Conv(Function):
    @staticmethod
    def forward(ctx: Any, tick: Tensor, x: Tensor, weight: Slot, bias: Slot | None, how: _Geometry) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.bias, ctx.how = weight, bias, how
        outs = [
            torch.conv2d(
                one, w, None if bias is None else bias.data[k], how.stride, how.padding, how.dilation, how.groups
            )
            for k, (one, w) in enumerate(zip(x.unbind(0), weight.data.unbind(0), strict=True))
        ]
        return outs[0].unsqueeze(0) if len(outs) == 1 else torch.stack(outs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x,), g = ctx.saved_tensors, grads[0].contiguous()
        weight, bias, how = ctx.weight, ctx.bias, ctx.how
        weight.settle()
        mask = [ctx.needs_input_grad[1], weight.sink is not None, bias is not None]
        sizes = None if bias is None else list(bias.entry.shape)
        if bias is not None:
            bias.settle()
        back = torch.empty_like(x) if mask[0] else None
        for k in range(x.shape[0]):
            gx, gw, gb = torch.ops.aten.convolution_backward(
                g[k],
                x[k],
                weight.data[k],
                sizes,
                how.stride,
                how.padding,
                how.dilation,
                False,
                [0, 0],
                how.groups,
                mask,
            )
            if back is not None:
                back[k] = gx
            if mask[1]:
                weight.add_one(k, gw)
            if bias is not None:
                bias.add_one(k, gb)
        return None, back, None, None, None


def rule(
    merge: Merge,
    input: Tensor,
    weight: Stacked,
    bias: Stacked | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """`F.conv2d` for merged inputs ``[K·B, C, H, W]`` and weights ``[O, C/groups, kh, kw]``."""
    how = _geometry(weight, stride, padding, dilation, groups)
    if how is None or weight.slot is None or (bias is not None and bias.slot is None) or input.dim() != 4:
        return NotImplemented
    slots = (weight.slot, bias.slot if bias is not None else None)
    x = torch.unflatten(input, 0, (merge.clients, -1))
    return _Conv.call(merge.tick, x, *slots, how).flatten(0, 1)


def _geometry(weight: Stacked, stride: Any, padding: Any, dilation: Any, groups: int) -> _Geometry | None:
    stride, dilation = _pair(stride), _pair(dilation)
    if padding == "valid":
        padding = 0
    elif padding == "same":
        spans = [d * (s - 1) for d, s in zip(dilation, weight.shape[2:], strict=True)]
        if any(s % 2 for s in spans):
            return None
        padding = [s // 2 for s in spans]
    return _Geometry(stride, _pair(padding), dilation, groups)


def _pair(value: Any) -> list[int]:
    return [int(v) for v in value] if isinstance(value, list | tuple) else [int(value)] * 2
