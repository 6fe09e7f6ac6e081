"""What a chunk computes next: inputs, targets and weights of several steps, gathered at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from espalier.training.modules import cast
from espalier.training.schedule import Schedule
from espalier.training.work import Pool, TrainerJob


@dataclass(frozen=True, eq=False)
class Batches:
    """Some steps of K clients, each client's batch padded to B.

    Attributes:
        x: Inputs ``[steps, K·B, ...]``.
        y: Targets ``[steps, K·B, ...]``.
        valid: 1 for samples, 0 for padding, ``[steps, K, B]``.
        share: A sample's weight in the backward pass, ``[steps, K·B]``: its client's scale over its batch's size.
    """

    x: Tensor
    y: Tensor
    valid: Tensor
    share: Tensor


def gather(jobs: Sequence[TrainerJob], plans: Sequence[Schedule], first: int, steps: int, scale: Tensor) -> Batches:
    """Gather the steps from ``first`` on; ``scale [K]`` also decides the arithmetic."""
    rows = np.stack([p.rows[first : first + steps] for p in plans], axis=1)
    x, y = (cast(t, scale.dtype) for t in _fetch([j.pool for j in jobs], rows))
    sizes = torch.from_numpy(np.stack([p.sizes[first : first + steps] for p in plans], axis=1)).unsqueeze(2)
    sizes = sizes.to(scale.device)
    valid = (torch.arange(rows.shape[2], device=scale.device) < sizes).to(scale.dtype)
    share = valid / sizes * scale.view(1, -1, 1)
    return Batches(x.reshape(steps, -1, *x.shape[1:]), y.reshape(steps, -1, *y.shape[1:]), valid, share.view(steps, -1))


def _fetch(pools: Sequence[Pool], rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Inputs and targets ``[steps·K·B, ...]`` of rows ``[steps, K, B]``, client k's from pool k."""
    distinct = {id(p): p for p in pools}
    if len(distinct) == 1:
        return pools[0].gather(torch.from_numpy(rows.reshape(-1)))
    owner = np.array([id(p) for p in pools])
    found, places = [], []
    for key, pool in distinct.items():
        mine = np.broadcast_to((owner == key)[None, :, None], rows.shape)
        found.append(pool.gather(torch.from_numpy(rows[mine])))
        places.append(np.flatnonzero(mine))
    back = torch.from_numpy(np.argsort(np.concatenate(places)))
    return torch.cat([x for x, _ in found])[back], torch.cat([y for _, y in found])[back]
