"""A split of the fleet into clusters, and the sizes that a cluster may have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from espalier.core.errors import ConfigError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Clusters:
    """Disjoint clusters that together hold every device once.

    Attributes:
        members: One ascending array of device numbers per cluster; none is empty.
    """

    members: tuple[Ints, ...]

    def __post_init__(self) -> None:
        """Refuse a split that loses a device, holds one twice or has an empty cluster."""
        if any(m.size == 0 for m in self.members):
            raise ConfigError("A cluster is empty; drop it from the split.")
        everyone = np.sort(np.concatenate([np.zeros(0, np.int64), *self.members]))
        if not np.array_equal(everyone, np.arange(everyone.size)):
            raise ConfigError(
                f"The clusters' {everyone.size} entries are not the devices 0 to {everyone.size - 1}; "
                "every device must be in exactly one cluster."
            )

    @staticmethod
    def of(groups: Iterable[ArrayLike]) -> Clusters:
        """Build clusters from any lists of device numbers."""
        return Clusters(tuple(np.sort(np.asarray(g, dtype=np.int64).ravel()) for g in groups))

    @staticmethod
    def from_labels(labels: ArrayLike) -> Clusters:
        """Build clusters from one label ``[N]`` per device; labels without a device are dropped."""
        marks = np.asarray(labels)
        return Clusters(tuple(np.flatnonzero(marks == mark).astype(np.int64) for mark in np.unique(marks)))

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return int(self.sizes.sum())

    @property
    def sizes(self) -> Ints:
        """Number of members per cluster ``[U]``."""
        return np.array([m.size for m in self.members], dtype=np.int64)

    @property
    def labels(self) -> Ints:
        """Cluster number per device ``[N]``."""
        labels = np.empty(self.n_devices, dtype=np.int64)
        for number, members in enumerate(self.members):
            labels[members] = number
        return labels

    def __len__(self) -> int:
        return len(self.members)


@dataclass(frozen=True)
class Sizes:
    """How many clusters there are and how many members each may have."""

    n_clusters: int
    n_min: int
    n_max: int
