"""Drifts that happen at once: other labels, or the same labels meaning something else."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from espalier.core.bounds import PositiveInt, Share
from espalier.world.draws import Field, whole
from espalier.world.drift.concept import ORDINARY, BoundDrift, Clock, Concept, Drift, Staged, drifting
from espalier.world.protocols import Shape


@dataclass(frozen=True)
class Abrupt(Drift):
    """What sudden drifts share: exactly one of ``at_round`` and ``at_time``, and who drifts."""

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

        return Staged(clock, self.groups(shape), concept, lambda until: [moment] if moment <= until else [])


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
