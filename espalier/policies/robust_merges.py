"""Robust merges as policies: put one in place of any method's merge, at any tier.

    { name = "hierfavg", edge = { merge = { kind = "median" } }, root = { merge = { kind = "krum" } } }

Each takes the models of a round as they were reported and merges them group by group. What is not finite is left
out and noted. Sample counts are claims of the children, so merges are without weights unless ``weighted`` is set.
``share`` is the share of the reports that may be hostile; with so few reports that a merge is not defined for it,
fewer are assumed, and three or less are merged by their median.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from espalier.core.bounds import Bound
from espalier.core.policies import Merge
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.policies import robust


@dataclass(frozen=True)
class RobustMerge(Merge, ABC):
    """The base: collects the models of each group and hands them to :meth:`blend`.

    Attributes:
        weighted: Whether models count by their samples; a liar may claim many.
    """

    weighted: bool = False

    @abstractmethod
    def blend(self, models: Tensor, weights: Tensor | None, start: Tensor | None) -> Tensor:
        """Merge models ``[K, P]`` (K ≥ 1, all finite), by weights ``[K]`` if given.

        Args:
            models: One row per report, floating numbers only.
            weights: Positive numbers, or None.
            start: ``[P]`` what the aggregator had before the round, if it had a model.
        """

    def merge(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
        """Return the new models per group; a group without usable reports keeps its model."""
        found = {group: self._merged(view, group, terms) for group, terms in self.claims(view, arrivals).items()}
        return {group: model for group, model in found.items() if model is not None}

    def _merged(self, view: View, group: str, terms: list[tuple[float, Ref]]) -> Ref | None:
        store, base = view.store, view.models.get(group)
        refs = [ref for _, ref in terms]
        vectors = store.vectors(refs if base is None else [*refs, base])
        floats = store.spec.n_float
        models = vectors[: len(refs), :floats]
        fit = torch.isfinite(models.sum(dim=1, dtype=torch.float64))
        claims = torch.tensor([weight for weight, _ in terms], dtype=torch.float64)
        weighted = self.weighted and bool((claims > 0).any())
        if weighted:
            fit &= claims > 0
        if not bool(fit.all()):
            view.note("rejected", group=group, reports=int((~fit).sum()), why="not finite, or without samples")
        if not bool(fit.any()):
            return base
        start = None if base is None else vectors[-1, :floats]
        result = self.blend(models[fit], claims[fit] if weighted else None, start)
        # Counters cannot be blended: they come from the report that claims most samples.
        largest = int(torch.where(fit, claims, -1.0).argmax())
        return store.put(torch.cat([result, vectors[largest, floats:]]))


@dataclass(frozen=True)
class Median(RobustMerge, kind="median"):
    """The coordinate-wise median."""

    def blend(self, models: Tensor, weights: Tensor | None, start: Tensor | None) -> Tensor:
        """Merge models."""
        return robust.coordinate_median(models, weights)


@dataclass(frozen=True)
class GeometricMedian(RobustMerge, kind="geometric_median"):
    """The point with the least sum of distances to the models (RFA)."""

    def blend(self, models: Tensor, weights: Tensor | None, start: Tensor | None) -> Tensor:
        """Merge models."""
        return robust.geometric_median(models, weights)


@dataclass(frozen=True)
class Clipped(RobustMerge, kind="clipped"):
    """The mean of changes, none longer than ``bound`` (default: the median length)."""

    bound: Annotated[float, Bound(gt=0, words="more than 0, or left out")] | None = None

    def blend(self, models: Tensor, weights: Tensor | None, start: Tensor | None) -> Tensor:
        """Merge models."""
        centre = robust.coordinate_median(models) if start is None else start
        if not bool(torch.isfinite(centre).all()):
            centre = robust.coordinate_median(models)
        return robust.clipped_mean(models, centre, self.bound, weights)


@dataclass(frozen=True)
class _Sharing(RobustMerge, ABC):
    share: Annotated[float, Bound(ge=0, lt=0.5, words="in [0, 0.5): a majority cannot be outvoted")] = 0.2

    def hostile(self, count: int, most: int) -> int:
        """Return how many of ``count`` reports are taken for hostile: the share, rounded up, at most ``most``."""
        return max(0, min(most, math.ceil(self.share * count - 1e-9)))


@dataclass(frozen=True)
class TrimmedMean(_Sharing, kind="trimmed_mean"):
    """The mean of every coordinate without its smallest and largest values."""

    def blend(self, models: Tensor, weights: Tensor | None, start: Tensor | None) -> Tensor:
        """Merge models."""
        return robust.trimmed_mean(models, self.hostile(len(models), (len(models) - 1) // 2), weights)


@dataclass(frozen=True)
class Krum(_Sharing, kind="krum"):
    """The one model that lies closest to its neighbours."""

    def blend(self, models: Tensor, weights: Tensor | None, start: Tensor | None) -> Tensor:
        """Merge models."""
        if len(models) <= 3:
            return robust.coordinate_median(models, weights)
        return robust.krum(models, self.hostile(len(models), (len(models) - 3) // 2))


@dataclass(frozen=True)
class MultiKrum(_Sharing, kind="multi_krum"):
    """The mean of the models with the best Krum scores (as many as are not taken for hostile, less two)."""

    def blend(self, models: Tensor, weights: Tensor | None, start: Tensor | None) -> Tensor:
        """Merge models."""
        if len(models) <= 3:
            return robust.coordinate_median(models, weights)
        hostile = self.hostile(len(models), (len(models) - 3) // 2)
        return robust.multi_krum(models, hostile, weights=weights)
