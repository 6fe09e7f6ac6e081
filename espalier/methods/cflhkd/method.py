"""CFLHKD: clusters at edges that keep their own models, share what they know through the cloud, and survive drift.

Ahmad, Kanatbekova, Brandić, Aral. Clustered Federated Learning with Hierarchical Knowledge Distillation.

Devices are clustered by label histograms and directions of training; edge k hosts cluster k. In every round each edge
runs FedAvg with a share of its devices. Every ``share_every`` rounds the edges send their models up; the cloud blends
them by size, accuracy and closeness to the common model (Eq. 12, 13), and each edge pulls its own model towards the
result by a step that shrinks with their divergence (Eq. 15, 16). Every ``cluster_every`` rounds all devices are
clustered anew; devices whose labels drift tell so when they are next drawn, and only they are put elsewhere.

Where the paper is silent or contradicts itself we read it so:

- Eq. (13) has the common model on both sides: distances are to the previous one (the first time, to the average by
  size). Its lambda is the "model drift" weight 0.005, that of Eq. (14) to (16) is 0.1.
- Eq. (15) needs the cluster's data, which the edge has not: the devices' training is the data's part, the edge adds the
  pull. ``refine = "client"`` lets devices do it, in one more epoch with the pull in their loss.
- Eq. (17) adds a divergence to a similarity: we take one minus the divergence. Cosines of whole models are always near
  1: we take those of updates (``affinity_on = "weights"`` is as printed). The edge tells the cloud a sketch of each
  update, ``sketch`` numbers, not the update itself.
- The updates of a cluster that has learnt what it can are noise, and clustering by their directions would tear it apart
  (planted clusters, found at the first clustering, are lost at the second): a cluster takes part in a scheduled
  clustering only while it is ``restless``, its devices' updates at least that share of the longest average so far.
- Thresholds: ``delta`` bounds distances of affinities, ``drift`` the divergence of a device's labels. Which entries of
  an affinity row count in a distance decides how many clusters there are (:mod:`espalier.methods.cflhkd.fdc`).
- Schedule: Algorithm 1 does everything in every round, and so do we. The appendix has the cluster models "updated every
  10 rounds" and the global one every 30: ``share_every = 30, tell_every = 10, cluster_every = 30`` if devices and edges
  meet every round; literally ``edge_interval = 10``, where devices train ten rounds' work between two merges, and one
  round of the run is ten of the paper's. Recovery within two rounds of a drift, as reported, is impossible that way.
- A round is over, and models are measured, when the edges have pulled theirs to the common one.
- Accuracy is that of the cluster's model on the samples that the round's devices hold out (``partition.val_fraction``);
  without any, clusters count by size and closeness.
- "Multi-teacher knowledge distillation" names the blend and the pull; nothing more is defined. ``distil`` epochs of
  real distillation from the clusters' models to the common one, on samples that no device holds, are an option.

Ablations: ``bilevel = false`` (devices report to the cloud, clusters never meet), ``refine = "none"``,
``clustering = "initial"`` (never anew; ``"given"`` leaves devices at their edges).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from espalier.core.bounds import Bound, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, UnitFloat
from espalier.core.messages import Order, Train
from espalier.core.method import Category, Plan, SampledMethod, Setting
from espalier.core.policies import Contribution, Local, LocalView, Rules, Selection
from espalier.core.statistics import LocalData, label_histogram, register_statistic
from espalier.core.store import Ref
from espalier.methods.cflhkd.bilevel import CloudHandDown, CloudMerge, CloudPace, EdgeHandDown, EdgePace, Occupied
from espalier.methods.cflhkd.edge_clusters import EdgeClusters
from espalier.methods.cflhkd.fdc import Distance, jensen_shannon
from espalier.methods.cflhkd.flat_affinity import FlatAffinity
from espalier.policies.cloud_clusters import ClusterHandDown, ClusterPace


# A tenth of the samples is held out; evaluating costs a third of a training step.
@register_statistic("checkup", lambda n_batches, n_models: n_batches * n_models / 30)
def checkup(local: LocalData, vectors: Sequence[Tensor], **args: Any) -> dict[str, Any]:
    """Return the label histogram and the first model's accuracy on held-out samples (if there are any)."""
    scores = local.held_out(vectors[:1])
    return {**label_histogram(local, []), **({"accuracy": scores[0]} if scores else {})}


