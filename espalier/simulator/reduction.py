"""Adding many vectors in a fixed order that lets parts of it be done elsewhere, bit for bit.

Terms are added eight by eight, the eights' sums eight by eight again, and so on: a tree whose shape depends on
the number of terms alone. Whoever adds the terms of a whole node gets the number that the node has in the tree,
so a machine that computed those terms may hand back one vector instead of all of them, and the total is the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from espalier.core.errors import TrainingError
from espalier.core.params import ParamSpec
from espalier.training import native

FAN = 8
"""Children of a node: fewer would send more partial sums, more would make evenly loaded machines cut more nodes."""


class TreeSum:
    """A weighted sum in the making, in float64: terms given in order.

    ``_open[k]`` is the unfinished node of ``FAN ** (k + 1)`` terms; there is one for every level.
    """

    def __init__(self) -> None:
        self._open: list[Tensor | None] = [None]
        self.count = 0

    def add(self, coefficients: Sequence[float], vectors: Sequence[Tensor]) -> list[bool]:
        """Add ``coefficients * vectors``; return which are finite: of others only their places are kept."""
        finite: list[bool] = []
        while len(finite) < len(vectors):
            run = slice(len(finite), len(finite) + FAN - self.count % FAN)
            self._open[0], good = weighted_sum(coefficients[run], vectors[run], self._open[0])
            self._count(len(good))
            finite += good
        return finite

    def add_node(self, terms: int, total: Tensor | None) -> None:
        """Add a whole node of so many terms, whose sum was made elsewhere (None: all were left out)."""
        level = 0
        while FAN**level < terms:
            level += 1
        self._add_to_level(level, total, shared=True)
        self._count(terms)

    def total(self) -> Tensor | None:
        """Return the sum, or None if every term was left out; nothing may be added after it."""
        total: Tensor | None = None
        for level in self._open:
            if level is not None:
                total = level if total is None else level.add_(total)
        return total

    def _add_to_level(self, level: int, total: Tensor | None, shared: bool = False) -> None:
        """Add to a level's open node; a first child becomes the node itself, unless its memory is shared."""
        while len(self._open) <= level:
            self._open.append(None)
        there = self._open[level]
        if there is not None and total is not None:
            there.add_(total)
        elif total is not None:
            self._open[level] = total.clone() if shared else total

    def _count(self, terms: int) -> None:
        """Count terms; hand the nodes that they fill up to the level above."""
        self.count += terms
        level, span = 0, FAN
        while self.count % span == 0:
            if level < len(self._open):
                full, self._open[level] = self._open[level], None
                self._add_to_level(level + 1, full)
            level, span = level + 1, span * FAN


def nodes(first: int, stop: int, terms: int) -> Iterator[tuple[int, int]]:
    """Yield the largest whole nodes (from, to) that the terms ``first … stop-1`` of a sum of ``terms`` make up."""
    while first < stop:
        span = 1
        while span < terms and first % (span * FAN) == 0 and min(first + span * FAN, terms) <= stop:
            span *= FAN
        end = min(first + span, terms)
        yield first, end
        first = end


def is_finite(vector: Tensor) -> bool:
    """Tell whether a model may take part in a sum: all its numbers are finite."""
    # a finite sum is quick proof; finite numbers may still overflow it, so an infinite one is no proof of the contrary
    return math.isfinite(float(vector.sum())) or bool(torch.isfinite(vector).all())


def weighted_sum(
    coefficients: Sequence[float], vectors: Sequence[Tensor], start: Tensor | None
) -> tuple[Tensor | None, list[bool]]:
    """Add the finite ones of ``coefficients * vectors``, in order, to ``start`` (float64; None: nothing yet).

    Returns:
        The sum (None: still nothing), and which vectors are finite. ``start`` may have been written to.
    """
    kernels = native.kernels()
    if kernels is not None and kernels.adds and native.usable(*vectors):
        total, finite = kernels.weighted_sum(coefficients, vectors, start)
        if all(finite):
            return total, finite
    else:
        finite = [is_finite(vector) for vector in vectors]
    for coefficient, vector, good in zip(coefficients, vectors, finite, strict=True):
        if good:
            start = torch.zeros(len(vector), dtype=torch.float64) if start is None else start
            start.add_(vector, alpha=coefficient)
    return start, finite


