"""FedUC: clusters whose uploads share one uplink in turn; clusters report asynchronously.

Ma, Xu, Xu, Liu, Huang. FedUC: A Unified Clustering Approach for Hierarchical Federated Learning. IEEE TMC
23(10), 2024.

1. Devices are clustered, a cluster per edge, so that clusters' label mixes resemble the whole and the time until
   the last member's upload is done is short when members upload one after another.
2. A cluster runs ``kappa2`` synchronous rounds; its uploads share the edge's uplink.
3. The cloud mixes a cluster's model in as it comes (or waits for all, ``inter="sync"``).

Reconstructed from one sentence about it in CSAHFL ("a time-sharing scheduling algorithm to minimize intra-cluster
aggregation latency"): the cost, the search by moves and swaps, and the mixing rule are ours, the last that of
HiFlash without a limit. How uploads share the uplink is the world's (links of kind ``shared``), the same for all
methods; with private links the method reduces to its clustering. A device's reach is as for HiFlash.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from espalier.core.bounds import NonNegativeFloat, PositiveInt, Share
from espalier.core.method import Category, Plan, SampledMethod, Setting
from espalier.core.policies import Pace, Rules, Selection
from espalier.policies.association import AutoReach, TimeSharing, reach_under
from espalier.policies.asynchronous import Asynchronous, Mixing


@dataclass(frozen=True)
class FedUC(SampledMethod, kind="feduc"):
    """Clusters by label mix and upload time, synchronous inside, asynchronous between.

    Attributes:
        kappa2: Cluster rounds per report to the cloud.
        alpha0: Share of a fresh report in the new model.
        power: How fast the share falls with staleness.
        inter: Whether the cloud mixes reports in as they come, or waits for all clusters.
        reach: Which edges a device may be clustered at.
        time_weight: Weight of time against label mix in the clustering.
        fraction: Share of a cluster's devices in each round (default: the experiment's).
    """

    title: ClassVar[str] = "FedUC"
    category: ClassVar[Category] = "hierarchical"
    citation: ClassVar[str] = (
        "Ma et al., FedUC: A Unified Clustering Approach for Hierarchical Federated Learning, TMC 2024"
    )
    reconstruction: ClassVar[str] = (
        "Only the idea of time-shared uploads was at hand; the clustering's cost and search and the mixing are ours."
    )

    kappa2: PositiveInt = 1
    alpha0: Share = 0.6
    power: NonNegativeFloat = 0.5
    inter: Literal["async", "sync"] = "async"
    reach: AutoReach = "auto"
    time_weight: NonNegativeFloat = 0.5

    def plan(self, setting: Setting) -> Plan:
        """Clusters are edges; the root mixes or waits."""
        fraction = self.share(setting)
        structure = TimeSharing(reach=reach_under(self.reach, setting), weight=self.time_weight, epochs=setting.updates)
        if self.inter == "sync":
            root = Rules(structure=structure, pace=Pace(self.kappa2))
        else:
            mixing = Mixing(self.alpha0, self.power)
            root = Rules(structure=structure, pace=Asynchronous(self.kappa2), merge=mixing)
        return Plan(root=root, edge=Rules(selection=Selection(fraction), pace=Pace(setting.updates)))
