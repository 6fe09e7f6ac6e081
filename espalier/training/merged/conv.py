"""Two-dimensional convolutions of K clients: native kernels where channels are few, else the library.

The library is called once per client, or, for very small layers, with all clients' columns in one batched product.
The product needs the images' columns, kh·kw times the image; a library call per client has its own price.
Measured inside training steps (one thread, AVX-512): LeNet on 8×8 digits, batch 10, takes 0.6 of the time
with columns; on 28×28 the two are even at batch 10, and from batch 32 up the library wins, as the columns
leave the cache before they are used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.training import native
from espalier.training.merged import pool
from espalier.training.merged.products import Function, product
from espalier.training.merged.stacked import ForwardPass, Slot, Stacked

_FEW_PRODUCTS = 1_200_000
"""Multiply-adds of one client's layer and batch below which columns are taken."""

_FEW_CHANNELS = 1024
"""Inputs times outputs up to which the native kernels win (measured: 32·32 is even, 32·64 is the library's)."""

_FEW_IN_CHAINS = 2048
"""The same where whole trainings are native, and nothing is copied between the layers."""

_DEFAULTS: dict[str, Any] = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}


@dataclass(frozen=True)
class _Geometry:
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int


class _Native(Function):
    """All clients in one call, ReLU and pooling along with it if asked for."""

    @staticmethod
    def forward(
        ctx: Any, tick: Tensor, x: Tensor, weight: Slot, bias: Slot | None, how: _Geometry, pooled: bool
    ) -> Tensor:
        kernels = native.kernels()
        assert kernels is not None
        x = x.contiguous()
        y, where = kernels.conv(x, weight.data, None if bias is None else bias.data, how.padding, pooled=pooled)
        ctx.save_for_backward(x, where)
        ctx.weight, ctx.bias, ctx.how, ctx.kernels = weight, bias, how, kernels
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, where), g = ctx.saved_tensors, grads[0].contiguous()
        back, gw, gb = ctx.kernels.conv_backward(
            x, ctx.weight.data, g, where, ctx.how.padding, wants_x=ctx.needs_input_grad[1]
        )
        ctx.weight.add(gw)
        if ctx.bias is not None:
            ctx.bias.add(gb)
        return None, back, None, None, None, None


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


class _Columns(Function):
    """All clients in one batched product over the images' columns, which are kept for the weights' gradient."""

    @staticmethod
    def forward(ctx: Any, tick: Tensor, x: Tensor, weight: Slot, bias: Slot | None, how: _Geometry) -> Tensor:
        (top, left), (out, _, kh, kw) = how.padding, weight.entry.shape
        padded = F.pad(x, (left, left, top, top)) if top or left else x.contiguous()
        k, b, c, height, width = padded.shape
        h = (height - how.dilation[0] * (kh - 1) - 1) // how.stride[0] + 1
        w = (width - how.dilation[1] * (kw - 1) - 1) // how.stride[1] + 1
        sk, sb, sc, sh, sw = padded.stride()
        strides = (sk, sc, sh * how.dilation[0], sw * how.dilation[1], sb, sh * how.stride[0], sw * how.stride[1])
        windows = padded.as_strided((k, c, kh, kw, b, h, w), strides, padded.storage_offset())
        columns = windows.reshape(k, c * kh * kw, b * h * w)
        ctx.save_for_backward(columns)
        ctx.weight, ctx.bias, ctx.how, ctx.padded = weight, bias, how, padded.shape
        y = product(weight.data.view(k, out, -1), columns, None if bias is None else bias.data.unsqueeze(2))
        return y.view(k, out, b, h, w).transpose(1, 2).contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (columns,), g = ctx.saved_tensors, grads[0]
        k, _, out, h, w = g.shape
        flat = g.transpose(1, 2).reshape(k, out, -1)
        back = _images(ctx, flat, h, w) if ctx.needs_input_grad[1] else None
        ctx.weight.add_product(flat, columns.transpose(1, 2))
        if ctx.bias is not None:
            ctx.bias.add(flat.sum(2))
        return None, back, None, None, None


