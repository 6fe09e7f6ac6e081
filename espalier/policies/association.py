"""Which edge a device reports to, arranged by the cloud (HiFlash, FedUC).

Both methods search for an assignment in which each edge's data look like the whole's and no edge is much slower. The
cost of an edge e is ``||p_e - p_g||_1 · n_e / n + weight · time_e`` with p_e the label mix at e, p_g the whole's, and
time_e a time scaled to about one. A device may only go to edges within its reach. The methods differ in the start and
in what makes a round long.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from espalier.core.address import Address
from espalier.core.environment import Environment, Latency, estimate
from espalier.core.method import Setting
from espalier.core.policies import Arrangement, Structure, Survey
from espalier.core.statistics import LABEL_HISTOGRAMS
from espalier.core.view import Arrival, View

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

    def __init__(self, place: Ints, counts: Floats, time: TimeTerm, weight: float, edges: int) -> None:
        """Begin with an assignment.

        Args:
            place: Each device's edge, [N].
            counts: Each device's label counts, [N, C].
            time: The scaled time of an edge with given members.
            weight: Weight of the time.
            edges: Number of edges.
        """
        self.place, self.counts, self.time, self.weight = place.copy(), counts, time, weight
        self.whole = counts.sum(0)
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


Reach = NDArray[np.bool_]
#: which edges a device may go to; "auto": its own, and the neighbouring ones if devices move
AutoReach = Literal["auto", "own", "neighbours", "all"]

#: how the devices of an edge share its uplink
Sharing = Literal["private", "time_shared", "equal_share"]


def reach_under(reach: AutoReach, setting: Setting) -> Literal["own", "neighbours", "all"]:
    """Return which edges a device may go to under a setting."""
    if reach != "auto":
        return reach
    return "own" if setting.stay == 1.0 else "neighbours"


def hosts_and_reach(
    env: Environment, devices: Sequence[Address], kind: Literal["own", "neighbours", "all"]
) -> tuple[dict[Address, int], list[Address], Ints, Reach]:
    """Return the edges in use by number, the devices that report to one, at which each is, and where each may be.

    Devices at work stay where they are; so do those none of whose edges is in use.
    """
    hosts = {e: i for i, e in enumerate(env.places.edges()) if env.parent(e) is not None}
    found = [d for d in devices if env.parent(d) in hosts]
    numbers, total = list(hosts.values()), len(env.places.edges())
    place = np.array([hosts[_host(env.parent(d))] for d in found], dtype=np.int64)
    reach = np.zeros((len(found), max(numbers, default=0) + 1), dtype=np.bool_)
    for row, device in enumerate(found):
        if not env.busy(device):
            at = env.places.edges().index(env.places.edge_of(device))
            near = numbers if kind == "all" else [(at + k) % total for k in (-1, 0, 1)]
            reach[row, [e for e in near if e in numbers]] = True
        if not reach[row].any():
            reach[row, place[row]] = True
    return hosts, found, place, reach


def makespan(ready: ArrayLike, upload: ArrayLike, sharing: Sharing) -> float:
    """Return when the last member's upload is done, in seconds after dispatch; 0 without members.

    ``time_shared``: one after another at the full rate, the earliest ready first, which no other order beats:
    ``f_1 = r_1 + u_1``, ``f_i = max(f_{i-1}, r_i) + u_i``. ``equal_share``: each has 1/n of the rate,
    ``max(r_i + n u_i)``. ``private``: each has a link of its own, ``max(r_i + u_i)``.

    Args:
        ready: When each member could begin to upload, seconds, [n].
        upload: Seconds of each upload alone, [n].
        sharing: How they share the uplink.
    """
    r, u = np.asarray(ready, dtype=np.float64), np.asarray(upload, dtype=np.float64)
    if len(r) == 0:
        return 0.0
    if sharing == "time_shared":
        order = np.argsort(r, kind="stable")
        # The last upload ends a gapless run of uploads; the maximum is over the members with which that run may begin.
        return float((r[order] + np.cumsum(u[order][::-1])[::-1]).max())
    return float((r + (len(r) if sharing == "equal_share" else 1) * u).max())


@dataclass(frozen=True)
class Association(Structure, ABC):
    """Devices are arranged over the edges before each cloud round; devices at work stay where they are.

    Attributes:
        reach: A device's ``own`` edge (nothing is arranged), its edge and its ``neighbours`` on the ring, or ``all``.
        weight: Weight of the time against the label mix.
        epochs: Local updates of an order, for the expected times.
        improvements: The most moves and swaps per arrangement.
    """

    provides = (LABEL_HISTOGRAMS,)

    @dataclass(slots=True)
    class State:
        """Arrangements made so far."""

        arrangements: int = 0

    reach: Literal["own", "neighbours", "all"] = "own"
    weight: float = 0.5
    epochs: int = 1
    improvements: int = 200

    def survey(self, view: View) -> Survey | None:
        """Ask devices that are not known yet for their label histograms."""
        if self.reach == "own":
            return None
        known = view.product(LABEL_HISTOGRAMS)
        new = [d for d in view.env.devices() if d not in known and not view.env.busy(d)]
        return Survey("label_histogram", devices=new) if new else None

    def arrange(self, view: View, answers: Mapping[Address, Arrival]) -> Arrangement | None:
        """Search; return the new parents."""
        if self.reach == "own":
            return None
        env, known = view.env, view.product(LABEL_HISTOGRAMS)
        known.update({d: a.report.stats["histogram"] for d, a in answers.items()})
        hosts, devices, place, reach = hosts_and_reach(env, [d for d in env.devices() if d in known], self.reach)
        if len(devices) < 2 or len(hosts) < 2:
            return None
        latency = [estimate(env, _host(env.parent(d)), d, self.epochs, view.now) for d in devices]
        counts = np.array([np.asarray(known[d], dtype=np.float64) for d in devices])
        found, cost = self.search(view, place, counts, latency, reach, len(hosts))
        back = {i: e for e, i in hosts.items()}
        parents = {
            d: back[int(e)] for d, e in zip(devices, found.tolist(), strict=True) if env.parent(d) != back[int(e)]
        }
        view.state(self).arrangements += 1
        if not parents:
            return None
        return Arrangement(parents=parents, note={"moved": len(parents), "cost": cost})

    @abstractmethod
    def search(
        self, view: View, place: Ints, counts: Floats, latency: Sequence[Latency], reach: Reach, edges: int
    ) -> tuple[Ints, float]:
        """Return each device's edge and the cost, given where they are and may go."""


