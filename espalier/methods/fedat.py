"""FedAT: tiers of equally fast devices, synchronous inside, asynchronous between.

Chai, Chen, Anwar, Zhao, Cheng, Rangwala. FedAT: A High-Performance and Communication-Efficient Federated Learning
System with Asynchronous Tiers. SC 2021.

1. Devices are sorted by expected latency and split into ``tiers`` of equal size.
2. Each tier loops by itself: it draws devices, waits for them, averages by samples, and counts its updates T_m.
3. After each tier's update the cloud forms w = sum_m (T_{M+1-m} / T) w_m: the counts in reverse, so that tiers
   which report rarely weigh more. The tier goes on from w. Devices are pulled to what they received (``pull``).

Edges pass messages on but do not merge; mobility has no effect. Counts start at 1: from 0, the first update of the
fastest tier would get weight 0 and its work be lost until the slowest tier reports (``literal_counts`` starts at
0). The paper's compression of messages is left out. The number of tiers and the pull are the authors' usual ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from espalier.core.address import Address
from espalier.core.bounds import NonNegativeFloat, PositiveInt
from espalier.core.environment import estimate
from espalier.core.messages import ALL
from espalier.core.method import Category, Plan, SampledMethod, Setting
from espalier.core.policies import Local, Merge, Pace, Rules, Selection, Structure
from espalier.core.store import Ref
from espalier.core.view import Arrival, View


def reversed_weights(counts: Sequence[int]) -> list[float]:
    """Return each tier's weight, ``T_{M+1-m} / sum(T)``: the update counts in reverse order."""
    total = sum(counts)
    return [c / total for c in reversed(counts)]


@dataclass(frozen=True)
class Tiers(Pace, kind="tiers"):
    """A cohort per tier: devices of similar latency, measured once; newcomers join the tier that fits them."""

    @dataclass(slots=True)
    class State:
        """Each child's tier, and the latencies that separate tiers (None: not measured yet)."""

        tier: dict[Address, int] = field(default_factory=dict)
        bounds: list[float] | None = None

    tiers: int = 5

    def cohorts(self, view: View) -> Mapping[str, Sequence[Address]]:
        """Return the tiers, the fastest first."""
        if self.tiers == 1:
            return super().cohorts(view)
        tier = view.state(self).tier
        new = [c for c in view.env.children(view.me) if c not in tier]
        if new:
            self._place(view, new)
        found: dict[str, list[Address]] = {f"tier {m}": [] for m in range(self.tiers)}
        for child in view.env.children(view.me):
            found[f"tier {tier[child]}"].append(child)
        return {name: members for name, members in found.items() if members}

    def _place(self, view: View, new: Sequence[Address]) -> None:
        state = view.state(self)
        latency = [estimate(view.env, view.me, c, self.updates, view.now).total for c in new]
        if state.bounds is None:
            order = np.argsort(latency, kind="stable")
            parts = [p for p in np.array_split(order, self.tiers) if len(p)]
            state.bounds = [float(latency[p[-1]]) for p in parts[:-1]]
            state.tier.update({new[i]: m for m, part in enumerate(parts) for i in part.tolist()})
        else:
            state.tier.update({c: int(np.searchsorted(state.bounds, t)) for c, t in zip(new, latency, strict=True)})


@dataclass(frozen=True)
class TierMerge(Merge, kind="tiers"):
    """Average inside the tier that has reported, then all tiers' models by their counts in reverse."""

    @dataclass(slots=True)
    class State:
        """Each tier's updates and model, from its first merge on."""

        counts: list[int] = field(default_factory=list)
        models: list[Ref] = field(default_factory=list)

    tiers: int = 5
    first_count: int = 1

    def merge(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
        """Return the model after one tier's update."""
        state = view.state(self)
        if not state.counts:
            state.counts = [self.first_count] * self.tiers
            state.models = [view.models[ALL]] * self.tiers
        tier = int(view.cohort.removeprefix("tier ") or 0)
        state.models[tier] = super().merge(view, arrivals)[ALL]
        state.counts[tier] += 1
        weights = reversed_weights(state.counts)
        view.note("weights", round=view.round, values={f"tier {m}": w for m, w in enumerate(weights)})
        terms = [(w, model) for w, model in zip(weights, state.models, strict=True) if w > 0]
        return {ALL: view.store.combine(terms, fallback=view.models[ALL])}


@dataclass(frozen=True)
class FedAT(SampledMethod, kind="fedat"):
    """Tiers by latency; inside a tier a barrier, between tiers none; rare tiers weigh more.

    Attributes:
        tiers: Number of tiers, M.
        pull: Strength of the pull towards the received model, lambda.
        literal_counts: Whether update counts start at 0.
        fraction: Share of a tier's devices in each of its rounds (default: the experiment's).
    """

    title: ClassVar[str] = "FedAT"
    category: ClassVar[Category] = "asynchronous"
    citation: ClassVar[str] = (
        "Chai et al., FedAT: A High-Performance and Communication-Efficient Federated Learning System with "
        "Asynchronous Tiers, SC 2021"
    )

    tiers: PositiveInt = 5
    pull: NonNegativeFloat = 0.4
    literal_counts: bool = False

    def plan(self, setting: Setting) -> Plan:
        """A star whose cohorts are the tiers."""
        tiers = min(self.tiers, setting.n_devices)
        return Plan(
            root=Rules(
                structure=Structure(flat=True),
                selection=Selection(self.share(setting)),
                pace=Tiers(setting.updates, tiers=tiers),
                merge=TierMerge(tiers, 0 if self.literal_counts else 1),
            ),
            local=Local(self.pull),
        )
