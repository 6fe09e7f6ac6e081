"""Multi-teacher knowledge distillation on a proxy set: the arithmetic.

Teachers are weighted by ``rho`` and softened by a temperature ``T``; the student's loss is
``T^2 KL( sum_k rho_k softmax(z_k / T) || softmax(z / T) )``. ``T^2`` keeps the gradients' size independent of T
(Hinton, Vinyals, Dean, Distilling the Knowledge in a Neural Network, 2015).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def ensemble(logits: Tensor, weights: Sequence[float], temperature: float) -> Tensor:
    """Return the teachers' common answer ``sum_k rho_k softmax(z_k / T)``.

    Args:
        logits: ``[K, n, C, …]``: classes are the third axis, pixels may follow.
        weights: ``rho [K]``, scaled to sum one here.
        temperature: T.

    Returns:
        Probabilities ``[n, C, …]``.
    """
    rho = torch.as_tensor(weights, dtype=logits.dtype)
    rho = rho / rho.sum()
    return torch.einsum("k,k...->...", rho, F.softmax(logits / temperature, dim=2))


def distillation_loss(temperature: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the student's loss: logits and probabilities ``[n, C, …]`` to one number per sample ``[n]``."""

    def loss(outputs: Tensor, answers: Tensor) -> Tensor:
        mine = F.log_softmax(outputs / temperature, dim=1)
        apart = (torch.xlogy(answers, answers) - answers * mine).sum(1)
        return apart.flatten(1).mean(1) * temperature**2 if apart.dim() > 1 else apart * temperature**2

    return loss
