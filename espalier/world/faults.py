"""What goes wrong on the way: messages lost, doubled, late, damaged, and links that vanish."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from espalier.core.bounds import Bound, Probability, Seconds
from espalier.core.spec import Spec
from espalier.world.draws import Field
from espalier.world.piecewise import Bursts
from espalier.world.shape import Shape, Tier


class Fate(NamedTuple):
    """What happens to one message on one hop; ``delay_extra`` in seconds."""

    lost: bool
    duplicated: bool
    delay_extra: float
    corrupted: bool


_FINE = Fate(lost=False, duplicated=False, delay_extra=0.0, corrupted=False)
_TIERS = {tier: number for number, tier in enumerate(Tier)}


class BoundFaults:
    """What goes wrong on the way; by itself nothing (``still``)."""

    still = True

    def fate(self, tier: Tier, message_no: int) -> Fate:
        """Return what happens to message number ``message_no`` on a hop of a tier."""
        return _FINE

    def back(self, src: int, dst: int, now: float) -> float:
        """Return when the link between two hosts is there: ``now``, or the end of its outage."""
        return now


class Faults(Spec, ABC, family="faults"):
    """What goes wrong with messages and links."""

    @abstractmethod
    def bind(self, shape: Shape) -> BoundFaults:
        """Return the faults of one fleet under one seed."""


@dataclass(frozen=True)
class NoFaults(Faults, kind="none"):
    """Every message arrives once, whole and in time."""

    def bind(self, shape: Shape) -> BoundFaults:
        """Return no faults."""
        return BoundFaults()


@dataclass(frozen=True)
class Odds(Spec, family="faults.odds"):
    """Probabilities of what happens to a message on one hop, each drawn by itself.

    Attributes:
        loss: It never arrives.
        duplicate: It arrives twice.
        reorder: It is held up by U[0, ``delay``) seconds, so that later ones may overtake it.
        corrupt: It arrives damaged.
        delay: The longest hold-up, in seconds.
    """

    loss: Annotated[float, Bound(ge=0, lt=1, words="a probability in [0, 1)")] = 0.0
    duplicate: Probability = 0.0
    reorder: Probability = 0.0
    corrupt: Annotated[float, Bound(ge=0, lt=1, words="a probability in [0, 1)")] = 0.0
    delay: Seconds = 1.0


@dataclass(frozen=True)
class Outage(Spec, family="faults.outage"):
    """The link between hosts ``a`` and ``b`` is gone from ``start`` to ``end`` (seconds), both ways.

    Without ``b``, all links of ``a``.
    """

    a: int
    start: float
    end: float
    b: int | None = None

    def check(self) -> None:
        """Refuse an empty interval."""
        self.require(0 <= self.start < self.end, "end", f"later than start = {self.start!r} ≥ 0")

    def cuts(self, src: int, dst: int) -> bool:
        """Tell whether the outage concerns the link between two hosts."""
        return self.a in (src, dst) and (self.b is None or self.b in (src, dst))


@dataclass(frozen=True)
class RandomFaults(Faults, kind="random"):
    """Seeded faults on messages by tier, and links that vanish by script or by chance.

    Attributes:
        dev_edge: Odds on the links between devices and edges.
        edge_cloud: Odds on the links between edges and the cloud.
        dev_dev: Odds on the links between devices.
        outages: Links that vanish at given times.
        vanish_every: If given, each link vanishes once in every so many seconds …
        vanish_mean: … for Exp(``vanish_mean``) seconds.
    """

    dev_edge: Odds = field(default_factory=Odds)
    edge_cloud: Odds = field(default_factory=Odds)
    dev_dev: Odds = field(default_factory=Odds)
    outages: tuple[Outage, ...] = ()
    vanish_every: float | None = None
    vanish_mean: float = 5.0

    def check(self) -> None:
        """Refuse outages that leave no time."""
        if self.vanish_every is not None:
            self.require(0 < self.vanish_every < math.inf, "vanish_every", "a finite number of seconds > 0")
            self.require(
                0 < self.vanish_mean < self.vanish_every,
                "vanish_mean",
                f"> 0 and shorter than vanish_every = {self.vanish_every!r}",
            )

    def bind(self, shape: Shape) -> BoundFaults:
        """Return the faults of one fleet."""
        return _Random(self, shape.seed)


class _Random(BoundFaults):
    still = False

    def __init__(self, spec: RandomFaults, seed: int) -> None:
        self._spec = spec
        self._odds = {
            Tier.DEV_EDGE: spec.dev_edge,
            Tier.EDGE_CLOUD: spec.edge_cloud,
            Tier.DEV_DEV: spec.dev_dev,
        }
        self._draws = Field.of(seed, "faults", "messages")
        self._bursts: Bursts | None = None
        if spec.vanish_every is not None:
            self._bursts = Bursts(Field.of(seed, "faults", "links"), spec.vanish_mean, spec.vanish_every)

    def fate(self, tier: Tier, message_no: int) -> Fate:
        odds, number = self._odds[tier], _TIERS[tier]
        u = [self._draws.at(number, message_no, which) for which in range(4)]
        held = odds.delay * self._draws.at(number, message_no, 4) if u[2] < odds.reorder else 0.0
        return Fate(u[0] < odds.loss, u[1] < odds.duplicate, held, u[3] < odds.corrupt)

    def back(self, src: int, dst: int, now: float) -> float:
        low, high = sorted((src, dst))
        at, before = now, -math.inf
        # Outages may follow upon each other: go on until none holds.
        while at != before:
            before = at
            for outage in self._spec.outages:
                if outage.start <= at < outage.end and outage.cuts(src, dst):
                    at = outage.end
            if self._bursts is not None and math.isfinite(at):
                away, change = self._bursts.state(at, low, high)
                at = change if away else at
        return at
