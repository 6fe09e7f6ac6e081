"""Cutting a wave of jobs into batches: evenly loaded, and so that whole nodes of sums lie in one batch.

Jobs of one node of a sum's addition stay together as long as batches stay even: the few that even them out come
back as models, the others as partial sums. Where sums are to be joined on workers, a sum of several batches comes back
as one model: its pieces (partial sums, and the models that evened batches out) stay until one worker has joined them.
What comes back how changes bytes and time, never the numbers (see `espalier.simulator.reduction`).
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from espalier.core.params import ParamSpec
from espalier.simulator.jobs import Sum
from espalier.simulator.reduction import FAN, nodes
from espalier.training.chunks import size_for as chunk_size

_CHUNKS_PER_BATCH = 4
"""Chunks of the trainer in a batch, and batches per worker: few enough to come back soon, enough to be worth a task."""

_MOST_JOBS = FAN**3
_FEWEST_TERMS = 3
"""Terms from which a partial sum (float64) is fewer bytes than its models (float32)."""

_SLACK = 1 / 16
"""Share of a batch by which it may be larger than others so that a node stays whole."""


@dataclass(frozen=True, slots=True)
class SumNode:
    """Consecutive terms of a sum that a batch adds up: a whole node of the sum's addition.

    Attributes:
        sum: The sum's name.
        stop: The place behind its last term.
        of: How many terms the sum has.
        terms: Coefficients and jobs' names.
    """

    sum: int
    stop: int
    of: int
    terms: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Jobs that are computed in one place: their names, and the nodes that take the place of their models.

    The model of a job that is in no node comes back itself.

    Attributes:
        names: The jobs.
        nodes: What comes back in place of models.
        left: What stays with the workers until it is joined with other batches' (of a single term: its model).
    """

    names: tuple[int, ...]
    nodes: tuple[SumNode, ...]
    left: tuple[SumNode, ...] = ()


