"""Differences between models as 8-bit numbers, with error feedback.

A block of 256 numbers shares one scale, its largest magnitude divided by 127; each number becomes the nearest
multiple of it. What rounding took away is remembered and added to the next difference, so nothing is lost over time
(error feedback):

    d = (model - base) + error        sent: q = round(d / scale)        error <- d - scale * q

A model of n floating numbers costs n + 4 * ceil(n / 256) bytes instead of 4 n.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from espalier.core.errors import ProtocolError
from espalier.core.params import ParamSpec

#: numbers that share a scale, and the levels to either side of zero
BLOCK = 256
_LEVELS = 127.0


@dataclass(frozen=True, eq=False)
class Coded:
    """A coded difference: what is sent, the model as the receiver sees it, and what rounding took away."""

    data: bytes
    model: Tensor
    error: Tensor


def coded_bytes(n_float: int, size: int | None = None) -> int:
    """Bytes of a coded model of ``n_float`` floating numbers (and ``size - n_float`` counters, sent as they are)."""
    return n_float + 4 * -(-n_float // BLOCK) + 4 * ((size or n_float) - n_float)


def code(model: Tensor, base: Tensor, error: Tensor | None, spec: ParamSpec) -> Coded:
    """Code the difference of two models ``[spec.size]``.

    Args:
        model: The model to send.
        base: The model that the receiver has.
        error: What earlier roundings took away ``[spec.n_float]``, or None.
        spec: Of the model.
    """
    n = spec.n_float
    difference = model[:n] - base[:n]
    if error is not None:
        difference = difference + error
    blocks = torch.zeros(-(-n // BLOCK) * BLOCK, dtype=difference.dtype)
    blocks[:n] = difference
    blocks = blocks.view(-1, BLOCK)
    scales = (blocks.abs().amax(1) / _LEVELS).to(torch.float32)
    # a block of zeros has scale zero, and a difference that is not finite must stay so
    steps = torch.where(scales > 0, scales, torch.ones_like(scales)).to(blocks.dtype)
    levels = torch.nan_to_num(torch.round(blocks / steps[:, None])).clamp(-_LEVELS, _LEVELS).to(torch.int8)
    tail = model[n:].to(torch.float32)
    data = scales.numpy().astype("<f4").tobytes() + levels.view(-1)[:n].numpy().tobytes()
    data += tail.numpy().astype("<f4").tobytes()
    seen = _spread(scales, levels, n).to(difference.dtype)
    return Coded(data, torch.cat([base[:n] + seen, model[n:]]), torch.nan_to_num(difference - seen))


def decode(data: bytes | memoryview, base: Tensor, spec: ParamSpec) -> Tensor:
    """Return the model that a coded difference from ``base [spec.size]`` means.

    Raises:
        ProtocolError: The bytes are not of such a model.
    """
    n, expected = spec.n_float, coded_bytes(spec.n_float, spec.size)
    if len(data) != expected:
        raise ProtocolError(f"A coded model of {len(data)} bytes; {expected} are expected for {n} numbers.")
    head = 4 * -(-n // BLOCK)
    scales = torch.from_numpy(np.frombuffer(data[:head], dtype="<f4").copy())
    levels = torch.zeros(len(scales) * BLOCK, dtype=torch.int8)
    levels[:n] = torch.from_numpy(np.frombuffer(data[head : head + n], dtype=np.int8).copy())
    tail = torch.from_numpy(np.frombuffer(data[head + n :], dtype="<f4").copy())
    seen = _spread(scales, levels.view(-1, BLOCK), n).to(base.dtype)
    return torch.cat([base[:n] + seen, tail.to(base.dtype)])


def _spread(scales: Tensor, levels: Tensor, n: int) -> Tensor:
    return (levels.to(torch.float32) * scales[:, None]).reshape(-1)[:n]
