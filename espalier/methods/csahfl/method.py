"""CSAHFL: clusters across edges, rounds that close in time, late work kept.

Li, Du, Liu, Shao, Zhao, Ye. CSAHFL: Clustered Semi-Asynchronous Hierarchical Federated Learning for
Dual-layer Non-IID in Heterogeneous Edge Computing Networks. IJCAI 2025.

1. Once, every device sends the first p singular vectors of its data; the cloud clusters devices by the
   smallest principal angle between them (Eq. 4–6). Clusters cut across edges.
2. In each of ``edge_rounds`` rounds an edge draws devices, closes the round at T = median + alpha · IQR of
   their times (Eq. 7–8) and gives each device the epochs that fit into T (Eq. 9). Per cluster it averages
   what is in; what is late joins a later round with a weight of 1/(1 + rounds late) (Eq. 10).
3. The cloud averages each cluster over the edges, then the clusters by quantity × similarity of their label
   distribution to everybody's (Eq. 11–14). All edges go on from that one model.

Where the paper is open or contradicts itself, this is how it is read:

* Eq. (10) divides by all samples but discounts late ones, so that the model would shrink; here the weight that
  a discount takes away stays with the cluster's current model (``discounting``: ``literal`` is the equation as
  printed, ``normalised`` scales the weights of what is in).
* A report's delay counts the edge's rounds from dispatch to arrival. Devices at work are not drawn. A device
  that moved meanwhile is merged by the edge where it arrives; its cluster moves with it, and an edge without
  that cluster's model gives it the global one.
* One interval per edge and round, over all devices drawn (Algorithm 1 has it inside the loop over clients);
  it counts from dispatch, and the round is shorter if all are in before. The unit time is that of a batch.
  Epochs are rounded down. The probe of one batch is paid for.
* The cloud merges after ``edge_rounds`` edge rounds (Algorithm 1's indentation puts it inside the loop).
* The samples of a cluster in Eq. (12) are those of the devices that reported since the last cloud merge, each
  once; its distribution in Eq. (13) is that of all its devices. Histograms are needed for that and are paid for
  in bytes, although the paper sends singular vectors only.
* beta is in degrees: small means many clusters. p is 3 and the linkage WPGMA, as in PACFL's code. If beta
  gives one cluster or as many as devices, the largest gap of merge heights is taken and recorded. At the paper's
  20 degrees our image data give one or two clusters; ``clusters`` asks for a number instead, which is what the
  axis of the paper's Figure 4(b) reads like.
* "Without clustering": the devices of an edge are its cluster. "Without distribution-awareness": clusters
  weigh the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from espalier.core.address import Address
from espalier.core.bounds import NonNegativeFloat, PositiveInt
from espalier.core.memory import Products
from espalier.core.messages import ALL
from espalier.core.method import Category, Plan, SampledMethod, Setting
from espalier.core.policies import Local, Merge, Pace, Rules
from espalier.core.statistics import LABEL_HISTOGRAMS
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.methods.csahfl.semi_async import Discounted, FreeShare, GroupModels, Probing, SemiAsync
from espalier.methods.csahfl.subspace import OneShot

Floats = NDArray[np.float64]


def divergence(p: ArrayLike, q: ArrayLike) -> float:
    """Return D_KL(p || q) in nats; ``0 · log 0`` is 0. Both are scaled to sum one first, [n] each."""
    a, b = (np.asarray(x, dtype=np.float64) for x in (p, q))
    a, b = a / a.sum(), b / b.sum()
    held = a > 0
    # p is part of what q pools: q is positive where p is, but for histograms that came too late.
    return float((a[held] * np.log(a[held] / np.maximum(b[held], 1e-12))).sum())


def quantity_weights(samples: ArrayLike) -> Floats:
    """Eq. (12): each cluster's share of all samples, [K]."""
    n = np.asarray(samples, dtype=np.float64)
    return np.asarray(n / n.sum() if n.sum() > 0 else np.full(len(n), 1.0 / len(n)))


def distribution_weight(own: ArrayLike, target: ArrayLike) -> float:
    """Eq. (13): 1 / (1 + D_KL(P_k || P_g))."""
    return 1.0 / (1.0 + divergence(own, target))


def cluster_weights(quantity: ArrayLike, distribution: ArrayLike) -> Floats:
    """Eq. (14): the product of both weights, scaled to sum one, [K]."""
    product = np.asarray(quantity, dtype=np.float64) * np.asarray(distribution, dtype=np.float64)
    return np.asarray(product / product.sum())


