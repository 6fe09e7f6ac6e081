"""Children that never wait for each other: each report is mixed into the model as it comes.

The mixing rule is FedAsync's (Xie, Koyejo, Gupta, Asynchronous Federated Optimization, 2019):
``w <- (1 - a) w + a w_k`` with ``a = alpha0 (1 + staleness)^-power``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from espalier.core.address import Address
from espalier.core.bounds import NonNegativeFloat, Share
from espalier.core.codec import register
from espalier.core.memory import Memory, Policy, Product
from espalier.core.policies import Assignment, Merge, Pace
from espalier.core.store import Ref
from espalier.core.view import Arrival, View


@register
@dataclass(slots=True)
class Versions:
    """The versions that a model went through, and the one that each child works on."""

    newest: int = 0
    given: dict[Address, int] = field(default_factory=dict)


VERSIONS = Product("model versions", Versions)


@dataclass(frozen=True)
class StalenessControl(Policy, family="staleness_control"):
    """Decides, arrival by arrival, which staleness is too much."""

    def limit(self, view: View) -> float:
        """Return the largest staleness that is still taken."""
        return math.inf

    def observe(self, view: View, arrival: Arrival, staleness: int, kept: bool, models: Mapping[str, Ref]) -> None:
        """Look at an arrival that was taken or thrown away; ``models`` are the models after it."""


@dataclass(frozen=True)
class NoControl(StalenessControl, kind="none"):
    """Every report is taken."""


def mixing_rate(alpha0: float, staleness: int, power: float) -> float:
    """Return the share of a report that is ``staleness`` versions old: ``alpha0 (1 + staleness)^-power``."""
    return float(alpha0 * (1.0 + staleness) ** -power)


@dataclass(frozen=True)
class Asynchronous(Pace, kind="asynchronous"):
    """A cohort per child: a child that has reported gets the newest model and trains again."""

    provides = (VERSIONS,)
    cohort_per_child: ClassVar[bool] = True

    def cohorts(self, view: View) -> Mapping[str, Sequence[Address]]:
        """Return every child alone."""
        return {str(child): (child,) for child in view.children}

    def members(self, view: View, cohort: str) -> Sequence[Address]:
        """Return the child that a cohort is, without a look at the others (there may be thousands)."""
        child = Address(cohort)
        return (child,) if view.env.parent(child) == view.me else ()

    def assign(self, view: View, chosen: Sequence[Address]) -> Mapping[Address, Assignment]:
        """Give out work and remember the version that it starts from."""
        versions = view.product(VERSIONS)
        versions.given.update(dict.fromkeys(chosen, versions.newest))
        return super().assign(view, chosen)

    def forget(self, memory: Memory, child: Address) -> None:
        """Forget the version that a child works on."""
        memory.product(VERSIONS).given.pop(child, None)


@dataclass(frozen=True)
class Mixing(Merge, kind="mixing"):
    """Mix each report into the model; a report that is too stale is thrown away.

    Staleness counts the versions that the model went through since the child got it. ``control`` says which
    staleness is too much; nobody's report is thrown away twice in a row.
    """

    uses = (VERSIONS,)

    @dataclass(slots=True)
    class State:
        """The children whose last report was thrown away."""

        dropped: set[Address] = field(default_factory=set)

    alpha0: Share = 0.6
    power: NonNegativeFloat = 0.5
    control: StalenessControl = field(default_factory=NoControl)

    def merge(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
        """Mix the reports in, one after another."""
        models, versions = dict(view.models), view.product(VERSIONS)
        dropped = view.state(self).dropped
        for arrival in arrivals:
            child = arrival.report.sender
            given = versions.given.get(child)  # known where the pace is asynchronous
            staleness = arrival.staleness if given is None else versions.newest - given
            kept = staleness <= self.control.limit(view) or child in dropped
            if kept:
                dropped.discard(child)
                versions.newest += 1
                rate = mixing_rate(self.alpha0, staleness, self.power)
                for group, model in arrival.report.models.items():
                    old = models.get(group, model)
                    terms = [(1.0, model)] if rate == 1.0 else [(1.0 - rate, old), (rate, model)]
                    models[group] = view.store.combine(terms, fallback=old)
            else:
                dropped.add(child)
                view.note("stale", child=child, staleness=staleness)
            self.control.observe(view, arrival, staleness, kept, models)
        return models

    def forget(self, memory: Memory, child: Address) -> None:
        """Forget whose report was thrown away."""
        memory.state(self).dropped.discard(child)
