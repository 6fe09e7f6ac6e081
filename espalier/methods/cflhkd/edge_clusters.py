"""Clusters that live at edges: edge k hosts cluster k, and devices report to the edge of their cluster.

The cloud asks every device for its label histogram once; the edges tell it sketches of updates and who has drifted.
Clusters form at the beginning, by histograms alone, again every ``every`` rounds, and whenever devices tell that their
data have drifted, only these anew. They are matched with edges so that few devices move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from espalier.core.address import Address
from espalier.core.errors import ConfigError
from espalier.core.messages import ALL
from espalier.core.policies import Arrangement, Structure, Survey
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.methods.cflhkd.bilevel import CLUSTER_MODELS, DELIVERIES, GUIDING, refined
from espalier.methods.cflhkd.fdc import AffinityRule, Distance, at_rest
from espalier.policies.cloud_clusters import blend
from espalier.policies.dendrogram import note_similarity


@dataclass(frozen=True)
class EdgeClusters(Structure, kind="edge_clusters"):
    """Federated dynamic clustering with a cluster per edge.

    Attributes:
        given: Devices stay where they are: the edges are the clusters.
        every: Rounds between clusterings (0: never after the first, not even after drift).
        initial: Least number of clusters at the beginning.
        gamma: See :class:`~espalier.methods.cflhkd.fdc.AffinityRule`, as the three that follow.
        delta: Greatest distance to a centroid.
        distance: Whose entries of an affinity row count in a distance.
        most: Greatest number of clusters.
        restless: Clusters whose devices' updates are on average shorter than this share of the longest average met so
            far stay as they are (0: everybody is always clustered anew).
        lam0: Strength with which a new cluster's model is pulled to the common one when the others are.
    """

    provides = (DELIVERIES,)
    needs = (CLUSTER_MODELS, GUIDING)

    @dataclass(slots=True)
    class State:
        """What the cloud knows of the devices, and of its edges.

        Attributes:
            histograms: Label histograms that devices reported.
            sketches: Of their updates.
            drifted: Devices whose data have drifted since clusters were mended last.
            place: Every device's edge.
            holding: Edges that hold their cluster's model.
            peak: The longest average update so far.
        """

        histograms: dict[Address, Any] = field(default_factory=dict)
        sketches: dict[Address, Any] = field(default_factory=dict)
        drifted: set[Address] = field(default_factory=set)
        place: dict[Address, Address] = field(default_factory=dict)
        holding: set[Address] = field(default_factory=set)
        peak: float = 0.0

    given: bool = False
    every: int = 1
    initial: int = 4
    gamma: float = 0.5
    delta: float = 0.7
    distance: Distance = "members"
    most: int = 8
    restless: float = 0.75
    lam0: float = 0.0

    def follows_moves(self) -> bool:
        """Devices stay with their cluster's edge wherever they are, unless the edges are the clusters."""
        return self.given

    def survey(self, view: View) -> Survey | None:
        """Ask devices that the cloud does not know yet for their labels."""
        known = view.state(self).histograms
        unknown = [] if self.given else [d for d in view.env.devices() if d not in known]
        return Survey("label_histogram", devices=unknown) if unknown else None

    def learn(self, view: View, arrivals: Sequence[Arrival]) -> None:
        """Take note of sketches and of devices whose data have drifted."""
        state = view.state(self)
        for arrival in arrivals:
            stats = arrival.report.stats
            state.sketches.update(zip(stats.get("sketched", ()), stats.get("sketches", ()), strict=True))
            state.histograms.update(zip(stats.get("drifted", ()), stats.get("histograms", ()), strict=True))
            state.drifted.update(stats.get("drifted", ()))

    def arrange(self, view: View, answers: Mapping[Address, Arrival]) -> Arrangement | None:
        """Form or mend clusters; see that devices are at their cluster's edge and every such edge has a model."""
        state, env = view.state(self), view.env
        edges = self._edges(view)
        if self.given:
            place = {d: p for d in env.devices() if (p := env.parent(d)) is not None}
            view.provide(DELIVERIES, self._deliveries(view, edges, place, place))
            return None
        state.histograms.update({d: a.report.stats["histogram"] for d, a in answers.items()})
        before = state.place
        known = [d for d in env.devices() if d in state.histograms]
        place, note = self._places(view, known, edges, before)
        state.place = place
        view.provide(DELIVERIES, self._deliveries(view, edges, before, place))
        parents = {d: place[d] for d in known if place.get(d) in edges and env.parent(d) != place[d]}
        if note:
            inside = {e: [d for d in known if place[d] == e] for e in edges}
            note["clusters"] = {str(e): members for e, members in inside.items() if members}
            note["moved"] = sum(1 for d in known if d in before and before[d] != place[d])
        return Arrangement(parents=parents, note=note) if parents or note else None

    def _places(
        self, view: View, known: list[Address], edges: list[Address], before: Mapping[Address, Address]
    ) -> tuple[dict[Address, Address], dict[str, Any]]:
        """Return every device's edge, and a note if clusters were formed or mended."""
        state = view.state(self)
        drifted, state.drifted = state.drifted & set(known) & set(before), set()
        loose = {d for d in known if d not in before} | (drifted if self.every else set())
        due = self.every > 0 and view.clock > 0 and view.clock % self.every == 0
        if not edges or not known or not (loose or due):
            return dict(before), {}
        rule = AffinityRule(self.gamma, self.delta, self.distance, self.most)
        histograms, sketches = state.histograms, state.sketches
        place, why, decided = dict(before), "start", dict[str, int]()
        if before and loose:
            place |= rule.mend(known, rule.affinities(known, histograms, sketches), before, edges, loose)
            why = "drift" if drifted else "newcomers"
        if due or not before:
            settled = self._settled(view, place)
            moving = [d for d in known if place.get(d) not in settled]
            here = place or {d: p for d in known if (p := view.env.parent(d)) is not None}
            affinities = rule.affinities(moving, histograms, sketches)
            note_similarity(view, moving, affinities, "affinity")
            formed, found = rule.form(
                moving, affinities, here, [e for e in edges if e not in settled],
                most=self.most - len(settled), least=1 if before else self.initial,
            )  # fmt: skip
            place |= formed
            why = "schedule" if before else "start"
            decided = {"crowded": found.crowded, "splits": found.splits, "cut": found.cut, "settled": len(settled)}
        return place, {"why": why, "round": view.clock, "drifted": sorted(drifted), **decided}

    def _settled(self, view: View, place: Mapping[Address, Address]) -> set[Address]:
        """Return the edges whose clusters have come to rest."""
        state = view.state(self)
        norms = {d: float(np.linalg.norm(s)) for d, s in state.sketches.items()}
        state.peak = max(float(np.mean([*norms.values()] or [0.0])), state.peak)
        return at_rest(place, norms, self.restless * state.peak)

    def _edges(self, view: View) -> list[Address]:
        """Return the edges that are there now."""
        children = list(view.env.children(view.me))
        if not set(children) <= set(view.env.places.edges()):
            raise ConfigError(
                "Clusters at edges need the edges directly below the cloud, but there are servers between them: "
                "set fleet.tiers to []."
            )
        return children

    def _deliveries(
        self, view: View, edges: list[Address], before: Mapping[Address, Address], place: Mapping[Address, Address]
    ) -> dict[Address, Ref]:
        """Return the models that edges need: those of new clusters, and of edges that were away.

        A new cluster starts from the average of the models that its devices had, weighted by samples.
        """
        state, common = view.state(self), view.models[ALL]
        models, holding = view.product(CLUSTER_MODELS), state.holding & set(edges)
        members: dict[Address, list[Address]] = {}
        for device, edge in place.items():
            members.setdefault(edge, []).append(device)
        found: dict[Address, Ref] = {}
        for edge in [e for e in edges if e in members]:
            if any(before.get(d) == edge for d in members[edge]):
                if edge not in holding:
                    found[edge] = models.get(edge, common)
                continue
            former = [(float(view.env.samples(d)), models.get(before.get(d, edge), common)) for d in members[edge]]
            found[edge] = blend(view.store, former)
            if view.product(GUIDING):
                found[edge] = refined(view.store, found[edge], common, self.lam0)
        models.update(found)
        state.holding = holding | set(found)
        return found
