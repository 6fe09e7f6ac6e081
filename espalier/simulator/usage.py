"""What a simulation uses: bytes on links, seconds of hosts, steps of training."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Usage:
    """Counts bytes by tier, direction and kind, seconds by host, and mini-batch steps.

    Attributes:
        seconds: Seconds that each host has spent: ``train``, ``measure``, ``send`` and ``receive``, [hosts] each.
        bytes: Bytes carried: (tier, direction, ``model`` or ``ctrl``) -> count.
        steps: Mini-batch steps that devices were asked for.
    """

    def __init__(self, n_hosts: int) -> None:
        self.seconds: dict[str, NDArray[np.float64]] = {
            kind: np.zeros(n_hosts) for kind in ("train", "measure", "send", "receive")
        }
        self.bytes: dict[tuple[str, str, str], int] = {}
        self.steps = 0

    def carried(self, tier: str, direction: str, model: int, control: int) -> None:
        """Count bytes that a hop carried."""
        for kind, nbytes in (("model", model), ("ctrl", control)):
            if nbytes:
                key = (str(tier), direction, kind)
                self.bytes[key] = self.bytes.get(key, 0) + nbytes

    def spent(self, host: int, kind: str, seconds: float) -> None:
        """Count seconds that a host spent training, measuring, sending or receiving."""
        self.seconds[kind][host] += seconds

    def save(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return {"seconds": self.seconds, "bytes": [[*k, v] for k, v in self.bytes.items()], "steps": self.steps}

    def restore(self, plain: dict[str, Any]) -> None:
        """Become what :meth:`save` described."""
        self.seconds = {k: v.copy() for k, v in plain["seconds"].items()}
        self.bytes = {(t, d, k): v for t, d, k, v in plain["bytes"]}
        self.steps = plain["steps"]
