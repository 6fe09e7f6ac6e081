"""The world of now: which hosts are there, the links, the speeds, and what devices' data look like.

Every draw is the world's own (a pure function of the seed), so every method meets the same world.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from espalier.simulator.checkpoint import Saved
from espalier.simulator.dataviews import Look, Views
from espalier.world import BoundCompute, BoundLinks, Shape
from espalier.world.world import BoundWorld


class Presence(Saved):
    """Which hosts are there, and each one's incarnation: how often it has died."""

    SAVED = ("dead", "_incarnations", "_since")

    def __init__(self) -> None:
        self.dead: set[int] = set()
        self._incarnations: dict[int, int] = {}
        #: the incarnation of a host after its last loss of state: what was asked of an earlier one is forgotten
        self._since: dict[int, int] = {}

    def alive(self, host: int) -> bool:
        """Tell whether a host is there."""
        return host not in self.dead

    def incarnation(self, host: int) -> int:
        """Return a host's incarnation; events of an earlier one never reach it."""
        return self._incarnations.get(host, 0)

    def remembers(self, host: int, incarnation: int) -> bool:
        """Tell whether a host still knows what it did in an earlier incarnation."""
        return incarnation >= self._since.get(host, 0)

    def dies(self, host: int, forgets: bool) -> None:
        """A host is gone, with its memory if it ``forgets``."""
        self.dead.add(host)
        self._incarnations[host] = self.incarnation(host) + 1
        if forgets:
            self._since[host] = self.incarnation(host)

    def returns(self, host: int) -> None:
        """A host is back."""
        self.dead.discard(host)


class Conditions(Saved):
    """Links, speeds and looks of now.

    Args:
        world: The world.
        shape: How many hosts there are.
        presence: Which of them are there.
        location: The edge at which each device is now, [N]; changed in place.
        planted: The number of the concept that each device's data have from the beginning, [N].
        views: What devices' data look like.
    """

    SAVED = ("epoch", "looks")

    def __init__(
        self,
        world: BoundWorld,
        shape: Shape,
        presence: Presence,
        location: NDArray[np.int64],
        planted: NDArray[np.int64],
        views: Views,
    ) -> None:
        self._world, self._shape, self._presence, self._location = world, shape, presence, location
        self._planted, self._views = planted, views
        #: rounds of the run: what is redrawn per round is redrawn with them
        self.epoch = 0
        self._links: BoundLinks | None = None
        self._compute: BoundCompute | None = None
        self.looks: NDArray[np.int64] = np.zeros(shape.n_devices, dtype=np.int64)

    def links(self) -> BoundLinks:
        """Return the links of now."""
        if self._links is None:
            links = self._world.links.at(self.epoch)
            if links.relays:
                links = links.without(frozenset(h for h in self._presence.dead if h < self._shape.n_devices))
            self._links = links
        return self._links

    def compute(self) -> BoundCompute:
        """Return the compute speeds of now."""
        if self._compute is None:
            self._compute = self._world.compute.at(self.epoch)
        return self._compute

    def look(self, device: int) -> int:
        """Return the number of the look that a device's data have now."""
        return int(self.looks[device])

    def answers(self, host: int) -> bool:
        """Tell whether a host is there."""
        return self._presence.alive(host)

    def nearest_edge(self, device: int) -> int:
        """Return the live edge nearest to a device (around the ring of edges), or its own if all are down."""
        first, edges, here = self._shape.n_devices, self._shape.n_edges, int(self._location[device])
        for step in range(edges):
            for edge in ((here + step) % edges, (here - step) % edges):
                if self._presence.alive(first + edge):
                    return first + edge
        return first + here

    def via(self, device: int) -> int | None:
        """Return the edge that relays between a device and the cloud now: the nearest live one."""
        return self.nearest_edge(device) if self._shape.n_edges else None

    # -- changes -------------------------------------------------------------------------------------------

    def new_round(self, number: int) -> None:
        """Another round of the run has begun: what is redrawn per round is redrawn."""
        self.epoch = number
        self._links = self._compute = None

    def hosts_changed(self) -> None:
        """A host came or went: where hosts relay for each other, ways may lead elsewhere."""
        if self._world.links.relays:
            self._links = None

    def drift(self, now: float) -> NDArray[np.int64]:
        """Let data look as the world says; return the devices whose data look different."""
        concepts, which = self._world.drift.concepts(self.epoch, now)
        width = int(self._planted.max(initial=0)) + 1
        codes = which * width + self._planted
        there = np.bincount(codes)
        for code in np.flatnonzero(there).tolist():
            there[code] = self._views.number(Look(concepts[code // width], code % width))
        looks = there[codes]
        changed = np.flatnonzero(looks != self.looks)
        self.looks = looks
        return changed

    def restore(self, plain: dict[str, Any]) -> None:
        """Become what :meth:`save` described."""
        super().restore(plain)
        self._links = self._compute = None