def rounded_sum(coefficients: Sequence[float], vectors: Sequence[Tensor]) -> Tensor | None:
    """Return a sum of one node's terms in float32, without ever keeping it in float64; None: add them otherwise."""
    kernels = native.kernels()
    if kernels is None or not kernels.adds or not native.usable(*vectors):
        return None
    total, finite = kernels.weighted_sum(coefficients, vectors, None, rounded=True)
    return total if all(finite) else None


@dataclass(frozen=True, slots=True)
class PartialSum:
    """The sum of a whole node's terms, made where they were computed.

    Attributes:
        terms: How many there are, those left out included.
        total: Float64 ``[n_float]``, or None if every term was left out. If ``whole``, the finished model.
        whole: The node is the whole sum and no term was left out.
        dtype: The models' type.
        tail: The largest coefficient and its model's integer buffers, where models have any.
    """

    terms: int
    total: Tensor | None
    whole: bool
    dtype: torch.dtype
    tail: tuple[float, Tensor] | None = None


class RunningMerge:
    """A merge in the making: a weighted sum of models, without those that are not finite.

    Attributes:
        next: The place of the next term.
        empty: Whether every term so far was left out.
    """

    def __init__(self, spec: ParamSpec, terms: int) -> None:
        self.next = 0
        self.empty = True
        self._spec, self._terms = spec, terms
        self._sum = TreeSum()
        self._finished: Tensor | None = None
        self._dtype = torch.float32
        self._weight_kept = self._weight_lost = 0.0
        self._tail: tuple[float, Tensor] | None = None

    def add(self, coefficients: Sequence[float], vectors: Sequence[Tensor]) -> list[bool]:
        """Add the next terms; return which of them are finite: only those are added."""
        floats = self._spec.n_float
        heads = [vector[:floats] for vector in vectors] if self._spec.size > floats else vectors
        if len(vectors) == self._terms <= FAN and self._spec.size == floats:
            self._finished = rounded_sum(coefficients, vectors)
        finite = [True] * len(vectors) if self._finished is not None else self._sum.add(coefficients, heads)
        for coefficient, vector, good in zip(coefficients, vectors, finite, strict=True):
            if good:
                self._dtype = vector.dtype
                if self._spec.size > floats:
                    self._keep_tail(coefficient, vector[floats:])
            self.count(coefficient, good)
        return finite

    def count(self, coefficient: float, good: bool, part: PartialSum | None = None) -> bool:
        """Pass the next term, which is (or will be) added with a part: ``part``, if this is its last term."""
        self.next += 1
        self.empty = self.empty and not good
        if good:
            self._weight_kept += coefficient
        else:
            self._weight_lost += coefficient
        if part is not None and part.whole:
            self._finished = part.total
        elif part is not None:
            self._sum.add_node(part.terms, part.total)
            self._dtype = part.dtype
            if part.tail is not None:
                self._keep_tail(*part.tail)
        return good

    def part(self) -> PartialSum:
        """Return the terms added so far, a whole node of a sum of ``terms`` terms, as a part."""
        if self.next == self._terms and not self._weight_lost and not self.empty:
            return PartialSum(self.next, self.result(None), True, self._dtype)
        return PartialSum(self.next, self._sum.total(), False, self._dtype, self._tail)

    def result(self, fallback: Tensor | None) -> Tensor:
        """Return the finished merge.

        Raises:
            TrainingError: Every term was left out and there is no fallback.
        """
        if self._finished is not None:
            return self._finished
        total = self._sum.total()
        if total is None:
            if fallback is None:
                raise TrainingError(
                    "Every model of a merge has non-finite numbers and there is no earlier model to fall back "
                    "on. Lower the learning rate, or check the data for NaN."
                )
            return fallback
        if self._weight_lost and self._weight_kept:
            total *= (self._weight_kept + self._weight_lost) / self._weight_kept
        head = total.to(self._dtype)
        return head if self._tail is None else torch.cat([head, self._tail[1]])

    def _keep_tail(self, coefficient: float, tail: Tensor) -> None:
        """Keep the integer buffers of the largest contributor."""
        if self._tail is None or coefficient > self._tail[0]:
            self._tail = coefficient, tail.clone()
