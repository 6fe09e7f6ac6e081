"""Who belongs together by affinity: CFLHKD's dynamic clustering over places (edges, or names at the cloud).

What is known of a device is its label histogram and, once it has trained, something whose cosines are those of its
updates. From both come affinities (Eq. 17) and clusters (:mod:`espalier.methods.cflhkd.fdc`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from espalier.core.address import Address
from espalier.methods.cflhkd import fdc
from espalier.methods.cflhkd.affinity import affinity, cosines, jensen_shannon_matrix, ranking
from espalier.policies.dendrogram import Floats, Place, match


def at_rest(place: Mapping[Address, Place], norms: Mapping[Address, float], least: float) -> set[Place]:
    """Return the clusters whose devices' updates are shorter than ``least`` on average.

    The updates of a cluster that has learnt what it can are noise around zero; clustering by their directions would
    tear it apart.
    """
    found: dict[Place, list[float]] = {}
    for device, norm in norms.items():
        if device in place:
            found.setdefault(place[device], []).append(norm)
    return {p for p, inside in found.items() if np.mean(inside) < least}


@dataclass(frozen=True)
class AffinityRule:
    """How devices are clustered.

    Attributes:
        gamma: Share of the label distributions in an affinity; the rest is the updates'.
        delta: Greatest distance of a device's affinity row to its cluster's centroid.
        distance: Whose entries of a row count in it.
        most: Greatest number of clusters.
    """

    gamma: float = 0.5
    delta: float = 0.7
    distance: fdc.Distance = "members"
    most: int = 8

    def affinities(
        self, devices: Sequence[Address], histograms: Mapping[Address, Any], directions: Mapping[Address, Any]
    ) -> Floats:
        """Return affinities ``[n, n]``; a device that has not trained yet agrees with everybody's direction.

        Args:
            devices: The n devices.
            histograms: The label histogram ``[C]`` of each.
            directions: Vectors ``[d]`` of those that have trained.
        """
        cosine = np.ones((len(devices), len(devices)))
        if not devices:
            return cosine
        seen = [i for i, d in enumerate(devices) if d in directions]
        if seen:
            cosine[np.ix_(seen, seen)] = cosines(np.stack([directions[devices[i]] for i in seen]))
        apart = jensen_shannon_matrix(np.stack([histograms[d] for d in devices]))
        return affinity(apart, cosine, self.gamma)

    def form(
        self,
        devices: Sequence[Address],
        affinities: Floats,
        current: Mapping[Address, Place],
        places: Sequence[Place],
        *,
        most: int | None = None,
        least: int = 1,
    ) -> tuple[dict[Address, Place], fdc.Formed]:
        """Cluster everybody anew, into ``least`` to ``most`` clusters; return everybody's place, and what decided."""
        if not devices or not places:
            return {}, fdc.Formed([])
        most = max(1, min(self.most if most is None else most, len(places)))
        found = fdc.cluster(affinities, self.delta, most, least=least, distance=self.distance)
        return match([[devices[i] for i in c] for c in found.clusters], current, places), found

    def mend(
        self,
        devices: Sequence[Address],
        affinities: Floats,
        current: Mapping[Address, Place],
        places: Sequence[Place],
        loose: Collection[Address],
    ) -> dict[Address, Place]:
        """Find places for the loose devices, beside the others or at a free one; nobody else moves."""
        clusters = [[i for i, d in enumerate(devices) if d not in loose and current.get(d) == p] for p in places]
        order = [i for i in ranking(affinities) if devices[i] in loose]
        found = fdc.assign(affinities, order, self.delta, min(self.most, len(places)), clusters, self.distance)
        where = {devices[i]: place for place, members in zip(places, found.clusters, strict=True) for i in members}
        return {d: where[d] for d in loose}
