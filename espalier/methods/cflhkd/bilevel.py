"""Bi-level aggregation: a model per cluster at its edge, one for all at the cloud (CFLHKD, sections 4.2 and 4.3).

The cloud asks its edges for one round after the other. Every ``share_every`` rounds models travel between them:
up, to be blended by size, accuracy and closeness (Eq. 12, 13); and down, where the edge pulls its own model towards the
common one by a step that is the smaller the more the two differ (Eq. 15, 16). Otherwise an order is a word and a report
a few numbers: how many devices worked, how well the cluster's model does, whose data have drifted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from espalier.core.address import Address
from espalier.core.codec import register
from espalier.core.memory import Product
from espalier.core.messages import ALL, Order
from espalier.core.policies import Assignment, Completion, HandDown, Merge, Pace, Selection
from espalier.core.store import ModelStore, Ref
from espalier.core.view import Arrival, View
from espalier.methods.cflhkd.fdc import Sketch
from espalier.policies.dendrogram import Floats

#: the name under which the cloud's model comes to an edge that has one of its own
GLOBAL = "global"

#: the least accuracy a cluster counts with
LEAST_ACCURACY = 0.01


def cluster_weights(samples: ArrayLike, accuracies: ArrayLike, distances: ArrayLike, lam: float) -> Floats:
    """Eq. (13): ``rho_k ~ |D_k| alpha_k exp(-lam ||w_k - w_g||^2)``, scaled to sum one.

    Args:
        samples: ``|D_k|``, [K].
        accuracies: ``alpha_k``, [K]; at least 0.01 is assumed.
        distances: Squared distances of the clusters' models to the *previous* common model, [K].
        lam: Strength of the penalty.
    """
    sizes = np.maximum(np.asarray(samples, dtype=np.float64), 1e-300)
    logs = np.log(sizes) + np.log(np.maximum(np.asarray(accuracies, dtype=np.float64), LEAST_ACCURACY))
    logs = logs - lam * np.asarray(distances, dtype=np.float64)
    # Distances of real models reach hundreds: only differences of the logarithms are safe to exponentiate.
    shares = np.exp(logs - logs.max())
    found: Floats = shares / shares.sum()
    return found


def cosine_distance(a: Tensor, b: Tensor) -> float:
    """Return one minus the cosine of two vectors (0 if either is zero)."""
    a, b = a.double(), b.double()
    scale = float(a.norm() * b.norm())
    return 1.0 - float(a @ b) / scale if scale > 0 else 0.0


def pull_strength(lam0: float, divergence: float) -> float:
    """Eq. (16): ``lam_k = lam0 / (1 + div)``: a cluster far from the common model is pulled less."""
    return lam0 / (1.0 + divergence)


def own_strength(store: ModelStore, own: Ref, common: Ref, lam0: float) -> float:
    """Return a cluster's ``lam_k`` (this computes both models)."""
    vectors = store.vectors([own, common])[:, : store.spec.n_params]
    return pull_strength(lam0, cosine_distance(vectors[0], vectors[1]))


def refined(store: ModelStore, own: Ref, common: Ref, lam0: float) -> Ref:
    """Eq. (15) without the data's part, at rate 1: ``w - min(1, 2 lam_k) (w - w_g)``.

    The data's gradient is what the devices' training was: the edge itself has none.
    """
    if lam0 == 0 or own == common:
        return own
    step = min(1.0, 2.0 * own_strength(store, own, common, lam0))
    return store.combine([(1.0 - step, own), (step, common)], fallback=own)


def _none() -> tuple[Ref, float] | None:
    return None


@register
@dataclass(slots=True)
class EdgeNews:
    """What an edge has got from its devices and not sent to the cloud yet.

    Attributes:
        reports: Devices that worked in the last round.
        scores: Samples and accuracy of each device that scored the cluster's model.
        drifted: The new label histograms of devices whose data have drifted.
        trained: What each device learnt last: the models it began and ended with.
    """

    reports: int = 0
    scores: list[tuple[float, float]] = field(default_factory=list)
    drifted: dict[Address, Any] = field(default_factory=dict)
    trained: dict[Address, tuple[Ref, Ref]] = field(default_factory=dict)


#: at an edge: the common model that devices are pulled to in the coming round, and how strongly
EDGE_GUIDE = Product("edge's guide", _none)
EDGE_NEWS = Product("news of an edge", EdgeNews)
#: at the cloud: every edge's last model, as far as it is known
CLUSTER_MODELS = Product("clusters' models", dict[Address, Ref])
#: at the cloud: whether the common model is new, so that the clusters are pulled to it
GUIDING = Product("guidance of the clusters", bool)
#: at the cloud: the models that edges must be given to begin a cluster
DELIVERIES = Product("deliveries to edges", dict[Address, Ref])