def size_for(spec: ParamSpec, jobs: int, workers: int) -> int:
    """Jobs of a batch, about: what keeps a trainer busy, or a larger node if every worker gets several such batches."""
    usual = min(_MOST_JOBS // 2, max(FAN, _CHUNKS_PER_BATCH * chunk_size(spec)))
    node = FAN
    while node * FAN <= min(_MOST_JOBS, jobs // (_CHUNKS_PER_BATCH * workers)):
        node *= FAN
    return max(usual, node)


def cut(
    weights: Mapping[int, float],
    sums: Mapping[int, Sum],
    free: AbstractSet[int],
    workers: int,
    size: int,
    join: bool = False,
) -> list[Batch]:
    """Cut a wave into batches.

    Args:
        weights: How long each job takes, in any unit, by name.
        sums: The sums that need them, by name.
        free: Jobs that nothing but these sums needs.
        workers: Batches that are computed at a time.
        size: Jobs of a batch, about; where there are few jobs, smaller batches keep every worker busy.
        join: Whether sums of several batches are joined on workers.
    """
    count = len(weights) // size
    if count < _CHUNKS_PER_BATCH * workers:  # with more, whoever is free first evens them out
        count = min(len(weights), max(1, count // workers) * workers)
    batches = [b for b in _dealt(_groups(list(weights), sums), weights, count) if b]
    home = {name: number for number, batch in enumerate(batches) for name in batch}
    joint = _joint(sums, home, free) if join else {}
    others = {key: recipe for key, recipe in sums.items() if key not in joint}
    found = _covered(others, home, free)
    left: dict[int, list[SumNode]] = {}
    for number, node in (piece for pieces in joint.values() for piece in pieces):
        left.setdefault(number, []).append(node)
    return [
        Batch(tuple(batch), tuple(found.get(number, ())), tuple(left.get(number, ())))
        for number, batch in enumerate(batches)
    ]


def _groups(names: Sequence[int], sums: Mapping[int, Sum]) -> list[list[tuple[int, int]]]:
    """Return the jobs (place in the sum, name) with those of one sum together, in its order."""
    wave = set(names)
    first: dict[int, int] = {}
    for key in sorted(sums):
        for _, ref in sums[key].terms:
            first.setdefault(int(ref), key)
    found: list[list[tuple[int, int]]] = []
    seen: set[int] = set()
    for name in names:
        if name in seen:
            continue
        terms = sums[first[name]].terms if name in first else ((1.0, name),)
        members = {int(r): place for place, (_, r) in enumerate(terms) if int(r) in wave and int(r) not in seen}
        seen.update(members)
        found.append([(place, member) for member, place in members.items()])
    return found


class _Deal:
    """Batches in the making. What goes to a batch that has others of its sum takes no further model along."""

    def __init__(self, group_of: Mapping[int, int], weights: Mapping[int, float], count: int) -> None:
        self._group_of, self._weights = group_of, weights
        self.batches: list[list[int]] = [[] for _ in range(count)]
        self._loads = [0.0] * count
        self._room = (1 + _SLACK) * sum(weights.values()) / count
        self._empty = self._at = 0
        #: the batches that have jobs of a sum
        self._alike: dict[int, list[int]] = {}
        self._lightest: list[tuple[float, int]] = []

    def begin(self) -> None:
        """Begin with the next smaller nodes."""
        self._at = 0

    def place(self, names: Sequence[int]) -> bool:
        """Put a node where there is room: with others of its sum, else in a batch of its own, else in the next."""
        load = sum(self._weights[name] for name in names)
        if load > self._room:
            return False
        near = self._near(names[0], load)
        while self._empty < len(self.batches) and self.batches[self._empty]:
            self._empty += 1
        if near is None and self._empty < len(self.batches):
            near = self._empty
        while near is None and self._at < len(self.batches) and self._loads[self._at] + load > self._room:
            self._at += 1
        number = self._at if near is None else near
        if number == len(self.batches):
            return False
        self._put(number, names, load)
        return True

    def even_out(self, name: int) -> None:
        """Put a single job with others of its sum if there is room, else in the lightest batch."""
        if not self._lightest:
            self._lightest = [(load, number) for number, load in enumerate(self._loads)]
            heapq.heapify(self._lightest)
        while (now := self._loads[self._lightest[0][1]]) != self._lightest[0][0]:  # it was given jobs meanwhile
            heapq.heapreplace(self._lightest, (now, self._lightest[0][1]))
        near = self._near(name, self._weights[name])
        self._put(self._lightest[0][1] if near is None else near, [name], self._weights[name])

    def _near(self, name: int, load: float) -> int | None:
        """Return the lightest batch that has jobs of the same sum, and room."""
        fits = [n for n in self._alike.get(self._group_of[name], ()) if self._loads[n] + load <= self._room]
        return min(fits, key=self._loads.__getitem__, default=None)

    def _put(self, number: int, names: Sequence[int], load: float) -> None:
        self.batches[number].extend(names)
        self._loads[number] += load
        alike = self._alike.setdefault(self._group_of[names[0]], [])
        if number not in alike:
            alike.append(number)


def _dealt(groups: list[list[tuple[int, int]]], weights: Mapping[int, float], count: int) -> list[list[int]]:
    """Deal jobs to ``count`` batches: large nodes while they fit, then smaller ones, at last single jobs."""
    deal = _Deal({name: number for number, group in enumerate(groups) for _, name in group}, weights, count)
    span = _MOST_JOBS
    while span > 1:
        deal.begin()
        left = []
        for node in (node for group in groups for node in _split(group, span)):
            # the short end of a sum goes with the smaller nodes, next to its others
            if len(node) <= span // FAN or not deal.place([name for _, name in node]):
                left.append(node)
        groups, span = left, span // FAN
    for name in sorted((name for group in groups for _, name in group), key=lambda n: -weights[n]):
        deal.even_out(name)
    return deal.batches


def _split(group: list[tuple[int, int]], span: int) -> list[list[tuple[int, int]]]:
    """Split the terms of a sum by its nodes of so many terms."""
    return [list(node) for _, node in itertools.groupby(group, key=lambda term: term[0] // span)]


def _covered(sums: Mapping[int, Sum], home: Mapping[int, int], free: AbstractSet[int]) -> dict[int, list[SumNode]]:
    """Return the nodes that each batch can add up; every job in one of them is in nodes wherever it is a term."""
    away = {name for name in home if name in free}
    while True:
        found: dict[int, list[SumNode]] = {}
        inside: dict[int, int] = {}
        uses: dict[int, int] = {}
        for key, recipe in sums.items():
            batches = [home[int(r)] if int(r) in away else -1 for _, r in recipe.terms]
            for _, ref in recipe.terms:
                uses[int(ref)] = uses.get(int(ref), 0) + 1
            for first, stop in _runs(batches):
                for a, b in nodes(first, stop, len(batches)):
                    if b - a < min(_FEWEST_TERMS, len(batches)) or b - a < 2:
                        continue
                    terms = tuple((c, int(r)) for c, r in recipe.terms[a:b])
                    found.setdefault(batches[a], []).append(SumNode(key, b, len(batches), terms))
                    for _, name in terms:
                        inside[name] = inside.get(name, 0) + 1
        kept = {name for name in away if inside.get(name, 0) == uses.get(name, 0)}
        if kept == away:
            return found
        away = kept


def _joint(
    sums: Mapping[int, Sum], home: Mapping[int, int], free: AbstractSet[int]
) -> dict[int, list[tuple[int, SumNode]]]:
    """Return the sums of several batches whose models nothing else needs: by name, their pieces and who has them."""
    uses = Counter(int(ref) for recipe in sums.values() for _, ref in recipe.terms)
    found: dict[int, list[tuple[int, SumNode]]] = {}
    for key, recipe in sums.items():
        terms = tuple((c, int(ref)) for c, ref in recipe.terms)
        if not all(name in home and name in free and uses[name] == 1 for _, name in terms):
            continue
        batches = [home[name] for _, name in terms]
        if len(set(batches)) > 1:
            found[key] = [
                (batches[a], SumNode(key, b, len(terms), terms[a:b]))
                for first, stop in _runs(batches)
                for a, b in nodes(first, stop, len(terms))
            ]
    return found


def _runs(batches: Sequence[int]) -> list[tuple[int, int]]:
    """Return the runs (from, to) of equal entries that are not -1."""
    found: list[tuple[int, int]] = []
    start = 0
    for i in range(1, len(batches) + 1):
        if i == len(batches) or batches[i] != batches[start]:
            if batches[start] >= 0:
                found.append((start, i))
            start = i
    return found
