"""By natural owner: a writer is a device, or a clinic is an edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from espalier.core.bounds import Bound, PositiveInt
from espalier.core.errors import PartitionError
from espalier.data.dataset import IntArray
from espalier.data.partitions.base import EdgeTest, EdgeTests, PartitionSpec, Request, RowAssignment
from espalier.data.rows import Rows, apportion


@dataclass(frozen=True, kw_only=True)
class Owner(PartitionSpec, kind="owner"):
    """The publisher's own division of the data: by writer, subject, clinic or city.

    ``level="device"``: a device has ``owners_per_device`` owners, drawn at random; owners that are not needed
    stay out. Where the data say at which edge an owner is (a table's column ``edge``), its device starts there. A
    device whose owners have rows in the test part is tested on these, others on the whole test part in their mix of
    labels.
    ``level="edge"``: an edge has one owner or more (all owners are used, dealt out by size so that edges come near
    equal amounts), and its devices share the rows at random in equal parts. If the test part has rows of the same
    owners, an edge is tested on its owners' test rows.

    Attributes:
        level: Who an owner is in the tree.
        owners_per_device: Owners joined in a device (``level="device"``).
        min_samples: Owners with fewer rows are left out.
        personal: Share of an edge's own test rows for personalisation (``level="edge"``).
    """

    level: Literal["device", "edge"] = "device"
    owners_per_device: PositiveInt = 1
    min_samples: PositiveInt = 1
    personal: Annotated[float, Bound(ge=0, le=0.9)] = 0.0

    def assign(self, request: Request) -> RowAssignment:
        """Sort rows by owner, then join owners into devices or split them over an edge's devices."""
        column = request.dataset.owner_train
        if column is None:
            raise PartitionError(
                f"Dataset {request.dataset.name!r} does not say who made its samples; choose another partition kind, "
                "or give an owner column (owner_train)."
            )
        owners = column[request.rows]
        counts = np.bincount(owners)
        able = np.flatnonzero(counts >= self.min_samples)
        if self.level == "edge":
            return self._by_edge(request, {int(o): request.rows[owners == o] for o in able})
        return self._by_device(request, owners, able)

    def _by_device(self, request: Request, owners: IntArray, able: IntArray) -> RowAssignment:
        wanted = request.n_devices * self.owners_per_device
        if wanted > len(able):
            each = f" of {self.owners_per_device} owners" if self.owners_per_device > 1 else ""
            enough = f" with at least {self.min_samples} training samples" if self.min_samples > 1 else ""
            most = len(able) // self.owners_per_device
            ways = [f"set fleet.devices to at most {most}"] * (most > 0)
            ways += ["lower partition.min_samples"] * bool(enough)
            raise PartitionError(
                f"fleet.devices = {request.n_devices}{each}, but the data have {len(able)} "
                f"owner{'s' * (len(able) != 1)}{enough}; {', or '.join(ways) or 'lower partition.owners_per_device'}."
            )
        device_of = np.full(int(owners.max()) + 1, -1, np.int64)
        chosen = request.rng("owners").permutation(able)[:wanted]
        edge, edge_names = request.edge, tuple[str, ...]()
        if request.dataset.meta.get("edges"):
            chosen, edge, edge_names = self._at_home(request, chosen)
        device_of[chosen] = np.arange(wanted) // self.owners_per_device
        dealt = _dealt(device_of[owners], request.n_devices)
        called = request.dataset.meta.get("owners", ()) if self.owners_per_device == 1 else ()
        names = tuple(called[o] for o in chosen.tolist()) if called else ()
        rows = Rows(dealt.offsets, request.rows[dealt.indices])
        tests = self._device_tests(request, device_of)
        return RowAssignment(rows, edge, device_tests=tests, names=names, edge_names=edge_names)

    def _device_tests(self, request: Request, device_of: IntArray) -> Rows | None:
        """Return the test rows of each device's owners (None: nobody has any)."""
        column = request.dataset.owner_test
        if column is None:
            return None
        known = column < len(device_of)
        device = np.where(known, device_of[np.where(known, column, 0)], -1)
        return _dealt(device, request.n_devices) if (device >= 0).any() else None

    def _at_home(self, request: Request, chosen: IntArray) -> tuple[IntArray, NDArray[np.int32], tuple[str, ...]]:
        """Sort owners by the edge that the data name for them; return them, their edges' numbers, and the names."""
        if self.owners_per_device > 1:
            raise PartitionError("The data say at which edge each owner is: owners_per_device must be 1.")
        homes, owners = request.dataset.meta["edges"], request.dataset.meta["owners"]
        names, number = np.unique([homes[owners[o]] for o in chosen.tolist()], return_inverse=True)
        if len(names) != request.n_edges:
            raise PartitionError(
                f"fleet.edges = {request.n_edges}, but the owners are at {len(names)} edges ({', '.join(names[:5])}"
                f"{' …' if len(names) > 5 else ''}); set fleet.edges = {len(names)}."
            )
        order = np.argsort(number, kind="stable")
        return chosen[order], number[order].astype(np.int32), tuple(names.tolist())

    def _by_edge(self, request: Request, by_owner: dict[int, IntArray]) -> RowAssignment:
        if len(by_owner) < request.n_edges:
            raise PartitionError(
                f"{request.n_edges} edges need at least as many owners; {len(by_owner)} have at least "
                f"{self.min_samples} samples. Use at most {len(by_owner)} edges."
            )
        edge_of = _even_groups({o: len(r) for o, r in by_owner.items()}, request.n_edges)
        parts: list[IntArray] = [np.empty(0, np.int64)] * request.n_devices
        for e, group in enumerate(edge_of):
            mine = np.flatnonzero(request.edge == e)
            rows = request.rng("rows", e).permutation(np.concatenate([by_owner[o] for o in group]))
            if len(rows) < len(mine):
                raise PartitionError(
                    f"Edge {e} has {len(mine)} devices and {len(rows)} samples of its owners; use fewer devices."
                )
            sizes = 1 + apportion(len(rows) - len(mine), request.weights[mine])
            for device, part in zip(mine, np.split(rows, np.cumsum(sizes)[:-1]), strict=True):
                parts[device] = part
        return RowAssignment(Rows.of(parts), request.edge, self._tests(request, edge_of))

    def _tests(self, request: Request, edge_of: list[list[int]]) -> EdgeTests | None:
        column = request.dataset.owner_test
        if column is None:
            return None
        rows = [np.flatnonzero(np.isin(column, group)) for group in edge_of]
        if min(len(r) for r in rows) == 0:
            return None
        rngs = [request.rng("test", e) for e in range(len(rows))]
        return EdgeTests("own", {"own": EdgeTest.split(rows, self.personal, rngs)})


def _dealt(device: IntArray, n_devices: int) -> Rows:
    """Return each device's places in a column of devices (below zero: nobody's)."""
    order = np.argsort(device, kind="stable")
    order = order[np.searchsorted(device[order], 0) :]
    return Rows(np.searchsorted(device[order], np.arange(n_devices + 1)).astype(np.int64), order)


def _even_groups(sizes: dict[int, int], n_groups: int) -> list[list[int]]:
    """Deal owners to groups: the largest first, each to the group with the least so far (ties: the first)."""
    groups: list[list[int]] = [[] for _ in range(n_groups)]
    load: NDArray[np.int64] = np.zeros(n_groups, np.int64)
    for owner in sorted(sizes, key=lambda o: (-sizes[o], o)):
        lightest = int(load.argmin())
        groups[lightest].append(owner)
        load[lightest] += sizes[owner]
    return [sorted(g) for g in groups]
