"""FL+HC: a few rounds together, then clusters by agglomerating the devices' updates.

Briggs, Fan, Andras. Federated learning with hierarchical clustering of local updates to improve training on non-IID
data. IJCNN 2020.

After ``after`` rounds of FedAvg *all* devices train ``cluster_updates`` epochs from the common model. What they learnt
is agglomerated (``metric`` l1, l2 or cosine; ``linkage``) and the dendrogram is cut at ``threshold``, or into
``clusters`` clusters. Each cluster then runs FedAvg by itself, at its own speed, from its members' average.

Briggs et al. cluster once and cut at a distance (recommended: l1; T = 3 for l2 on MNIST, 10 on FEMNIST): that is
``every = 0, threshold = T``. The defaults are CFLHKD's settings, "depth 3, reassignment every 15 rounds", read as:
cluster after 15 rounds and again every 15, from the average of the clusters' models weighted by samples; undo the last
three merges, that is four clusters. The threshold's scale is that of the updates: it depends on the model and the
learning rate. Cosine means one minus the cosine: a public implementation passes the similarity as a distance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from espalier.core.address import Address
from espalier.core.bounds import NonNegativeFloat, PositiveInt
from espalier.core.messages import ALL
from espalier.core.method import Category, Plan, SampledMethod, Setting
from espalier.core.policies import Survey
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.policies.cloud_clusters import Regrouping, blend, samples_of
from espalier.policies.dendrogram import Linkage, note_similarity
from espalier.policies.update_clustering import Metric, distances, hierarchical


@dataclass(frozen=True)
class Agglomeration(Regrouping, kind="agglomeration"):
    """Asks all devices to train from the common model and clusters them by their updates."""

    @dataclass(slots=True)
    class State(Regrouping.State):
        """With the model from which everybody trained last for the clustering."""

        joint: Ref | None = None

    once: bool = False
    updates: int = 3
    metric: Metric = "l1"
    linkage: Linkage = "average"
    threshold: float | None = None
    clusters: int | None = 4

    def due(self, view: View) -> bool:
        """Tell whether clusters are formed now."""
        return super().due(view) and not (self.once and view.state(self).stage > 0)

    def survey(self, view: View) -> Survey | None:
        """Ask everybody to train from the average of the clusters' models."""
        if not self.due(view):
            return None
        members = self.members(view)
        shares = [(sum(samples_of(view, d) for d in inside), view.models[g]) for g, inside in members.items()]
        joint = blend(view.store, shares) if shares else next(iter(view.models.values()))
        view.state(self).joint = joint
        return Survey(ask=None, updates=self.updates, models={ALL: joint})

    def regroup(
        self, view: View, answers: Mapping[Address, Arrival]
    ) -> tuple[dict[str, list[Address]], dict[str, Ref]] | None:
        """Agglomerate the answers; each cluster starts from its members' average."""
        ends = {d: model for d, a in sorted(answers.items()) for model in a.report.models.values()}
        joint = view.state(self).joint
        if not ends or joint is None:
            return None
        devices = list(ends)
        vectors = view.store.vectors([joint, *ends.values()])[:, : view.store.spec.n_params]
        apart = distances(vectors[1:] - vectors[0], self.metric)
        note_similarity(view, devices, apart, f"{self.metric} distance of updates")
        found = hierarchical(apart, threshold=self.threshold, count=self.clusters, method=self.linkage)
        groups = {str(k): [devices[i] for i in places] for k, places in enumerate(found)}
        models = {g: blend(view.store, ((samples_of(view, d), ends[d]) for d in m)) for g, m in groups.items()}
        return groups, models


@dataclass(frozen=True)
class FLHC(SampledMethod, kind="flhc"):
    """Clusters by agglomerating all devices' updates after ``after`` rounds and every ``every`` rounds from then on.

    ``every = 0`` clusters once. ``threshold`` cuts at a distance in place of ``clusters``.
    """

    title: ClassVar[str] = "FL+HC"
    category: ClassVar[Category] = "clustered"
    citation: ClassVar[str] = (
        "Briggs et al., Federated learning with hierarchical clustering of local updates, IJCNN 2020"
    )

    after: PositiveInt = 15
    every: int = 15
    cluster_updates: PositiveInt = 3
    metric: Metric = "l1"
    linkage: Linkage = "average"
    clusters: PositiveInt | None = 4
    threshold: NonNegativeFloat | None = None

    def check(self) -> None:
        """Refuse another rhythm than once or every ``after`` rounds."""
        self.require(self.every in (0, self.after), "every", "0 (once), or equal to after")

    def plan(self, setting: Setting) -> Plan:
        """A barrier per cluster at the cloud."""
        count = self.clusters if self.threshold is None else None
        structure = Agglomeration(
            every=self.after, once=self.every == 0, updates=self.cluster_updates, metric=self.metric,
            linkage=self.linkage, threshold=self.threshold, clusters=count,
        )  # fmt: skip
        return Plan(root=structure.rules(setting.updates, self.share(setting)))
