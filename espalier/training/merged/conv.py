"""Two-dimensional convolutions of K clients: native kernels where they win, else one call of the library per client.

There are two kinds of native kernels. Where all convolutions of a model have few channels, images lie as PyTorch lays
them, and ReLU and pooling are taken along. Models with wider ones have their images' channels last: kernels for that
layout take any stride, and linear layers over many rows, which are convolutions of 1×1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from espalier.training import native
from espalier.training.merged import pool
from espalier.training.merged.products import Function
from espalier.training.merged.stacked import ForwardPass, Slot, Stacked

_FEW_CHANNELS = 1024
"""Inputs times outputs up to which the native kernels win where channels lie first (32·32 is even, 32·64 is not)."""

_FEW_IN_CHAINS = 2048
"""The same where whole trainings are native, and nothing is copied between the layers."""

_DEFAULTS: dict[str, Any] = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}


@dataclass(frozen=True)
class _Geometry:
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int


_POINTS = _Geometry([1, 1], [0, 0], [1, 1], 1)


class _Native(Function):
    """All clients in one call: ``[K, B, C, H, W]``, ReLU and pooling along with it if asked for, or channels last."""

    @staticmethod
    def forward(
        ctx: Any, tick: Tensor, x: Tensor, weight: Slot, bias: Slot | None, how: _Geometry, pooled: bool
    ) -> Tensor:
        kernels, values = native.kernels(), None if bias is None else bias.data
        assert kernels is not None
        y, where = kernels.conv(x, _filters(weight), values, how.padding, stride=how.stride[0], pooled=pooled)
        ctx.save_for_backward(x, where)
        ctx.weight, ctx.bias, ctx.how, ctx.kernels = weight, bias, how, kernels
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, where = ctx.saved_tensors
        g = grads[0].contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.contiguous_format)
        back, gw, gb = ctx.kernels.conv_backward(
            x, _filters(ctx.weight), g, where, ctx.how.padding, stride=ctx.how.stride[0],
            wants_x=ctx.needs_input_grad[1], wants_w=ctx.weight.sink is not None,
        )  # fmt: skip
        if gw is not None:
            ctx.weight.add(gw.view_as(ctx.weight.data))
        if ctx.bias is not None:
            ctx.bias.add(gb)
        return None, back, None, None, None, None


def _filters(weight: Slot) -> Tensor:
    """``[K, O, C, kh, kw]``, also of a linear layer."""
    return weight.data if weight.data.dim() == 5 else weight.data[..., None, None]


class _Conv(Function):
    """One library call per client, on merged images ``[K·B, C, H, W]`` in the layout that they come in.

    With ``half`` images and products are in bfloat16; weights and their gradients stay in float32.
    """

    @staticmethod
    def forward(
        ctx: Any, tick: Tensor, x: Tensor, weight: Slot, bias: Slot | None, how: _Geometry, half: bool
    ) -> Tensor:
        work = torch.bfloat16 if half else x.dtype
        ctx.dtype, x, w = x.dtype, x.to(work), weight.data.to(work)
        ctx.save_for_backward(x)
        ctx.weight, ctx.bias, ctx.how = weight, bias, how
        starts = [None] * len(w) if bias is None else bias.data.to(work).unbind(0)
        outs = [
            torch.conv2d(one, filters, start, how.stride, how.padding, how.dilation, how.groups)
            for one, filters, start in zip(x.chunk(len(w)), w.unbind(0), starts, strict=True)
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x,), weight, bias, how = ctx.saved_tensors, ctx.weight, ctx.bias, ctx.how
        last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if last else torch.contiguous_format
        g, w = grads[0].to(x.dtype).contiguous(memory_format=layout), weight.data.to(x.dtype)
        weight.settle()
        if bias is not None:
            bias.settle()
        mask = [ctx.needs_input_grad[1], weight.sink is not None, False]
        geometry = (how.stride, how.padding, how.dilation, False, [0, 0], how.groups)
        clients, backs = len(w), list[Tensor]()
        for k, (one, slope) in enumerate(zip(x.chunk(clients), g.chunk(clients), strict=True)):
            gx, gw, _ = torch.ops.aten.convolution_backward(slope, one, w[k], None, *geometry, mask)
            if mask[0]:
                backs.append(gx.to(ctx.dtype))
            if mask[1]:
                weight.add_one(k, gw.to(weight.data.dtype))
            if bias is not None:
                bias.add_one(k, slope.sum((0, 2, 3), dtype=bias.data.dtype))
        back = None if not backs else backs[0] if clients == 1 else torch.cat(backs)
        return None, back, None, None, None, None


def rule(
    merge: ForwardPass,
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
    if merge.channels_last and groups in (1, weight.shape[0]) and input.device.type == "cpu":
        x = _laid_last(input, merge.half)
        if _for_native_last(x, weight.slot, how):
            return _Native.call(merge.tick, x, *slots, how, False)
        if groups == 1:
            return _Conv.call(merge.tick, x, *slots, how, merge.half)
    x = torch.unflatten(input, 0, (merge.clients, -1))
    if _for_native(x, weight.slot, how):
        return _Native.call(merge.tick, x.contiguous(), *slots, how, False).flatten(0, 1)
    wide = weight.shape[0] * weight.shape[1] > _FEW_CHANNELS  # narrow ones gain nothing by bfloat16
    return _Conv.call(merge.tick, input.contiguous(), *slots, how, merge.half and wide)


def pooled_rule(merge: ForwardPass, input: Tensor, weight: Stacked, bias: Stacked | None = None, *args: Any) -> Any:
    """`rule`, then ReLU and 2×2 max-pooling in one; `NotImplemented` where there are no native kernels for it."""
    how = _geometry(weight, *args) if len(args) == 4 else None
    if how is None or weight.slot is None or (bias is not None and bias.slot is None):
        return NotImplemented
    slots = (weight.slot, None if bias is None else bias.slot)
    if merge.channels_last:
        x = _laid_last(input, merge.half and input.shape[1] % 2 == 0)  # the kernels pair channels
        fits = how.groups == 1 and _for_native_last(x, weight.slot, how, pooled=True)
        return _Native.call(merge.tick, x, *slots, how, True) if fits else NotImplemented
    if not native.usable(input):
        return NotImplemented
    x = torch.unflatten(input, 0, (merge.clients, -1))
    if _for_native(x, weight.slot, how):
        return _Native.call(merge.tick, x.contiguous(), *slots, how, True).flatten(0, 1)
    return pool.relu_and_pool(rule(merge, input, weight, bias, *args).to(weight.dtype))


def _laid_last(input: Tensor, half: bool) -> Tensor:
    return (input.bfloat16() if half else input).contiguous(memory_format=torch.channels_last)


def _for_native(x: Tensor, weight: Slot, how: _Geometry) -> bool:
    shape = weight.entry.shape
    return shape[0] * shape[1] <= _FEW_CHANNELS and _plain(shape, how) and native.usable(x, weight.data)


def many_rows(merge: ForwardPass, x: Tensor, weight: Slot, bias: Slot | None) -> Tensor | None:
    """Apply a linear layer to ``x [K, m, in]`` as a convolution of 1×1 does; None: there are no kernels for it."""
    images = x.contiguous().transpose(1, 2).unsqueeze(2)
    if not _for_native_last(images, weight, _POINTS):
        return None
    return _Native.call(merge.tick, images, weight, bias, _POINTS, False).squeeze(2).transpose(1, 2)


def _for_native_last(x: Tensor, weight: Slot, how: _Geometry, *, pooled: bool = False) -> bool:
    kernels, (out, inside, *window) = native.kernels(), _filters(weight).shape[1:]
    if kernels is None or weight.data[0].numel() > kernels.last_weights or not native.usable(weight.data):
        return False
    single = x.dtype == torch.float32
    if how.groups > 1:  # each channel by itself
        fits = how.groups == out == x.shape[1] and not out % kernels.lanes and not pooled
    else:
        points = window == how.stride == [1, 1] and single and not pooled
        fits = points or not (out % kernels.lanes or (x.requires_grad and inside % kernels.lanes))
    known = how.stride[0] == how.stride[1] and how.dilation == [1, 1]
    around = all(p < k for p, k in zip(how.padding, window, strict=True))
    return fits and known and around and (single or _pairs(x, kernels))


def _pairs(x: Tensor, kernels: native.Kernels) -> bool:
    return x.dtype == torch.bfloat16 and kernels.half and not x.shape[1] % 2


def _plain(shape: Sequence[int], how: _Geometry) -> bool:
    """Whether the kernels know convolutions of this kind, with weights of this shape."""
    window = shape[2:]
    return (
        how.stride == [1, 1]
        and how.dilation == [1, 1]
        and how.groups == 1
        and 1 < max(window) <= 7
        and all(p < k for p, k in zip(how.padding, window, strict=True))
    )


def prefer_channels_last(
    shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, pooled: bool = False, half: bool = False
) -> bool:
    """Whether a model with convolutions of these weights' shapes runs faster with its images' channels last.

    Convolutions that are ``pooled`` do only if native kernels multiply all of them in bfloat16.
    """
    kernels, most = native.kernels(), 0
    if pooled and half and kernels is not None and kernels.half:
        most = kernels.last_weights if all(s[0] % kernels.lanes == 0 for s in shapes) else 0
    fits = not pooled or all(math.prod(s) <= most for s in shapes)
    return fits and dtype == torch.float32 and any(s[0] * s[1] > _FEW_CHANNELS for s in shapes)


def chain_padding(weight: Stacked, *args: Any, **kwargs: Any) -> tuple[int, int] | None:
    """Return the padding of a `F.conv2d` that native training of a chain can compute; None: it cannot."""
    given = dict(zip(("stride", "padding", "dilation", "groups"), args, strict=False)) | kwargs
    how = _geometry(weight, *(given.get(k, d) for k, d in _DEFAULTS.items()))
    if how is None or not _plain(weight.shape, how) or weight.shape[0] * weight.shape[1] > _FEW_IN_CHAINS:
        return None
    return how.padding[0], how.padding[1]


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
