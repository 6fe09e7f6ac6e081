"""Datasets, partitions, and the test distributions of edges and devices."""

from __future__ import annotations

from espalier.data.dataset import ArrayPool, Dataset
from espalier.data.partition import Partition, partition
from espalier.data.partitions import PartitionSpec, partition_spec
from espalier.data.registry import Info, catalogue, fetch, load

__all__ = [
    "ArrayPool",
    "Dataset",
    "Info",
    "Partition",
    "PartitionSpec",
    "catalogue",
    "fetch",
    "load",
    "partition",
    "partition_spec",
]
