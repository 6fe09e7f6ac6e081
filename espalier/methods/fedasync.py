"""FedAsync and FedBuff: devices that never wait for each other.

Xie, Koyejo, Gupta. Asynchronous Federated Optimization. 2019.
Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba. Federated Learning with Buffered Asynchronous Aggregation.
AISTATS 2022.

FedAsync: whoever has reported gets the newest model and goes on. A report that is s versions old is mixed in with
``a = alpha0 (1 + s)^-power``: ``w <- (1 - a) w + a w_k``.

FedBuff: reports are gathered, and after ``buffer`` of them the server makes one step along their discounted changes,
``w <- w + server_lr sum_k p_k (w_k - start_k) / sqrt(1 + s_k)``. Whoever reports makes room for another
device at once.

Both work at the cloud over all devices (``at = "cloud"``), or at every tier (``at = "edges"``): edges do so with their
devices, and the cloud with the edges, which report after ``kappa2`` of their own merges.

Differences: a report that nobody came before has s = 0; by the epochs of FedAsync's Algorithm 1 it has 1, so there its
share is ``alpha0 2^-power``. Of the paper's functions of s this is the polynomial one; ``power = 0`` is its constant,
and there is no hinge. ``mu`` is 0 by default, where the paper always pulls (its rho). FedBuff's changes are weighted by
samples, as FedAvg's (``p_k`` is ``1/K`` as published); with a buffer for everybody, who then wait for the merge
(``refill = "after merge"``), it is FedAvg.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from espalier.core.bounds import NonNegativeFloat, PositiveFloat, PositiveInt, Share
from espalier.core.method import Category, Plan, SampledMethod, Setting
from espalier.core.policies import Local, Merge, Pace, Rules, Selection, Structure
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.policies.asynchronous import Asynchronous, Mixing

At = Literal["cloud", "edges"]


def discounted(staleness: int) -> float:
    """Return ``1 / sqrt(1 + s)``, the weight of a change that is s versions old."""
    return 1.0 / math.sqrt(1.0 + staleness)


def buffered_step(model: Ref, changes: Sequence[tuple[float, int, Ref, Ref]], lr: float) -> list[tuple[float, Ref]]:
    """Return ``w + lr sum_k p_k (end_k - start_k) / sqrt(1 + s_k)`` as coefficients, each model once.

    Args:
        model: The current model.
        changes: Share, staleness, start and end of each report.
        lr: The server's rate.
    """
    found: dict[Ref, float] = {model: 1.0}
    for share, staleness, start, end in changes:
        weight = lr * share * discounted(staleness)
        found[end] = found.get(end, 0.0) + weight
        found[start] = found.get(start, 0.0) - weight
    return [(c, ref) for ref, c in found.items() if abs(c) > 1e-12]


@dataclass(frozen=True)
class BufferedMerge(Merge, kind="fedbuff"):
    """One step along the discounted changes of the reports in the buffer."""

    compares_with_start: ClassVar[bool] = True

    lr: PositiveFloat = 1.0

    def merge(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
        """Return the models after the step."""
        merged = {}
        for group, terms in self.weights(view, arrivals).items():
            behind = [a for a in arrivals if group in a.report.models]
            old = view.models.get(group)
            if old is None:
                merged[group] = view.store.combine(terms)
                continue
            changes = [
                (share, a.staleness, a.start.get(group, old), end)
                for (share, end), a in zip(terms, behind, strict=True)
            ]
            merged[group] = view.store.combine(buffered_step(old, changes, self.lr), fallback=old)
        return merged


@dataclass(frozen=True)
class FedAsync(SampledMethod, kind="fedasync"):
    """Every report is mixed in as it comes, the staler the less.

    Attributes:
        alpha0: Share of a fresh report in the new model.
        power: How fast the share falls with staleness.
        mu: Pull of devices to the model they received.
        at: Where: at the cloud over all devices, or at edges and the cloud.
        kappa2: An edge's merges per report to the cloud.
    """

    title: ClassVar[str] = "FedAsync"
    category: ClassVar[Category] = "asynchronous"
    citation: ClassVar[str] = "Xie et al., Asynchronous Federated Optimization, 2019"

    alpha0: Share = 0.6
    power: NonNegativeFloat = 0.5
    mu: NonNegativeFloat = 0.0
    at: At = "cloud"
    kappa2: PositiveInt = 5

    def plan(self, setting: Setting) -> Plan:
        """A cohort per child."""
        mixing = Mixing(self.alpha0, self.power)
        flat, local = self.at == "cloud", Local(self.mu)
        pace = Asynchronous(setting.updates if flat else self.kappa2)
        return Plan(
            root=Rules(structure=Structure(flat=flat), pace=pace, merge=mixing),
            middle=Rules(pace=Asynchronous(1), merge=mixing),
            edge=Rules(pace=Asynchronous(setting.updates), merge=mixing),
            local=local,
        )


@dataclass(frozen=True)
class FedBuff(SampledMethod, kind="fedbuff"):
    """A step along the discounted changes of every ``buffer`` reports.

    Attributes:
        buffer: Reports per merge, the paper's K.
        server_lr: The server's rate.
        at: Where: at the cloud over all devices, or at edges and the cloud.
        kappa2: An edge's merges per report to the cloud.
        refill: When a device that has reported makes room for another: at once, as published, or after the merge.
        fraction: Share of the devices that are at work at any time (default: the experiment's).
    """

    title: ClassVar[str] = "FedBuff"
    category: ClassVar[Category] = "asynchronous"
    citation: ClassVar[str] = "Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022"

    buffer: PositiveInt = 10
    server_lr: PositiveFloat = 1.0
    at: At = "cloud"
    kappa2: PositiveInt = 1
    refill: Literal["at once", "after merge"] = "at once"

    def plan(self, setting: Setting) -> Plan:
        """Rounds that close when the buffer is full."""
        merge = BufferedMerge(self.server_lr)
        devices = Rules(
            selection=Selection(self.share(setting)),
            pace=Pace(setting.updates, buffer=self.buffer, admits=self.refill == "at once"),
            merge=merge,
        )
        if self.at == "cloud":
            return Plan(root=replace(devices, structure=Structure(flat=True)))
        above = Rules(pace=Pace(self.kappa2, buffer=1, admits=True), merge=merge)
        return Plan(root=above, middle=above, edge=devices)