@dataclass(frozen=True)
class Watchful(Local, kind="watchful"):
    """Local training that tells of drift; ``threshold`` is a divergence in bits (None: it does not watch).

    A device keeps the label histogram that it sent last. Before it trains it compares its labels of now with it; if the
    Jensen–Shannon divergence exceeds ``threshold``, it sends the new histogram with its report, and only then: 4 bytes
    per class. When it is asked to (the order says ``tell``), it also scores the model it got on the samples it holds
    out. An order's ``pull`` is the strength of the pull towards its anchor.
    """

    @dataclass(slots=True)
    class State:
        """The label histogram that the device sent last, and what its next report must say."""

        histogram: NDArray[Any] | None = None
        say: dict[str, Any] = field(default_factory=dict)

    threshold: float | None = 0.3

    def train(self, view: LocalView, order: Order) -> Train:
        """Return the training, pulled to the anchor if the order says so."""
        start = next(iter(order.models.values()))
        pull = float(order.args.get("pull", 0.0))
        anchor = order.anchor if pull else None
        return Train(start=start, updates=order.updates, clock=order.clock, anchor=anchor, mu=pull)

    def question(self, view: LocalView, order: Order) -> str | None:
        """Look at the labels, and at the model if the order asks for it."""
        if order.args.get("tell"):
            return "checkup"
        return "label_histogram" if self.threshold is not None and not order.args else None

    def answer(self, view: LocalView, order: Order, values: Mapping[str, Any]) -> Order:
        """Keep what the report must say."""
        state = view.state(self)
        if "accuracy" in values:
            state.say["accuracy"] = float(values["accuracy"])
        if self.threshold is not None:
            now = np.asarray(values["histogram"])
            if state.histogram is None:
                state.histogram = now
            if jensen_shannon(state.histogram, now) > self.threshold:
                state.say["histogram"] = state.histogram = now
        return order

    def reply(self, view: LocalView, order: Order, values: dict[str, Any]) -> dict[str, Any]:
        """Remember the histogram that the cloud asked for."""
        if self.threshold is not None and "histogram" in values:
            view.state(self).histogram = np.asarray(values["histogram"])
        return values

    def done(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Contribution:
        """Say it."""
        state = view.state(self)
        said, state.say = state.say, {}
        if state.histogram is None:
            view.drop_state(self)
        return replace(super().done(view, order, models), stats=said)


@dataclass(frozen=True)
class CFLHKD(SampledMethod, kind="cflhkd"):
    """Bi-level aggregation over clusters that form by affinity and mend after drift.

    Attributes:
        fraction: Share of a cluster's devices in each round (default: the experiment's).
        share_every: Rounds between blends at the cloud.
        tell_every: Rounds between reports of accuracies.
        cluster_every: Rounds between clusterings.
        edge_interval: Rounds' work that a device does between two merges at its edge.
        lam0: Greatest strength of the pull to the common model.
        lam2: Penalty of distant clusters in the blend.
        refine: Who pulls.
        gamma: Share of label distributions in affinities; the rest is the updates'.
        delta: Greatest distance to a cluster's centroid.
        distance: Whose entries of an affinity row count in it: those of the cluster's members, or all.
        drift: Divergence of its labels (in bits) at which a device tells that they have drifted.
        initial_clusters: Least number of clusters at the beginning.
        most: Greatest number of clusters (never more than edges).
        affinity_on: What cosines are taken of.
        restless: Clusters whose devices' updates have shrunk below this share of the longest average stay as they are.
        sketch: Numbers that stand for a device's update.
        clustering: ``dynamic``, only ``initial``, or ``given`` by the edges.
        bilevel: Whether edges and a common model take part at all.
        distil: Epochs of distillation at the cloud.
        temperature: Of the distillation.
    """

    title: ClassVar[str] = "CFLHKD"
    category: ClassVar[Category] = "clustered"
    citation: ClassVar[str] = "Ahmad et al., Clustered Federated Learning with Hierarchical Knowledge Distillation"

    share_every: PositiveInt = 1
    tell_every: PositiveInt = 1
    cluster_every: PositiveInt = 1
    edge_interval: PositiveInt = 1
    lam0: NonNegativeFloat = 0.1
    lam2: NonNegativeFloat = 0.005
    refine: Literal["edge", "client", "none"] = "edge"
    gamma: UnitFloat = 0.5
    delta: NonNegativeFloat = 0.7
    distance: Distance = "members"
    drift: Annotated[float, Bound(ge=0, le=1, words="a divergence in bits, 0 to 1")] = 0.3
    initial_clusters: PositiveInt = 4
    most: PositiveInt = 8
    affinity_on: Literal["updates", "weights"] = "updates"
    restless: UnitFloat = 0.75
    sketch: PositiveInt = 256
    clustering: Literal["dynamic", "initial", "given"] = "dynamic"
    bilevel: bool = True
    distil: NonNegativeInt = 0
    temperature: PositiveFloat = 2.0

    def every(self, rounds: int) -> int:
        """Return an interval in rounds of the run."""
        return max(1, rounds // self.edge_interval)

    def plan(self, setting: Setting) -> Plan:
        """Clusters at the edges and one model for all at the cloud; or, flat, clusters at the cloud."""
        updates = setting.updates * self.edge_interval
        selection = Selection(self.share(setting))
        dynamic = self.clustering == "dynamic"
        local = Watchful(threshold=self.drift if dynamic else None)
        again, share = self.every(self.cluster_every), self.every(self.share_every)
        if not self.bilevel:
            flat = FlatAffinity(
                every=again, dynamic=dynamic, initial=self.initial_clusters, gamma=self.gamma, delta=self.delta,
                distance=self.distance, most=self.most, restless=self.restless,
            )  # fmt: skip
            pace = ClusterPace(updates, meet=1)
            return Plan(Rules(selection, pace, hand_down=ClusterHandDown(), structure=flat), local=local)
        lam0 = 0.0 if self.refine == "none" else self.lam0
        structure = EdgeClusters(
            given=self.clustering == "given", every=again if dynamic else 0, initial=self.initial_clusters,
            gamma=self.gamma, delta=self.delta, distance=self.distance, most=self.most,
            restless=self.restless if self.affinity_on == "updates" else 0.0,
            lam0=lam0 if self.refine == "edge" else 0.0,
        )  # fmt: skip
        cloud = CloudPace(
            share_every=share, tell_every=self.every(self.tell_every), sketch_every=again if dynamic else 0,
            extra=self.refine == "client" and lam0 > 0,
        )  # fmt: skip
        merge = CloudMerge(share_every=share, lam=self.lam2, distil=self.distil, temperature=self.temperature)
        keep = EdgeHandDown(lam0=lam0, refine=self.refine, sketch=self.sketch, weights=self.affinity_on == "weights")
        return Plan(
            root=Rules(Occupied(), cloud, merge, CloudHandDown(guides=lam0 > 0), structure),
            edge=Rules(selection, EdgePace(updates, remembers=dynamic), hand_down=keep),
            local=local,
            serves="edge",
            clock="edge",
        )