def _images(ctx: Any, flat: Tensor, h: int, w: int) -> Tensor:
    """The inputs' gradient ``[K, B, C, H, W]``: every column added to the place in the image it was taken from."""
    k, b, c, height, width = ctx.padded
    kh, kw = ctx.weight.entry.shape[2:]
    (dh, dw), (sh, sw), (top, left) = ctx.how.dilation, ctx.how.stride, ctx.how.padding
    columns = product(ctx.weight.data.view(k, flat.shape[1], -1).transpose(1, 2), flat).view(k, c, kh, kw, b, h, w)
    images = flat.new_zeros(k, c, b, height, width)
    for i in range(kh):
        for j in range(kw):
            rows, across = slice(i * dh, i * dh + sh * h, sh), slice(j * dw, j * dw + sw * w, sw)
            images[..., rows, across] += columns[:, :, i, j]
    inner = images[..., top : height - top, left : width - left]
    return inner.transpose(1, 2).contiguous()


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
    if merge.channels_last and groups == 1 and input.device.type == "cpu":
        x = input.contiguous(memory_format=torch.channels_last)
        return _Conv.call(merge.tick, x, *slots, how, merge.half)
    x = torch.unflatten(input, 0, (merge.clients, -1))
    if _for_native(x, weight.slot, how):
        return _Native.call(merge.tick, x, *slots, how, False).flatten(0, 1)
    if groups == 1 and _small(x, weight, how) and not merge.half:
        return _Columns.call(merge.tick, x, *slots, how).flatten(0, 1)
    return _Conv.call(merge.tick, input.contiguous(), *slots, how, merge.half)


def pooled_rule(merge: ForwardPass, input: Tensor, weight: Stacked, bias: Stacked | None = None, *args: Any) -> Any:
    """`rule`, then ReLU and 2×2 max-pooling in one; `NotImplemented` where there are no native kernels for it."""
    how = _geometry(weight, *args) if len(args) == 4 else None
    if how is None or weight.slot is None or (bias is not None and bias.slot is None) or not native.usable(input):
        return NotImplemented
    x = torch.unflatten(input, 0, (merge.clients, -1))
    if _for_native(x, weight.slot, how):
        return _Native.call(merge.tick, x, weight.slot, None if bias is None else bias.slot, how, True).flatten(0, 1)
    return pool.relu_and_pool(rule(merge, input, weight, bias, *args).to(weight.dtype))


def _for_native(x: Tensor, weight: Slot, how: _Geometry) -> bool:
    shape = weight.entry.shape
    return shape[0] * shape[1] <= _FEW_CHANNELS and _plain(shape, how) and native.usable(x, weight.data)


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


def prefer_channels_last(shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> bool:
    """Whether a model with convolutions of these weights' shapes runs faster with its images' channels last."""
    return dtype == torch.float32 and any(s[0] * s[1] > _FEW_CHANNELS for s in shapes)


def chain_padding(weight: Stacked, *args: Any, **kwargs: Any) -> tuple[int, int] | None:
    """Return the padding of a `F.conv2d` that native training of a chain can compute; None: it cannot."""
    given = dict(zip(("stride", "padding", "dilation", "groups"), args, strict=False)) | kwargs
    how = _geometry(weight, *(given.get(k, d) for k, d in _DEFAULTS.items()))
    if how is None or not _plain(weight.shape, how) or weight.shape[0] * weight.shape[1] > _FEW_IN_CHAINS:
        return None
    return how.padding[0], how.padding[1]


def _small(x: Tensor, weight: Stacked, how: _Geometry) -> bool:
    """Whether one client's products are so few that a library call would mostly be overhead."""
    places = x[0].numel() // x.shape[2] // math.prod(how.stride)
    return places * weight.numel() <= _FEW_PRODUCTS


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