# -- at the edge ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EdgePace(Pace, kind="cluster_edge"):
    """A barrier over a cluster's devices that listens to what they say of themselves.

    ``remembers``: it keeps what each device learnt last, for the cloud's clustering.
    """

    provides = (EDGE_NEWS,)
    uses = (EDGE_GUIDE,)

    @dataclass(slots=True)
    class State:
        """The model that the round began with."""

        start: Ref | None = None

    remembers: bool = True

    def assign(self, view: View, chosen: Sequence[Address]) -> Mapping[Address, Assignment]:
        """Return the usual work, or the one update of a refinement at the devices."""
        view.state(self).start = view.models[ALL]
        guide = view.product(EDGE_GUIDE)
        if guide is not None:
            return dict.fromkeys(chosen, Assignment(1, args={"pull": guide[1]}))
        tell = view.order is not None and bool(view.order.args.get("tell"))
        return dict.fromkeys(chosen, Assignment(self.updates, args={"tell": True} if tell else {}))

    def learn(self, view: View, arrivals: Sequence[Arrival]) -> None:
        """Collect accuracies, drifted histograms and updates."""
        news, start = view.product(EDGE_NEWS), view.state(self).start
        guided = view.product(EDGE_GUIDE) is not None
        view.provide(EDGE_GUIDE, None)
        news.reports = len(arrivals)
        for arrival in arrivals:
            report = arrival.report
            if "accuracy" in report.stats:
                news.scores.append((float(view.env.samples(report.sender)), report.stats["accuracy"]))
            if "histogram" in report.stats:
                news.drifted[report.sender] = report.stats["histogram"]
            if self.remembers and not guided and ALL in report.models and start is not None:
                news.trained[report.sender] = (start, report.models[ALL])


@dataclass(frozen=True)
class EdgeHandDown(HandDown, kind="cluster_edge"):
    """Keeps the cluster's own model, pulled towards the cloud's; sends it up only when it is wanted.

    Attributes:
        lam0: Greatest strength of the pull.
        refine: Whether the edge pulls its model, or its devices do in an extra update, or nobody.
        sketch: Numbers that stand for an update.
        weights: Whether whole models are sketched in place of updates.
    """

    #: a round is over when the edge has pulled its model to the cloud's: what Algorithm 1 leaves is what is measured
    closed_by_next_order: ClassVar[Completion] = "order"
    provides = (EDGE_GUIDE,)
    needs = (EDGE_NEWS,)

    lam0: float = 0.1
    refine: Literal["edge", "client", "none"] = "edge"
    sketch: int = 256
    weights: bool = False

    def receive(self, view: View, order: Order) -> dict[str, Ref]:
        """Take over a model that is sent as the cluster's own; else keep one's own, refined by the cloud's."""
        own = order.models.get(ALL, view.models.get(ALL))
        own = view.store.initial() if own is None else own
        common = order.models.get(GLOBAL)
        if common is not None and self.refine == "edge":
            own = refined(view.store, own, common, self.lam0)
        elif common is not None and self.refine == "client" and order.updates > 1:
            # the gradient of lam ||w - w_g||^2 is that of mu/2 ||w - w_g||^2 with mu = 2 lam
            view.provide(EDGE_GUIDE, (common, 2.0 * own_strength(view.store, own, common, self.lam0)))
        return {ALL: own}

    def anchor(self, view: View, child: Address) -> Ref | None:
        """Return the cloud's model during a refinement at the devices."""
        guide = view.product(EDGE_GUIDE)
        return None if guide is None else guide[0]

    def up(self, view: View) -> dict[str, Ref]:
        """Return the cluster's model if the cloud asked for it or somebody drifted."""
        asked = view.order is not None and bool(view.order.args.get("share"))
        return dict(view.models) if asked or view.product(EDGE_NEWS).drifted else {}

    def statistics(self, view: View) -> dict[str, Any]:
        """Return what the cloud must know of this round."""
        news = view.product(EDGE_NEWS)
        view.provide(EDGE_NEWS, EdgeNews(trained=news.trained))
        stats: dict[str, Any] = {"reports": news.reports}
        drifted, trained = news.drifted, news.trained
        if news.scores:
            weights, accuracies = np.array(news.scores).T
            stats["accuracy"] = float(weights @ accuracies / weights.sum())
        if drifted:
            stats["drifted"] = sorted(drifted)
            stats["histograms"] = np.stack([drifted[d] for d in sorted(drifted)])
        asked = view.order is not None and bool(view.order.args.get("sketch"))
        chosen = sorted(trained if asked else set(trained) & set(drifted))
        if chosen:
            stats["sketched"] = chosen
            stats["sketches"] = self._sketches(view, [trained[d] for d in chosen])
            for device in chosen:
                del trained[device]
        return stats

    def _sketches(self, view: View, pairs: Sequence[tuple[Ref, Ref]]) -> np.ndarray[Any, np.dtype[np.float32]]:
        n_params = view.store.spec.n_params
        refs = sorted({r for pair in pairs for r in pair})
        place = {ref: i for i, ref in enumerate(refs)}
        vectors = view.store.vectors(refs)[:, :n_params]
        ends = vectors[[place[end] for _, end in pairs]]
        if not self.weights:
            ends = ends - vectors[[place[start] for start, _ in pairs]]
        return Sketch(n_params, self.sketch, view.env.rng("sketch")).fold(ends)


