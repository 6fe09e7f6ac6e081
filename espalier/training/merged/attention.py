"""Multi-head attention of K clients: the projections are per client, the attention has no parameters."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.training.merged.layers import apply_linear
from espalier.training.merged.stacked import ForwardPass, Stacked


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
    q, k, v = _project(merge, query, key, value, in_proj_weight, in_proj_bias)
    q, k, v = (torch.unflatten(x, -1, (num_heads, -1)).transpose(1, 2) for x in (q, k, v))
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
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    joined = mixed.transpose(1, 2).reshape(merge.clients, -1, size)
    out = apply_linear(merge, joined, out_proj_weight, out_proj_bias).view(rows, length, -1).transpose(0, 1)
    if not need_weights:
        return out, None
    return out, weights.mean(1) if average_attn_weights else weights


def _project(
    merge: ForwardPass, query: Tensor, key: Tensor, value: Tensor, weight: Stacked, bias: Stacked | None
) -> list[Tensor]:
    """Queries, keys and values ``[K·B, length, E]``."""
    rows, size = query.shape[1], query.shape[2]
    if query is key and key is value:
        x = query.transpose(0, 1).reshape(merge.clients, -1, size)
        packed = apply_linear(merge, x, weight, bias).view(rows, query.shape[0], 3 * size)
        return list(packed.chunk(3, -1))
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
