"""The churn family, and transitions as arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from espalier.core.spec import Spec
from espalier.world.protocols import BoundChurn, Shape, Transition, Transitions


class Churn(Spec, ABC, family="churn"):
    """Who comes and goes."""

    @abstractmethod
    def bind(self, shape: Shape) -> BoundChurn:
        """Return the churn of one fleet under one seed."""


def nothing() -> Transitions:
    """Return no transitions."""
    none = np.empty(0, dtype=np.bool_)
    return Transitions(np.empty(0), np.empty(0, dtype=np.int64), none, none, none)


def gather(parts: list[Transitions]) -> Transitions:
    """Join lists of transitions and sort them by time, then host."""
    parts = [nothing(), *parts]
    every = Transitions(
        np.concatenate([part.time for part in parts]),
        np.concatenate([part.device for part in parts]),
        np.concatenate([part.alive for part in parts]),
        np.concatenate([part.silent for part in parts]),
        np.concatenate([part.forgets for part in parts]),
    )
    return every.rows(np.lexsort((every.device, every.time)))


def between(found: Transitions, t0: float, t1: float) -> Transitions:
    """Return those of [t0, t1)."""
    first, last = np.searchsorted(found.time, (t0, t1), side="left")
    return found.rows(slice(int(first), int(last)))


class Still:
    """Everybody is there, always."""

    still = True

    def __init__(self, shape: Shape) -> None:
        self._n = shape.n_devices

    def initial(self) -> NDArray[np.bool_]:
        """Tell that all devices are there, [N]."""
        return np.ones(self._n, dtype=np.bool_)

    def next(self, host: int, k: int, now: float) -> Transition | None:
        """Return nothing."""
        return None

    def window(self, t0: float, t1: float) -> Transitions:
        """Return nothing."""
        return nothing()
