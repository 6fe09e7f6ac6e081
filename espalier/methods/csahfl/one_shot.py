"""Groups found once, before training, from what devices' data span (PACFL, CSAHFL section 3.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espalier.core.address import Address
from espalier.core.bounds import PositiveInt
from espalier.core.policies import Arrangement, Structure, Survey
from espalier.core.statistics import LABEL_HISTOGRAMS
from espalier.core.view import Arrival, View
from espalier.methods.csahfl.subspace import Beta, Floats, Linkage, Measure, cluster, principal_angles, proximity
from espalier.policies.dendrogram import note_similarity


@dataclass(frozen=True)
class OneShot(Structure, kind="subspace"):
    """Groups of devices whose data span similar subspaces, found once; newcomers join the nearest group.

    ``clusters`` asks for that many groups in place of a cut at ``beta``. With ``clustering`` off only the label
    histograms are asked for (they are what a merge by distribution needs); with ``histograms`` off only the vectors
    leave a device.
    """

    provides = (LABEL_HISTOGRAMS,)

    @dataclass(slots=True)
    class State:
        """The devices that have answered, and what their data span."""

        known: set[Address] = field(default_factory=set)
        signatures: dict[Address, NDArray[Any]] = field(default_factory=dict)

    vectors: PositiveInt = 3
    beta: Beta = 20.0
    linkage: Linkage = "weighted"
    measure: Measure = "smallest"
    rescue: bool = True
    clusters: int | None = None
    clustering: bool = True
    histograms: bool = True

    def check(self) -> None:
        """Refuse a negative angle."""
        self.require(self.beta == "auto" or self.beta >= 0, "beta", 'degrees, 0 or more, or "auto"')

    def survey(self, view: View) -> Survey | None:
        """Ask the devices that are not known yet, unless they are at work."""
        if not (self.clustering or self.histograms):
            return None
        known = view.state(self).known
        new = [d for d in view.env.devices() if d not in known and not view.env.busy(d)]
        if not new:
            return None
        if not self.clustering:
            return Survey("label_histogram", devices=new)
        args = {"count": self.vectors, "per_label": self.measure == "repository", "histogram": self.histograms}
        return Survey("subspace", args, devices=new)

    def arrange(self, view: View, answers: Mapping[Address, Arrival]) -> Arrangement | None:
        """Cluster at the first answers; put later ones into the nearest group."""
        if not answers:
            return None
        state = view.state(self)
        state.known |= set(answers)
        stats = {d: answers[d].report.stats for d in sorted(answers)}
        if self.histograms:
            view.product(LABEL_HISTOGRAMS).update({d: s["histogram"] for d, s in stats.items()})
        if not self.clustering:
            return None
        old = state.signatures
        fresh = _stacked([s["signature"] for s in stats.values()])
        if old:
            groups = self._nearest(view, list(stats), fresh)
            note: dict[str, Any] = {"newcomers": len(groups)}
        else:
            angles = proximity(fresh, self.measure)
            note_similarity(view, list(stats), angles, "principal angle (°)")
            cut = cluster(angles, self.beta, self.linkage, self.rescue, self.clusters)
            groups = {d: f"c{k}" for d, k in zip(stats, cut.labels.tolist(), strict=True)}
            sizes = np.bincount(cut.labels).tolist()
            note = {"clusters": cut.count, "beta": cut.beta, "sizes": sizes, "why": cut.why}
        old.update({d: s["signature"] for d, s in stats.items()})
        return Arrangement(groups=groups, note=note)

    def _nearest(self, view: View, devices: Sequence[Address], fresh: Floats) -> dict[Address, str]:
        """Return for each newcomer the group with the smallest mean angle to it."""
        old = view.state(self).signatures
        names = np.array([view.env.group(d) for d in old])
        both = _stacked([*fresh, *old.values()])
        angles = principal_angles(both[: len(fresh)], both[len(fresh) :], self.measure)
        groups = sorted(set(names.tolist()))
        means = np.stack([angles[:, names == g].mean(1) for g in groups], axis=1)
        return {d: groups[k] for d, k in zip(devices, means.argmin(1).tolist(), strict=True)}


def _stacked(signatures: Sequence[NDArray[Any]]) -> Floats:
    """Stack signatures [d, p_i] into [N, d, max p], with columns of zeros where one has fewer."""
    width = max(s.shape[1] for s in signatures)
    out = np.zeros((len(signatures), signatures[0].shape[0], width))
    for i, s in enumerate(signatures):
        out[i, :, : s.shape[1]] = s
    return out
