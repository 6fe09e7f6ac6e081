"""HierFAVG: federated averaging on two levels.

Liu, Zhang, Song, Letaief. Client-Edge-Cloud Hierarchical Federated Learning. IEEE ICC 2020.

Every edge runs ``kappa2`` rounds with its devices (local training, then the average weighted by samples),
each at its own speed; then the cloud waits for all edges, averages their models weighted by all samples
registered below them, and overwrites every edge's model.

Differences: devices are drawn uniformly (the authors' code draws in proportion to samples *and* weights
by samples, which counts them twice); local work is whatever the experiment's unit is, epochs or steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from espalier.core.bounds import NonNegativeFloat
from espalier.core.method import Category, Plan, Setting, TwoBarriers
from espalier.core.policies import Completion, HandDown, Local


@dataclass(frozen=True)
class AfterMerge(HandDown, kind="after_merge"):
    """Replace; an edge's last round before a merge at the cloud is over when the merged model has come."""

    closed_by_next_order: ClassVar[Completion] = "last round"


@dataclass(frozen=True)
class HierFAVG(TwoBarriers, kind="hierfavg"):
    """Edges average their devices, the cloud averages the edges every ``kappa2`` edge rounds.

    ``fraction`` of an edge's devices take part in each of its rounds (default: the experiment's);
    ``mu`` adds FedProx's pull towards the edge's model. With ``clock = "edge"`` the run's rounds are those of the edges
    (of the slowest one), and a device uses its edge's model as it is then: after every ``kappa2``-th, the cloud's.
    """

    title: ClassVar[str] = "HierFAVG"
    category: ClassVar[Category] = "hierarchical"
    citation: ClassVar[str] = "Liu et al., Client-Edge-Cloud Hierarchical Federated Learning, ICC 2020"

    mu: NonNegativeFloat = 0.0
    clock: Literal["root", "edge"] = "root"

    def local(self, setting: Setting) -> Local:
        """Train with FedProx's pull, if there is one."""
        return Local(self.mu)

    def plan(self, setting: Setting) -> Plan:
        """Two barriers."""
        plan = replace(super().plan(setting), serves=self.clock, clock=self.clock)
        return plan if self.clock == "root" else replace(plan, edge=replace(plan.edge, hand_down=AfterMerge()))
