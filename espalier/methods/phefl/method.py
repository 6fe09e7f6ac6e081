"""PHE-FL: each edge gets the model that fits it.

Lee, Tavallaie, Chen, Thilakarathna, Seneviratne, Nadjaran Toosi, Zomaya. Personalizing Federated Learning for
Hierarchical Edge Networks with Non-IID Data. arXiv 2504.08872, 2025.

Every round the devices of an edge train from the edge's personal model and the edge averages them. The cloud
gives each edge the average of all *other* edges' models (Eq. (6), (7)). The edge tests its own average and the
others' on a small set of its own and mixes them: ``alpha`` = own accuracy / (own + others' accuracy) (Eq. (8)),
personal model = ``alpha`` own + (1 - ``alpha``) others (Eq. (9)). That model is what its devices use, what it is
judged by, and where the next round starts.

How we read the paper:

- The cloud keeps one sum and subtracts (2 terms per edge instead of K-1), unless one edge has most of the data.
- Section III-D places the extra work at the cloud, Algorithm 2 at the edges; we compute ``alpha`` at the edge. It
  costs no time there, and each edge gets one model, as many bytes as a global model.
- Both accuracies 0: the paper is silent, the authors' code keeps the own model; we take the edge's share of all
  samples, which makes the mixture the plain average. With ten equal edges that is the paper's "alpha = 0.1 behaves
  like EdgeCloud"; alpha = 1 is OnlyEdge.
- "Edge-level aggregation every 5 rounds" (Figure 4c) is ``edge_every = 5``: devices train five rounds' epochs between
  two edge averages. The authors' code averages at the edge every round and personalises every fifth:
  ``cloud_every = 5``.
- A round is over when the personal models have reached the edges; they are what is evaluated.
- The personal set is part of the *test* data (15 % of an edge's), the rest judges. The two never overlap, but
  ``alpha`` is chosen on the test distribution: slightly optimistic, as in the paper. Where a partition has no such
  sets, an edge uses what its devices hold out for validation.

Beyond the paper: ``by = "loss"``; an alpha for body and head each; servers between edges and cloud (``tiers``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from espalier.core.bounds import PositiveInt, Share
from espalier.core.method import Category, Method, Plan, Setting
from espalier.core.policies import Pace, Rules, Selection
from espalier.methods.phefl.personal import Personal, Remember


@dataclass(frozen=True)
class PheFl(Method, kind="phefl"):
    """Edges mix their own model with the others' by how well each does on the edge's own set.

    Attributes:
        by: What the two models are compared by: accuracy, loss, or the samples they stand for.
        alpha: A fixed part of the own model instead.
        layers: One alpha for the whole model, or one each for its body and its head (the last layer).
        tiers: With servers between edges and cloud: whether only edges or also those servers choose.
        edge_every: Rounds of local training between two averages at the edge.
        cloud_every: Averages at the edge between two personalisations.
        fraction: Share of an edge's devices that work in a round.
    """

    title: ClassVar[str] = "PHE-FL"
    category: ClassVar[Category] = "personal"
    needs: ClassVar[str] = "data held out"
    citation: ClassVar[str] = (
        "Lee et al., Personalizing Federated Learning for Hierarchical Edge Networks with Non-IID Data, "
        "arXiv 2504.08872, 2025"
    )

    by: Literal["accuracy", "loss", "share"] = "accuracy"
    alpha: float | None = None
    layers: Literal["whole", "head_body"] = "whole"
    tiers: Literal["edge", "all"] = "edge"
    edge_every: PositiveInt = 1
    cloud_every: PositiveInt = 1
    fraction: Share = 1.0

    def check(self) -> None:
        """Refuse what the hand-down would refuse."""
        self._hand_down()

    def _hand_down(self) -> Personal:
        return Personal(by=self.by, alpha=self.alpha, layers=self.layers, tiers=self.tiers)

    def plan(self, setting: Setting) -> Plan:
        """Two barriers; the same hand-down at every level: the others' average down, mixed on arrival."""
        down = self._hand_down()
        work = Pace(setting.updates * self.edge_every)
        return Plan(
            root=Rules(pace=Pace(self.cloud_every), merge=Remember(), hand_down=down),
            edge=Rules(selection=Selection(self.fraction), pace=work, hand_down=down),
            middle=Rules(merge=Remember(), hand_down=down),
            serves="edge",
            clock="edge",
        )
