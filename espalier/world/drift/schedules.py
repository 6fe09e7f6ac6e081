"""Who drifts, and what a schedule of concepts has to answer; the drift that is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from espalier.world.draws import Field, chosen
from espalier.world.drift.concept import ORDINARY, BoundDrift, Clock, Concept, Drift
from espalier.world.protocols import Shape


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
