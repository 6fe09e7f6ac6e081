"""Rounds that close in time and keep what comes late (CSAHFL, section 3.4).

An edge estimates how long each device it has drawn would take for all its epochs, closes the round at
median + alpha · IQR of these times, and gives each device as many epochs as fit. What arrives later is
merged into the next round with a weight of 1/(1 + rounds late).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor

from espalier.core.address import Address
from espalier.core.bounds import NonNegativeFloat
from espalier.core.environment import estimate
from espalier.core.memory import Product
from espalier.core.messages import ALL, Order
from espalier.core.policies import Assignment, HandDown, Local, LocalView, Merge, Pace, Selection, normalised
from espalier.core.statistics import LocalData, register_statistic
from espalier.core.store import Ref
from espalier.core.view import Arrival, View

#: estimates and events add the same numbers in another order: who is exactly in time is in time
_SLACK = 1e-9

#: the devices that reported since the parent's last order, by group, with their samples
REPORTERS = Product("reporters", dict[str, dict[Address, int]])


def total_time(epochs: int, batches: int, unit: float, communication: float) -> float:
    """Eq. (7): seconds of ``epochs`` epochs of ``batches`` batches, ``unit`` seconds each, and of the links."""
    return epochs * batches * unit + communication


def interval(totals: Sequence[float], alpha: float) -> float:
    """Eq. (8): the aggregation interval, median + alpha · IQR of the devices' total times, in seconds."""
    low, middle, high = np.quantile(np.asarray(totals, dtype=np.float64), [0.25, 0.5, 0.75])
    return float(middle + alpha * (high - low))


def workload(within: float, communication: float, epoch: float, most: int) -> int:
    """Eq. (9): the whole epochs of ``epoch`` seconds that fit into an interval, at least 1, at most ``most``."""
    if epoch <= 0.0:
        return most
    return max(1, min(most, math.floor((within - communication) / epoch + _SLACK)))


def discount(late: int) -> float:
    """The weight factor of a report that is ``late`` rounds late: 1/(1 + late)."""
    return 1.0 / (1.0 + late)


@dataclass(frozen=True)
class FreeShare(Selection, kind="free_share"):
    """Draw a fraction of *all* children among those that are free: late ones do not make a round smaller."""

    def pick(self, view: View) -> list[Address]:
        """Return the children that work in this round, ascending."""
        return Selection(count=self.wanted(view, len(view.env.children(view.me)))).pick(view)


@dataclass(frozen=True)
class SemiAsync(Pace, kind="semi_async"):
    """Close at median + ``alpha`` · IQR of the drawn devices' times; fit each device's epochs to that.

    ``updates`` is the most that a device does. The interval counts from dispatch; where devices ``probe`` their
    speed first, it is longer by the slowest probe, since it cannot be known before. The round ends earlier if all
    are in, and goes on until the first report if nobody is.
    """

    late: Literal["drop", "keep", "renew"] = "keep"
    alpha: NonNegativeFloat = 1.5
    probe: bool = False

    def check(self) -> None:
        """Refuse no work."""
        self.require(self.updates >= 1, "updates", "at least 1")

    def assign(self, view: View, chosen: Sequence[Address]) -> Mapping[Address, Assignment]:
        """Return each device's epochs and the interval as its budget."""
        expected = {c: estimate(view.env, view.me, c, self.updates, view.now) for c in chosen}
        totals = view.env.credible(np.array([e.total for e in expected.values()]))
        within = interval(totals.tolist(), self.alpha)
        view.note("interval", round=view.round, seconds=within)
        return {
            c: Assignment(workload(within, e.communication, e.update, self.updates), within)
            for c, e in expected.items()
        }

    def deadline(self, view: View, work: Mapping[Address, Assignment]) -> float | None:
        """Return the interval, and what the slowest probe takes."""
        budget = max(share.budget or 0.0 for share in work.values())
        times = np.array([view.env.speeds.batch_time(c, view.now) for c in work]) if self.probe else np.zeros(1)
        return (budget + float(max(view.env.credible(times)))) * (1.0 + _SLACK)


@register_statistic("probe", lambda n_batches, n_models: 1.0, models=False)
def probe(local: LocalData, vectors: Sequence[Tensor]) -> dict[str, Any]:
    """Train one mini-batch to find out how fast the device is: it costs that time and leaves nothing."""
    return {}


@dataclass(frozen=True)
class Probing(Local, kind="probing"):
    """Plain local training after a probe of one mini-batch."""

    def question(self, view: LocalView, order: Order) -> str | None:
        """Ask for the probe."""
        return "probe"