def _host(parent: Address | None) -> Address:
    assert parent is not None
    return parent


@dataclass(frozen=True)
class Balanced(Association, kind="balanced"):
    """HiFlash's: greedy by ascending latency, then swaps; an edge is as slow as its slowest device."""

    def search(
        self, view: View, place: Ints, counts: Floats, latency: Sequence[Latency], reach: Reach, edges: int
    ) -> tuple[Ints, float]:
        """Start greedily with ``ceil(N / M)`` devices per edge, then swap."""
        totals = np.array([e.total for e in latency])
        top = max(float(totals.max()), 1e-12)
        start = greedy_start(totals, counts, reach, self.weight, -(-len(place) // edges))
        search = EdgeSearch(start, counts, lambda m: float(totals[m].max()) / top, self.weight, reach.shape[1])
        rng = view.env.rng("associate", view.me, view.state(self).arrangements)
        search.run(reach, rng, limit=self.improvements)
        return search.place, search.cost


@dataclass(frozen=True)
class TimeSharing(Association, kind="time_sharing"):
    """FedUC's: moves and swaps; an edge is as slow as its uploads one after another."""

    def search(
        self, view: View, place: Ints, counts: Floats, latency: Sequence[Latency], reach: Reach, edges: int
    ) -> tuple[Ints, float]:
        """Start from a random balanced arrangement the first time, later from the present one."""
        rng = view.env.rng("associate", view.me, view.state(self).arrangements)
        if not view.state(self).arrangements:
            place = random_start(reach, rng)
        ready, upload = np.array([e.ready for e in latency]), np.array([e.up for e in latency])
        sharing = view.env.links.uplink

        def span(members: Ints) -> float:
            return makespan(ready[members], upload[members], sharing)

        used = np.unique(place)
        mean = max(float(np.mean([span(np.flatnonzero(place == e)) for e in used.tolist()])), 1e-12)
        search = EdgeSearch(place, counts, lambda m: span(m) / mean, self.weight, reach.shape[1])
        even = len(place) / edges
        search.run(reach, rng, limit=self.improvements, sizes=(max(1, int(even / 2)), max(1, int(2 * even))))
        return search.place, search.cost
