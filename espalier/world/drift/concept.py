"""What a device's data look like: a small description that the data layer turns into a pool."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from espalier.core.spec import Spec
from espalier.world.draws import Field, chosen
from espalier.world.protocols import Shape


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


class BoundDrift(Protocol):
    """Which concept each device meets, and when that changes."""

    clock: Clock

    def concept(self, device: int, round: int, now: float) -> Concept:
        """Return a device's concept in a round (if ``clock`` is round) or at a time."""
        ...

    def concepts(self, round: int, now: float) -> tuple[list[Concept], NDArray[np.int64]]:
        """Return the distinct concepts, and which of them each device has, [N]."""
        ...

    def changes(self, until: float) -> list[float]:
        """Return the rounds or times, up to and with ``until``, at which some concept changes, ascending."""
        ...


class Drift(Spec, ABC, family="drift"):
    """How data change while training goes on."""

    @abstractmethod
    def bind(self, shape: Shape) -> BoundDrift:
        """Return the drift of one fleet under one seed."""


class Staged:
    """Devices in groups; each group's concept is a function of the round or the time.

    ``groups[i]`` is the group of device i; ``concept_of(group, at)`` its concept; ``times(until)`` the
    changes.
    """

    def __init__(
        self,
        clock: Clock,
        groups: NDArray[np.int64],
        concept_of: Callable[[int, float], Concept],
        times: Callable[[float], list[float]],
    ) -> None:
        self.clock: Clock = clock
        self._groups, self._concept_of, self._times = groups, concept_of, times
        self._names = [int(g) for g in np.unique(groups)]

    def _at(self, round: int, now: float) -> float:
        return float(round) if self.clock == "round" else now

    def concept(self, device: int, round: int, now: float) -> Concept:
        """Return a device's concept."""
        return self._concept_of(int(self._groups[device]), self._at(round, now))

    def concepts(self, round: int, now: float) -> tuple[list[Concept], NDArray[np.int64]]:
        """Return the distinct concepts, and which of them each device has, [N]."""
        at = self._at(round, now)
        found: dict[Concept, int] = {}
        place = np.zeros(max(self._names) + 1, dtype=np.int64)
        for group in self._names:
            place[group] = found.setdefault(self._concept_of(group, at), len(found))
        return list(found), place[self._groups]

    def changes(self, until: float) -> list[float]:
        """Return when some concept changes, up to and with ``until``."""
        return self._times(until)


@dataclass(frozen=True)
class NoDrift(Drift, kind="none"):
    """The data stay as they are."""

    def bind(self, shape: Shape) -> BoundDrift:
        """Return no drift."""
        groups = np.zeros(shape.n_devices, dtype=np.int64)
        return Staged("round", groups, lambda group, at: ORDINARY, lambda until: [])


def drifting(shape: Shape, fraction: float) -> NDArray[np.bool_]:
    """Choose the devices that drift: ``round(fraction · N)`` of them, [N]."""
    return chosen(Field.of(shape.seed, "drift").many(np.arange(shape.n_devices)), fraction)