def _current(view: View, group: str) -> Ref | None:
    """Return the model that a group has here now: a group that is new here has everybody's."""
    return view.models.get(group, view.models.get(ALL))


@dataclass(frozen=True)
class Discounted(Merge, kind="discounted"):
    """Eq. (10): the average weighted by samples, late reports by samples / (1 + rounds late).

    As printed, Eq. (10) divides by all samples, discounted or not, so that a late report shrinks the model
    (``literal``). Here the weight that a discount takes away stays with the group's current model, as it is when the
    round closes: a late report alone moves the model by its discount, also right after a merge of the cloud.
    ``normalised`` scales the weights of what is in to sum one, so that a late report alone replaces the model.
    """

    provides = (REPORTERS,)

    discounting: Literal["current", "normalised", "literal"] = "current"

    def weight(self, view: View, arrival: Arrival, group: str) -> float:
        """Return the discounted samples."""
        return discount(arrival.staleness) * float(arrival.report.samples.get(group, 0))

    def weights(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, list[tuple[float, Ref]]]:
        """Return the coefficients of every group."""
        if self.discounting == "normalised":
            return super().weights(view, arrivals)
        terms: dict[str, list[tuple[float, Ref]]] = {}
        totals: dict[str, float] = {}
        for arrival in arrivals:
            for group, model in arrival.report.models.items():
                terms.setdefault(group, []).append((self.weight(view, arrival, group), model))
                totals[group] = totals.get(group, 0.0) + float(arrival.report.samples.get(group, 0))
        return {g: self._completed(view, g, found, totals[g]) for g, found in terms.items()}

    def present(self, view: View, arrivals: Sequence[Arrival], group: str) -> float:
        """Return the share of the samples' weight that discounts leave."""
        total = sum(float(a.report.samples.get(group, 0)) for a in arrivals if group in a.report.models)
        weight = sum(self.weight(view, a, group) for a in arrivals if group in a.report.models)
        return weight / total if self.discounting == "current" and total > 0 else 1.0

    def _completed(
        self, view: View, group: str, terms: list[tuple[float, Ref]], total: float
    ) -> list[tuple[float, Ref]]:
        """Divide by all samples; what discounts took away goes to the current model, or nowhere."""
        current = _current(view, group)
        if total <= 0 or (self.discounting == "current" and current is None):
            return normalised(terms)
        found = [(c / total, ref) for c, ref in terms]
        missing = 1.0 - sum(c for c, _ in found)
        if self.discounting == "current" and current is not None and missing > _SLACK:
            found.append((missing, current))
        return found

    def merge(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
        """Return the new models; a group that is new here falls back on everybody's."""
        for arrival in arrivals:
            if arrival.staleness:
                view.note("late", child=arrival.report.sender, round=view.round, rounds=arrival.staleness)
        return {
            group: view.store.combine(terms, fallback=_current(view, group))
            for group, terms in self.weights(view, arrivals).items()
        }

    def samples(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, int]:
        """Return the samples of all who reported since the parent's last order, each device once."""
        seen = view.product(REPORTERS)
        for arrival in arrivals:
            below = arrival.report.stats.get("reporters", {})
            for group, samples in arrival.report.samples.items():
                seen.setdefault(group, {}).update(below.get(group, {arrival.report.sender: samples}))
        return {group: sum(devices.values()) for group, devices in seen.items()}


@dataclass(frozen=True)
class GroupModels(HandDown, kind="group_models"):
    """An edge keeps a model per group that is present, all begun from the one it receives.

    A device trains its group's model; where the edge has none yet, the received one in its group's name. Models
    of groups that reported go up, with the samples of each device that reported.
    """

    needs = (REPORTERS,)

    def receive(self, view: View, order: Order) -> dict[str, Ref]:
        """Forget the groups' models and who reported."""
        view.provide(REPORTERS, {})
        return dict(order.models)

    def send(self, view: View, child: Address) -> dict[str, Ref]:
        """Return a device's group's model, or all to an aggregator."""
        if not view.env.is_device(child):
            return dict(view.models)
        group = view.env.group(child)
        return {group: view.models.get(group, view.models[ALL])}

    def up(self, view: View) -> dict[str, Ref]:
        """Return the models of the groups that reported."""
        return {g: view.models[g] for g in view.product(REPORTERS)}

    def statistics(self, view: View) -> dict[str, Any]:
        """Return who reported, with their samples."""
        return {"reporters": {g: dict(devices) for g, devices in view.product(REPORTERS).items()}}
