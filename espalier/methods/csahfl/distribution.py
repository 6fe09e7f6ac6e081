"""Clusters' models merged by how much data is behind them and how typical it is (CSAHFL, section 3.5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from espalier.core.address import Address
from espalier.core.memory import Products
from espalier.core.messages import ALL
from espalier.core.policies import Merge
from espalier.core.statistics import LABEL_HISTOGRAMS
from espalier.core.store import Ref
from espalier.core.view import Arrival, View

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
