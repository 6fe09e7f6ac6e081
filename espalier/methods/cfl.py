"""CFL: clusters by splitting in two wherever devices pull in opposite directions.

Sattler, Müller, Samek. Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under Privacy
Constraints. IEEE TNNLS 2021.

All devices begin in one cluster that runs FedAvg. Every ``every`` rounds the cloud looks at the last update of each
device of a cluster. If their mean has come to rest (its norm is below ``eps1``) while some device has not (norm above
``eps2``), the cluster is split in two by complete linkage on one minus the cosine of the updates, provided that no two
devices of different sides have a cosine of ``threshold`` or more. The two sides go on by themselves, each at its
own speed, from the average of those of its devices that worked in the last round.

Differences from the authors' code: devices that were not drawn in a round count with their last update, those never
drawn go with the larger side; averages are weighted by samples (``weighted = false`` is theirs); the places of a split
*inside* its cluster are mapped back to devices, which the authors' notebook forgets from the second split on; cosines
are of parameters only. ``eps1`` and ``eps2`` depend on the model and the learning rate: the defaults are those of the
notebook. ``relative = true`` makes them shares: of the cluster's largest norm, and of the largest norm met so far in
the run (0.4 and 0.7 by default). ``every = 10`` and ``threshold = 0.7`` are CFLHKD's settings; Sattler tests every
round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from espalier.core.address import Address
from espalier.core.bounds import Cosine, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from espalier.core.method import Category, Plan, SampledMethod, Setting
from espalier.core.policies import Merge
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.policies.cloud_clusters import EqualMerge, Regrouping, blend, samples_of
from espalier.policies.dendrogram import note_similarity
from espalier.policies.update_clustering import bipartition, cosines_of_gram, gram, may_split, norms_of


@dataclass(frozen=True)
class Bipartition(Regrouping, kind="bipartition"):
    """Splits a cluster in two when it rests as a whole but its devices do not."""

    @dataclass(slots=True)
    class State(Regrouping.State):
        """With the largest norm met so far."""

        peak: float = 0.0

    after: int = 20
    eps1: float = 0.4
    eps2: float = 1.6
    relative: bool = False
    threshold: float = 0.7
    weighted: bool = True

    def limits(self, view: View, greatest: float) -> tuple[float, float]:
        """Return the two thresholds, in the scale of the updates if they are relative."""
        if not self.relative:
            return self.eps1, self.eps2
        state = view.state(self)
        state.peak = max(greatest, state.peak)
        return self.eps1 * greatest, self.eps2 * state.peak

    def regroup(
        self, view: View, answers: Mapping[Address, Arrival]
    ) -> tuple[dict[str, list[Address]], dict[str, Ref]] | None:
        """Test every cluster; return all clusters if any was split."""
        if view.clock <= self.after:
            return None
        groups: dict[str, list[Address]] = {}
        models: dict[str, Ref] = {}
        for name, members in self.members(view).items():
            sides = self.split(view, members) or [members]
            for side in sides:
                own = name if len(sides) == 1 else self.fresh_name(view)
                groups[own] = side
                models[own] = view.models[name] if len(sides) == 1 else self.model(view, name, members, side)
        return (groups, models) if len(groups) > len(view.models) else None

    def split(self, view: View, members: list[Address]) -> list[list[Address]] | None:
        """Return a cluster's two sides, or None if it stays whole."""
        seen, updates = self.last_updates(view, members)
        if len(seen) <= 2:
            return None
        products = gram(updates)
        weights = np.array([samples_of(view, d) if self.weighted else 1.0 for d in seen])
        mean, greatest = norms_of(products, weights)
        allowed = may_split(mean, greatest, *self.limits(view, greatest))
        cosines = cosines_of_gram(products)
        note_similarity(view, seen, cosines, "cosine of updates")
        found = bipartition(cosines, self.threshold) if allowed else None
        view.note("split", devices=len(seen), mean=mean, greatest=greatest, split=found is not None)
        if found is None:
            return None
        sides = [[seen[i] for i in side] for side in found]
        larger = max(sides, key=len)
        larger += [d for d in members if d not in set(seen)]
        return [sorted(side) for side in sides]

    def model(self, view: View, name: str, members: list[Address], side: list[Address]) -> Ref:
        """Return the average of a side's devices that worked in the cluster's last round."""
        known = view.state(self).updates
        last = max(known[d][2] for d in members if d in known)
        terms = [
            (samples_of(view, d) if self.weighted else 1.0, known[d][1])
            for d in side
            if d in known and known[d][2] == last
        ]
        return blend(view.store, terms) if terms else view.models[name]


@dataclass(frozen=True)
class CFL(SampledMethod, kind="cfl"):
    """Splits clusters in two by the cosines of updates, every ``every`` rounds and not in the first ``after``."""

    title: ClassVar[str] = "CFL"
    category: ClassVar[Category] = "clustered"
    citation: ClassVar[str] = "Sattler et al., Clustered Federated Learning, IEEE TNNLS 2021"

    every: PositiveInt = 10
    after: NonNegativeInt = 20
    eps1: PositiveFloat = 0.4
    eps2: NonNegativeFloat | None = None
    relative: bool = False
    threshold: Cosine = 0.7
    weighted: bool = True

    def plan(self, setting: Setting) -> Plan:
        """A barrier per cluster at the cloud."""
        eps2 = (0.7 if self.relative else 1.6) if self.eps2 is None else self.eps2
        structure = Bipartition(
            every=self.every, after=self.after, eps1=self.eps1, eps2=eps2, relative=self.relative,
            threshold=self.threshold, weighted=self.weighted,
        )  # fmt: skip
        merge = Merge() if self.weighted else EqualMerge()
        return Plan(root=structure.rules(setting.updates, self.share(setting), merge))
