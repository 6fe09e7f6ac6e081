"""Uploads that share one uplink at their edge.

Members of a cluster upload over one link of the edge. One after another at full rate, in the order in
which they are ready, the last is done earliest; all at once with an equal part each is the plain way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from espalier.world.draws import Field, between
from espalier.world.links.base import BoundLinks, Links, Range, ends, ordered
from espalier.world.shape import Hop, Shape, Tier


@dataclass(frozen=True)
class Shared(Links, kind="shared"):
    """Any links (``of``), but uploads from devices share their edge's uplink of ``rate`` bytes per second.

    :meth:`time` of an upload is its time alone at the full rate (or the device's own link's, if that is
    slower); who runs the uploads lets them wait or share, as ``discipline`` says.
    """

    of: Links
    rate: Range = 10e6
    discipline: Literal["time_shared", "equal_share"] = "time_shared"

    def check(self) -> None:
        """Refuse what is no rate."""
        self.require(ordered(self.rate, above=0, strict=True), "rate", "bytes per second > 0, or [low, high]")

    def bind(self, shape: Shape) -> BoundLinks:
        """Return the links of one fleet."""
        return _Shared(self, self.of.bind(shape), shape)


class _Shared(BoundLinks):
    def __init__(self, spec: Shared, inner: BoundLinks, shape: Shape) -> None:
        super().__init__(shape)
        self._spec, self._inner = spec, inner
        self.uplink = spec.discipline
        self.relays, self.broadcast = inner.relays, inner.broadcast

    @cached_property
    def _rates(self) -> NDArray[np.float64]:
        u = Field.of(self.shape.seed, "links", "shared").many(np.arange(self.shape.n_edges + 1))
        return between(u, ends(self._spec.rate))

    def time(self, src: int, dst: int, nbytes: int, now: float, via: int | None = None) -> float:
        alone = self._inner.time(src, dst, nbytes, now, via)
        if not self.shape.is_device(src) or self.shape.is_device(dst) or math.isinf(alone):
            return alone
        edge = self._inner.hops(src, dst, via)[0][2]
        first = self._inner.time(src, edge, nbytes, now, via)
        return alone - first + max(first, nbytes / float(self._rates[edge - self.shape.n_devices]))

    def hop(self, tier: Tier, src: int, dst: int, nbytes: int, now: float) -> float:
        return self._inner.hop(tier, src, dst, nbytes, now)

    def path(self, src: int, dst: int) -> tuple[Hop, ...]:
        return self._inner.path(src, dst)

    def at(self, epoch: int) -> BoundLinks:
        return self._around(self._inner.at(epoch))

    def without(self, absent: frozenset[int]) -> BoundLinks:
        return self._around(self._inner.without(absent))

    def matrix(self, devices: NDArray[np.int64], nbytes: int) -> NDArray[np.float64]:
        return self._inner.matrix(devices, nbytes)

    def neighbours(self, device: int) -> NDArray[np.int64]:
        return self._inner.neighbours(device)

    def claims(self, device: int, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        return self._inner.claims(device, seconds)

    def _around(self, inner: BoundLinks) -> BoundLinks:
        return self if inner is self._inner else _Shared(self._spec, inner, self.shape)