# -- at the cloud --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Occupied(Selection, kind="occupied"):
    """The children that have children of their own."""

    def pick(self, view: View) -> list[Address]:
        """Return them (all, if none has)."""
        return [c for c in view.children if view.env.children(c)] or list(view.children)


@dataclass(frozen=True)
class CloudPace(Pace, kind="cluster_cloud"):
    """One edge round after the other; every so many rounds the edges share, tell, and sketch (0: never).

    ``extra``: after sharing, the edges have one more round, a refinement at the devices.
    """

    uses = (GUIDING,)

    share_every: int = 1
    tell_every: int = 1
    sketch_every: int = 1
    extra: bool = False

    def assign(self, view: View, chosen: Sequence[Address]) -> Mapping[Address, Assignment]:
        """Return one round each, with what must come with the report."""
        number = view.clock + 1
        every = {"share": self.share_every, "tell": self.tell_every, "sketch": self.sketch_every}
        args = {what: True for what, rounds in every.items() if rounds and number % rounds == 0}
        if self.share_every and number % self.share_every == 0:
            args["tell"] = True
        rounds = 2 if self.extra and view.product(GUIDING) else 1
        return dict.fromkeys(chosen, Assignment(rounds, args=args))


@dataclass(frozen=True)
class CloudMerge(Merge, kind="cluster_cloud"):
    """Blends the clusters' models by size, accuracy and closeness (Eq. 12, 13), every ``share_every`` rounds.

    ``distil`` epochs of distillation from the clusters' models on a proxy set follow (0: none).
    """

    provides = (CLUSTER_MODELS, GUIDING)

    @dataclass(slots=True)
    class State:
        """Each edge's last accuracy, and whether there has been a common model."""

        accuracy: dict[Address, float] = field(default_factory=dict)
        shared: bool = False

    share_every: int = 1
    lam: float = 0.005
    distil: int = 0
    temperature: float = 2.0

    def merge(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
        """Remember what the edges reported; return the new common model when it is time."""
        known, scores = view.product(CLUSTER_MODELS), view.state(self).accuracy
        for arrival in arrivals:
            report = arrival.report
            if ALL in report.models:
                known[report.sender] = report.models[ALL]
            if "accuracy" in report.stats:
                scores[report.sender] = report.stats["accuracy"]
        shared = [a for a in arrivals if ALL in a.report.models]
        guiding = bool(shared) and (view.clock + 1) % self.share_every == 0
        view.provide(GUIDING, guiding)
        return {ALL: self.common(view, shared)} if guiding else {}

    def common(self, view: View, arrivals: Sequence[Arrival]) -> Ref:
        """Return the common model."""
        store, state = view.store, view.state(self)
        scores = state.accuracy
        edges = [a.report.sender for a in arrivals]
        models = [a.report.models[ALL] for a in arrivals]
        samples = np.array([max(1, view.env.samples(e)) for e in edges], dtype=np.float64)
        # a cluster nobody scored counts like the average of the others
        mean = float(np.mean([scores[e] for e in edges if e in scores])) if any(e in scores for e in edges) else 1.0
        accuracies = [scores.get(e, mean) for e in edges]
        apart = np.zeros(len(edges))
        if self.lam:
            plain = list(zip((samples / samples.sum()).tolist(), models, strict=True))
            before = view.models[ALL] if state.shared else store.combine(plain, fallback=models[0])
            vectors = store.vectors([before, *models])[:, : store.spec.n_params].double()
            apart = ((vectors[1:] - vectors[0]) ** 2).sum(1).numpy()
        state.shared = True
        rho = cluster_weights(samples, accuracies, apart, self.lam)
        view.note("weights", round=view.clock + 1, values={str(e): float(r) for e, r in zip(edges, rho, strict=True)})
        terms = list(zip(rho.tolist(), models, strict=True))
        blended = store.combine(terms, fallback=view.models.get(ALL))
        if self.distil == 0:
            return blended
        return view.env.trials.distilled(
            blended, terms, temperature=self.temperature, updates=self.distil, clock=view.clock, number=view.round
        )


@dataclass(frozen=True)
class CloudHandDown(HandDown, kind="cluster_cloud"):
    """An edge gets a model to start a cluster with, or the common model to be pulled to, or nothing."""

    needs = (DELIVERIES, GUIDING)

    guides: bool = True

    def send(self, view: View, child: Address) -> dict[str, Ref]:
        """Return what an edge gets."""
        start = view.product(DELIVERIES).get(child)
        if start is not None:
            return {ALL: start}
        return {GLOBAL: view.models[ALL]} if self.guides and view.product(GUIDING) else {}
