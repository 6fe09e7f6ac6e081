"""A link of its own for every pair of devices, redrawn in every global round (the D2D paper's world)."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from espalier.core.bounds import PositiveFinite, PositiveInt, Probability
from espalier.core.errors import WorldError
from espalier.world.draws import Field, between, whole
from espalier.world.links.base import BoundLinks, Broadcast, Links, Range, ends, ordered
from espalier.world.links.tiers import BoundTiers, PerTier
from espalier.world.shape import Shape, Tier
from espalier.world.traces import index, number, read

#: rows of a matrix of times that are computed at once
_BLOCK_DEVICES = 16


@dataclass(frozen=True)
class Pairs(Links, kind="pairs"):
    """Throughputs λ_ij between devices, the same both ways; the other tiers follow ``access``.

    A model is ``model_units`` units long, whatever its bytes, and takes ``model_units / λ`` seconds
    (Eq. 4, D11); a shorter message takes its share. λ = 0 means that there is no link.

    Attributes:
        throughput: Units per second, one value or a range.
        whole: λ is a whole number, each of the range equally likely (so a lower end of 0 gives
            absent links).
        absent: Probability that a link is absent, besides λ = 0.
        model_units: Units of one model, m.
        model_bytes: Bytes of one model; default: those of the run's model.
        redraw: Whether every global round draws again.
        file: Instead of drawing: a CSV file ``round,a,b,throughput``; pairs not listed have no link, and
            after its last round the file begins again.
        access: The links to the edges and the cloud; ideal unless given.
        broadcast: What a head hands to its members takes no time ("free", as Eq. (4) counts the way to the head
            only) or as long as the way back ("paid"). Bytes are counted either way.
        liars: Devices that report all their links as taking ``lie`` times what they take.
        lie: The factor; below 1 links are praised, above 1 run down.
    """

    throughput: Range = (1.0, 5.0)
    whole: bool = False
    absent: Probability = 0.0
    model_units: PositiveFinite = 30.0
    model_bytes: PositiveInt | None = None
    redraw: bool = True
    file: Path | None = None
    access: PerTier = field(default_factory=PerTier)
    broadcast: Broadcast = "free"
    liars: tuple[int, ...] = ()
    lie: PositiveFinite = 1.0

    def check(self) -> None:
        """Refuse what is no throughput."""
        self.require(
            ordered(self.throughput, above=0, finite=True),
            "throughput",
            "units per second ≥ 0, or [low, high]",
        )
        if self.whole:
            self.require(all(e.is_integer() for e in ends(self.throughput)), "throughput", "whole when whole = true")

    def bind(self, shape: Shape) -> BoundLinks:
        """Return the links of one fleet in round 0; ``at(epoch)`` gives the other rounds."""
        model_bytes = self.model_bytes or shape.model_bytes
        if model_bytes is None:
            raise WorldError(
                "links.model_bytes is not given, and the fleet's Shape has none: say how many bytes the "
                f"{self.model_units:g} units of a model are."
            )
        return _Pairs(self, shape, self.model_units / model_bytes)


class _Pairs(BoundLinks):
    def __init__(self, spec: Pairs, shape: Shape, units_per_byte: float) -> None:
        super().__init__(shape)
        self._spec, self._epoch, self._units = spec, 0, units_per_byte
        self._tiers = BoundTiers(spec.access, shape)
        self.broadcast = spec.broadcast
        self._draws = Field.of(shape.seed, "links", "pairs")
        self._table = _read(spec.file, shape.n_devices) if spec.file is not None else None

    def at(self, epoch: int) -> BoundLinks:
        if not self._spec.redraw or epoch == self._epoch:
            return self
        other = copy.copy(self)
        other._epoch = epoch
        return other

    def throughput(self, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return λ between devices ``a`` and ``b`` (arrays that broadcast), units per second."""
        low, high = np.minimum(a, b), np.maximum(a, b)
        if self._table is not None:
            return self._table.look(self._epoch, low * self.shape.n_devices + high)
        u = self._draws.many(self._epoch, low, high, 0)
        rate = (whole if self._spec.whole else between)(u, ends(self._spec.throughput))
        if self._spec.absent:
            rate = np.where(self._draws.many(self._epoch, low, high, 1) < self._spec.absent, 0.0, rate)
        return rate

    def hop(self, tier: Tier, src: int, dst: int, nbytes: int, now: float) -> float:
        if tier is not Tier.DEV_DEV:
            return self._tiers.hop(tier, src, dst, nbytes, now)
        rate = float(self.throughput(np.array([src]), np.array([dst]))[0])
        return nbytes * self._units / rate if rate else math.inf

    def matrix(self, devices: NDArray[np.int64], nbytes: int) -> NDArray[np.float64]:
        devices = np.asarray(devices, dtype=np.int64)
        times = np.empty((len(devices), len(devices)))
        # The upper half in blocks of rows that stay in the processor's cache; the lower half mirrors it.
        for top in range(0, len(devices), _BLOCK_DEVICES):
            rate = self.throughput(devices[top : top + _BLOCK_DEVICES, None], devices[None, top:])
            with np.errstate(divide="ignore", invalid="ignore"):
                block = np.where(rate > 0, nbytes * self._units / rate, math.inf)
            times[top : top + _BLOCK_DEVICES, top:] = block
            times[top:, top : top + _BLOCK_DEVICES] = block.T
        np.fill_diagonal(times, 0.0)
        return times

    def claims(self, device: int, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        return seconds * self._spec.lie if device in self._spec.liars else seconds

    def neighbours(self, device: int) -> NDArray[np.int64]:
        others = np.delete(np.arange(self.shape.n_devices), device)
        return others[self.throughput(np.array([device]), others) > 0]


@dataclass(frozen=True, eq=False)
class _Table:
    """Throughputs by round: sorted pair codes ``low · N + high`` and their values."""

    rounds: list[tuple[NDArray[np.int64], NDArray[np.float64]]]

    def look(self, epoch: int, codes: NDArray[np.int64]) -> NDArray[np.float64]:
        known, values = self.rounds[epoch % len(self.rounds)]
        place = np.minimum(np.searchsorted(known, codes), len(known) - 1)
        return np.where(known[place] == codes, values[place], 0.0)


def _read(file: Path, n_devices: int) -> _Table:
    device = index(n_devices, "device")
    rows = read(file, {"round": index(1 << 31, "round"), "a": device, "b": device, "throughput": number(0, 1e15)})
    number_of, a, b = (np.asarray(rows[name], dtype=np.int64) for name in ("round", "a", "b"))
    codes, values = (
        np.minimum(a, b) * n_devices + np.maximum(a, b),
        np.asarray(rows["throughput"], dtype=float),
    )
    order = np.argsort(number_of, kind="stable")
    found, starts = np.unique(number_of[order], return_index=True)
    if not np.array_equal(found, np.arange(len(found))):
        missing = int(np.argmax(found != np.arange(len(found))))
        raise WorldError(f"{file}: round {missing} has no rows; give every round from 0 on.")
    rounds = []
    for r, mine in enumerate(np.split(order, starts[1:])):
        known, first = np.unique(codes[mine], return_index=True)
        if len(known) != len(mine):
            raise WorldError(f"{file}: round {r} lists a pair twice; a link is the same both ways, give it once.")
        rounds.append((known, values[mine[first]]))
    return _Table(rounds)
