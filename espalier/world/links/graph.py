"""Devices that reach each other over a graph, hop by hop (EASF's world).

A random geometric graph: devices are points, linked where they are in reach. Pairs farther apart are linked only where
the minimum spanning tree needs them, so the graph is connected whoever is present.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial import Delaunay, KDTree

from espalier.core.bounds import PositiveFinite
from espalier.core.errors import WorldError
from espalier.world.draws import Field, between, normal
from espalier.world.links.base import BoundLinks, Links, Range, Signal, check_link, ends
from espalier.world.links.network import Network
from espalier.world.links.tiers import BoundTiers, PerTier
from espalier.world.shape import Hop, Shape, Tier
from espalier.world.traces import index, number, read

#: Up to so many points every pair is a candidate for the spanning tree; beyond, Delaunay's triangles.
_FEW_POINTS = 32

Points = NDArray[np.float64]
Ends = NDArray[np.int64]


def reach_for(count: int, degree: float) -> float:
    """Return the reach at which ``count`` points of the unit square have ``degree`` neighbours on average.

    Points near the border have fewer.
    """
    return math.sqrt(degree / (math.pi * max(1, count - 1)))


def pairs_in_reach(points: Points, reach: float) -> tuple[Ends, Ends]:
    """Return the ends ``a < b`` of the pairs of points [n, 2] that lie in reach, in ascending order."""
    return _sorted(KDTree(points).query_pairs(reach, output_type="ndarray"))


def connected_pairs(points: Points, reach: float) -> tuple[Ends, Ends]:
    """Return the ends ``a < b`` of the links of the connected graph on points [n, 2], ascending."""
    near = np.stack(pairs_in_reach(points, reach), axis=1)
    return _sorted(np.concatenate((near, spanning(points))))


def spanning(points: Points) -> NDArray[np.int64]:
    """Return the minimum spanning tree of points [n, 2] as pairs [n-1, 2]."""
    a, b = _candidates(points)
    # csgraph takes a weight of 0 for "no link": points may coincide.
    length = np.maximum(np.linalg.norm(points[a] - points[b], axis=1), 1e-15)
    tree = minimum_spanning_tree(csr_array((length, (a, b)), shape=(len(points), len(points)))).tocoo()
    return np.stack((tree.row, tree.col), axis=1).astype(np.int64)


def _candidates(points: Points) -> tuple[Ends, Ends]:
    """Return pairs that contain the minimum spanning tree (Delaunay's triangulation does)."""
    if len(points) <= _FEW_POINTS:
        a, b = np.triu_indices(len(points), k=1)
        return a.astype(np.int64), b.astype(np.int64)
    corners = Delaunay(points).simplices
    return _sorted(np.concatenate((corners[:, [0, 1]], corners[:, [1, 2]], corners[:, [0, 2]])))


def _sorted(pairs: NDArray[np.int64]) -> tuple[Ends, Ends]:
    pairs = np.unique(np.sort(pairs.reshape(-1, 2), axis=1), axis=0).astype(np.int64)
    return pairs[:, 0], pairs[:, 1]


#: The message for which routes are the fastest, where the fleet's model size is not known.
ROUTE_BYTES = 1_000_000
_KEPT_VIEWS = 8


@dataclass(frozen=True)
class DrawnGraph(Links):
    """What drawn graphs of devices share; messages between devices go hop by hop (E16).

    Attributes:
        degree: Mean number of neighbours when everybody is there.
        bandwidth: Bytes per second of a link, one value or a range, drawn per link.
        latency: Seconds of latency of a link, one value or a range, drawn per link.
        access: The links to the edges and the cloud; ideal unless given.
    """

    degree: PositiveFinite = 10.0
    bandwidth: Range = (1e6, 10e6)
    latency: Range = (0.001, 0.01)
    access: PerTier = field(default_factory=PerTier)

    def check(self) -> None:
        """Refuse what is no link."""
        check_link(self, self.bandwidth, self.latency)


@dataclass(frozen=True)
class Graph(DrawnGraph, kind="graph"):
    """A random connected geometric graph of devices; messages between them go hop by hop (E16).

    Devices lie uniformly in a square. Those in reach of each other are linked, and the minimum spanning
    tree of those present links the rest: the graph stays connected, as the paper has it, whoever leaves.

    Attributes:
        signal: If given, bandwidth falls with distance and shadowing (the paper's case study).
        connected: False drops the spanning tree: the graph may then fall apart.
    """

    signal: Signal | None = None
    connected: bool = True

    def bind(self, shape: Shape) -> BoundLinks:
        """Return the graph of one fleet."""
        n = shape.n_devices
        place = Field.of(shape.seed, "links", "graph", "place")
        points = np.stack([place.many(np.arange(n), axis) for axis in (0, 1)], axis=1)
        draws = Field.of(shape.seed, "links", "graph", "link")
        reach = reach_for(n, self.degree)

        def build(present: NDArray[np.int64]) -> Network:
            find = connected_pairs if self.connected else pairs_in_reach
            a, b = (present[end] for end in find(points[present], reach))
            bandwidth = between(draws.many(a, b, 0), ends(self.bandwidth))
            if self.signal is not None:
                distance = np.linalg.norm(points[a] - points[b], axis=1)
                bandwidth = bandwidth * self.signal.share(distance, reach, normal(draws.many(a, b, 2)))
            latency = between(draws.many(a, b, 1), ends(self.latency))
            return Network(n, a, b, 1.0 / bandwidth, latency, shape.model_bytes or ROUTE_BYTES)

        return BoundGraph(shape, self.access, build, frozenset(), OrderedDict())


@dataclass(frozen=True)
class MeasuredGraph(Links, kind="graph_trace"):
    """A graph of devices from a CSV file ``a,b,bandwidth,latency``: one row per link, both ways alike."""

    file: Path
    access: PerTier = field(default_factory=PerTier)

    def bind(self, shape: Shape) -> BoundLinks:
        """Read the file and return the fleet's graph."""
        n, device = shape.n_devices, index(shape.n_devices, "device")
        columns = {
            "a": device,
            "b": device,
            "bandwidth": number(0, open_low=True),
            "latency": number(0, 1e12),
        }
        rows = read(self.file, columns)
        ends_ = np.sort(np.stack([np.asarray(rows[e], dtype=np.int64) for e in ("a", "b")], axis=1), axis=1)
        if len(np.unique(ends_, axis=0)) != len(ends_) or (ends_[:, 0] == ends_[:, 1]).any():
            raise WorldError(f"{self.file}: lists a pair twice or a device with itself; give each link once.")
        per_byte, latency = 1.0 / np.asarray(rows["bandwidth"]), np.asarray(rows["latency"], dtype=np.float64)

        def build(present: NDArray[np.int64]) -> Network:
            kept = np.isin(ends_, present).all(axis=1)
            a, b = ends_[kept].T
            return Network(n, a, b, per_byte[kept], latency[kept], shape.model_bytes or ROUTE_BYTES)

        return BoundGraph(shape, self.access, build, frozenset(), OrderedDict())


class BoundGraph(BoundLinks):
    """The graph among the devices present."""

    relays = True

    def __init__(
        self,
        shape: Shape,
        access: PerTier,
        build: Callable[[NDArray[np.int64]], Network],
        absent: frozenset[int],
        views: OrderedDict[frozenset[int], BoundGraph],
    ) -> None:
        super().__init__(shape)
        self._tiers, self._access = BoundTiers(access, shape), access
        self._build, self._views = build, views
        self.absent = absent
        gone = np.fromiter(absent, dtype=np.int64, count=len(absent))
        self.network = build(np.setdiff1d(np.arange(shape.n_devices), gone))

    def without(self, absent: frozenset[int]) -> BoundLinks:
        """Return the graph when exactly these devices are gone."""
        if absent == self.absent:
            return self
        found = self._views.pop(absent, None) or BoundGraph(self.shape, self._access, self._build, absent, self._views)
        self._views[absent] = found
        while len(self._views) > _KEPT_VIEWS:
            self._views.popitem(last=False)
        return found

    def neighbours(self, device: int) -> NDArray[np.int64]:
        """Return the devices with a direct link to a device, ascending."""
        return self.network.neighbours(device)

    def hop(self, tier: Tier, src: int, dst: int, nbytes: int, now: float) -> float:
        """Return the seconds of one hop."""
        if tier is Tier.DEV_DEV:
            return self.network.link(src, dst, nbytes)
        return self._tiers.hop(tier, src, dst, nbytes, now)

    def path(self, src: int, dst: int) -> tuple[Hop, ...]:
        """Return the fastest route between two devices, one hop per link."""
        route = self.network.route(src, dst)
        if not route:
            return ((Tier.DEV_DEV, src, dst),)
        return tuple((Tier.DEV_DEV, a, b) for a, b in pairwise(route))

    def time(self, src: int, dst: int, nbytes: int, now: float, via: int | None = None) -> float:
        """Return the seconds of a message over its whole path."""
        if self.shape.is_device(src) and self.shape.is_device(dst):
            return self.network.delay(src, dst, nbytes)
        return super().time(src, dst, nbytes, now, via)

    def matrix(self, devices: NDArray[np.int64], nbytes: int) -> NDArray[np.float64]:
        """Return the seconds of the fastest routes between each pair of the devices, [n, n]."""
        times = np.empty((len(devices), len(devices)))
        for row, device in enumerate(np.asarray(devices).tolist()):
            routes = self.network.routes(device)
            times[row] = routes.latency[devices] + nbytes * routes.per_byte[devices]
        np.fill_diagonal(times, 0.0)
        return times


def linked_pairs(draws: NDArray[np.float64], probability: float) -> NDArray[np.bool_]:
    """Return which pairs are linked: those drawn below the probability, and a spanning tree of the lowest draws.

    Args:
        draws: ``[n, n]``, symmetric, uniform in (0, 1).
        probability: That two are linked.

    Returns:
        ``[n, n]``, the upper triangle.
    """
    linked = np.triu(draws < probability, k=1)
    if len(draws) > 1:
        linked |= minimum_spanning_tree(csr_array(np.triu(draws, k=1))).toarray() > 0
    return linked


@dataclass(frozen=True)
class RandomGraph(DrawnGraph, kind="random"):
    """A uniform random graph of devices without geometry: any two are linked with the same probability.

    Ways stay short as the fleet grows (hops like log N); in the geometric graph they grow like √N. It stays connected
    whoever leaves: those present keep a spanning tree of the likeliest links.
    """

    def bind(self, shape: Shape) -> BoundLinks:
        """Return the graph of one fleet."""
        n = shape.n_devices
        draws = Field.of(shape.seed, "links", "random", "link")
        everybody = np.arange(n)
        low, high = np.minimum.outer(everybody, everybody), np.maximum.outer(everybody, everybody)
        drawn = draws.many(low, high, 2)

        def build(present: NDArray[np.int64]) -> Network:
            found = linked_pairs(drawn[np.ix_(present, present)], self.degree / max(1, n - 1))
            a, b = (present[end] for end in np.nonzero(found))
            bandwidth = between(draws.many(a, b, 0), ends(self.bandwidth))
            latency = between(draws.many(a, b, 1), ends(self.latency))
            return Network(n, a, b, 1.0 / bandwidth, latency, shape.model_bytes or ROUTE_BYTES)

        return BoundGraph(shape, self.access, build, frozenset(), OrderedDict())
