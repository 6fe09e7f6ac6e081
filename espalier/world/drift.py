"""How data change while training goes on: at once, little by little, round and round.

A :class:`Concept` says what a device's data look like; the data layer turns it into a pool.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from espalier.core.bounds import PositiveInt, Share
from espalier.core.spec import Spec
from espalier.world.draws import Field, chosen, whole
from espalier.world.piecewise import step
from espalier.world.shape import Shape


@dataclass(frozen=True, slots=True)
class Concept:
    """How a device's data differ from those the partition gave it. Hashable; equal means same data.

    Attributes:
        labels: The device holds only these labels (None: those it was given).
        permutation: Number of the permutation of its labels; 0 is the identity.
        shift: Its class prior is rotated: what it had of class c it has of class (c + shift) mod C.
        brightness: Added to the features.
        noise: Standard deviation of Gaussian noise added to the features.
        rotation: Degrees by which images are turned.
    """

    labels: tuple[int, ...] | None = None
    permutation: int = 0
    shift: int = 0
    brightness: float = 0.0
    noise: float = 0.0
    rotation: float = 0.0


#: The data as the partition gave them.
ORDINARY = Concept()

#: What the times of a drift are counted in: the root's rounds or virtual seconds.
Clock = Literal["round", "time"]


@dataclass(frozen=True, eq=False)
class BoundDrift:
    """Which concept each device meets, and when that changes.

    Attributes:
        clock: What ``concept_of`` and ``changes`` are functions of: the root's round or the time.
        groups: The group of each device, [N]; all devices of a group have one concept.
        concept_of: The concept of a group in a round or at a time.
        changes: The rounds or times, up to and with a last one, at which some concept changes, ascending.
    """

    clock: Clock
    groups: NDArray[np.int64]
    concept_of: Callable[[int, float], Concept]
    changes: Callable[[float], list[float]]

    def concepts(self, round: int, now: float) -> tuple[list[Concept], NDArray[np.int64]]:
        """Return the distinct concepts, and which of them each device has in a round or at a time, [N]."""
        at = float(round) if self.clock == "round" else now
        names, rows = np.unique(self.groups, return_inverse=True)
        found: dict[Concept, int] = {}
        place = [found.setdefault(self.concept_of(int(group), at), len(found)) for group in names]
        return list(found), np.array(place, dtype=np.int64)[rows]


class Drift(Spec, ABC, family="drift"):
    """How data change while training goes on."""

    @abstractmethod
    def bind(self, shape: Shape) -> BoundDrift:
        """Return the drift of one fleet under one seed."""


@dataclass(frozen=True)
class NoDrift(Drift, kind="none"):
    """The data stay as they are."""

    def bind(self, shape: Shape) -> BoundDrift:
        """Return no drift."""
        groups = np.zeros(shape.n_devices, dtype=np.int64)
        return BoundDrift("round", groups, lambda group, at: ORDINARY, lambda until: [])


def drifting(shape: Shape, fraction: float) -> NDArray[np.bool_]:
    """Choose the devices that drift: ``round(fraction · N)`` of them, [N]."""
    return chosen(Field.of(shape.seed, "drift").many(np.arange(shape.n_devices)), fraction)


@dataclass(frozen=True)
class Abrupt(Drift):
    """What sudden drifts share: exactly one of ``at_round`` and ``at_time``, and who drifts.

    Attributes:
        at_round: The root's round from which on the data have changed.
        at_time: The virtual second from which on they have, in place of a round.
        fraction: The share of the devices whose data change, chosen by the seed.
    """

    at_round: int | None = None
    at_time: float | None = None
    fraction: Share = 1.0

    def check(self) -> None:
        """Refuse no moment, two moments, and what is no fraction."""
        one = (self.at_round is None) != (self.at_time is None)
        self.require(one, "at_round", "given, or else at_time, but not both")
        self.require((self.at_round or 0) >= 0, "at_round", "a round ≥ 0")
        self.require(0 <= (self.at_time or 0.0) < math.inf, "at_time", "a finite number of seconds ≥ 0")

    @abstractmethod
    def old(self) -> Concept:
        """Return everybody's concept before the drift, and for ever of those that do not drift."""

    @abstractmethod
    def new(self, group: int) -> Concept:
        """Return the concept of a drifting group (from 1 on) after the drift."""

    def groups(self, shape: Shape) -> NDArray[np.int64]:
        """Return the group of each device, [N]; 0 never drifts."""
        return drifting(shape, self.fraction).astype(np.int64)

    def bind(self, shape: Shape) -> BoundDrift:
        """Return the drift of one fleet."""
        clock: Clock = "time" if self.at_round is None else "round"
        moment = float(self.at_round if self.at_round is not None else self.at_time or 0.0)

        def concept(group: int, at: float) -> Concept:
            return self.new(group) if group and at >= moment else self.old()

        return BoundDrift(clock, self.groups(shape), concept, lambda until: [moment] if moment <= until else [])


