"""Edges' uplinks that their devices share: uploads wait for each other, or each gets a part.

Where the world's links say ``time_shared``, uploads at one edge go one after another at the full rate, the
earliest ready first. Where they say ``equal_share``, an edge splits its uplink evenly among the devices of the
round that was opened there last, and each keeps its part however many of them are sending.
"""

from __future__ import annotations

from typing import Any

from espalier.core.address import Address
from espalier.world.protocols import Uplink


class Uplinks:
    """The edges' uplinks of one simulation. Edges are host numbers."""

    def __init__(self) -> None:
        #: when an edge's uplink is free again
        self._free: dict[int, float] = {}
        #: the round that shares an edge's uplink: who opened it, its number, its devices through this edge
        self._round: dict[int, tuple[Address, int, int]] = {}

    def ordered(self, edge: int, sender: Address, number: int) -> None:
        """A device behind an edge got an order of round ``number`` of ``sender``."""
        who, which, count = self._round.get(edge, (sender, number, 0))
        count = count + 1 if (who, which) == (sender, number) else 1
        self._round[edge] = (sender, number, count)

    def delay(self, kind: Uplink, edge: int, at: float, seconds: float) -> float:
        """Let an upload begin that takes ``seconds`` alone; return how many seconds later it ends than alone."""
        if kind == "time_shared":
            start = max(at, self._free.get(edge, at))
            self._free[edge] = start + seconds
            return start - at
        if kind == "equal_share":
            return (max(1, self._round[edge][2] if edge in self._round else 1) - 1) * seconds
        return 0.0

    def save(self) -> dict[str, Any]:
        """Return the uplinks as plain data."""
        return {"free": dict(self._free), "round": dict(self._round)}

    def restore(self, plain: dict[str, Any]) -> None:
        """Become the uplinks that :meth:`save` described."""
        self._free, self._round = dict(plain["free"]), dict(plain["round"])
