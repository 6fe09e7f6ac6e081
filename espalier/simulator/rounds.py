"""Which round a run is in: the root's, the slowest edge's, or that of devices which train alone.

Devices that train alone train in step: whoever is done with a round waits until all that are there have done it. So a
round means the same training for all of them, the slowest decides how long it takes, and whatever the world does at a
round (drift) finds all of them there. One that was away goes on without waiting until it has caught up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from espalier.core.address import Address
from espalier.core.messages import Started

if TYPE_CHECKING:
    from espalier.simulator.simulation import Simulation


class Rounds:
    """The rounds that nodes have closed, and what follows from them for the run.

    Attributes:
        closed: Rounds closed so far, by node.
        done: Rounds of the whole run.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._sim = simulation
        self.closed: dict[Address, int] = {}
        self.done = 0
        self._waiting: set[Address] = set()

    def close(self, address: Address, progress: int) -> None:
        """A node has closed a round."""
        sim = self._sim
        self.closed[address] = progress
        sim.weather.round_closed(address)
        tree, shape = sim.fleet.tree, sim.fleet.shape
        if sim.plan.clock == "root" and address == tree.root:
            self._reach(progress)
        elif sim.plan.clock == "edge" and shape.is_edge(address):
            # servers between edges and cloud may have nothing to do
            active = [a for a in tree.aggregators() if shape.is_edge(a) and tree.has_children(a)]
            self._reach(min((self.closed.get(a, 0) for a in active), default=0))

    def waits(self, device: Address) -> bool:
        """Tell whether a device that would train now has to wait; it is told to start again when it may."""
        if self._sim.plan.clock != "device" or self.closed.get(device, 0) <= self.done:
            return False
        self._waiting.add(device)
        self._together(device)
        return self._sim.finished or self.closed[device] > self.done

    def gone(self, device: Address, forgets: bool) -> None:
        """A device is no longer there: perhaps it was the one that all waited for. One that forgets begins anew."""
        if self._sim.plan.clock != "device":
            return
        self._waiting.discard(device)
        if forgets:
            self.closed.pop(device, None)
        self._together()

    def restore(self, done: int, closed: dict[Address, int]) -> None:
        """Become what was saved."""
        self.done, self.closed = done, closed
        if self._sim.plan.clock == "device":
            alive = np.flatnonzero(self._sim.fleet.alive).tolist()
            self._waiting = {d for d in alive if closed.get(d, 0) > done}

    def _together(self, last: Address | None = None) -> None:
        """Begin the next round if all devices wait; ``last`` goes on by itself."""
        sim = self._sim
        if not self._waiting or len(self._waiting) < np.count_nonzero(sim.fleet.alive):
            return
        self._reach(min(self.closed[d] for d in self._waiting))
        ready = sorted(d for d in self._waiting if self.closed[d] <= self.done)
        self._waiting.difference_update(ready)
        for device in ready:
            if device != last and not sim.finished:
                sim.tell(device, Started())

    def _reach(self, done: int) -> None:
        """The run has closed so many rounds: the world learns it, and models are evaluated or the run ends."""
        sim = self._sim
        if done <= self.done:
            return
        self.done = done
        sim.weather.new_round(done)
        if sim.limits.rounds is not None and done >= sim.limits.rounds:
            sim.finish()
        elif sim.schedule.seconds is None and done % sim.schedule.every == 0:
            sim.meter.measure()
