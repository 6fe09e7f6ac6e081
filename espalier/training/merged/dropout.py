"""Dropout whose masks are a function of the job: drawn per client, from the client's own stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.core.seeds import stream

FUNCTIONS: frozenset[Any] = frozenset([F.dropout, torch.dropout, F.dropout1d, F.dropout2d, F.dropout3d])
ELEMENTWISE: frozenset[Any] = frozenset([F.dropout, torch.dropout])


class DropoutNoise:
    """One stream of uniform numbers per client.

    Masks are always drawn for the padded width of a job's batches, so that the numbers drawn do not
    depend on whether padding is computed (merged) or left out (one by one).
    """

    def __init__(self, seeds: Sequence[int], width: int) -> None:
        self._seeds = seeds
        self._width = width
        self._streams: list[np.random.Generator] = []

    def keep(self, clients: int, rows: int, rest: Sequence[int], p: float, like: Tensor) -> Tensor:
        """Draw a mask ``[clients·rows, *rest]`` of ``1/(1-p)`` with probability ``1-p``, else 0."""
        if not self._streams:
            self._streams = [stream(s, "dropout") for s in self._seeds]
        drawn = np.empty((clients, rows, *rest), dtype=np.float32)
        for client in range(clients):
            self._streams[client].random(out=drawn[client], dtype=np.float32)
        mask = torch.from_numpy(drawn).to(like.device).view(clients * rows, *rest) >= p
        return mask.to(like.dtype).mul_(1.0 / (1.0 - p)) if p < 1.0 else torch.zeros(mask.shape, dtype=like.dtype)

    def keep_first(self, samples: int, rows: int, rest: Sequence[int], p: float, like: Tensor) -> Tensor:
        """Draw one client's mask for the padded width and return the part of its ``samples`` samples."""
        return self.keep(1, rows // samples * self._width, rest, p, like)[:rows]
