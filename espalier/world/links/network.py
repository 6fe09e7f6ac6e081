"""A network of devices: links with bandwidth and latency, and the fastest routes over them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

_NOBODY = -9999
#: Routes kept: so many numbers over all sources.
_KEPT_NUMBERS = 20_000_000


@dataclass(frozen=True, eq=False)
class Routes:
    """The fastest routes from one device to all: arrays [n], inf where there is none."""

    before: NDArray[np.int32]
    latency: NDArray[np.float64]
    per_byte: NDArray[np.float64]


class Network:
    """Undirected links among devices ``0 … n-1``, and routes for messages of ``route_bytes``.

    Args:
        count: Number of devices, n.
        a: One end of each link, [m].
        b: The other end, [m].
        per_byte: Seconds per byte of each link, [m].
        latency: Seconds of latency of each link, [m].
        route_bytes: The message for which routes are the fastest; others take the same routes.
    """

    def __init__(
        self,
        count: int,
        a: NDArray[np.int64],
        b: NDArray[np.int64],
        per_byte: NDArray[np.float64],
        latency: NDArray[np.float64],
        route_bytes: int,
    ) -> None:
        self.count = count
        ends = np.concatenate((a * count + b, b * count + a))
        order = np.argsort(ends)
        # Both directions of every link, sorted by (from, to): a link is found by bisection.
        self._codes = ends[order]
        self._per_byte = np.concatenate((per_byte, per_byte))[order]
        self._latency = np.concatenate((latency, latency))[order]
        self._route_bytes = route_bytes
        self.routes = lru_cache(maxsize=max(16, _KEPT_NUMBERS // max(1, 3 * count)))(self._routes)

    @cached_property
    def _offsets(self) -> NDArray[np.int64]:
        return np.searchsorted(self._codes, np.arange(self.count + 1, dtype=np.int64) * self.count)

    @cached_property
    def _delays(self) -> csr_array:
        # csgraph takes a weight of 0 for "no link".
        weight = np.maximum(self._latency + self._route_bytes * self._per_byte, 1e-15)
        return csr_array((weight, self._codes % self.count, self._offsets), shape=(self.count, self.count))

    def neighbours(self, device: int) -> NDArray[np.int64]:
        """Return the devices linked to a device, ascending."""
        mine = slice(int(self._offsets[device]), int(self._offsets[device + 1]))
        return self._codes[mine] % self.count

    def link(self, a: int, b: int, nbytes: int) -> float:
        """Return the seconds of a message over the link between two devices; inf if there is none."""
        place = int(np.searchsorted(self._codes, a * self.count + b))
        if place == len(self._codes) or self._codes[place] != a * self.count + b:
            return math.inf
        return float(self._latency[place] + nbytes * self._per_byte[place])

    def _routes(self, source: int) -> Routes:
        _, rows = dijkstra(self._delays, indices=[source], return_predecessors=True)
        before = rows[0]
        reached = np.flatnonzero(before != _NOBODY)
        latency, per_byte = np.full(self.count, math.inf), np.full(self.count, math.inf)
        place = np.searchsorted(self._codes, before[reached].astype(np.int64) * self.count + reached)
        latency[reached], per_byte[reached] = self._latency[place], self._per_byte[place]
        latency[source] = per_byte[source] = 0.0
        # Sums along the routes by pointer doubling: each pass adds what lies before the part summed.
        jump = before.astype(np.int64)
        jump[jump == _NOBODY] = source
        while (jump != source).any():
            latency, per_byte = latency + latency[jump], per_byte + per_byte[jump]
            jump = jump[jump]
        return Routes(before, latency, per_byte)

    def delay(self, a: int, b: int, nbytes: int) -> float:
        """Return the seconds of a message over the fastest route; inf if there is none."""
        routes = self.routes(a)
        if a == b or math.isinf(routes.latency[b]):
            return 0.0 if a == b else math.inf  # no bytes at all times no bandwidth would not be a number
        return float(routes.latency[b] + nbytes * routes.per_byte[b])

    def route(self, a: int, b: int) -> list[int]:
        """Return the devices of the fastest route, both ends included; empty if there is none."""
        before, found = self.routes(a).before, [b]
        while found[-1] != a:
            last = int(before[found[-1]])
            if last == _NOBODY:
                return []
            found.append(last)
        return found[::-1]
