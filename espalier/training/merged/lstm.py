"""LSTM layers of K clients, each by PyTorch's own call.

PyTorch runs all steps of time of one client's layer in one fused call. Stepping K clients through time together takes a
product and a pass over the gates per step, which is slower on a processor however many clients share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from espalier.training.merged.stacked import ForwardPass, Stacked, Unsupported, own


def rule(
    merge: ForwardPass,
    input: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Stacked],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """`torch.lstm` for merged inputs ``[K·B, T, I]`` (or ``[T, K·B, I]``)."""
    if isinstance(hx, Tensor):
        raise Unsupported("an LSTM over a packed sequence mixes the samples")
    ways, k = 2 if bidirectional else 1, merge.clients
    axis, per = 0 if batch_first else 1, len(params) // num_layers
    x, states = input, []
    for layer in range(num_layers):
        weights = zip(*(p.value.unbind() for p in params[layer * per : (layer + 1) * per]), strict=True)
        starts = zip(*(s[layer * ways : (layer + 1) * ways].chunk(k, 1) for s in hx), strict=True)
        results = [
            torch.lstm(own(part), [own(s) for s in start], [own(w) for w in mine], has_biases, 1, 0.0, train,
                       bidirectional, batch_first)
            for part, start, mine in zip(x.chunk(k, axis), starts, weights, strict=True)
        ]  # fmt: skip
        outs, hidden, cells = zip(*results, strict=True)
        # Contiguous for one client too: how later sums are ordered must not depend on the number of clients.
        x = torch.cat(outs, axis).contiguous()
        states.append((torch.cat(hidden, 1), torch.cat(cells, 1)))
        if dropout and train and layer + 1 < num_layers and merge.noise is not None:
            samples = x if batch_first else x.transpose(0, 1)
            shape = (samples.shape[1], samples.shape[2])
            keep = merge.noise.keep(k, samples.shape[0] // k, shape, dropout, x).view(samples.shape)
            x = x * (keep if batch_first else keep.transpose(0, 1))
    last_h, last_c = (torch.cat(parts) for parts in zip(*states, strict=True))
    return x, last_h, last_c