@dataclass(frozen=True)
class ByDistribution(Merge, kind="distribution"):
    """Eq. (11): one model out of the clusters' models.

    A cluster's models from several edges are averaged by samples first. ``by`` says what the clusters' weights are:
    quantity × similarity of the label distribution to everybody's (``distribution``), ``samples`` alone, or equal
    (``uniform``). Where devices have no groups, each edge's devices are a cluster. The samples of a cluster are those
    of the devices that reported since the last merge, each once; its distribution is that of all its devices.
    """

    by: Literal["distribution", "samples", "uniform"] = "distribution"

    @property
    def needs(self) -> Products:
        """Label histograms, if it compares distributions."""
        return (LABEL_HISTOGRAMS,) if self.by == "distribution" else ()

    def weights(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, list[tuple[float, Ref]]]:
        """Return the coefficients of all clusters' models in the one model."""
        models: dict[str, list[tuple[float, Ref]]] = {}
        devices: dict[str, dict[Address, int]] = {}
        for arrival in arrivals:
            report = arrival.report
            below = report.stats.get("reporters", {})
            for group, model in report.models.items():
                name = group if group != ALL else f"at {report.sender}"
                samples = report.samples.get(group, 0)
                models.setdefault(name, []).append((float(samples), model))
                devices.setdefault(name, {}).update(below.get(group, {report.sender: samples}))
        if not models:
            return {}  # every report came without a model
        share = self._shares(view, devices)
        view.note("weights", round=view.round, values=share)
        terms: list[tuple[float, Ref]] = []
        for name, found in models.items():
            inside = quantity_weights([n for n, _ in found])
            terms += [(share[name] * float(a), ref) for a, (_, ref) in zip(inside, found, strict=True)]
        return {ALL: terms}

    def _shares(self, view: View, devices: Mapping[str, Mapping[Address, int]]) -> dict[str, float]:
        names = list(devices)
        if self.by == "uniform":
            return dict.fromkeys(names, 1.0 / len(names))
        quantity = quantity_weights([sum(devices[name].values()) for name in names])
        similar = np.ones(len(names))
        if self.by == "distribution" and (known := view.product(LABEL_HISTOGRAMS)):
            target = _pooled(known.values())
            members = self._members(view, known)
            for i, name in enumerate(names):
                own = [known[d] for d in members.get(name, devices[name]) if d in known]
                # a cluster of which nothing is known counts as typical
                similar[i] = distribution_weight(_pooled(own), target) if own else 1.0
        return dict(zip(names, cluster_weights(quantity, similar).tolist(), strict=True))

    def _members(self, view: View, known: Iterable[Address]) -> dict[str, list[Address]]:
        """Return the devices of every cluster: of a group, or (where devices have none) of an edge."""
        found: dict[str, list[Address]] = {}
        for device in known:
            group = view.env.group(device)
            name = group if group != ALL else f"at {view.env.parent(device)}"
            found.setdefault(name, []).append(device)
        return found


def _pooled(histograms: Iterable[Any]) -> Floats:
    return np.asarray(np.sum([np.asarray(h, dtype=np.float64) for h in histograms], axis=0))


@dataclass(frozen=True)
class CSAHFL(SampledMethod, kind="csahfl"):
    """Clusters of similar devices across edges; rounds of median + alpha · IQR; late work is kept.

    Attributes:
        alpha: Tolerance for slow devices, in interquartile ranges of the devices' times.
        beta: Where the clustering is cut, in degrees, or "auto".
        edge_rounds: Edge rounds per cloud merge, r_e.
        max_epochs: The most local updates of a device, E_max (default: the experiment's).
        vectors: Singular vectors per device, p.
        measure: The smallest principal angle, the sum of all (trace), or what PACFL's code computes (repository).
        rescue: Whether a cut that makes one cluster, or only single devices, is replaced (see above).
        clustering: Whether devices are clustered (the ablation "w/o C").
        semi_async: Whether rounds close in time; else all do ``max_epochs`` and are awaited ("w/o SA").
        weighting: How the cloud weighs clusters ("w/o D": uniform).
        clusters: How many clusters there are, in place of beta.
        discounting: Where the weight goes that a late report's discount takes away (see above).
        probe: Whether a device tries one batch before it trains.
        fraction: Share of an edge's devices in each round, drawn among the free ones (default: the experiment's).
        serve: Which model a device uses: the global one, or its cluster's at its edge.
    """

    title: ClassVar[str] = "CSAHFL"
    category: ClassVar[Category] = "hierarchical"
    citation: ClassVar[str] = (
        "Li et al., CSAHFL: Clustered Semi-Asynchronous Hierarchical Federated Learning for Dual-layer Non-IID in "
        "Heterogeneous Edge Computing Networks, IJCAI 2025"
    )

    alpha: NonNegativeFloat = 1.5
    beta: float | Literal["auto"] = 20.0
    edge_rounds: PositiveInt = 3
    max_epochs: PositiveInt | None = None
    vectors: PositiveInt = 3
    measure: Literal["smallest", "trace", "repository"] = "smallest"
    rescue: bool = True
    clustering: bool = True
    semi_async: bool = True
    weighting: Literal["distribution", "samples", "uniform"] = "distribution"
    clusters: PositiveInt | None = None
    discounting: Literal["current", "normalised", "literal"] = "current"
    probe: bool = True
    serve: Literal["global", "cluster"] = "global"

    def check(self) -> None:
        """Refuse a negative angle."""
        self.require(self.beta == "auto" or self.beta >= 0, "beta", 'degrees, 0 or more, or "auto"')

    def plan(self, setting: Setting) -> Plan:
        """Clusters at the root, intervals at the edges."""
        epochs = self.max_epochs or setting.updates
        probing = self.probe and self.semi_async
        structure = OneShot(
            vectors=self.vectors,
            beta=self.beta,
            measure=self.measure,
            rescue=self.rescue,
            clusters=self.clusters,
            clustering=self.clustering,
            histograms=self.weighting == "distribution",
        )
        pace = SemiAsync(epochs, alpha=self.alpha, probe=probing) if self.semi_async else Pace(epochs)
        return Plan(
            root=Rules(structure=structure, pace=Pace(self.edge_rounds), merge=ByDistribution(self.weighting)),
            edge=Rules(
                selection=FreeShare(self.share(setting)),
                pace=pace,
                merge=Discounted(self.discounting),
                hand_down=GroupModels(),
            ),
            middle=Rules(merge=Discounted(), hand_down=GroupModels()),
            local=Probing() if probing else Local(),
            serves="root" if self.serve == "global" else "edge",
        )
