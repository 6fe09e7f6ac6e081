"""A partition: which rows each device owns, at which edge it starts, what it is tested on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espalier.core.errors import PartitionError
from espalier.core.seeds import stream
from espalier.data.dataset import Dataset, IntArray
from espalier.data.partitions.base import EdgeTests, PartitionSpec, Request, RowAssignment, blocks
from espalier.data.rows import FloatArray, Rows, stratified_mask


@dataclass(frozen=True, eq=False)
class Partition:
    """A dataset's training rows, dealt to N devices at E edges.

    Attributes:
        offsets: Int64 ``[N + 1]``: device ``i`` owns ``indices[offsets[i]:offsets[i + 1]]``.
        indices: Rows of the training pool, int64.
        edge: The edge at which a device starts, int32 ``[N]``.
        n_edges: How many edges there are.
        histogram: Training rows by device and cell, int32 ``[N, n_cells]``.
        test_mix: The device's local test distribution over cells, float32 ``[N, n_cells]``, rows summing to
            1.
        validation: Rows of the training pool that each device holds out, or None.
        edge_tests: The edges' own test rows, or None: then an edge is tested on its devices' own, or on `edge_mix`.
        device_tests: The devices' own test rows, or None. A device that has none is tested on `test_mix`.
        concept: The planted concept of each device, int32 ``[N]``; 0 is the identity.
        permutations: Label ``c`` of concept ``k`` reads ``permutations[k, c]``; int64 ``[concepts,
            n_classes]``.
        left_out: Usable rows that nobody got.
        names: What the devices are called, if an owner with a name is a device.
        edge_names: What the edges are called, if the data say so.
    """

    offsets: IntArray
    indices: IntArray
    edge: NDArray[np.int32]
    n_edges: int
    histogram: NDArray[np.int32]
    test_mix: NDArray[np.float32]
    concept: NDArray[np.int32]
    permutations: IntArray
    validation: Rows | None = None
    edge_tests: EdgeTests | None = None
    device_tests: Rows | None = None
    left_out: int = 0
    names: tuple[str, ...] = ()
    edge_names: tuple[str, ...] = ()

    @property
    def n_devices(self) -> int:
        """How many devices there are."""
        return len(self.offsets) - 1

    @cached_property
    def sizes(self) -> IntArray:
        """Training rows of each device, int64 ``[N]``, not to be changed."""
        found = np.diff(self.offsets)
        found.flags.writeable = False
        return found

    def rows(self, device: int) -> IntArray:
        """The training rows of a device."""
        return self.indices[self.offsets[device] : self.offsets[device + 1]]

    def validation_rows(self, device: int) -> IntArray:
        """The rows a device holds out for its own validation (none if the partition holds none out)."""
        return np.empty(0, np.int64) if self.validation is None else self.validation[device]

    @cached_property
    def edge_histogram(self) -> IntArray:
        """Training rows by edge and cell, of the devices that start there; int64 ``[E, n_cells]``."""
        out = np.zeros((self.n_edges, self.histogram.shape[1]), np.int64)
        np.add.at(out, self.edge, self.histogram)
        return out

    @cached_property
    def edge_mix(self) -> NDArray[np.float32]:
        """An edge's test distribution: its devices' mixes, weighted by rows; float32 ``[E, n_cells]``."""
        out = np.zeros((self.n_edges, self.histogram.shape[1]), np.float64)
        np.add.at(out, self.edge, self.test_mix * self.sizes[:, None])
        return mixes(out)

    def describe(self) -> dict[str, Any]:
        """What the partition made, as plain data (skew: the mean total variation from the whole mix)."""
        sizes, held = self.sizes, (self.histogram > 0).sum(1)
        whole = mixes(self.histogram.sum(0, dtype=np.float64)[None])
        edges = mixes(self.edge_histogram.astype(np.float64))
        return {
            "devices": self.n_devices,
            "edges": self.n_edges,
            "samples": int(sizes.sum()),
            "distinct_samples": len(np.unique(self.indices)),
            "left_out_samples": self.left_out,
            "validation_samples": 0 if self.validation is None else len(self.validation.indices),
            "size": _spread(sizes) | {"std": round(float(sizes.std()), 2)},
            "cells_per_device": _spread(held),
            "cells_per_edge": _spread((self.edge_histogram > 0).sum(1)),
            "devices_with_own_tests": 0 if self.device_tests is None else int((self.device_tests.sizes > 0).sum()),
            "devices_per_edge": _spread(np.bincount(self.edge, minlength=self.n_edges)),
            "skew_device": round(float(np.abs(mixes(self.histogram) - whole).sum(1).mean() / 2), 4),
            "skew_edge": round(float(np.abs(edges - whole).sum(1).mean() / 2), 4),
            "concepts": np.bincount(self.concept, minlength=len(self.permutations)).tolist(),
            "edge_histogram": self.edge_histogram.tolist(),
        }

    def __str__(self) -> str:
        d = self.describe()
        left = f", {self.left_out} left out" if self.left_out else ""
        lines = [
            f"{d['devices']} devices at {d['edges']} edges, {d['samples']} samples "
            f"({d['distinct_samples']} distinct{left})",
            *(
                f"{title}: {d[key]['min']} / {d[key]['median']:g} / {d[key]['max']} (min / median / max)"
                for title, key in (
                    ("samples per device", "size"),
                    ("cells per device", "cells_per_device"),
                    ("cells per edge", "cells_per_edge"),
                    ("devices per edge", "devices_per_edge"),
                )
            ),
            f"skew (total variation from the whole): devices {d['skew_device']:.3f}, edges {d['skew_edge']:.3f}",
        ]
        shown = self.edge_histogram[:20]
        lines += [f"edge {e}: {' '.join(f'{n:d}' for n in row)}" for e, row in enumerate(shown)]
        if self.n_edges > len(shown):
            lines.append(f"… and {self.n_edges - len(shown)} more edges")
        return "\n".join(lines)


def partition(dataset: Dataset, spec: PartitionSpec, *, n_devices: int, n_edges: int, seed: int) -> Partition:
    """Split a dataset over devices and edges.

    The same arguments give the same partition, whatever was drawn before.

    Raises:
        PartitionError: The data cannot give what is asked for; the message says why.
    """
    if n_devices < 1 or not 1 <= n_edges <= n_devices:
        raise PartitionError(
            f"{n_devices} devices at {n_edges} edges were asked for; accepted are at least 1 edge and at least as "
            "many devices as edges."
        )
    if spec.concepts > 1 and dataset.kind != "classification":
        raise PartitionError(
            f"concepts={spec.concepts} permutes classes, but dataset {dataset.name!r} is a {dataset.kind}; set it to 1."
        )
    request = Request(
        dataset=dataset,
        rows=_usable(dataset, spec, seed),
        n_devices=n_devices,
        n_edges=n_edges,
        edge=blocks(n_devices, n_edges),
        weights=_weights(spec, n_devices, seed),
        seed=seed,
    )
    assignment = spec.assign(request)
    _check_cap(assignment.rows, spec)
    train = assignment.rows if assignment.capped else _capped(assignment.rows, spec, request)
    empty = np.flatnonzero(train.sizes == 0)
    if len(empty):
        raise PartitionError(
            f"{len(empty)} of {n_devices} devices got no sample (the first is device {empty[0]}); use fewer devices, "
            "more data, or a milder skew."
        )
    train, validation = _held_out(train, spec, request)
    return assemble(dataset, assignment, train, validation, spec, request)


def assemble(
    dataset: Dataset,
    assignment: RowAssignment,
    train: Rows,
    validation: Rows | None,
    spec: PartitionSpec,
    request: Request,
) -> Partition:
    """Count, mix and plant concepts over the final rows."""
    histogram = train.histogram(dataset.cell_train, dataset.n_cells)
    order = request.rng("concepts").permutation(request.n_devices)
    return Partition(
        offsets=train.offsets,
        indices=train.indices,
        edge=assignment.edge,
        n_edges=request.n_edges,
        histogram=histogram,
        test_mix=mixes(histogram),
        concept=(order % spec.concepts).astype(np.int32),
        permutations=label_permutations(spec.concepts, dataset.n_classes, request.seed),
        validation=validation,
        edge_tests=assignment.edge_tests,
        device_tests=assignment.device_tests,
        left_out=len(request.rows) - len(np.unique(assignment.rows.indices)),
        names=assignment.names,
        edge_names=assignment.edge_names,
    )


def mixes(counts: NDArray[Any]) -> NDArray[np.float32]:
    """Scale each row of counts to sum 1 (a row of zeros stays zero); float32."""
    wide = counts.astype(np.float32)
    sums: NDArray[np.float32] = wide.sum(1, keepdims=True)
    wide /= np.where(sums > 0, sums, 1)
    return wide


def label_permutations(concepts: int, n_classes: int, seed: int) -> IntArray:
    """One label permutation per concept; concept 0 is the identity; int64 ``[concepts, n_classes]``."""
    out = np.tile(np.arange(n_classes), (concepts, 1))
    for k in range(1, concepts):
        out[k] = stream(seed, "data", "concept", k).permutation(n_classes)
    return out


def _usable(dataset: Dataset, spec: PartitionSpec, seed: int) -> IntArray:
    if spec.fraction == 1.0:
        return np.arange(len(dataset.cell_train))
    rng = stream(seed, "data", "partition", "fraction")
    return np.flatnonzero(stratified_mask(dataset.cell_train, spec.fraction, rng))


def _weights(spec: PartitionSpec, n_devices: int, seed: int) -> FloatArray:
    if spec.imbalance == 0.0:
        return np.ones(n_devices)
    drawn = np.exp(spec.imbalance * stream(seed, "data", "partition", "weights").standard_normal(n_devices))
    return np.asarray(drawn / drawn.mean())


def _capped(rows: Rows, spec: PartitionSpec, request: Request) -> Rows:
    rng = request.rng("cap")
    caps = spec.caps(len(rows), rng)
    if caps is None:
        return rows
    return rows.keep(rows.ranks(rng) < np.repeat(caps, rows.sizes))


def _check_cap(rows: Rows, spec: PartitionSpec) -> None:
    """Refuse devices with fewer rows than the lower bound that was asked for."""
    low, _ = spec.cap
    short = np.flatnonzero(rows.sizes < low)
    if isinstance(spec.samples_per_device, tuple) and len(short):
        raise PartitionError(
            f"{len(short)} of {len(rows)} devices have fewer than samples_per_device's lower bound {low} (device "
            f"{short[0]} has {rows.sizes[short[0]]}); use fewer devices, more data, or a lower bound."
        )


def _held_out(rows: Rows, spec: PartitionSpec, request: Request) -> tuple[Rows, Rows | None]:
    if spec.val_fraction == 0.0:
        return rows, None
    number = np.maximum(np.floor(spec.val_fraction * rows.sizes).astype(np.int64), rows.sizes > 1)
    held = rows.ranks(request.rng("validation")) < np.repeat(number, rows.sizes)
    return rows.keep(~held), rows.keep(held)


def _spread(values: NDArray[Any]) -> dict[str, Any]:
    return {"min": int(values.min()), "median": float(np.median(values)), "max": int(values.max())}
