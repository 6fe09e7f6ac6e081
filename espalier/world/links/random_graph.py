"""Devices that reach each other over a graph without geometry: any two are linked with the same probability.

Ways stay short as the fleet grows (hops like log N); in the geometric graph they grow like √N.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import minimum_spanning_tree

from espalier.core.bounds import PositiveFinite
from espalier.world.draws import Field, between
from espalier.world.links.base import Links, Range, ends, ordered
from espalier.world.links.graph import ROUTE_BYTES, BoundGraph
from espalier.world.links.network import Network
from espalier.world.links.tiers import PerTier
from espalier.world.protocols import BoundLinks, Shape


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
class RandomGraph(Links, kind="random"):
    """A uniform random graph of devices; messages between them go hop by hop (E16).

    It stays connected whoever leaves: those present keep a spanning tree of the likeliest links.

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
        self.require(ordered(self.bandwidth, above=0, strict=True), "bandwidth", "bytes per second > 0, or [low, high]")
        self.require(ordered(self.latency, above=0, finite=True), "latency", "seconds ≥ 0, or [low, high]")

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
