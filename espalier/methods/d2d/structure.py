"""Stages 1 and 2 of a global round of the D2D paper, at the server: the survey, and clusters out of its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from espalier.core.address import Address, role
from espalier.core.bounds import NonNegativeFloat
from espalier.core.messages import ALL, Part
from espalier.core.policies import Arrangement, Structure, Survey
from espalier.core.store import ModelStore, Ref
from espalier.core.view import Arrival, View
from espalier.methods.d2d.clustering import Clustering, Ground, SwapSearch
from espalier.methods.d2d.clusters import Clusters, Floats, Ints
from espalier.methods.d2d.defence import audit_links
from espalier.methods.d2d.member import EMPTY_ROUND_SECONDS, GLOBAL_ROUND, Cluster, Feature
from espalier.methods.d2d.swap import Configuration, evaluate
from espalier.methods.d2d.theory import gradient_mismatch, progress_weight
from espalier.methods.d2d.timing import arrivals as arrival_times
from espalier.methods.d2d.timing import intra_rounds
from espalier.policies.dendrogram import note_similarity

#: models looked at together: enough for the batched trainer, few enough for memory
_MODELS_TOGETHER = 64


@dataclass(frozen=True)
class CoOptimisation(Structure, kind="d2d"):
    """Clusters of devices under heads that are devices, formed again in every global round.

    Attributes:
        clustering: How clusters are found.
        feature: What devices tell about their learning direction.
        t_feature: Seconds of the survey; by default until all have answered.
        t_g: Seconds of a global round; by default ``rounds`` rounds of the median cluster.
        rounds: See ``t_g``; also what a cluster does whose rounds take no time at all.
        updates: Length of the survey's training.
        keep: Whether the survey's training counts: clusters that cannot finish a round then contribute it.
        defence: Whether devices that report links differently from their peers, or that take longer than they said,
            are found, recorded and left out from then on.
        link_tolerance: Relative difference of two reports on a link that measuring may cause.
        most_liars: How many devices may lie; by default any minority.
        theory: Whether the gradients' mismatch is recorded; it takes the gradient of every device's loss.
        handling: Seconds of a cluster's round beyond computing and links: on a real fleet messages take time to handle.
    """

    peers: ClassVar[bool] = True

    provides = (GLOBAL_ROUND,)

    @dataclass(slots=True)
    class State:
        """What outlives a global round.

        Attributes:
            histograms: Label histograms that devices reported.
            excluded: Devices that are left out, and why.
            kept: Devices and their labels, if clusters are found once.
        """

        histograms: dict[Address, NDArray[Any]] = field(default_factory=dict)
        excluded: dict[Address, str] = field(default_factory=dict)
        kept: tuple[list[Address], list[int]] | None = None

    flat: bool = True
    clustering: Clustering = field(default_factory=SwapSearch)
    feature: Feature = "phi"
    t_feature: float | None = None
    t_g: float | None = None
    rounds: int = 4
    updates: int = 1
    keep: bool = True
    defence: bool = False
    link_tolerance: float = 0.05
    most_liars: int | None = None
    theory: bool = False
    handling: NonNegativeFloat = 0.0

    def survey(self, view: View) -> Survey | None:
        """Stage 1: hand out the global model; ask for features, links and speeds."""
        state = view.state(self)
        devices = [d for d in view.env.devices() if d not in state.excluded]
        if self.feature in ("phi", "phi_crop"):
            return Survey(None, updates=self.updates, devices=devices, seconds=self.t_feature)
        if self.feature == "pred":
            ask = "mean_prediction"
        else:
            # Labels do not change: who has reported its own is only asked whether it is there.
            ask = "d2d_presence" if all(d in state.histograms for d in devices) else "label_histogram"
        return Survey(ask, devices=devices, models=dict(view.models), seconds=self.t_feature)

    def arrange(self, view: View, answers: Mapping[Address, Arrival]) -> Arrangement | None:
        """Stage 2: form clusters, choose heads, count the rounds that fit."""
        here = set(view.env.devices())  # some may have left since they answered
        features = self._features(view, {d: a for d, a in answers.items() if d in here})
        devices = self._trusted(view, answers, sorted(features))
        found = self._clusters(view, answers, features, devices) if devices else None
        level = 1 + view.clock % 2
        parents: dict[Address, Address | None] = {c: None for c in view.children if not view.env.is_device(c)}
        plan: list[Cluster] = []
        note: dict[str, Any] = {"round": view.clock}
        if found is not None:
            configuration, rounds, seconds, extra = found
            note |= extra
            for number, members in enumerate(configuration.clusters.members):
                # Levels alternate: a head of the last round is never taken for one of this round.
                head = role(devices[configuration.heads[number]], level)
                names = [devices[m] for m in members]
                parents[head] = view.me
                parents |= dict.fromkeys(names, head)
                cluster = Cluster(head, names, int(rounds[number]))
                if self.defence:
                    column = configuration.heads[number]
                    cluster.due = {n: float(seconds[m, column]) for n, m in zip(names, members, strict=True)}
                plan.append(cluster)
        placed = {d for cluster in plan for d in cluster.members}
        parents |= {d: view.me for d in sorted(here) if d not in placed}
        whole = self.feature == "phi" and self.keep
        ahead = view.product(GLOBAL_ROUND)
        ahead.clusters = plan
        ahead.features = {d: answers[d].report.models[ALL] for d in sorted(placed)} if whole else {}
        ahead.samples = {d: view.env.samples(d) for d in sorted(placed)}
        return Arrangement(parents=parents, note=note)

    def learn(self, view: View, arrivals: Sequence[Arrival]) -> None:
        """Leave out whom the heads have named."""
        if not self.defence:
            return
        clusters = {c.head: c.members for c in view.product(GLOBAL_ROUND).clusters}
        named: set[Address] = set()
        for arrival in arrivals:
            told = arrival.report.stats.get("throttled", ())
            # a head tells of its own cluster: it could shut anybody out
            named.update(d for d in clusters.get(arrival.report.sender, ()) if d in told)
        self._exclude(view, sorted(named), "it takes longer than it says")

    # -- stage 1: what was answered ------------------------------------------------------------------------

    def _features(self, view: View, answers: Mapping[Address, Arrival]) -> dict[Address, NDArray[Any]]:
        """Return each device's feature ``[d]``; devices whose feature is not finite are left out and recorded."""
        reports = {d: a.report for d, a in sorted(answers.items())}
        if self.feature == "phi":
            refs = {d: r.models[ALL] for d, r in reports.items() if r.models}
            found = _differences(view.store, view.models[ALL], refs, ((0, view.store.spec.n_params),))
        elif self.feature == "phi_crop":
            parts: dict[Address, Part] = {d: r.stats["crop"] for d, r in reports.items() if "crop" in r.stats}
            spans = next(iter(parts.values())).spans if parts else ()
            found = _differences(view.store, view.models[ALL], {d: p.model for d, p in parts.items()}, spans)
        elif self.feature == "pred":
            found = {d: np.asarray(r.stats["prediction"]) for d, r in reports.items() if "prediction" in r.stats}
        else:
            known = view.state(self).histograms
            known |= {d: np.asarray(r.stats["histogram"]) for d, r in reports.items() if "histogram" in r.stats}
            found = {d: known[d] for d in reports if d in known}
        broken = [d for d, values in found.items() if not np.isfinite(values).all()]
        if broken:
            view.note("rejected", devices=broken, why="a feature has numbers that are not finite")
        return {d: values for d, values in found.items() if d not in broken}

    def _trusted(self, view: View, answers: Mapping[Address, Arrival], devices: Sequence[Address]) -> Sequence[Address]:
        """Return the devices that are not caught lying about their links."""
        if not self.defence or len(devices) < 2:
            return devices
        audit = audit_links(_links(answers, devices), self.link_tolerance, self.most_liars)
        liars = [devices[i] for i in audit.liars]
        self._exclude(view, liars, "it reports links differently from its peers")
        return [d for d in devices if d not in liars]

    def _exclude(self, view: View, devices: Sequence[Address], why: str) -> None:
        if devices:
            view.state(self).excluded |= dict.fromkeys(devices, why)
            view.note("excluded", devices=list(devices), why=why, round=view.clock)

    # -- stage 2: clusters ---------------------------------------------------------------------------------

    def _clusters(
        self,
        view: View,
        answers: Mapping[Address, Arrival],
        features: Mapping[Address, NDArray[Any]],
        devices: Sequence[Address],
    ) -> tuple[Configuration, Ints, Floats, dict[str, Any]]:
        """Return clusters with heads, rounds per cluster, when reports are due, and a note."""
        links = _links(answers, devices)
        if self.defence:
            links = np.maximum(links, links.T)  # where two ends disagree, the slower claim is believed
        if view.env.links.broadcast == "paid":
            links = links + links.T
        compute = np.array([answers[d].report.stats["seconds"] for d in devices])
        seconds = view.env.credible(arrival_times(compute, links))
        times = seconds.copy()
        times[:, [not view.env.may_aggregate(d) for d in devices]] = np.inf
        weights = np.array([view.env.samples(d) for d in devices])
        matrix = np.stack([features[d] for d in devices])
        rng = view.env.rng("clusters", view.me, view.clock)
        ground = Ground(weights, compute, times, matrix, self.feature == "skew", rng)
        state = view.state(self)
        extra: dict[str, Any]
        if self.clustering.once and state.kept is not None and state.kept[0] == list(devices):
            clusters, extra = Clusters.from_labels(state.kept[1]), {}
        else:
            clusters, extra = self.clustering.clusters(ground)
            note_similarity(view, devices, ground.cosines, "cosine of features")
            state.kept = (list(devices), clusters.labels.tolist()) if self.clustering.once else None
        configuration = evaluate(clusters, ground.alignment, times)
        lasting = configuration.times + self.handling
        t_g = self._duration(lasting)
        rounds = np.full(len(clusters), self.rounds)
        timed = lasting > 0
        rounds[timed] = intra_rounds(t_g, lasting[timed])
        view.product(GLOBAL_ROUND).t_g = t_g
        if self.theory:
            self._mismatch(view, devices, weights, configuration, rounds)
        note = {
            "clusters": [[devices[m] for m in members] for members in clusters.members],
            "heads": [devices[h] for h in configuration.heads],
            "seconds": [float(t) if np.isfinite(t) else None for t in configuration.times],
            "angles": configuration.angles,
            "rounds": rounds,
            "t_g": t_g,
            **extra,
        }
        return configuration, rounds, seconds, note

    def _duration(self, times: Floats) -> float:
        if self.t_g is not None:
            return self.t_g
        finite = times[np.isfinite(times)]
        return self.rounds * float(np.median(finite)) if len(finite) else EMPTY_ROUND_SECONDS

    def _mismatch(
        self, view: View, devices: Sequence[Address], weights: Ints, configuration: Configuration, rounds: Ints
    ) -> None:
        """Record how far gradients are from each other at the global model, and what Eq. (10) needs besides.

        ``progress`` is w^p for a learning rate of 1.
        """
        losses, gradients = view.env.trials.gradients(view.models[ALL], list(devices))
        found = gradient_mismatch(gradients, weights, configuration.clusters)
        steps = np.array([self.updates * view.env.speeds.update_batches(d) for d in devices])
        share = weights / weights.sum()
        view.note(
            "mismatch",
            round=view.clock,
            values={
                "cluster_global": found.means[0],
                "device_cluster": found.means[1],
                "cluster_global_max": found.bounds[0],
                "device_cluster_max": found.bounds[1],
                "gradient": float(np.linalg.norm(share @ gradients)),
                "loss": float(share @ losses),
                "progress": progress_weight(1.0, configuration.clusters, weights, rounds, steps),
                "r_max": int(rounds.max()),
                "h_max": int(steps.max()),
            },
            clusters=found.cluster_global,
            devices=found.device_cluster,
        )


def _links(answers: Mapping[Address, Arrival], devices: Sequence[Address]) -> Floats:
    """Return what each device says of its links to the others, ``[n, n]`` seconds."""
    chosen = np.asarray(devices)
    return np.stack([np.asarray(answers[d].report.stats["links"], dtype=np.float64)[chosen] for d in devices])


def _differences(
    store: ModelStore, start: Ref, models: Mapping[Address, Ref], spans: tuple[tuple[int, int], ...]
) -> dict[Address, NDArray[Any]]:
    """Return places of the models' differences to the start, looking at a bounded number of models at a time."""
    places = tuple(slice(*span) for span in spans)
    found: dict[Address, NDArray[Any]] = {}
    names = list(models)
    for at in range(0, len(names), _MODELS_TOGETHER):
        some = names[at : at + _MODELS_TOGETHER]
        first, *rest = store.vectors([start, *(models[d] for d in some)]).numpy()
        change = np.stack(rest) - first  # Algorithm 1, line 4: φ_i = x_i - x
        found |= dict(zip(some, np.concatenate([change[:, place] for place in places], axis=1), strict=True))
    return found
