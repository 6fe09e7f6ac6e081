"""D2D co-optimisation: clusters of devices that learn in the fleet's direction and finish their rounds fast.

Wu, Boban, Dressler. Hierarchical Federated Learning in Device-to-Device Networks with Learning-Topology
Co-Optimization. IEEE Transactions on Mobile Computing, 2026.

A global round: (1) every device trains a little from the global model and sends the change (its *feature*), with
the state of its links and its speed. (2) The server splits the devices into clusters by a swap search that lowers
both the angle between each cluster's direction and the fleet's (Eq. (3)) and the cluster's round time (Eq. (4));
the head is the member that hears all others soonest (Eq. (5)). (3) Each cluster averages its models at its head
r_c = ⌊T_g/T_c⌋ times. (4) The server averages the clusters by samples. Links and speeds are redrawn.
The *structure* does (1) and (2), the server's *pace* (3), its *merge* (4); the next survey carries the result down.
Benchmarks: A groups like directions (FedMDS' spectral clustering), A+ unlike ones, B label mixes (D-Cliques).

How we read the paper:

- An exchange is valid if one metric improves and the other worsens by at most 1/z of that share; the paper's
  α is any number for which its two inequalities hold. Sums over the pair, or (solution 1.2) each cluster.
- Clusters: a fifth of the devices, 2 to twice the mean in size (none of it is stated). Local work is one epoch; how
  long a model is in the links' units and how pixels are scaled was calibrated on benchmark A alone
  (`espalier.methods.d2d.settings`).
- r_c = 0: the cluster counts with its members' survey models, which the server has; with the global model where it
  has not (cropped feature, skew, prediction). A cluster never overruns T_g: the links are redrawn then.
- Devices go on from the survey's training (Algorithm 1; section 4.2's proof discards it: ``keep = false``).
- A global round lasts t_feature + t_g: 120 + 80 steps make 12 rounds of 2,400 steps. One step is one second.
- Round times count the way to the head only, as Eq. (4); the world's links say whether the way back is free too.
  Bytes of both are counted: models up and down inside clusters in every round, one model per head to the server,
  one to each device, the feature and 4 bytes per link from each device.
- Benchmark B's swaps must lower the skew strictly ("≤" walks about on plateaus), once: labels do not change. In A and
  A+ times are scaled to [0, 1], and a device left alone joins the cluster most like it.

Beyond the paper: t_g by itself (``rounds`` rounds of the median cluster), a reverse-spectral start for large fleets,
and a defence: who reports links differently from its peers, or takes longer than it says, is left out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from espalier.core.address import Address
from espalier.core.bounds import Bound, NonNegativeFinite, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from espalier.core.messages import ALL
from espalier.core.method import Category, Method, Plan, Setting
from espalier.core.policies import Assignment, HandDown, Merge, Pace, Rules, Selection, normalised
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.methods.d2d.clustering import Adapted, Cliques, Clustering, Spectral, SwapSearch
from espalier.methods.d2d.member import GLOBAL_ROUND, SLACK, ClusterMember, HeadDown, HeadPace, nodes
from espalier.methods.d2d.structure import CoOptimisation
from espalier.methods.d2d.swap import Solution


@dataclass(frozen=True)
class ServerPace(Pace, kind="d2d_server"):
    """Stage 3: every head gets its rounds, and the global round lasts T_g (and until the heads' models are there).

    ``t_cg`` is the time for those; by default ``handling`` and what the links say: there and back for the slowest.
    """

    needs = (GLOBAL_ROUND,)
    until_deadline: ClassVar[bool] = True

    t_cg: float | None = None
    handling: NonNegativeFloat = 0.0

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
            extra = self.handling + 2 * max(view.env.credible(np.asarray(ways)), default=0.0)
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


_PAPER = "Wu et al., Hierarchical FL in D2D Networks with Learning-Topology Co-Optimization, IEEE TMC 2026"


@dataclass(frozen=True)
class ClusteredD2D(Method):
    """Algorithm 1, whatever forms the clusters.

    Attributes:
        feature: What devices send about their learning direction: the model's change, its smallest convolution layers,
            label counts, or the global model's mean prediction.
        t_feature: Seconds of the feature collection; default: until all have answered.
        t_g: Seconds of a global round's clusters; default: ``rounds`` rounds of the median cluster.
        rounds: See ``t_g``.
        t_cg: Seconds for the heads' models to reach the server; default: what the links say.
        n_clusters: Default: a fifth of the devices.
        feature_updates: Local updates for the feature; default: as many as in a cluster's round.
        crop_layers: Convolution layers of the cropped feature.
        keep: Whether the training for the feature counts.
        defence: Whether liars and stragglers are found and left out.
        theory: Whether the mismatch of gradients is recorded.
    """

    citation: ClassVar[str] = _PAPER

    feature: Literal["phi", "phi_crop", "skew", "pred"] = "phi"
    t_feature: NonNegativeFloat | None = None
    t_g: NonNegativeFinite | None = None
    rounds: PositiveInt = 4
    t_cg: NonNegativeFloat | None = None
    n_clusters: PositiveInt | None = None
    feature_updates: PositiveInt | None = None
    crop_layers: PositiveInt = 1
    keep: bool = True
    defence: bool = False
    theory: bool = False

    def check(self) -> None:
        """Refuse what the clustering would refuse."""
        self._clustering()

    @abstractmethod
    def _clustering(self) -> Clustering:
        """Return how clusters are formed."""

    def plan(self, setting: Setting) -> Plan:
        """The server's rules, and those of heads that are devices."""
        structure = CoOptimisation(
            clustering=self._clustering(), feature=self.feature, t_feature=self.t_feature, t_g=self.t_g,
            rounds=self.rounds, updates=self.feature_updates or setting.updates, keep=self.keep,
            defence=self.defence, theory=self.theory, handling=2 * setting.message_seconds,
        )  # fmt: skip
        head = Rules(pace=HeadPace(setting.updates), hand_down=HeadDown())
        return Plan(
            root=Rules(
                selection=Heads(), pace=ServerPace(t_cg=self.t_cg, handling=setting.message_seconds),
                merge=ServerMerge(), hand_down=ServerDown(), structure=structure,
            ),
            edge=head,
            local=ClusterMember(
                feature=self.feature, crop_layers=self.crop_layers, keep=self.keep, updates=setting.updates
            ),
            node=nodes(head),
        )  # fmt: skip


@dataclass(frozen=True)
class D2D(ClusteredD2D, kind="d2d"):
    """Swap search on (angle, round time); the fields are `SwapSearch`'s."""

    title: ClassVar[str] = "D2D co-optimisation"
    category: ClassVar[Category] = "hierarchical"

    solution: Solution = "1.1"
    n_swap: NonNegativeInt = 80
    z: Annotated[float, Bound(ge=1)] | None = None
    pick: Literal["random", "best"] = "random"
    start: Literal["random", "reverse_spectral"] = "random"
    n_min: PositiveInt | None = None
    n_max: int | None = None

    def _clustering(self) -> Clustering:
        return SwapSearch(
            self.n_clusters, self.solution, self.n_swap, self.z, self.pick, self.start, self.n_min, self.n_max
        )


@dataclass(frozen=True)
class BenchmarkA(ClusteredD2D, kind="d2d_a"):
    """Spectral clustering of like speeds and like directions (FedMDS, Zhang et al. 2023, as the D2D paper uses it)."""

    title: ClassVar[str] = "Benchmark A"
    category: ClassVar[Category] = "hierarchical"
    reconstruction: ClassVar[str] = "FedMDS' clustering as the D2D paper states it, without its asynchronous groups"

    sigma: PositiveFloat = 0.5

    def _clustering(self) -> Clustering:
        return Spectral(self.n_clusters, self.sigma)


@dataclass(frozen=True)
class BenchmarkAPlus(ClusteredD2D, kind="d2d_a_plus"):
    """Spectral clustering of like speeds and unlike directions."""

    title: ClassVar[str] = "Benchmark A+"
    category: ClassVar[Category] = "hierarchical"

    sigma_t: PositiveFloat = 0.5
    sigma_ft: PositiveFloat = 0.8

    def _clustering(self) -> Clustering:
        return Adapted(self.n_clusters, self.sigma_t, self.sigma_ft)


@dataclass(frozen=True)
class BenchmarkB(ClusteredD2D, kind="d2d_b"):
    """Cliques of equal size whose label mix is the fleet's (D-Cliques, Bellet et al. 2022)."""

    title: ClassVar[str] = "Benchmark B"
    category: ClassVar[Category] = "hierarchical"

    feature: Literal["phi", "phi_crop", "skew", "pred"] = "skew"
    n_swap: NonNegativeInt = 80

    def check(self) -> None:
        """Refuse other features than label counts."""
        super().check()
        self.require(self.feature == "skew", "feature", '"skew": cliques are formed by label counts')

    def _clustering(self) -> Clustering:
        return Cliques(self.n_clusters, self.n_swap)
