"""Hosts that alternate between being there and not, for random times: churn and failures."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from espalier.core.bounds import Bound, PositiveSeconds, Probability, Share
from espalier.world.churn.base import BoundChurn, Churn, Followed, Transitions, gather
from espalier.world.draws import Field, exponential
from espalier.world.shape import Shape

#: The most transitions aimed at in one span, over all hosts and of one host: many hosts are followed in
#: few vectorised passes, and a small fleet is not followed far beyond what is asked for.
_SPAN_TRANSITIONS, _HOST_TRANSITIONS = 200_000, 4


class Renewal(Followed):
    """Some hosts, each with a first state and a sequence of sojourns; a host is its *row* here."""

    def __init__(self, shape: Shape, hosts: NDArray[np.int64], mean_cycle: float, name: str) -> None:
        each = min(_HOST_TRANSITIONS, _SPAN_TRANSITIONS / max(1, len(hosts)))
        super().__init__(shape, each * mean_cycle / 2)
        self.hosts = hosts
        self._draws = Field.of(shape.seed, "churn", name)
        self._silent = Field.of(shape.seed, "churn", name, "silent")
        self.restart()

    @abstractmethod
    def first(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which hosts are there at time 0."""

    @abstractmethod
    def sojourn(self, u: NDArray[np.float64], there: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Turn uniform numbers into the seconds that hosts stay in a state."""

    @abstractmethod
    def quiet(self, u: NDArray[np.float64], back: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Tell which transitions are silent; ``back``: the host comes back."""

    def forgets(self) -> bool:
        """Tell whether a host loses its state when it goes."""
        return False

    def _there(self, rows: NDArray[np.int64], ks: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.asarray(self.first(rows) ^ (ks % 2 == 1))

    def sojourns(self, devices: NDArray[np.int64], ks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the seconds of sojourn number ``ks[i]`` (from 0) of host ``devices[i]``."""
        rows = np.searchsorted(self.hosts, devices)
        return self.sojourn(self._draws.many(devices, ks), self._there(rows, np.asarray(ks)))

    def initial(self) -> NDArray[np.bool_]:
        """Tell which devices are there at time 0, [N]."""
        there = np.ones(self.shape.n_devices, dtype=np.bool_)
        rows = np.flatnonzero(self.hosts < self.shape.n_devices)
        there[self.hosts[rows]] = self.first(rows)
        return there

    def restart(self) -> None:
        """Go back to time 0."""
        count = len(self.hosts)
        self._k = np.zeros(count, dtype=np.int64)
        self._due = self.sojourns(self.hosts, self._k) if count else np.empty(0)

    def advance(self, t0: float, t1: float) -> Transitions:
        """Return the transitions in [t0, t1) and go on to t1."""
        found: list[Transitions] = []
        rows = np.flatnonzero(self._due < t1)
        while len(rows):
            hosts, k, time = self.hosts[rows], self._k[rows], self._due[rows]
            alive = self._there(rows, k + 1)
            silent = self.quiet(self._silent.many(hosts, k), alive)
            forgets = np.full(len(rows), self.forgets(), dtype=np.bool_)
            found.append(Transitions(time, hosts, alive, silent, forgets))
            self._k[rows] = k + 1
            self._due[rows] = time + self.sojourns(hosts, k + 1)
            rows = rows[self._due[rows] < t1]
        return gather(found)


@dataclass(frozen=True)
class TwoState(Churn, kind="two_state"):
    """Devices come and go: a two-state chain with exponential stays (E16).

    Attributes:
        working: The share of devices that are there, at the start and in the long run.
        mean_stay: Mean seconds that a device is there at a time; it is away for
            ``mean_stay · (1 - working) / working`` seconds on average.
        silent: Probability that a device leaves without a word.
    """

    working: Share = 0.7
    mean_stay: PositiveSeconds = 60.0
    silent: Probability = 0.0

    def bind(self, shape: Shape) -> BoundChurn:
        """Return the churn of one fleet."""
        return BoundChurn(shape) if self.working == 1 else _TwoState(self, shape)


class _TwoState(Renewal):
    def __init__(self, spec: TwoState, shape: Shape) -> None:
        self._spec = spec
        self._away = spec.mean_stay * (1 - spec.working) / spec.working
        start = Field.of(shape.seed, "churn", "two_state", "start")
        self._start = start.many(np.arange(shape.n_devices)) < spec.working
        cycle = spec.mean_stay + self._away
        super().__init__(shape, np.arange(shape.n_devices), cycle, "two_state")

    def first(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self._start[rows]

    def sojourn(self, u: NDArray[np.float64], there: NDArray[np.bool_]) -> NDArray[np.float64]:
        return exponential(u, 1.0) * np.where(there, self._spec.mean_stay, self._away)

    def quiet(self, u: NDArray[np.float64], back: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return (u < self._spec.silent) & ~back


@dataclass(frozen=True)
class Failures(Churn, kind="failures"):
    """Hosts die at random moments, by default without a word, and may come back.

    Attributes:
        rate: Failures per second and host while it is up.
        hosts: Who can fail: ``devices``, ``edges``, ``cloud``.
        restart: Seconds until a host is back; None: never.
        keep_state: Whether it comes back with its state.
        silent: Whether nobody is told of a failure.
    """

    rate: Annotated[float, Bound(gt=0, lt=math.inf, words="a finite number of failures per second > 0")]
    hosts: tuple[Literal["devices", "edges", "cloud"], ...] = ("devices",)
    restart: float | None = None
    keep_state: bool = True
    silent: bool = True

    def check(self) -> None:
        """Refuse rates and times that mean nothing."""
        self.require(len(self.hosts) > 0, "hosts", "a list of devices, edges, cloud")
        if self.restart is not None:
            self.require(0 < self.restart < math.inf, "restart", "a finite number of seconds > 0")

    def bind(self, shape: Shape) -> BoundChurn:
        """Return the failures of one fleet."""
        return _Failures(self, shape)


class _Failures(Renewal):
    def __init__(self, spec: Failures, shape: Shape) -> None:
        self._spec = spec
        ranges = {
            "devices": range(shape.n_devices),
            "edges": range(shape.n_devices, shape.n_devices + shape.n_edges),
            "cloud": range(shape.cloud, shape.n_hosts),
        }
        hosts = np.concatenate([np.asarray(ranges[name], dtype=np.int64) for name in ranges if name in spec.hosts])
        super().__init__(shape, hosts, 1 / spec.rate + (spec.restart or 0.0), "failures")

    def first(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.ones(len(rows), dtype=np.bool_)

    def sojourn(self, u: NDArray[np.float64], there: NDArray[np.bool_]) -> NDArray[np.float64]:
        down = math.inf if self._spec.restart is None else self._spec.restart
        return np.where(there, exponential(u, 1 / self._spec.rate), down)

    def quiet(self, u: NDArray[np.float64], back: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return np.full(u.shape, self._spec.silent) & ~back

    def forgets(self) -> bool:
        return not self._spec.keep_state
