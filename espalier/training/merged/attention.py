"""Multi-head attention of K clients: the projections are per client, the attention has no parameters.

Attention itself is one native call for all samples and heads where heads are small enough, else the library's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.training import native
from espalier.training.merged.layers import apply_linear
from espalier.training.merged.products import Function
from espalier.training.merged.stacked import ForwardPass, Stacked


class _Native(Function):
    """Softmax attention of ``given``: see `_heads`; ``mask`` ``[samples, heads, L, S]`` is added to the scores."""

    @staticmethod
    def forward(ctx: Any, heads: int, mask: Tensor | None, scale: float, *given: Tensor) -> Tensor:
        kernels = native.kernels()
        assert kernels is not None
        y, stats = kernels.attention(_heads(given, heads), mask, scale)
        ctx.save_for_backward(mask, stats, *given)
        ctx.heads, ctx.scale, ctx.kernels = heads, scale, kernels
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        mask, stats, *given = ctx.saved_tensors
        g = grads[0] if grads[0].stride(3) == 1 else grads[0].contiguous()
        into = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in given]
        parts, slopes = _heads(given, ctx.heads), _heads(into, ctx.heads)
        ctx.kernels.attention_backward(parts, mask, g, stats, ctx.scale, slopes)
        return None, None, None, *into


def _heads(given: Sequence[Tensor], heads: int) -> Sequence[Tensor]:
    """Queries, keys and values ``[samples, heads, length, numbers]``.

    They are given so, or each ``[samples, length, E]``, or side by side in one tensor.
    """
    if given[0].dim() == 4:
        return given
    parts = given[0].chunk(3, -1) if len(given) == 1 else given
    return [torch.unflatten(x, -1, (heads, -1)).transpose(1, 2) for x in parts]


def _mixed(heads: int, mask: Tensor | None, scale: float, *given: Tensor) -> Tensor | None:
    """Attention by the native kernels; None if it is not theirs."""
    (q, k, v), kernels = _heads(given, heads), native.kernels()
    if kernels is None or q.shape[2] * k.shape[2] > kernels.scores or not native.usable(*given):
        return None
    plain = q.numel() and k.numel() and q.stride(3) == k.stride(3) == v.stride(3) == 1
    if not plain or q.shape[:2] != k.shape[:2] or v.shape != k.shape or q.shape[3] != k.shape[3]:
        return None
    if mask is not None:
        if mask.requires_grad or mask.dtype != q.dtype:
            return None
        mask = mask.contiguous().expand(*q.shape[:3], k.shape[2])
        mask = mask if mask.stride(3) == 1 else mask.contiguous()
    return _Native.call(heads, mask, scale, *given)


def shortcut(
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **others: Any,
) -> Any:
    """`F.scaled_dot_product_attention`, which a module calls without parameters."""
    scale, found = others.get("scale"), None
    refused = dropout_p or others.get("enable_gqa") or (is_causal and attn_mask is not None)
    if query.dim() == key.dim() == value.dim() == 4 and not refused:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril() if is_causal else attn_mask
        added = mask if mask is None or mask.dtype != torch.bool else _additive(~mask, query.dtype)
        found = _mixed(0, added, query.shape[-1] ** -0.5 if scale is None else scale, query, key, value)
    return func(query, key, value, attn_mask, dropout_p, is_causal, **others) if found is None else found


def rule(
    merge: ForwardPass,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Stacked | None,
    in_proj_bias: Stacked | None,
    bias_k: Stacked | None,
    bias_v: Stacked | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Stacked,
    out_proj_bias: Stacked | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Stacked | None = None,
    k_proj_weight: Stacked | None = None,
    v_proj_weight: Stacked | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:
    """`F.multi_head_attention_forward` for merged ``query [L, K·B, E]``, ``key`` and ``value [S, K·B, E]``."""
    special = (bias_k, bias_v, static_k, static_v)
    if in_proj_weight is None or use_separate_proj_weight or add_zero_attn or any(s is not None for s in special):
        return NotImplemented
    if query.dim() != 3:
        return NotImplemented
    length, rows, size = query.shape
    given = _project(merge, query, key, value, in_proj_weight, in_proj_bias)
    q, k, v = _heads(given, num_heads)
    mask = _mask(attn_mask, key_padding_mask, rows, num_heads, query.dtype)
    drop = dropout_p if training and merge.noise is not None else 0.0
    if drop or need_weights:
        scores = q @ k.transpose(-1, -2) / math.sqrt(size // num_heads)
        weights = (scores if mask is None else scores + mask).softmax(-1)
        if drop and merge.noise is not None:
            rest = weights.shape[1:]
            weights = weights * merge.noise.keep(merge.clients, rows // merge.clients, rest, drop, weights)
        mixed = weights @ v
    else:
        fast = _mixed(num_heads, mask, q.shape[-1] ** -0.5, *given)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask) if fast is None else fast
    joined = mixed.transpose(1, 2).reshape(merge.clients, -1, size)
    out = apply_linear(merge, joined, out_proj_weight, out_proj_bias).view(rows, length, -1).transpose(0, 1)
    if not need_weights:
        return out, None
    return out, weights.mean(1) if average_attn_weights else weights


def _project(
    merge: ForwardPass, query: Tensor, key: Tensor, value: Tensor, weight: Stacked, bias: Stacked | None
) -> list[Tensor]:
    """Queries, keys and values ``[K·B, length, E]``, or all three in one tensor ``[K·B, length, 3·E]``."""
    rows, size = query.shape[1], query.shape[2]
    if query is key and key is value:
        x = query.transpose(0, 1).reshape(merge.clients, -1, size)
        packed = apply_linear(merge, x, weight, bias).view(rows, query.shape[0], 3 * size)
        return [packed]
    parts = []
    for n, x in enumerate((query, key, value)):
        cut = slice(n * size, (n + 1) * size)
        w = Stacked(merge, value=weight.value[:, cut])
        b = None if bias is None else Stacked(merge, value=bias.value[:, cut])
        flat = x.transpose(0, 1).reshape(merge.clients, -1, x.shape[2])
        parts.append(apply_linear(merge, flat, w, b).view(rows, x.shape[0], size))
    return parts


def _mask(attn_mask: Tensor | None, padding: Tensor | None, rows: int, heads: int, dtype: torch.dtype) -> Tensor | None:
    """The sum of both masks as an additive one that broadcasts to ``[K·B, heads, L, S]``."""
    mask = None
    if attn_mask is not None:
        mask = _additive(attn_mask, dtype)
        if mask.dim() == 3:
            mask = mask.view(rows, heads, *mask.shape[1:]) if mask.shape[0] == rows * heads else mask.unsqueeze(0)
    if padding is not None:
        keys = _additive(padding, dtype)[:, None, None, :]
        mask = keys if mask is None else mask + keys
    return mask


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=dtype).masked_fill_(mask, -torch.inf)
    return mask.to(dtype)
