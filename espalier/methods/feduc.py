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

from espalier.core.method import Category, Plan, Setting
from espalier.core.policies import Merge, Pace
from espalier.methods.hiflash.method import PlacedDevices
from espalier.policies.association import TimeSharing
from espalier.policies.asynchronous import Asynchronous, Mixing


@dataclass(frozen=True)
class FedUC(PlacedDevices, kind="feduc"):
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

    inter: Literal["async", "sync"] = "async"

    def plan(self, setting: Setting) -> Plan:
        """Clusters are edges; the root mixes or waits."""
        if self.inter == "sync":
            return self.placed(setting, TimeSharing, Pace(self.kappa2), Merge())
        return self.placed(setting, TimeSharing, Asynchronous(self.kappa2), Mixing(self.alpha0, self.power))
