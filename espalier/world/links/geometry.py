"""A random geometric graph that is connected: devices as points, links between those in reach.

Pairs farther apart than the radio's reach are linked only where the minimum spanning tree needs them, so
the graph is connected whoever is present.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial import Delaunay, KDTree

#: Up to so many points every pair is a candidate for the spanning tree; beyond, Delaunay's triangles.
_FEW = 32

Points = NDArray[np.float64]
Ends = NDArray[np.int64]


def reach_for(count: int, degree: float) -> float:
    """Return the reach at which ``count`` points of the unit square have ``degree`` neighbours on average.

    Points near the border have fewer.
    """
    return math.sqrt(degree / (math.pi * max(1, count - 1)))


def in_reach(points: Points, reach: float) -> tuple[Ends, Ends]:
    """Return the ends ``a < b`` of the pairs of points [n, 2] that lie in reach, in ascending order."""
    return _sorted(KDTree(points).query_pairs(reach, output_type="ndarray"))


def links(points: Points, reach: float) -> tuple[Ends, Ends]:
    """Return the ends ``a < b`` of the links of the connected graph on points [n, 2], ascending."""
    near = np.stack(in_reach(points, reach), axis=1)
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
    if len(points) <= _FEW:
        a, b = np.triu_indices(len(points), k=1)
        return a.astype(np.int64), b.astype(np.int64)
    corners = Delaunay(points).simplices
    return _sorted(np.concatenate((corners[:, [0, 1]], corners[:, [1, 2]], corners[:, [0, 2]])))


def _sorted(pairs: NDArray[np.int64]) -> tuple[Ends, Ends]:
    pairs = np.unique(np.sort(pairs.reshape(-1, 2), axis=1), axis=0).astype(np.int64)
    return pairs[:, 0], pairs[:, 1]
