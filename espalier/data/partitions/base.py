"""What every partition shares: its common options, what it is asked, and what it answers."""

from __future__ import annotations

import abc
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from espalier.core.bounds import Bound, Share
from espalier.core.errors import PartitionError
from espalier.core.seeds import Part, stream
from espalier.core.spec import Spec
from espalier.data.dataset import Dataset, IntArray
from espalier.data.rows import FloatArray, Rows, by_cell


@dataclass(frozen=True, eq=False)
class EdgeTest:
    """Test rows of every edge: ``personal`` to choose a model, ``evaluation`` to judge it (disjoint)."""

    personal: Rows
    evaluation: Rows

    @staticmethod
    def split(rows: Sequence[IntArray], personal: float, rngs: Iterable[np.random.Generator]) -> EdgeTest:
        """Draw the share ``personal`` (rounded down) of each edge's rows; the others are for evaluation."""
        mixed = [rng.permutation(r) for r, rng in zip(rows, rngs, strict=True)]
        cut = [int(personal * len(r)) for r in mixed]
        return EdgeTest(
            personal=Rows.of([np.sort(r[:n]) for r, n in zip(mixed, cut, strict=True)]),
            evaluation=Rows.of([np.sort(r[n:]) for r, n in zip(mixed, cut, strict=True)]),
        )


@dataclass(frozen=True, eq=False)
class EdgeTests:
    """The edges' own test sets by name (``balanced``, ``imbalanced``, ``own``); ``primary`` is in use."""

    primary: str
    sets: Mapping[str, EdgeTest]

    @property
    def personal(self) -> Rows:
        """Rows by which an edge chooses its model."""
        return self.sets[self.primary].personal

    @property
    def evaluation(self) -> Rows:
        """Rows by which an edge's model is judged."""
        return self.sets[self.primary].evaluation


@dataclass(frozen=True, eq=False)
class Request:
    """A question to a partition.

    Attributes:
        dataset: What is split.
        rows: The training rows that may be used, ascending.
        n_devices: Devices wanted.
        n_edges: Edges wanted.
        edge: The edge of each device unless the partition decides otherwise, int32 ``[n_devices]``.
        weights: The relative amount of data each device should get, mean 1, float64 ``[n_devices]``.
        seed: The run's seed.
    """

    dataset: Dataset
    rows: IntArray
    n_devices: int
    n_edges: int
    edge: NDArray[np.int32]
    weights: FloatArray
    seed: int

    def rng(self, *path: Part) -> np.random.Generator:
        """The generator of one decision."""
        return stream(self.seed, "data", "partition", *path)

    @property
    def cells(self) -> IntArray:
        """The cell of every training row of the dataset."""
        return self.dataset.cell_train

    @property
    def n_cells(self) -> int:
        """How many cells there are."""
        return self.dataset.n_cells

    def pools(self) -> list[IntArray]:
        """The usable rows of each cell, shuffled."""
        return by_cell(self.rows, self.cells, self.n_cells, self.rng("rows"))

    def need(self, per_device: int) -> None:
        """Refuse a request for which there are fewer than ``per_device`` rows for every device."""
        if len(self.rows) < per_device * self.n_devices:
            raise PartitionError(
                f"{self.n_devices} devices with at least {per_device} samples each need "
                f"{per_device * self.n_devices} samples, the data has {len(self.rows)}. Use fewer devices, more "
                "data, or the kind 'pool', whose devices share samples."
            )


@dataclass(frozen=True, eq=False)
class RowAssignment:
    """A partition's answer.

    Attributes:
        rows: The devices' training rows.
        edge: The devices' edges, int32 ``[n_devices]``.
        edge_tests: The edges' own test sets, if it made any.
        device_tests: The devices' own test rows, if the data have some of theirs.
        capped: The amounts already follow ``samples_per_device``.
        names: What the devices are called, where an owner with a name is a device.
        edge_names: What the edges are called, where the data say so.
    """

    rows: Rows
    edge: NDArray[np.int32]
    edge_tests: EdgeTests | None = None
    device_tests: Rows | None = None
    capped: bool = False
    names: tuple[str, ...] = ()
    edge_names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PartitionSpec(Spec, abc.ABC, family="partition"):
    """A way to split a dataset; ``PartitionSpec.build({"kind": "iid", …})`` makes one from a table.

    Attributes:
        fraction: Share of the training rows that is used, the same of every cell.
        samples_per_device: At most this many rows per device; a pair ``(low, high)`` draws the number
            uniformly for each device and refuses devices that have fewer than ``low``.
        imbalance: Spread of the amounts of data: they are log-normal with this σ of their logarithm; 0 is
            even.
        concepts: Planted clusters: devices get one of this many concepts (label permutations, 0 is the
            identity).
        val_fraction: Share of a device's rows held out for its own validation (rounded down; at
            least one row of a device with two).
    """

    weighted: ClassVar[bool] = True

    fraction: Share = 1.0
    samples_per_device: int | tuple[int, int] | None = None
    imbalance: Annotated[float, Bound(ge=0, le=10)] = 0.0
    concepts: Annotated[int, Bound(ge=1, le=10000)] = 1
    val_fraction: Annotated[float, Bound(ge=0, le=0.9)] = 0.0

    def check(self) -> None:
        """Refuse values that no data can meet."""
        if self.samples_per_device is not None:
            low, high = self.cap
            self.require(1 <= low <= high, "samples_per_device", "a number from 1, or [low, high] with 1 ≤ low ≤ high")
        self.require(
            self.weighted or self.imbalance == 0,
            "imbalance",
            f"0: kind {self.kind!r} fixes the amounts itself",
        )

    @property
    def cap(self) -> tuple[int, int]:
        """The bounds of ``samples_per_device`` as a pair; without any, 1 and no bound."""
        given = self.samples_per_device
        if given is None:
            return 1, sys.maxsize
        return given if isinstance(given, tuple) else (given, given)

    def caps(self, n_devices: int, rng: np.random.Generator) -> IntArray | None:
        """Draw the most rows that each device gets, ``[n_devices]`` (None: without ``samples_per_device``)."""
        if self.samples_per_device is None:
            return None
        low, high = self.cap
        return rng.integers(low, high + 1, size=n_devices)

    @abc.abstractmethod
    def assign(self, request: Request) -> RowAssignment:
        """Split the rows; may leave rows unused, must not leave a device without any."""


def blocks(n_devices: int, n_edges: int) -> NDArray[np.int32]:
    """Devices in consecutive blocks over the edges, sizes differing by at most 1; int32 ``[n_devices]``."""
    return (np.arange(n_devices, dtype=np.int64) * n_edges // n_devices).astype(np.int32)
