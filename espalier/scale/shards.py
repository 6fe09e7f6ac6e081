"""What calls take along through Ray's object store: models, and samples in shards of up to a megabyte.

A worker is given the shards that its jobs look at, not the whole dataset; `Store` knows which nodes have what already.

Training rows are put in the order of the devices that hold them, edge by edge, and cut into shards: a device's samples
lie in one or two, an edge's in a few. Rows keep their numbers, so nothing that is computed depends on where they lie.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from espalier.core.errors import TrainingError
from espalier.data.dataset import ArrayPool
from espalier.data.partition import Partition
from espalier.data.rows import Rows
from espalier.scale.cluster import ray
from espalier.simulator.dataviews import Part, Views
from espalier.simulator.jobs import Job

#: the part that a shard is of, and its number
ShardName = tuple[Part, int]

SHARD_BYTES, SHARD_DEVICES = 1 << 20, 8
"""Bytes of a shard at most, and devices whose samples it has, about: few shards per batch, and little in each that is
not looked at where few devices train."""

_FEWEST_BYTES = 1 << 16
"""Bytes of a shard where devices have few samples: an object of the store costs as much as copying so many."""


@dataclass(frozen=True, eq=False)
class ShardLayout:
    """Where rows lie: row ``r`` in shard ``places[r] // size``, at ``places[r] % size``; ``places`` int64 ``[n]``."""

    places: NDArray[np.int64]
    size: int

    def shards(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the shards that some rows lie in, each once."""
        return np.unique(self.places[rows] // self.size)


class Shards:
    """A pool cut into shards.

    Args:
        pool: The samples.
        order: All rows, in the order in which they lie in shards, int64 ``[n]``.
        together: Rows of a shard, about.
    """

    def __init__(self, pool: ArrayPool, order: NDArray[np.int64], together: int) -> None:
        self._pool, self._order = pool, order
        each = (pool.x.nbytes + pool.y.nbytes) // len(pool)
        places = np.empty(len(order), dtype=np.int64)
        places[order] = np.arange(len(order))
        size = min(SHARD_BYTES, max(_FEWEST_BYTES, together * each))
        self.layout = ShardLayout(places, max(1, size // each))
        #: bytes of a shard
        self.nbytes = min(len(order), self.layout.size) * each

    def __getitem__(self, number: int) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Return the samples of a shard, ``x`` and ``y``."""
        size = self.layout.size
        rows = torch.from_numpy(self._order[number * size : (number + 1) * size])
        x, y = self._pool.gather(rows)
        return x.numpy(), y.numpy()


def by_device(partition: Partition, n_rows: int) -> NDArray[np.int64]:
    """Return all training rows in the order of edges and their devices; rows of several at the first, of none last."""
    held = Rows(partition.offsets, partition.indices)
    rows = partition.indices[np.lexsort((held.owners, partition.edge[held.owners]))]
    _, first = np.unique(rows, return_index=True)
    mine = rows[np.sort(first)]
    rest = np.ones(n_rows, dtype=np.bool_)
    rest[mine] = False
    return np.concatenate([mine, np.flatnonzero(rest)])


def shards_by_device(partition: Partition, layout: ShardLayout) -> Rows:
    """Return the shards that each device's rows lie in."""
    held = Rows(partition.offsets, partition.indices)
    count = int(layout.places.max()) // layout.size + 1
    pairs = np.unique(held.owners * count + layout.places[partition.indices] // layout.size)
    offsets = np.searchsorted(pairs, np.arange(len(held) + 1) * count)
    return Rows(offsets.astype(np.int64), pairs % count)


class Sharding:
    """The training and test samples of one run in shards."""

    def __init__(self, views: Views) -> None:
        data, part = views.dataset, views.partition
        self._views = views
        self._shards: dict[Part, Shards] = {
            "train": Shards(
                data.pool("train"), by_device(part, len(data.cell_train)), SHARD_DEVICES * int(part.sizes.mean())
            ),
            "test": Shards(data.pool("test"), np.arange(len(data.cell_test)), len(data.cell_test)),
        }
        self._own = shards_by_device(part, self._shards["train"].layout)

    @property
    def layouts(self) -> tuple[ShardLayout, ShardLayout]:
        """Where training and test rows lie."""
        return self._shards["train"].layout, self._shards["test"].layout

    def of_jobs(self, jobs: Sequence[Job]) -> tuple[ShardName, ...]:
        """Return the shards that jobs look at."""
        looks, found = self._views.looks, []
        for job in jobs:
            if looks[job.look].concept.shift:  # then a device looks at others' samples
                found.append(self._shards["train"].layout.shards(self._views.rows(job.device, job.look)))
            else:
                found.append(self._own[job.device])
        return tuple(("train", int(n)) for n in np.unique(np.concatenate(found)))

    def of_rows(self, rows: Mapping[Part, NDArray[np.int64]]) -> tuple[ShardName, ...]:
        """Return the shards that rows lie in."""
        return tuple((part, int(n)) for part, some in rows.items() for n in self._shards[part].layout.shards(some))

    def nbytes(self, name: ShardName) -> int:
        """Return about how many bytes a shard has."""
        return self._shards[name[0]].nbytes

    def __getitem__(self, name: ShardName) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Return a shard, ``x`` and ``y``."""
        return self._shards[name[0]][name[1]]


class ShardedPool:
    """A pool of which only some shards are at hand, those that :meth:`hold` was given last."""

    def __init__(self, layout: ShardLayout) -> None:
        self._places, self._size = torch.from_numpy(layout.places), layout.size
        self._held: dict[int, tuple[Tensor, Tensor]] = {}

    def hold(self, shards: Iterable[tuple[int, tuple[Tensor, Tensor]]]) -> None:
        """Have these shards at hand, and no others."""
        self._held = dict(shards)

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the samples at ``rows``."""
        places = self._places[rows]
        numbers = places // self._size
        wanted = np.unique(numbers.numpy()).tolist()
        if missing := [number for number in wanted if number not in self._held]:
            raise TrainingError(f"The shards {missing} of the samples are not at this worker: a job's rows changed.")
        if len(wanted) == 1:
            x, y = self._held[wanted[0]]
            at = places - wanted[0] * self._size
            return x.index_select(0, at), y.index_select(0, at)
        x, y = (torch.empty(len(rows), *t.shape[1:], dtype=t.dtype) for t in next(iter(self._held.values())))
        for number in wanted:
            mine = numbers == number
            at = places[mine] - number * self._size
            for out, held in zip((x, y), self._held[number], strict=True):
                out[mine] = held.index_select(0, at)
        return x, y


#: what a node may have: a vector (by id), a shard (by name), or an edge's batches, which are kept on few nodes
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
