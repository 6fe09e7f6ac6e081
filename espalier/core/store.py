"""Models by reference: what nodes and policies may do with a model without holding it.

A node never carries a vector. It carries a :class:`Ref`, and builds new models out of old ones with
:meth:`ModelStore.combine`. The simulator's store is lazy (nothing is computed until someone looks); a
deployed node's store holds the vectors it received. Policies cannot tell the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from espalier.core.params import ParamSpec, Spans


class Ref(int):
    """A model's name in a store."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Ref({int(self)})"


class ModelStore(Protocol):
    """Model algebra."""

    @property
    def spec(self) -> ParamSpec:
        """Names and shapes of the flat vector."""
        ...

    def initial(self, index: int = 0) -> Ref:
        """Return the ``index``-th initial model of the run (the same for every method under one seed)."""
        ...

    def combine(self, terms: Sequence[tuple[float, Ref]], fallback: Ref | None = None) -> Ref:
        """Return ``sum(c * w)``.

        A term that turns out not to be finite is left out, recorded, and the other coefficients are
        scaled up to the same sum; when no term is left the result is ``fallback``.
        """
        ...

    def splice(self, base: Ref, part: Ref, spans: Spans) -> Ref:
        """Return ``base`` with the numbers of ``part`` in some places (see :meth:`ParamSpec.spans`)."""
        ...

    def put(self, vector: Tensor) -> Ref:
        """Keep a vector ``[spec.size]`` and return its name."""
        ...

    def vectors(self, refs: Sequence[Ref]) -> Tensor:
        """Return the models as rows ``[len(refs), spec.size]``: this computes them."""
        ...

    def loss(self, ref: Ref) -> float:
        """Return the mean training loss of the training that made a model, or of those it averages (else NaN)."""
        ...
