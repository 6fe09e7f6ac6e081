"""What calls take along through Ray's object store, models and shards of samples, and which nodes have it already."""

from __future__ import annotations

import weakref
from collections import Counter
from functools import partial
from typing import Any, Literal

from torch import Tensor

from espalier.scale.cluster import ray
from espalier.scale.shards import Sharding, ShardName

#: a vector's id, a shard's name, or an edge: its batches belong together though nothing of them is anywhere yet
Key = int | ShardName | tuple[Literal["edge"], int]


class Store:
    """Objects in the store: each goes there once; a vector is taken out when this process drops it.

    Attributes:
        puts: Vectors put so far.
        trips: How often a vector went to another node.
        sent: Bytes that went to nodes, of ``models`` and ``samples``, each object once per node.
    """

    def __init__(self, shards: Sharding) -> None:
        self._shards = shards
        self._vectors: dict[int, tuple[weakref.ref[Tensor], Any]] = {}
        self._samples: dict[ShardName, Any] = {}
        self._nodes: dict[Key, set[str]] = {}
        self.puts, self.trips = 0, 0
        self.sent: Counter[str] = Counter()

    def vector(self, vector: Tensor) -> Any:
        """Return Ray's reference to a vector."""
        key = id(vector)
        there = self._vectors.get(key)
        if there is not None and there[0]() is vector:
            return there[1]
        found = ray().put(vector.detach().numpy())
        self._vectors[key] = weakref.ref(vector, partial(self._drop, key)), found
        self.puts += 1
        return found

    def _drop(self, key: int, dead: weakref.ref[Tensor]) -> None:
        if key in self._vectors and self._vectors[key][0] is dead:
            del self._vectors[key]
            self._nodes.pop(key, None)

    def __len__(self) -> int:
        return len(self._vectors)

    def shard(self, name: ShardName) -> Any:
        """Return Ray's reference to a shard; Ray itself moves to disk what its store has no room for."""
        if name not in self._samples:
            self._samples[name] = ray().put(self._shards[name])
        return self._samples[name]

    def distance(self, key: Key, node: str) -> int:
        """Return 0 for what a node has, else how many nodes have it, and one."""
        nodes = self._nodes.get(key, ())
        return 0 if node in nodes else 1 + len(nodes)

    def went(self, key: Key, size: int, node: str) -> None:
        """Remember that a node has an object of so many bytes."""
        nodes = self._nodes.setdefault(key, set())
        if node not in nodes:
            nodes.add(node)
            if isinstance(key, int):
                self.trips += 1
                self.sent["models"] += size
            elif key[0] != "edge":
                self.sent["samples"] += size


class Nearest:
    """Sends calls to a node that has the models and samples which they take along: an edge's batches stay together."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: the bytes of what each call takes along
        self.taken: dict[int, dict[Key, int]] = {}

    def distance(self, number: int, node: str) -> int:
        """Return 0 where a node has all that a call takes along; else it is the farther the more nodes have it."""
        return sum(size * self._store.distance(key, node) for key, size in self.taken.get(number, {}).items())

    def went(self, number: int, node: str) -> None:
        """A call is given, and all that it takes along with it."""
        for key, size in self.taken.get(number, {}).items():
            self._store.went(key, size, node)
