"""Layer and group norm: the normalisation has no parameters, the affine part has K clients' own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.training.merged.function import Function
from espalier.training.merged.slots import Slot
from espalier.training.merged.standin import Stacked

if TYPE_CHECKING:
    from espalier.training.merged.mode import Merge


class _Affine(Function):
    """``y·w + b`` for ``y [K, m, C, s]`` and slots ``[K, C]``."""

    @staticmethod
    def forward(ctx: Any, tick: Tensor, y: Tensor, weight: Slot, bias: Slot) -> Tensor:
        ctx.save_for_backward(y)
        ctx.weight, ctx.bias = weight, bias
        shape = (y.shape[0], 1, y.shape[2], 1)
        return torch.addcmul(bias.data.reshape(shape), y, weight.data.reshape(shape))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (y,), g = ctx.saved_tensors, grads[0]
        k, c, shape = y.shape[0], y.shape[2], ctx.weight.data.shape
        back = g * ctx.weight.data.reshape(k, 1, c, 1)
        ctx.weight.add((g * y).sum((1, 3)).view(shape))
        ctx.bias.add(g.sum((1, 3)).view(shape))
        return None, back, None, None


def _affine(merge: Merge, y: Tensor, weight: Stacked | None, bias: Stacked | None, channels: int) -> Tensor:
    """Scale and shift normalised ``y [K·B, ...]``, viewed as ``[K, m, channels, s]``, per client."""
    if weight is None and bias is None:
        return y
    k = merge.clients
    y4 = y.reshape(k, y.shape[0] // k, channels, -1) if y.numel() else y
    if weight is not None and bias is not None and weight.slot is not None and bias.slot is not None:
        result: Tensor = _Affine.call(merge.tick, y4, weight.slot, bias.slot)
        return result.view(y.shape)
    shape = (k, 1, channels, 1)
    if weight is not None:
        y4 = y4 * weight.value.reshape(shape)
    if bias is not None:
        y4 = y4 + bias.value.reshape(shape)
    return y4.view(y.shape)


def layer_rule(
    merge: Merge,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Stacked | None = None,
    bias: Stacked | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """`F.layer_norm` for merged inputs ``[K·B, ..., *normalized_shape]``."""
    y = F.layer_norm(input, list(normalized_shape), None, None, eps)
    size = torch.Size(normalized_shape).numel()
    flat = y.reshape(-1, size)
    return _affine(merge, flat, weight, bias, size).view(input.shape)


def group_rule(
    merge: Merge,
    input: Tensor,
    num_groups: int,
    weight: Stacked | None = None,
    bias: Stacked | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """`F.group_norm` for merged inputs ``[K·B, C, ...]``."""
    y = F.group_norm(input, num_groups, None, None, eps)
    return _affine(merge, y, weight, bias, input.shape[1])
