"""Which edges are neighbours: the graph that devices move on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from espalier.core.errors import ConfigError


@dataclass(frozen=True, eq=False)
class EdgeGraph:
    """Neighbours of edge e: ``neighbours[offsets[e]:offsets[e+1]]``, ascending."""

    offsets: NDArray[np.int64]
    neighbours: NDArray[np.int64]

    @property
    def degree(self) -> NDArray[np.int64]:
        """The number of neighbours of each edge."""
        return np.diff(self.offsets)

    @staticmethod
    def of(lists: Sequence[Sequence[int]]) -> EdgeGraph:
        """Make a graph of neighbour lists; repetitions and loops are dropped."""
        clean = [sorted(set(row) - {e}) for e, row in enumerate(lists)]
        offsets = np.concatenate(([0], np.cumsum([len(row) for row in clean]))).astype(np.int64)
        return EdgeGraph(offsets, np.array([e for row in clean for e in row], dtype=np.int64))

    @staticmethod
    def named(name: str, count: int) -> EdgeGraph:
        """Make the ``ring``, ``grid`` (as square as it gets, four directions) or ``complete`` graph."""
        if name == "ring":
            return EdgeGraph.of([[(e - 1) % count, (e + 1) % count] for e in range(count)])
        if name == "grid":
            width = math.ceil(math.sqrt(count))
            return EdgeGraph.of([_beside(e, width, count) for e in range(count)])
        return EdgeGraph.of([list(range(count)) for _ in range(count)])

    @staticmethod
    def custom(lists: Sequence[Sequence[int]], count: int) -> EdgeGraph:
        """Make a user's graph: one list of neighbours for each edge."""
        if len(lists) != count:
            raise ConfigError(
                f"mobility.neighbours has {len(lists)} lists: must have one for each of the {count} edges."
            )
        for e, row in enumerate(lists):
            for other in row:
                if not 0 <= other < count:
                    raise ConfigError(f"mobility.neighbours[{e}] has {other}: must be an edge, 0 … {count - 1}.")
        return EdgeGraph.of(lists)


def _beside(edge: int, width: int, count: int) -> list[int]:
    row, column = divmod(edge, width)
    near = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
    return [r * width + c for r, c in near if r >= 0 and 0 <= c < width and r * width + c < count]
