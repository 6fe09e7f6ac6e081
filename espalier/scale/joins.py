"""Sums that several batches make up: one worker joins their pieces, and one finished model comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from espalier.scale.batches import Batch, SumNode
from espalier.scale.worker import JoinCall

#: Ray brings smaller objects to the driver in any case, so nothing is gained below
FEWEST_BYTES = 100 << 10


class Joins:
    """The joint sums of a wave.

    Attributes:
        needs: The batches that have a sum's pieces, by the number of its call: those behind the batches'.
        ends: The sum that ends with a job, and the number of its call.
    """

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = batches
        pieces: dict[int, list[tuple[int, int, SumNode]]] = {}
        for number, batch in enumerate(batches):
            for place, node in enumerate(batch.left):
                pieces.setdefault(node.sum, []).append((number, place, node))
        self._pieces = [sorted(found, key=lambda piece: piece[2].stop) for _, found in sorted(pieces.items())]
        first = len(batches)  # the calls of sums come behind those of batches
        self.needs = {first + i: {batch for batch, _, _ in found} for i, found in enumerate(self._pieces)}
        self.ends = {found[-1][2].terms[-1][1]: (found[-1][2].sum, first + i) for i, found in enumerate(self._pieces)}
        self._left: dict[int, list[Any]] = {}
        self._fits: dict[int, bool] = {}

    def calls(self) -> list[Callable[[Any], Any]]:
        """Return the functions that give sums to a worker, once all of their pieces are there."""
        return [partial(self._give, place) for place in range(len(self._pieces))]

    def keep(self, number: int, left: Sequence[Any]) -> None:
        """Remember where the pieces are that a batch leaves."""
        self._left[number] = list(left)

    def heard(self, number: int, answer: Any) -> None:
        """Remember which models of a batch are fit; forget the pieces of a sum that is done."""
        if number < len(self._batches):
            names = self._batches[number].names
            self._fits |= {name: bool(fit) for name, fit in zip(names, answer.fits, strict=True)}
        else:
            for batch, place, _ in self._pieces[number - len(self._batches)]:
                self._left[batch][place] = None

    def call(self, place: int) -> tuple[JoinCall, list[Any]]:
        """Return what joins a sum, and its pieces."""
        pieces = self._pieces[place]
        terms = tuple((c, self._fits[name]) for _, _, node in pieces for c, name in node.terms)
        call = JoinCall(terms, tuple(len(node.terms) for _, _, node in pieces))
        return call, [self._left[batch][at] for batch, at, _ in pieces]

    def _give(self, place: int, actor: Any) -> Any:
        call, pieces = self.call(place)
        return actor.join.remote(call, *pieces)
