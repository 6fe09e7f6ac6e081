"""Where devices go: nowhere, by chance from edge to neighbouring edge, or along a trace."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from espalier.core.bounds import Probability
from espalier.core.errors import ConfigError, WorldError
from espalier.core.spec import Spec
from espalier.world.draws import Field
from espalier.world.shape import Shape
from espalier.world.traces import clock, index, read


@dataclass(frozen=True, eq=False)
class EdgeGraph:
    """Neighbours of edge e: ``neighbours[offsets[e]:offsets[e+1]]``, ascending."""

    offsets: NDArray[np.int64]
    neighbours: NDArray[np.int64]

    @cached_property
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


Edges = NDArray[np.int64]

#: When devices move: never, between edge rounds, between training and upload, or at given times.
When = Literal["never", "boundary", "mid_round", "time"]


class Moves(NamedTuple):
    """Moves at given times, by time: arrays of one length."""

    time: NDArray[np.float64]
    device: NDArray[np.int64]
    edge: NDArray[np.int64]


class BoundMobility:
    """Where devices go; by itself nobody moves. Edges are numbers 0 … E-1 here, not hosts.

    ``when`` says who drives it: ``boundary`` and ``mid_round`` moves are decided once per edge round
    (:meth:`moves`), ``time`` moves happen at given times (:meth:`window`).
    """

    when: When = "never"

    def start(self, edges: Edges) -> Edges:
        """Return the edge of each device at time 0, given the partition's."""
        return edges

    def moves(self, devices: Edges, steps: Edges, edges: Edges) -> Edges:
        """Return the new edges after decision number ``steps[i]`` of ``devices[i]``, now at ``edges[i]``."""
        return edges

    def window(self, t0: float, t1: float) -> Moves:
        """Return the moves at given times in [t0, t1), by time."""
        return Moves(np.empty(0), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


class Mobility(Spec, ABC, family="mobility"):
    """How devices move between edges."""

    @property
    def staying(self) -> float:
        """The probability that a device stays where it is when it may move (0 where it follows a trace)."""
        return 0.0

    @abstractmethod
    def bind(self, shape: Shape) -> BoundMobility:
        """Return the moves of one fleet under one seed."""


@dataclass(frozen=True)
class Static(Mobility, kind="none"):
    """Every device stays at its edge."""

    @property
    def staying(self) -> float:
        """Always."""
        return 1.0

    def bind(self, shape: Shape) -> BoundMobility:
        """Return no moves."""
        return BoundMobility()


@dataclass(frozen=True)
class Markov(Mobility, kind="markov"):
    """Once per edge round a device stays, or else goes to a neighbouring edge that is chosen uniformly.

    Attributes:
        stay: The probability of staying.
        graph: Which edges are neighbours: a ``ring`` (the default of CSAHFL's and MACFL's setting), a ``grid``,
            ``complete``, or ``custom``.
        when: Whether a device moves between rounds, after its upload (``boundary``), or between its training and its
            upload (``mid_round``).
        neighbours: With ``custom``, the neighbours of each edge.
    """

    stay: Probability = 0.5
    graph: Literal["ring", "grid", "complete", "custom"] = "ring"
    when: Literal["boundary", "mid_round"] = "boundary"
    neighbours: tuple[tuple[int, ...], ...] | None = None

    @property
    def staying(self) -> float:
        """As given."""
        return self.stay

    def check(self) -> None:
        """Refuse what is no probability, and neighbours without or with another graph."""
        custom = self.graph == "custom"
        self.require((self.neighbours is not None) == custom, "neighbours", "given if, and only if, graph = 'custom'")

    def bind(self, shape: Shape) -> BoundMobility:
        """Return the moves of one fleet."""
        if self.neighbours is not None:
            graph = EdgeGraph.custom(self.neighbours, shape.n_edges)
        else:
            graph = EdgeGraph.named(self.graph, shape.n_edges)
        return _Markov(self, graph, Field.of(shape.seed, "mobility"))


class _Markov(BoundMobility):
    def __init__(self, spec: Markov, graph: EdgeGraph, draws: Field) -> None:
        self.when = spec.when
        self._stay, self._graph, self._draws = spec.stay, graph, draws

    def moves(self, devices: Edges, steps: Edges, edges: Edges) -> Edges:
        edges = np.asarray(edges, dtype=np.int64)
        if self._stay == 1.0 or not len(edges):
            return edges.copy()
        u = self._draws.many(devices, steps)
        going = np.flatnonzero((u >= self._stay) & (self._graph.degree[edges] > 0))
        here = edges[going]
        degree = self._graph.degree[here]
        # One draw decides both: what is left above ``stay`` is uniform again.
        turn = np.floor((u[going] - self._stay) / (1.0 - self._stay) * degree).astype(np.int64)
        found = edges.copy()
        found[going] = self._graph.neighbours[self._graph.offsets[here] + np.minimum(turn, degree - 1)]
        return found


@dataclass(frozen=True)
class Waypoints(Mobility, kind="trace"):
    """Moves from a CSV file ``device,time,edge``: from that time on the device is at that edge.

    Rows at time 0 say where devices start; others start where the partition puts them.
    """

    file: Path

    def bind(self, shape: Shape) -> BoundMobility:
        """Read the file and return the fleet's moves."""
        rows = read(
            self.file,
            {"device": index(shape.n_devices, "device"), "time": clock, "edge": index(shape.n_edges, "edge")},
        )
        device, edge = (np.asarray(rows[name], dtype=np.int64) for name in ("device", "edge"))
        time = np.asarray(rows["time"], dtype=np.float64)
        order = np.lexsort((device, time))
        moves = Moves(time[order], device[order], edge[order])
        twice = (np.diff(moves.time) == 0) & (np.diff(moves.device) == 0)
        if twice.any():
            at = int(np.argmax(twice))
            raise WorldError(
                f"{self.file}: device {moves.device[at]} has two rows for time {moves.time[at]:g}; keep one."
            )
        return _Waypoints(moves)


class _Waypoints(BoundMobility):
    when: When = "time"

    def __init__(self, moves: Moves) -> None:
        self._moves = moves

    def start(self, edges: Edges) -> Edges:
        edges = np.array(edges, dtype=np.int64)
        first = int(np.searchsorted(self._moves.time, 0.0, side="right"))
        edges[self._moves.device[:first]] = self._moves.edge[:first]
        return edges

    def window(self, t0: float, t1: float) -> Moves:
        rows = slice(*np.searchsorted(self._moves.time, (t0, t1), side="left"))
        return Moves(self._moves.time[rows], self._moves.device[rows], self._moves.edge[rows])
