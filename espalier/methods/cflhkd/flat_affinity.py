"""Dynamic clustering by affinity with the clusters at the cloud: what is left of CFLHKD without its edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from espalier.core.address import Address
from espalier.core.policies import Survey
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.methods.cflhkd.fdc import AffinityRule, Distance, at_rest
from espalier.policies.cloud_clusters import Regrouping, blend, group_of, samples_of
from espalier.policies.dendrogram import note_similarity


@dataclass(frozen=True)
class FlatAffinity(Regrouping, kind="flat_affinity"):
    """Clusters at the cloud by affinity: once, or (``dynamic``) anew every ``every`` rounds and after drift.

    Attributes:
        dynamic: Whether devices are ever put elsewhere.
        initial: Least number of clusters at the beginning.
        gamma: See :class:`~espalier.methods.cflhkd.fdc.AffinityRule`, as the three that follow.
        delta: Greatest distance to a centroid.
        distance: Whose entries of an affinity row count in a distance.
        most: Greatest number of clusters.
        restless: Clusters whose updates are shorter than this share of the longest average stay as they are.
    """

    @dataclass(slots=True)
    class State(Regrouping.State):
        """With devices' label histograms, who has drifted, everybody's cluster, and the longest average update."""

        histograms: dict[Address, Any] = field(default_factory=dict)
        drifted: set[Address] = field(default_factory=set)
        place: dict[Address, str] = field(default_factory=dict)
        peak: float = 0.0

    dynamic: bool = True
    initial: int = 4
    gamma: float = 0.5
    delta: float = 0.7
    distance: Distance = "members"
    most: int = 8
    restless: float = 0.75

    def survey(self, view: View) -> Survey | None:
        """Ask devices that the cloud does not know yet for their labels."""
        known = view.state(self).histograms
        unknown = [d for d in view.env.devices() if d not in known]
        return Survey("label_histogram", devices=unknown) if unknown else None

    def due(self, view: View) -> bool:
        """Always look: somebody may have come or drifted."""
        return True

    def regroup(
        self, view: View, answers: Mapping[Address, Arrival]
    ) -> tuple[dict[str, list[Address]], dict[str, Ref]] | None:
        """Form clusters, or find places for newcomers and drifted devices."""
        state = view.state(self)
        state.histograms.update({d: a.report.stats["histogram"] for d, a in answers.items()})
        before = state.place
        known = [d for d in view.env.devices() if d in state.histograms]
        drifted, state.drifted = state.drifted & set(known) & set(before), set()
        loose = {d for d in known if d not in before} | (drifted if self.dynamic else set())
        anew = not before or (self.dynamic and super().due(view))
        if not known or not (loose or anew):
            return None
        rule = AffinityRule(self.gamma, self.delta, self.distance, self.most)
        seen, updates = self.last_updates(view, known)
        ways = {d: u.numpy() for d, u in zip(seen, updates, strict=True)}
        names, place = [str(k) for k in range(self.most)], dict(before)
        if before and loose:
            place |= rule.mend(known, rule.affinities(known, state.histograms, ways), before, names, loose)
        if anew:
            place |= self._formed(view, rule, known, ways, place)
        state.place = place
        groups: dict[str, list[Address]] = {}
        for device, name in sorted(place.items()):
            groups.setdefault(name, []).append(device)
        return groups, {name: self._model(view, name, inside, before) for name, inside in groups.items()}

    def _formed(
        self,
        view: View,
        rule: AffinityRule,
        known: Sequence[Address],
        ways: Mapping[Address, Any],
        place: Mapping[Address, str],
    ) -> dict[Address, str]:
        """Form clusters anew of those devices whose cluster is not at rest."""
        state = view.state(self)
        norms = {d: float(np.linalg.norm(u)) for d, u in ways.items()}
        state.peak = max(float(np.mean([*norms.values()] or [0.0])), state.peak)
        rest = at_rest(place, norms, self.restless * state.peak)
        moving = [d for d in known if place.get(d) not in rest]
        affinities = rule.affinities(moving, state.histograms, ways)
        note_similarity(view, moving, affinities, "affinity")
        free = [str(k) for k in range(self.most) if str(k) not in rest]
        return rule.form(moving, affinities, place, free, least=1 if place else self.initial)[0]

    def _model(self, view: View, name: str, inside: Sequence[Address], before: Mapping[Address, str]) -> Ref:
        """Return a cluster's model: its own if it goes on, else the average of those that its devices had."""
        own = next((d for d in inside if before.get(d) == name), None)
        if own is not None:
            return view.models[group_of(view, own)]
        return blend(view.store, ((samples_of(view, d), view.models[group_of(view, d)]) for d in inside))

    def learn(self, view: View, arrivals: Sequence[Arrival]) -> None:
        """Remember what the devices learnt, and who has drifted."""
        super().learn(view, arrivals)
        state = view.state(self)
        for arrival in arrivals:
            if "histogram" in arrival.report.stats:
                state.histograms[arrival.report.sender] = arrival.report.stats["histogram"]
                state.drifted.add(arrival.report.sender)
