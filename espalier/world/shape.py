"""The fleet that a world is bound to, and the names of its hosts and links.

Hosts are whole numbers: devices ``0 … N-1``, edges ``N … N+E-1``, then servers between edges and cloud if
there are any, the cloud last: who is lower in the tree has the smaller number.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from espalier.core.errors import WorldError


class Tier(StrEnum):
    """The kind of a link, by what it joins."""

    DEV_EDGE = "dev-edge"
    EDGE_CLOUD = "edge-cloud"
    DEV_DEV = "dev-dev"


#: One hop of a message's path: the tier, from, to.
Hop = tuple[Tier, int, int]


@dataclass(frozen=True, eq=False)
class Shape:
    """The fleet that a world is bound to.

    Attributes:
        n_devices: Number of devices, N.
        n_edges: Number of edges, E (0: devices reach the cloud over their access link).
        seed: The run's seed.
        batches: Mini-batches per epoch of each device, [N]; for models whose delay covers a whole
            training or epoch.
        model_bytes: Bytes of one model; for models that measure messages in models.
        n_servers: Servers between the edges and the cloud.
        home: The number (0 … E-1) of the edge at which each device starts, [N]; default: device mod E.
    """

    n_devices: int
    n_edges: int
    seed: int
    batches: NDArray[np.int64] | None = None
    model_bytes: int | None = None
    home: NDArray[np.int32] | NDArray[np.int64] | None = None
    n_servers: int = 0

    def __post_init__(self) -> None:
        if self.n_devices < 1 or self.n_edges < 0:
            raise WorldError(
                f"n_devices = {self.n_devices}, n_edges = {self.n_edges}: a fleet has at least one device "
                "and no negative number of edges."
            )
        for name in ("batches", "home"):
            array = getattr(self, name)
            if array is not None and array.shape != (self.n_devices,):
                raise WorldError(f"{name} has shape {array.shape}: expected one entry per device, ({self.n_devices},).")

    @property
    def cloud(self) -> int:
        """The cloud's host number."""
        return self.n_devices + self.n_edges + self.n_servers

    @property
    def n_hosts(self) -> int:
        """Devices, edges, servers and the cloud."""
        return self.cloud + 1

    def is_device(self, host: int) -> bool:
        """Tell whether a host is a device."""
        return host < self.n_devices

    def is_edge(self, host: int) -> bool:
        """Tell whether a host is an edge."""
        return self.n_devices <= host < self.n_devices + self.n_edges

    def home_host(self, device: int) -> int:
        """Return the host number of the edge at which a device starts (the cloud if there is no edge)."""
        if self.n_edges == 0:
            return self.cloud
        number = device % self.n_edges if self.home is None else int(self.home[device])
        return self.n_devices + number
