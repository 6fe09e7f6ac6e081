"""Ways to split a dataset over devices and edges, one file each, and how to get one by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from espalier.core.method import load_methods
from espalier.data.partitions.base import EdgeTest, EdgeTests, PartitionSpec, Request, RowAssignment
from espalier.data.partitions.by_label import Classes, Dirichlet, Iid, TwoLevel
from espalier.data.partitions.explicit import Explicit
from espalier.data.partitions.owner import Owner
from espalier.data.partitions.pool import SharedPool


def partition_spec(kind: str, options: Mapping[str, Any] | None = None) -> PartitionSpec:
    """Make a partition's description from its kind and its options (as a TOML table gives them).

    Raises:
        ConfigError: An unknown kind or option (with the nearest known one), or a value that is not accepted.
    """
    load_methods()
    return PartitionSpec.build({**(options or {}), "kind": kind})


__all__ = [
    "Classes",
    "Dirichlet",
    "EdgeTest",
    "EdgeTests",
    "Explicit",
    "Iid",
    "Owner",
    "PartitionSpec",
    "Request",
    "RowAssignment",
    "SharedPool",
    "TwoLevel",
    "partition_spec",
]
