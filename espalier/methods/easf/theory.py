"""What EASF's analysis is about, beside practice: Δ_r (Eq. 15), and how far Eq. (8) goes with labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from espalier.core.messages import ALL
from espalier.core.policies import Merge
from espalier.core.store import Ref
from espalier.core.view import Arrival, View

#: what the root writes into the run's record in every round
DISCREPANCY_EVENT = "discrepancy"
#: clusters that are drawn to see what a statistic tells of labels, and devices in each (at most half of all)
DRAWN_CLUSTERS, DRAWN_SIZE = 2000, 8


def discrepancy(clusters: NDArray[Any], merged: NDArray[Any]) -> float:
    """Eq. (15): Δ_r, the mean squared distance of the clusters' models ``[K, P]`` from the global one ``[P]``."""
    return float(((clusters.astype(np.float64) - merged.astype(np.float64)) ** 2).sum(axis=1).mean())


def label_correlation(statistics: ArrayLike, labels: ArrayLike, rng: np.random.Generator) -> float:
    """Return how far Eq. (8) goes with labels: a correlation over clusters of devices drawn at random.

    Of a cluster's distance from everybody in the statistic (|Acc_l - ACC|), and in label shares. Clusters whose
    accuracy is balanced have balanced labels only if it is near 1; NaN where all clusters are alike.

    Args:
        statistics: ``[N, d]``.
        labels: ``[N, C]`` label shares.
        rng: Draws the clusters.
    """
    table, shares = np.atleast_2d(np.asarray(statistics, dtype=float)), np.asarray(labels, dtype=float)
    drawn = rng.random((DRAWN_CLUSTERS, len(table))).argsort(axis=1)[:, : max(1, min(DRAWN_SIZE, len(table) // 2))]
    far = [np.abs(v[drawn].mean(axis=1) - v.mean(axis=0)).sum(axis=1) for v in (table, shares)]
    if min(f.std() for f in far) < 1e-12:
        return float("nan")
    return float(np.corrcoef(far)[0, 1])


@dataclass(frozen=True)
class WatchedMerge(Merge, kind="easf_watched"):
    """The average by samples; the root records how far its children's models are from it."""

    def merge(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
        """Return the new model."""
        merged = super().merge(view, arrivals)
        models = [a.report.models[ALL] for a in arrivals if ALL in a.report.models]
        if view.order is None and ALL in merged and models:
            first, *rest = view.store.vectors([merged[ALL], *models]).numpy()
            view.note(DISCREPANCY_EVENT, round=view.clock, value=discrepancy(np.stack(rest), first))
        return merged
