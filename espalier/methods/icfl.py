"""ICFL: clusters that devices join one by one, and that merge and split by how well they are connected.

Yan, Tong, Wang. Clustered Federated Learning in Heterogeneous Environment. IEEE TNNLS 2023.

All devices begin in one cluster that runs FedAvg. Every ``every`` rounds the cloud looks at the last update of each
device; the connectivity of two devices is the cosine of their updates, of a device and a cluster the mean over its
members. First, *incremental*: devices in order of their number join the cluster with which they are connected best, if
to at least ``threshold``, else they open one; a device that has a cluster moves only where it is connected better by
``margin``. Then, *clustering*: the two best connected clusters merge while they are connected to at least
``threshold``, and a cluster whose devices are connected to less on average is split in two. At most ``most`` clusters.
Each runs FedAvg at its own speed.

The paper's full text was not at hand: the two steps per iteration, connectivity inside clusters as the measure and the
absence of a preset number of clusters are the paper's; cosines of updates, the thresholds, the margin and the limit
are ours, and ``every = 10``, ``threshold = 0.7`` CFLHKD's settings. Near the end of training the updates of a good
cluster are mere noise, no longer connected: a cluster is split only while its devices are ``restless``, the mean norm
of their updates at least that share of the greatest mean met in the run (without this, good clusters fall apart).
A new cluster starts from the average of the models its devices had, a merged one from the average of both, the halves
of a split one from its model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from espalier.core.address import Address
from espalier.core.bounds import Cosine, NonNegativeFloat, PositiveInt
from espalier.core.messages import ALL
from espalier.core.method import Category, Plan, SampledMethod, Setting
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.policies.cloud_clusters import Regrouping, blend, group_of, samples_of
from espalier.policies.dendrogram import match, note_similarity
from espalier.policies.update_clustering import cosines_of_gram, gram, incremental, reconcile


@dataclass(frozen=True)
class Incremental(Regrouping, kind="incremental"):
    """Lets devices join, move, and clusters merge and split by connectivity."""

    @dataclass(slots=True)
    class State(Regrouping.State):
        """With the cluster that each device was put into, and the greatest mean norm met so far."""

        assigned: dict[Address, str] = field(default_factory=dict)
        peak: float = 0.0

    threshold: float = 0.7
    margin: float = 0.05
    most: int = 10
    restless: float = 0.75

    def regroup(
        self, view: View, answers: Mapping[Address, Arrival]
    ) -> tuple[dict[str, list[Address]], dict[str, Ref]] | None:
        """One iteration: incremental clustering, then merging and splitting."""
        state = view.state(self)
        assigned = state.assigned
        known = self.members(view)
        seen, updates = self.last_updates(view, sorted(d for inside in known.values() for d in inside))
        if not seen:
            return None
        names = sorted({assigned[d] for d in seen if d in assigned} & set(view.models))
        number = {name: i for i, name in enumerate(names)}
        products = gram(updates)
        connectivity, norms = cosines_of_gram(products), np.sqrt(np.diag(products))
        note_similarity(view, seen, connectivity, "cosine of updates")
        state.peak = max(float(norms.mean()), state.peak)
        current = {i: number[assigned[d]] for i, d in enumerate(seen) if assigned.get(d) in number}
        joined = incremental(connectivity, current, self.threshold, self.most, self.margin)
        steps = [[i for i, c in joined.items() if c == k] for k in sorted(set(joined.values()))]
        final = reconcile(connectivity, steps, self.threshold, self.most, norms, self.restless * state.peak)
        clusters = [[seen[i] for i in c] for c in final]
        places = [*names, *(self.fresh_name(view) for _ in range(max(0, len(clusters) - len(names))))]
        placed = match(clusters, {d: assigned[d] for d in seen if assigned.get(d) in number}, places)
        groups: dict[str, list[Address]] = {}
        for device in seen:
            groups.setdefault(placed[device], []).append(device)
        models = self._models(view, groups, {d: joined[i] for i, d in enumerate(seen)}, names)
        if len(groups) == 1:
            groups, models = {ALL: next(iter(groups.values()))}, {ALL: next(iter(models.values()))}
        state.assigned = {d: name for name, inside in groups.items() for d in inside}
        _place_unseen(groups, known, set(seen))
        return groups, models

    def _models(
        self, view: View, groups: Mapping[str, list[Address]], joined: Mapping[Address, int], names: Sequence[str]
    ) -> dict[str, Ref]:
        """Return the clusters' models: blends of what their devices had.

        A device that joined a cluster takes over its model; one that opened a cluster brings its own.
        """
        return {
            name: blend(
                view.store,
                (
                    (
                        samples_of(view, d),
                        view.models[names[joined[d]] if joined[d] < len(names) else group_of(view, d)],
                    )
                    for d in inside
                ),
            )
            for name, inside in groups.items()
        }


def _place_unseen(
    groups: dict[str, list[Address]], known: Mapping[str, Sequence[Address]], seen: AbstractSet[Address]
) -> None:
    """Leave devices of which nothing is known in their group if it goes on, else put them into the largest."""
    largest = max(groups, key=lambda g: (len(groups[g]), g))
    for name, inside in known.items():
        groups[name if name in groups else largest] += [d for d in inside if d not in seen]


@dataclass(frozen=True)
class ICFL(SampledMethod, kind="icfl"):
    """Clusters form, merge and split by the mean cosine of updates, every ``every`` rounds."""

    title: ClassVar[str] = "ICFL"
    category: ClassVar[Category] = "clustered"
    citation: ClassVar[str] = "Yan et al., Clustered Federated Learning in Heterogeneous Environment, IEEE TNNLS 2023"
    reconstruction: ClassVar[str] = (
        "the idea (incremental clustering, then clustering, by average connectivity) is the paper's; formulas are ours"
    )

    every: PositiveInt = 10
    threshold: Cosine = 0.7
    margin: NonNegativeFloat = 0.05
    most: PositiveInt = 10
    restless: NonNegativeFloat = 0.75

    def plan(self, setting: Setting) -> Plan:
        """A barrier per cluster at the cloud."""
        structure = Incremental(
            every=self.every, threshold=self.threshold, margin=self.margin, most=self.most, restless=self.restless
        )
        return Plan(root=structure.rules(setting.updates, self.share(setting)))
