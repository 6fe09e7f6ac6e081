"""Stages 3 and 4 of a global round of the D2D paper, at the server: rounds for the heads, the clusters' average.

Algorithm 1 in the words of this package: the *structure* surveys the devices (stage 1) and arranges them under
heads (stage 2); the *pace* gives every head r_c = ⌊T_g/T_c⌋ rounds and lets the global round last T_g (stage 3);
the *merge* averages the clusters (stage 4), and the next survey carries the result to every device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from espalier.core.address import Address
from espalier.core.messages import ALL
from espalier.core.policies import Assignment, HandDown, Merge, Pace, Selection, normalised
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.methods.d2d.member import GLOBAL_ROUND, SLACK


@dataclass(frozen=True)
class ServerPace(Pace, kind="d2d_server"):
    """Stage 3: every head gets its rounds, and the global round lasts T_g (and until the heads' models are there).

    ``t_cg`` is the time for those; by default what the links say: there and back for the slowest head.
    """

    needs = (GLOBAL_ROUND,)
    whole: ClassVar[bool] = True

    t_cg: float | None = None

    def assign(self, view: View, chosen: Sequence[Address]) -> Mapping[Address, Assignment]:
        """Tell each head its rounds, its time, and (for the defence) when its members' reports are due."""
        ahead = view.product(GLOBAL_ROUND)
        clusters, base = {c.head: c for c in ahead.clusters}, {"base": view.models[ALL]}
        return {
            head: Assignment(found.rounds, ahead.t_g, base if found.due is None else base | {"due": found.due})
            for head, found in ((h, clusters[h]) for h in chosen)
        }

    def deadline(self, view: View, work: Mapping[Address, Assignment]) -> float | None:
        """Return the length of the global round."""
        extra = self.t_cg
        if extra is None:
            ways = [view.env.links.model_time(head, view.me, view.now) for head in work]
            extra = 2 * max(ways, default=0.0)
        return view.product(GLOBAL_ROUND).t_g * (1 + SLACK) + extra


@dataclass(frozen=True)
class Heads(Selection, kind="d2d_heads"):
    """The heads whose clusters can finish at least one round."""

    needs = (GLOBAL_ROUND,)

    def pick(self, view: View) -> list[Address]:
        """Return them, ascending."""
        able = {c.head for c in view.product(GLOBAL_ROUND).clusters if c.rounds > 0}
        return [c for c in view.children if c in able]


@dataclass(frozen=True)
class ServerDown(HandDown, kind="d2d_server"):
    """Devices get the global model with the survey; heads get no model, for their hosts have it already."""

    def send(self, view: View, child: Address) -> dict[str, Ref]:
        """Return the model for a device, none for a head."""
        return super().send(view, child) if view.env.is_device(child) else {}


@dataclass(frozen=True)
class ServerMerge(Merge, kind="d2d_server"):
    """Stage 4: clusters weighted by their samples.

    A cluster that has not reported (no round of it fits, or it is late) counts with what the server has of its
    members: the models of the survey's training, or else the global model.
    """

    needs = (GLOBAL_ROUND,)

    def merge(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
        """Return the new global model."""
        reported = {a.report.sender: a.report.models[ALL] for a in arrivals if ALL in a.report.models}
        ahead = view.product(GLOBAL_ROUND)
        samples, features = ahead.samples, ahead.features
        old = view.models[ALL]
        terms: list[tuple[float, Ref]] = []
        unchanged = 0.0
        for cluster in ahead.clusters:
            total = float(sum(samples[d] for d in cluster.members))
            if cluster.head in reported:
                terms.append((total, reported[cluster.head]))
            elif features:
                terms += [(float(samples[d]), features[d]) for d in cluster.members]
            else:
                unchanged += total
        if unchanged:
            terms.append((unchanged, old))
        ahead.features = {}
        return {ALL: view.store.combine(normalised(terms), fallback=old)} if terms else {}
