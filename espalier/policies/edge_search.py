"""Search for an assignment of devices to edges: label mixes like everybody's, and no edge much slower.

The cost of an edge e is ``||p_e - p_g||_1 · n_e / n + weight · time_e`` with p_e the label mix at e, p_g the
whole's, and time_e a time scaled to about one. A device may only go to edges within its reach.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
#: the scaled time of an edge with these members
TimeTerm = Callable[[Ints], float]


def imbalance(counts: Floats, whole: Floats) -> float:
    """Return ``||p_e - p_g||_1 · n_e / n`` of an edge with label counts [C], 0 if it is empty."""
    n = float(counts.sum())
    if n == 0.0:
        return 0.0
    return float(np.abs(counts / n - whole / whole.sum()).sum() * n / whole.sum())


class EdgeSearch:
    """An assignment of devices (rows) to edges (numbers) and its cost, improved by moves and swaps."""

    def __init__(
        self, place: Ints, counts: Floats, time: TimeTerm, weight: float, edges: int, whole: Floats | None = None
    ) -> None:
        """Begin with an assignment.

        Args:
            place: Each device's edge, [N].
            counts: Each device's label counts, [N, C].
            time: The scaled time of an edge with given members.
            weight: Weight of the time.
            edges: Number of edges.
            whole: Label counts of everybody, [C] (default: the sum of ``counts``).
        """
        self.place, self.counts, self.time, self.weight = place.copy(), counts, time, weight
        self.whole = counts.sum(0) if whole is None else whole
        self.sums = np.zeros((edges, counts.shape[1]))
        np.add.at(self.sums, place, counts)
        self.costs = np.array([self._cost(e, self.members(e), self.sums[e]) for e in range(edges)])

    @property
    def cost(self) -> float:
        """The sum over edges."""
        return float(self.costs.sum())

    def members(self, edge: int) -> Ints:
        """Return an edge's devices."""
        return np.flatnonzero(self.place == edge)

    def _cost(self, edge: int, members: Ints, counts: Floats) -> float:
        return imbalance(counts, self.whole) + self.weight * (self.time(members) if len(members) else 0.0)

    def improve(self, device: int, to: int, other: int | None = None) -> bool:
        """Move a device to an edge (and ``other`` back from there) if that lowers the cost; tell whether."""
        a = int(self.place[device])
        gives = self.counts[device] - (self.counts[other] if other is not None else 0.0)
        self.place[device] = to
        if other is not None:
            self.place[other] = a
        new = [
            self._cost(a, self.members(a), self.sums[a] - gives),
            self._cost(to, self.members(to), self.sums[to] + gives),
        ]
        if sum(new) < self.costs[a] + self.costs[to] - 1e-12:
            self.sums[a] -= gives
            self.sums[to] += gives
            self.costs[[a, to]] = new
            return True
        self.place[device] = a
        if other is not None:
            self.place[other] = to
        return False

    def run(
        self,
        reach: NDArray[np.bool_],
        rng: np.random.Generator,
        *,
        limit: int = 200,
        sizes: tuple[int, int] | None = None,
    ) -> int:
        """Try 5 N random swaps (and, within ``sizes``, moves); return how many improved, at most ``limit``.

        Args:
            reach: Which edges each device may go to, [N, E].
            rng: Chooses what is tried.
            limit: The most improvements.
            sizes: Smallest and largest number of devices of an edge; None allows swaps only.
        """
        free = np.flatnonzero(reach.sum(1) > 1)
        options = {d: np.flatnonzero(reach[d]) for d in free.tolist()}
        done = 0
        for _ in range(5 * len(self.place) if len(free) else 0):
            if done >= limit:
                break
            device = int(free[rng.integers(len(free))])
            here, to = int(self.place[device]), int(options[device][rng.integers(len(options[device]))])
            moves = sizes is not None and rng.random() < 0.5
            if to == here:
                continue
            there = self.members(to)
            if sizes is not None and moves:
                if len(self.members(here)) > sizes[0] and len(there) < sizes[1]:
                    done += self.improve(device, to)
                continue
            back = there[reach[there, here]]
            if len(back):
                done += self.improve(device, to, int(back[rng.integers(len(back))]))
        return done


def greedy_start(latency: Floats, counts: Floats, reach: NDArray[np.bool_], weight: float, capacity: int) -> Ints:
    """Put devices, the fastest first, where they raise the cost least among edges in reach with room.

    Where every edge in reach is full, the least full one takes the device. The time of an edge is that of its
    slowest device, over the slowest of all.

    Args:
        latency: Seconds of each device, [N].
        counts: Label counts, [N, C].
        reach: Which edges each device may go to, [N, E].
        weight: Weight of the time.
        capacity: Devices per edge.
    """
    n, edges = reach.shape
    whole, top = counts.sum(0), max(float(latency.max()), 1e-12)
    sums, slowest, size = np.zeros((edges, counts.shape[1])), np.zeros(edges), np.zeros(edges, dtype=np.int64)
    place = np.zeros(n, dtype=np.int64)
    for device in np.argsort(latency, kind="stable").tolist():
        near = np.flatnonzero(reach[device])
        open_ = near[size[near] < capacity]
        if len(open_) == 0:
            best = int(near[size[near].argmin()])
        else:
            rise = [
                imbalance(sums[e] + counts[device], whole)
                - imbalance(sums[e], whole)
                + weight * (max(slowest[e], latency[device]) - slowest[e]) / top
                for e in open_.tolist()
            ]
            best = int(open_[int(np.argmin(rise))])
        place[device] = best
        sums[best] += counts[device]
        slowest[best] = max(slowest[best], latency[device])
        size[best] += 1
    return place


def random_start(reach: NDArray[np.bool_], rng: np.random.Generator) -> Ints:
    """Put devices, in random order, to the least full edge in reach; ties are drawn, [N]."""
    size = np.zeros(reach.shape[1])
    place = np.zeros(len(reach), dtype=np.int64)
    for device in rng.permutation(len(reach)).tolist():
        near = np.flatnonzero(reach[device])
        least = near[size[near] == size[near].min()]
        place[device] = int(rng.choice(least))
        size[place[device]] += 1
    return place
