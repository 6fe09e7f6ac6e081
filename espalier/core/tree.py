"""The tree: who reports to whom, now, and which group's model a device shares.

Leaf devices are rows of arrays, so a million idle ones cost bytes; only aggregators are objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espalier.core.address import Address, level_of, role
from espalier.core.errors import ProtocolError
from espalier.core.messages import ALL

NOBODY = -1


class Tree:
    """Parents, children, groups and sample counts, as plain data."""

    def __init__(self, samples: NDArray[np.int64], root: Address) -> None:
        self.samples = samples
        self.n_devices = len(samples)
        self.root = root
        self.device_parent = np.full(self.n_devices, NOBODY, dtype=np.int64)
        self.aggregator_parent: dict[Address, Address] = {}
        self._children: dict[Address, set[Address]] = {root: set()}
        self._sums: dict[Address, int] = {root: 0}
        self._sorted: dict[Address, list[Address]] = {}
        self.group_names: list[str] = [ALL]
        self.device_group = np.zeros(self.n_devices, dtype=np.int32)

    def parent(self, node: Address) -> Address | None:
        """Return a node's parent, or None if it has none now."""
        if node < self.n_devices:
            found = int(self.device_parent[node])
            return None if found == NOBODY else found
        return self.aggregator_parent.get(node)

    def children(self, node: Address) -> list[Address]:
        """Return a node's children in ascending order (do not change the list)."""
        if node not in self._sorted:
            self._sorted[node] = sorted(self._children.get(node, ()))
        return self._sorted[node]

    def has_children(self, node: Address) -> bool:
        """Tell whether anyone reports to a node."""
        return bool(self._children.get(node))

    def aggregators(self) -> list[Address]:
        """Return every aggregator that is in the tree, ascending."""
        return sorted(a for a in self._children if a == self.root or a in self.aggregator_parent)

    def roles(self, host: int) -> list[Address]:
        """Return the aggregators in the tree that a device runs, ascending."""
        levels = range(1, 1 + level_of(max(self._children)))
        found = [a for level in levels if (a := role(host, level)) in self._children]
        return [a for a in found if a == self.root or a in self.aggregator_parent]

    def registered(self, node: Address) -> int:
        """Return the number of training samples below a node (a device's own, an aggregator's sum)."""
        if node < self.n_devices:
            return int(self.samples[node])
        return self._sums.get(node, 0)

    def attach(self, node: Address, parent: Address | None) -> None:
        """Make ``node`` report to ``parent`` (None: to nobody)."""
        old = self.parent(node)
        if old == parent:
            return
        if parent is not None:
            if parent < self.n_devices:
                raise ProtocolError(
                    f"Node {node} cannot report to device {parent} itself: a device aggregates through "
                    "an aggregator role, see espalier.core.address.role."
                )
            # Nobody reports to a device, so only an aggregator can come to stand above itself.
            if node >= self.n_devices and node in self.path(parent):
                raise ProtocolError(f"Node {node} cannot report to {parent}: that would close a cycle.")
        weight = self.registered(node)
        if old is not None:
            self._children[old].discard(node)
            self._sorted.pop(old, None)
            self._add(old, -weight)
        if node < self.n_devices:
            self.device_parent[node] = NOBODY if parent is None else parent
        elif parent is None:
            self.aggregator_parent.pop(node, None)
        else:
            self.aggregator_parent[node] = parent
            self._children.setdefault(node, set())
            self._sums.setdefault(node, 0)
        if parent is not None:
            self._children.setdefault(parent, set()).add(node)
            self._sorted.pop(parent, None)
            self._sums.setdefault(parent, 0)
            self._add(parent, weight)

    def move(self, devices: NDArray[np.int64], parents: NDArray[np.int64]) -> None:
        """Make devices that report to somebody report to other aggregators, each to its own."""
        old = self.device_parent[devices]
        self.device_parent[devices] = parents
        for node, gone in _by_parent(old, devices):
            self._children[node].difference_update(gone.tolist())
            self._sorted.pop(node, None)
            self._add(node, -int(self.samples[gone].sum()))
        for node, come in _by_parent(parents, devices):
            self._children.setdefault(node, set()).update(come.tolist())
            self._sorted.pop(node, None)
            self._add(node, int(self.samples[come].sum()))

    def populate(self, parents: NDArray[np.int64]) -> None:
        """Attach all devices at once: ``parents[i]`` is device i's parent or -1."""
        self._sorted = {}
        self.device_parent[:] = parents
        for parent, block in _by_parent(parents, np.arange(self.n_devices)):
            if parent == NOBODY:
                continue
            self._children.setdefault(parent, set()).update(block.tolist())
            self._sums.setdefault(parent, 0)
            self._add(parent, int(self.samples[block].sum()))

    def path(self, node: Address) -> Iterator[Address]:
        """Walk from a node (included) up to its root."""
        at: Address | None = node
        while at is not None:
            yield at
            at = self.parent(at)

    def group(self, device: Address) -> str:
        """Return the group whose model a device shares."""
        return self.group_names[self.device_group[device]] if 0 <= device < self.n_devices else ALL

    def set_group(self, device: Address, group: str) -> None:
        """Put a device into a group."""
        if group not in self.group_names:
            self.group_names.append(group)
        self.device_group[device] = self.group_names.index(group)

    def leaves(self, node: Address) -> list[Address]:
        """Return the devices below a node, ascending."""
        found: list[Address] = []
        todo = [node]
        while todo:
            at = todo.pop()
            if at < self.n_devices:
                found.append(at)
            else:
                todo.extend(self._children.get(at, ()))
        return sorted(found)

    def _add(self, node: Address, weight: int) -> None:
        at: Address | None = node
        while at is not None:
            self._sums[at] = self._sums.get(at, 0) + weight
            at = self.aggregator_parent.get(at)

    def to_plain(self) -> dict[str, Any]:
        """Return the tree as plain data."""
        return {
            "root": self.root,
            "device_parent": self.device_parent.copy(),
            "aggregator_parent": dict(self.aggregator_parent),
            "aggregators": sorted(self._children),
            "group_names": list(self.group_names),
            "device_group": self.device_group.copy(),
        }

    def restore(self, plain: dict[str, Any]) -> None:
        """Become the tree that :meth:`to_plain` described."""
        self.root = plain["root"]
        self.aggregator_parent = {}
        self._children = {a: set() for a in plain["aggregators"]}
        self._sums = dict.fromkeys(self._children, 0)
        for node, parent in plain["aggregator_parent"].items():
            self.aggregator_parent[node] = parent
            self._children.setdefault(parent, set()).add(node)
        self.populate(plain["device_parent"])
        self.group_names = list(plain["group_names"])
        self.device_group[:] = plain["device_group"]


def _by_parent(parents: NDArray[np.int64], devices: NDArray[np.int64]) -> Iterator[tuple[Address, NDArray[np.int64]]]:
    """Yield each parent with its devices; ``parents[i]`` is that of ``devices[i]``."""
    order = np.argsort(parents, kind="stable")
    parents, devices = parents[order], devices[order]
    stops = [*(np.flatnonzero(parents[1:] != parents[:-1]) + 1).tolist(), len(parents)]
    for first, stop in zip([0, *stops], stops, strict=False):
        if first < stop:
            yield int(parents[first]), devices[first:stop]
