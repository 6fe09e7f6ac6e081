"""The rules of linear layers, embeddings, layer and group norm, and dropout for K clients.

Linear layers make the weights' step inside the backward pass, by native kernels or batched products. Embeddings look
up rows of the joined table. A normalisation has no parameters; its affine part has K clients' own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.training import native
from espalier.training.merged import conv
from espalier.training.merged.products import Function, product
from espalier.training.merged.stacked import ForwardPass, Slot, Stacked


class _NativeLinear(Function):
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


class _Linear(Function):
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


def apply_linear(merge: ForwardPass, x: Tensor, weight: Stacked, bias: Stacked | None) -> Tensor:
    """Apply K linear layers to ``x [K, m, in]``; weights ``[out, in]`` and ``[out]`` per client."""
    if weight.slot is None or (bias is not None and bias.slot is None):
        y = torch.bmm(x, weight.value.transpose(1, 2))
        return y if bias is None else y + bias.value.unsqueeze(1)
    slots, kernels = (weight.slot, None if bias is None else bias.slot), native.kernels()
    if kernels is not None and x.shape[1] <= kernels.linear_rows and native.usable(x, weight.slot.data):
        return _NativeLinear.call(merge.tick, x, *slots, kernels)
    many = conv.many_rows(merge, x, *slots)
    return _Linear.call(merge.tick, x, *slots) if many is None else many


def linear_rule(merge: ForwardPass, input: Tensor, weight: Stacked, bias: Stacked | None = None) -> Tensor:
    """`F.linear` for merged inputs ``[K·B, ..., in]``."""
    x = input.reshape(merge.clients, -1, input.shape[-1])
    return apply_linear(merge, x, weight, bias).view(*input.shape[:-1], weight.shape[0])


class _Embedding(Function):
    """One lookup in the joined table; gradients only for rows that were met."""

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


def embedding_rule(
    merge: ForwardPass,
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


def _affine(merge: ForwardPass, y: Tensor, weight: Stacked | None, bias: Stacked | None, channels: int) -> Tensor:
    """Scale and shift normalised ``y [K·B, ...]``, viewed as ``[K, m, channels, s]``, per client."""
    if weight is None and bias is None:
        return y
    k = merge.clients
    y4 = y.reshape(k, y.shape[0] // k, channels, -1) if y.numel() else y
    if weight is not None and bias is not None and weight.slot is not None and bias.slot is not None:
        return _Affine.call(merge.tick, y4, weight.slot, bias.slot).view(y.shape)
    shape = (k, 1, channels, 1)
    if weight is not None:
        y4 = y4 * weight.value.reshape(shape)
    if bias is not None:
        y4 = y4 + bias.value.reshape(shape)
    return y4.view(y.shape)


def layer_norm_rule(
    merge: ForwardPass,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Stacked | None = None,
    bias: Stacked | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """`F.layer_norm` for merged inputs ``[K·B, ..., *normalized_shape]``."""
    size = torch.Size(normalized_shape).numel()
    found = _native_norm(merge, input.reshape(-1, size, 1, 1), 1, weight, bias, eps, relu=False)
    if found is not NotImplemented:
        fast: Tensor = found.view(input.shape)
        return fast
    flat = F.layer_norm(input, list(normalized_shape), None, None, eps).reshape(-1, size)
    return _affine(merge, flat, weight, bias, size).view(input.shape)


class _Norm(Function):
    """Group norm with K clients' affine part, ReLU along with it if asked for: native, channels last."""

    @staticmethod
    def forward(
        ctx: Any, tick: Tensor, x: Tensor, weight: Slot, bias: Slot, groups: int, eps: float, relu: bool
    ) -> Tensor:
        kernels = native.kernels()
        assert kernels is not None
        y, stats = kernels.norm(x, weight.data, bias.data, groups, eps, relu=relu)
        ctx.save_for_backward(x, stats)
        ctx.weight, ctx.bias, ctx.relu, ctx.kernels = weight, bias, relu, kernels
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, stats), weight, bias = ctx.saved_tensors, ctx.weight, ctx.bias
        g = grads[0].to(x.dtype).contiguous(memory_format=torch.channels_last)
        gx, gw, gb = ctx.kernels.norm_backward(
            x, weight.data, bias.data, g, stats, relu=ctx.relu, wants_x=ctx.needs_input_grad[1]
        )
        weight.add(gw)
        bias.add(gb)
        return None, gx, None, None, None, None, None


def _native_norm(
    merge: ForwardPass,
    input: Tensor,
    num_groups: int,
    weight: Stacked | None = None,
    bias: Stacked | None = None,
    eps: float = 1e-5,
    *,
    relu: bool,
) -> Any:
    kernels = native.kernels()
    if kernels is None or weight is None or bias is None or weight.slot is None or bias.slot is None:
        return NotImplemented
    flat = input.shape[2:].numel() == 1
    fits = (merge.channels_last or flat) and input.dim() == 4 and input.shape[1] % kernels.lanes == 0
    if not fits or input.dtype not in (torch.float32, torch.bfloat16) or not native.usable(weight.slot.data):
        return NotImplemented
    x = input.contiguous(memory_format=torch.channels_last)
    return _Norm.call(merge.tick, x, weight.slot, bias.slot, num_groups, eps, relu)


#: `group_norm_rule`, then ReLU in one; `NotImplemented` where there are no native kernels for it
norm_relu_rule = partial(_native_norm, relu=True)


def group_norm_rule(
    merge: ForwardPass,
    input: Tensor,
    num_groups: int,
    weight: Stacked | None = None,
    bias: Stacked | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """`F.group_norm` for merged inputs ``[K·B, C, ...]``."""
    found = _native_norm(merge, input, num_groups, weight, bias, eps, relu=False)
    if found is not NotImplemented:
        fast: Tensor = found
        return fast
    y = F.group_norm(input.to(torch.float32) if merge.half else input, num_groups, None, None, eps)
    return _affine(merge, y, weight, bias, input.shape[1])


def dropout_rule(
    merge: ForwardPass, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """`F.dropout` for merged inputs ``[K·B, ...]``."""
    if not training or p == 0.0 or merge.noise is None:
        return input
    return input * merge.noise.keep(merge.clients, input.shape[0] // merge.clients, input.shape[1:], p, input)


def channel_dropout_rule(
    merge: ForwardPass, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """`F.dropout2d` and its variants for merged inputs ``[K·B, C, ...]``: whole channels are dropped."""
    if not training or p == 0.0 or merge.noise is None:
        return input
    rest = (input.shape[1], *(1 for _ in input.shape[2:]))
    return input * merge.noise.keep(merge.clients, input.shape[0] // merge.clients, rest, p, input)
