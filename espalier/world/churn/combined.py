"""Several causes at once: a host is there when every cause lets it be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from espalier.world.churn.base import Churn, Followed, gather
from espalier.world.protocols import BoundChurn, Shape, Transition, Transitions

_SPAN_SECONDS = 64.0


@dataclass(frozen=True)
class Combined(Churn, kind="combined"):
    """The churns of ``parts`` together, such as devices that come and go and edges that fail."""

    parts: tuple[Churn, ...]

    def check(self) -> None:
        """Refuse fewer than two parts."""
        self.require(len(self.parts) >= 2, "parts", "a list of at least two churns")

    def bind(self, shape: Shape) -> BoundChurn:
        """Return the combined churn of one fleet."""
        return _Combined(shape, [part.bind(shape) for part in self.parts])


class _Combined(Followed):
    def __init__(self, shape: Shape, parts: list[BoundChurn]) -> None:
        super().__init__(_SPAN_SECONDS)
        self.still = all(part.still for part in parts)
        self._shape, self._parts = shape, parts

    def initial(self) -> NDArray[np.bool_]:
        there = np.ones(self._shape.n_devices, dtype=np.bool_)
        for part in self._parts:
            there &= part.initial()
        return there

    def restart(self) -> None:
        # How many causes keep each host away.
        self._down = np.zeros(self._shape.n_hosts, dtype=np.int64)
        self._down[: self._shape.n_devices] = np.sum([~part.initial() for part in self._parts], axis=0)

    def advance(self, t0: float, t1: float) -> Transitions:
        every = gather([part.window(t0, t1) for part in self._parts])
        order = np.argsort(every.device, kind="stable")
        host = every.device[order]
        change = np.where(every.alive[order], -1, 1)
        total = np.cumsum(change)
        first = np.flatnonzero(np.diff(host, prepend=-1))
        # The running sum of all hosts becomes each host's own: subtract what came before its first row.
        before = np.repeat(total[first] - change[first], np.diff(np.append(first, len(host))))
        down = self._down[host] + total - before
        np.add.at(self._down, host, change)
        seen = np.sort(order[((down == 0) & (change < 0)) | ((down == 1) & (change > 0))])
        return every.rows(seen)

    def next(self, host: int, k: int, now: float) -> Transition | None:
        parts = self._parts
        device = host < self._shape.n_devices
        there = [bool(part.initial()[host]) if device else True for part in parts]
        due = [part.next(host, 0, 0.0) for part in parts]
        counts, seen = [0] * len(parts), 0
        while True:
            if any(d is None and not t for d, t in zip(due, there, strict=True)):
                return None
            open_ = [(d.time, i) for i, d in enumerate(due) if d is not None]
            if not open_:
                return None
            _, i = min(open_)
            found = due[i]
            assert found is not None
            was = all(there)
            there[i] = found.alive
            counts[i] += 1
            due[i] = parts[i].next(host, counts[i], found.time)
            if was != all(there):
                if seen == k:
                    return found
                seen += 1
