"""Joins, leaves and deaths by script, from a list or a CSV file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from espalier.core.bounds import Seconds
from espalier.core.errors import WorldError
from espalier.core.spec import Spec
from espalier.world.churn.base import BoundChurn, Churn, Transitions, between, gather
from espalier.world.shape import Shape
from espalier.world.traces import clock, read, word

#: What can happen: a host joins (or is back), is back without its state, leaves and says so, dies.
What = Literal["join", "restart", "leave", "die"]
_WORDS = ("join", "restart", "leave", "die")


@dataclass(frozen=True)
class ChurnEvent(Spec, family="churn.events"):
    """At ``time`` (seconds) a host joins, restarts without its state, leaves with a word, or dies silently.

    ``host`` is a device's number, ``"edge:3"`` or ``"cloud"``.
    """

    time: Seconds
    host: int | str
    event: What


@dataclass(frozen=True)
class Scheduled(Churn, kind="scheduled"):
    """A script: ``events``, or a CSV ``file`` with the columns ``time,device,event``.

    A device whose first event is ``join`` is not there at the start; all others are.
    """

    events: tuple[ChurnEvent, ...] = ()
    file: Path | None = None

    def check(self) -> None:
        """Refuse a script in two places, or in none."""
        one = (self.file is None) == bool(self.events)
        self.require(one, "events", "given, or else file, but not both")

    def bind(self, shape: Shape) -> BoundChurn:
        """Read the script and return the churn of one fleet."""
        events = list(self.events)
        if self.file is not None:
            rows = read(self.file, {"time": clock, "device": _name, "event": word(*_WORDS)})
            columns = zip(rows["time"], rows["device"], rows["event"], strict=True)
            events = [ChurnEvent(t, d, e) for t, d, e in columns]
        return _Scheduled(shape, events, str(self.file or "churn.events"))


class _Scheduled(BoundChurn):
    still = False

    def __init__(self, shape: Shape, events: list[ChurnEvent], where: str) -> None:
        super().__init__(shape)
        hosts = np.array([_host(shape, e.host, where) for e in events], dtype=np.int64)
        found = Transitions(
            np.array([e.time for e in events], dtype=np.float64),
            hosts,
            np.array([e.event in ("join", "restart") for e in events], dtype=np.bool_),
            np.array([e.event == "die" for e in events], dtype=np.bool_),
            np.array([e.event == "restart" for e in events], dtype=np.bool_),
        )
        every = gather([found])
        # A host that restarts without its state lost it when it went.
        order = np.lexsort((every.time, every.device))
        follows = every.device[order[1:]] == every.device[order[:-1]]
        every.forgets[order[:-1]] |= follows & every.forgets[order[1:]] & ~every.alive[order[:-1]]
        self._all = every
        self._there = np.ones(shape.n_hosts, dtype=np.bool_)
        _, first = np.unique(every.device, return_index=True)
        self._there[every.device[first]] = ~every.alive[first]
        self._there[shape.n_devices :] = True
        self._refuse_nonsense(where)

    def _refuse_nonsense(self, where: str) -> None:
        there = self._there.copy()
        for time, host, alive in zip(*self._all[:3], strict=True):
            if there[host] == alive:
                event, state = ("join", "is there already") if alive else ("leave", "is not there")
                raise WorldError(
                    f"{where}: host {host} cannot {event} at {time:g} s: it {state}. Each host's events "
                    "alternate between going and coming."
                )
            there[host] = alive

    def initial(self) -> NDArray[np.bool_]:
        return self._there[: self.shape.n_devices].copy()

    def window(self, t0: float, t1: float) -> Transitions:
        return between(self._all, t0, t1)


def _name(cell: str) -> int | str:
    return int(cell) if cell.isdecimal() else cell


def _host(shape: Shape, name: int | str, where: str) -> int:
    if isinstance(name, int) and 0 <= name < shape.n_devices:
        return name
    if isinstance(name, str):
        kind, _, number = name.partition(":")
        if kind == "cloud" and not number:
            return shape.cloud
        if kind == "edge" and number.isdecimal() and int(number) < shape.n_edges:
            return shape.n_devices + int(number)
    raise WorldError(
        f"{where}: host {name!r}: must be a device 0 … {shape.n_devices - 1}, "
        f"'edge:0' … 'edge:{shape.n_edges - 1}' or 'cloud'."
    )
