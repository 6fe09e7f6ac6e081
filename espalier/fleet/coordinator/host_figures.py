"""What hosts have told the cloud of themselves: scores, bytes, seconds, and what their devices have given away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espalier.core.address import host_of
from espalier.fleet.authority.fields import LONG_COUNT, is_address
from espalier.record.measures import spread

#: incarnations of one device that are told apart; what older ones have spent is one sum
INCARNATIONS = 8
ENDED = -1
#: a tier, a direction and a kind of traffic
Way = tuple[str, str, str]


class HostFigures:
    """The figures of one run's hosts, the newest that each has told."""

    def __init__(self, n_devices: int, n_edges: int, plain: dict[str, Any]) -> None:
        """Go on from what :meth:`to_plain` said."""
        self._n_devices, self._n_edges = n_devices, n_edges
        self._scores: dict[int, dict[str, float]] = plain.get("scores", {})
        self._traffic: dict[tuple[int, str, str, str], int] = plain.get("traffic", {})
        self._seconds: dict[tuple[int, str], float] = plain.get("seconds", {})
        #: what devices say they have trained and told: (host, incarnation) -> (trainings, statistics)
        self.spent: dict[tuple[int, int], tuple[int, int]] = plain.get("spent", {})
        #: since the last evaluation: trainings by device, and updates that aggregators could not use, by their host and
        #: by whose they were (its own, if it does not say)
        self.trained: Counter[int] = Counter(plain.get("trained", {}))
        self.unusable: Counter[tuple[int, int]] = Counter(plain.get("rejected", {}))
        #: seconds of the longest training that somebody told of
        self.longest: float = plain.get("longest", 0.0)

    def to_plain(self) -> dict[str, Any]:
        """Return all that must outlive the process."""
        return {
            "scores": self._scores, "traffic": self._traffic, "seconds": self._seconds, "spent": self.spent,
            "trained": dict(self.trained), "rejected": dict(self.unusable), "longest": self.longest,
        }  # fmt: skip

    def has_spent(self, origin: int, incarnation: int, jobs: int, revealed: int) -> None:
        """A device tells what its present incarnation has given away."""
        self.spent[origin, incarnation] = (jobs, revealed)
        known = [of for of in self.spent if of[0] == origin and of[1] != ENDED]
        if len(known) > INCARNATIONS:  # it comes back without its memory again and again, or says so
            trained, told = self.spent.pop(known[0])
            before = self.spent.get((origin, ENDED), (0, 0))
            self.spent[origin, ENDED] = (before[0] + trained, before[1] + told)

    def noted(self, host: int, kind: str, data: Mapping[str, Any]) -> None:
        """Count what a host notes of an update that it could not use."""
        if kind == "rejected":
            child = host_of(data["child"]) if is_address(data.get("child")) else host
            self.unusable[host, child if child < self._n_devices + self._n_edges else host] += 1

    def judged(self, below: Callable[[int], int]) -> int:
        """Return how many updates could not be used, and begin to count anew; ``below`` counts trainings under a host.

        Nobody's count for more than it has trained itself, nor a host's for more than those below it have: one that
        sends such updates as fast as it can does not stand for the others. What it has not told yet counts later.
        """
        found: Counter[int] = Counter()
        for (host, child), count in list(self.unusable.items()):
            trained = below(child) if child != host else count
            found[host] += min(count, trained)
            self.unusable[host, child] = max(0, count - trained)
        total = sum(min(count, below(host)) for host, count in found.items())
        self.unusable = +self.unusable
        self.trained.clear()
        return total

    def take(self, origin: int, data: dict[str, Any]) -> None:
        """Take a host's notes."""
        for _, kind, _, what in data["events"]:
            self.noted(origin, kind, what)
        for _, kind, start, stop in data["spans"]:
            seconds = float(stop) - float(start)
            self._seconds[origin, str(kind)] = self._seconds.get((origin, str(kind)), 0.0) + seconds
            if kind == "train":
                self.trained[origin] += 1
                self.longest = max(self.longest, seconds)
        for tier, direction, kind, count in data["traffic"]:
            self._traffic[origin, str(tier), str(direction), str(kind)] = int(count)
        if data["scores"]:
            self._scores[origin] = {str(k): float(v) for k, v in data["scores"].items()}

    def spreads(self) -> Iterator[tuple[str, NDArray[np.float64], dict[str, float]]]:
        """Yield each figure of edges, then of devices: its name, a number for each, mean, spread and worst tenth."""
        for scope, first, size in (("edge", self._n_devices, self._n_edges), ("device", 0, self._n_devices)):
            known = {h - first: s for h, s in self._scores.items() if first <= h < first + size}
            for name in sorted({n for s in known.values() for n in s}):
                values = np.full(size, np.nan)
                for place, scores in known.items():
                    values[place] = scores.get(name, np.nan)
                if summary := spread(f"{name}_{scope}", values):
                    yield f"{name}_{scope}", values, summary

    def sent(self, here: Mapping[Way, int]) -> dict[Way, int]:
        """Return the bytes that all hosts have sent; ``here`` are those of the cloud itself."""
        totals = dict(here)
        for (_, *way), count in self._traffic.items():
            tier, direction, kind = way
            # what members say may be anything; the record's integers end
            totals[tier, direction, kind] = min(LONG_COUNT, totals.get((tier, direction, kind), 0) + count)
        return totals

    def seconds_of(self, kind: str) -> NDArray[np.float64]:
        """Return the seconds that each device has spent on a kind of work, [N]."""
        return np.array([self._seconds.get((d, kind), 0.0) for d in range(self._n_devices)])

    def spendings(self) -> tuple[list[int], list[int]]:
        """Return each device's trainings, and the statistics it has told."""
        jobs, revealed = [0] * self._n_devices, [0] * self._n_devices
        for (host, _), (trained, told) in self.spent.items():
            jobs[host] += trained
            revealed[host] += told
        return jobs, revealed
