"""What a device's data look like: a small description that the data layer turns into a pool."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from espalier.core.spec import Spec
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
