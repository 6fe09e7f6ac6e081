"""Batched matrix products whose bits do not depend on a client's place in the batch.

The library's product of small matrices rounds differently where a matrix begins off a 16-byte boundary
(measured: MKL, sizes such as 9×6). In a stack ``[K, a, b]`` of odd sizes that is so for some clients and
not for others. Here every matrix begins on a boundary: inputs are copied where needed, and results of odd
sizes are computed client by client. So are products with a single column, which the library sums in another
order when there is only one of them (measured: 12×34 by 34×1).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_BOUNDARY_BYTES = 16


def product(left: Tensor, right: Tensor, plus: Tensor | None = None) -> Tensor:
    """``left [K, a, m] @ right [K, m, b]``, plus something that broadcasts to the result ``[K, a, b]``."""
    left, right = aligned(left), aligned(right)
    if not _even(left, right):
        result = torch.stack([torch.mm(x, y) for x, y in zip(left.unbind(0), right.unbind(0), strict=True)])
        return result if plus is None else result.add_(plus)
    return torch.bmm(left, right) if plus is None else torch.baddbmm(plus, left, right)


def add_product(total: Tensor, left: Tensor, right: Tensor, *, fresh: bool) -> None:
    """Add ``left [K, a, m] @ right [K, m, b]`` to a contiguous ``total``; ``fresh`` overwrites it."""
    total = total.view(left.shape[0], left.shape[1], right.shape[2])
    if _even(left, right):
        total.baddbmm_(aligned(left), aligned(right), beta=0.0 if fresh else 1.0)
    elif fresh:
        total.copy_(product(left, right))
    else:
        total.add_(product(left, right))


def aligned(stack: Tensor) -> Tensor:
    """Return ``stack [K, a, b]``, copied where one begins off a boundary; rows or columns stay contiguous."""
    if _fits(stack):
        return stack
    if stack.stride(2) != 1 and stack.stride(1) == 1:
        return aligned(stack.transpose(1, 2)).transpose(1, 2)
    k, a, b = stack.shape
    per = _BOUNDARY_BYTES // stack.element_size()
    return stack.new_empty(k, -(-a * b // per) * per)[:, : a * b].view(k, a, b).copy_(stack)


def _fits(stack: Tensor) -> bool:
    pitch = stack.stride(0) * stack.element_size() if stack.shape[0] > 1 else 0
    return stack.data_ptr() % _BOUNDARY_BYTES == 0 and pitch % _BOUNDARY_BYTES == 0


def _even(left: Tensor, right: Tensor) -> bool:
    return right.shape[2] > 1 and left.shape[1] * right.shape[2] * left.element_size() % _BOUNDARY_BYTES == 0


class Function(torch.autograd.Function):
    """`torch.autograd.Function` whose application type-checks."""

    @classmethod
    def call(cls, *args: Any) -> Tensor:
        """Apply the function."""
        result: Tensor = cls.apply(*args)  # type: ignore[no-untyped-call]
        return result