@dataclass(frozen=True)
class LabelSwitch(Abrupt, kind="label_switch"):
    """Devices hold the labels ``before``, and from the moment on the labels ``after`` (K21)."""

    before: tuple[int, ...] = (0, 1, 2, 3, 4)
    after: tuple[int, ...] = (5, 6, 7, 8, 9)

    def check(self) -> None:
        """Refuse empty sets of labels."""
        super().check()
        for name in ("before", "after"):
            labels = getattr(self, name)
            whole_numbers = all(label >= 0 for label in labels) and len(set(labels)) == len(labels)
            self.require(len(labels) > 0 and whole_numbers, name, "a list of different labels ≥ 0")

    def old(self) -> Concept:
        """Return the labels before."""
        return Concept(labels=self.before)

    def new(self, group: int) -> Concept:
        """Return the labels after."""
        return Concept(labels=self.after)


@dataclass(frozen=True)
class ExchangeLabels(Abrupt, kind="exchange_labels"):
    """From the moment on the drifting devices' label mixes turn by ``turn`` classes.

    With half of the number of classes, labels ``c`` and ``c + turn`` change places in every mix: devices that held many
    of the one and devices that held many of the other exchange what they hold, and the fleet as a whole has all labels
    before and after.
    """

    turn: PositiveInt = 5

    def old(self) -> Concept:
        """Return the mix that the partition gave."""
        return ORDINARY

    def new(self, group: int) -> Concept:
        """Return the turned mix."""
        return Concept(shift=self.turn)


@dataclass(frozen=True)
class PermuteLabels(Abrupt, kind="permute_labels"):
    """From the moment on the labels of the drifting devices are permuted, in one of ``ways`` ways."""

    ways: PositiveInt = 1

    def old(self) -> Concept:
        """Return the ordinary data."""
        return ORDINARY

    def new(self, group: int) -> Concept:
        """Return the group's permutation."""
        return Concept(permutation=group)

    def groups(self, shape: Shape) -> NDArray[np.int64]:
        """Return the number of each device's permutation, [N]."""
        u = Field.of(shape.seed, "drift", "permutation").many(np.arange(shape.n_devices))
        return super().groups(shape) * whole(u, (1, self.ways)).astype(np.int64)


@dataclass(frozen=True)
class Gradual(Drift, kind="gradual"):
    """A feature shifts from nothing at ``start`` to ``amount`` at ``end``, in ``levels`` equal steps.

    ``start`` and ``end`` are rounds or seconds, as ``clock`` says; ``amount`` is in the feature's unit
    (brightness and noise: that of the data, rotation: degrees). Steps keep the number of distinct
    concepts, and so of data pools, small.
    """

    feature: Literal["brightness", "noise", "rotation"] = "brightness"
    start: float = 0.0
    end: float = 100.0
    amount: float = 0.3
    fraction: Share = 1.0
    levels: PositiveInt = 10
    clock: Clock = "round"

    def check(self) -> None:
        """Refuse an empty interval and amounts that mean nothing."""
        self.require(0 <= self.start < self.end < math.inf, "end", f"finite and later than start = {self.start!r}")
        self.require(math.isfinite(self.amount), "amount", "a finite number")
        self.require(self.feature != "noise" or self.amount >= 0, "amount", "≥ 0 for noise")

    def bind(self, shape: Shape) -> BoundDrift:
        """Return the drift of one fleet."""
        times = [self.start + (self.end - self.start) * k / self.levels for k in range(1, self.levels + 1)]
        if self.clock == "round":
            times = [float(math.ceil(t)) for t in times]

        def concept(group: int, at: float) -> Concept:
            level = bisect_right(times, at) if group else 0
            shifted: dict[str, Any] = {self.feature: self.amount * level / self.levels}
            return Concept(**shifted) if level else ORDINARY

        def changes(until: float) -> list[float]:
            return sorted({t for t in times if t <= until})

        return BoundDrift(self.clock, drifting(shape, self.fraction).astype(np.int64), concept, changes)


@dataclass(frozen=True)
class RotatePrior(Drift, kind="rotate_prior"):
    """Every ``period`` rounds (or seconds) the drifting devices' class prior turns by one class."""

    period: float = 10.0
    fraction: Share = 1.0
    clock: Clock = "round"

    def check(self) -> None:
        """Refuse an empty period."""
        least = 1 if self.clock == "round" else 1e-3
        self.require(least <= self.period < math.inf, "period", f"a finite number ≥ {least:g}")

    def bind(self, shape: Shape) -> BoundDrift:
        """Return the drift of one fleet."""

        def concept(group: int, at: float) -> Concept:
            turns, _ = step(at, self.period) if group else (0, 0.0)
            return Concept(shift=turns) if turns else ORDINARY

        def changes(until: float) -> list[float]:
            last, _ = step(until, self.period)
            times = (turn * self.period for turn in range(1, last + 1))
            return [float(math.ceil(t)) for t in times] if self.clock == "round" else list(times)

        return BoundDrift(self.clock, drifting(shape, self.fraction).astype(np.int64), concept, changes)
