"""HiFlash: edges wait for their devices, the cloud waits for nobody; stale edges are sent back.

Wu, Chen, Ouyang, Zhou, Zhang, Yang, Zhang. HiFlash: Communication-Efficient Hierarchical Federated Learning
with Adaptive Staleness Control and Heterogeneity-Aware Client-Edge Association. IEEE TPDS 34(5), 2023.

1. An edge runs ``kappa2`` synchronous rounds with its devices and sends its model up.
2. The cloud mixes it in at once: w <- (1 - a) w + a w_k, a = alpha0 (1 + staleness)^-power, and the edge goes
   on from the new model. A report staler than the limit is thrown away (but never an edge's twice in a row).
3. Every M arrivals (M: edges) the limit is chosen anew: reinforcement learning in the paper.
4. Devices are associated with edges so that edges' label mixes resemble the whole and slow devices are together.

Reconstructed from the abstract; the formulas are ours: FedAsync's mixing; the limit climbs where accuracy per
second does not fall (``control="climbing"``, deterministic), or is chosen by a double Q-network that was trained
beforehand on a small proxy (``control="dqn"``); the association minimises the distance of label mixes plus the
slowest device's time, greedily and by swaps, within each device's ``reach``. In CSAHFL's comparison the method
suffers from skewed edges when nobody moves, so association cannot have been free across edges there: by default
a device stays at its own edge, and under mobility may also go to the neighbouring ones on the ring.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from espalier.core.bounds import NonNegativeFloat, PositiveInt, Share
from espalier.core.method import Category, Plan, SampledMethod, Setting
from espalier.core.policies import Merge, Pace, Rules, Selection
from espalier.methods.hiflash.staleness_control import Climbing, Learnt
from espalier.policies.association import Association, AutoReach, Balanced, reach_under
from espalier.policies.asynchronous import Asynchronous, Mixing, NoControl, StalenessControl


@dataclass(frozen=True)
class PlacedDevices(SampledMethod):
    """The base of methods that place devices at edges, whose reports the cloud mixes in as they come.

    Attributes:
        kappa2: Edge rounds per report to the cloud.
        alpha0: Share of a fresh report in the new model.
        power: How fast the share falls with staleness.
        reach: Which edges a device may be placed at.
        time_weight: Weight of time against label mix in the search for places.
    """

    kappa2: PositiveInt = 1
    alpha0: Share = 0.6
    power: NonNegativeFloat = 0.5
    reach: AutoReach = "auto"
    time_weight: NonNegativeFloat = 0.5

    def placed(self, setting: Setting, search: type[Association], pace: Pace, merge: Merge) -> Plan:
        """Return a plan with such a search at the root, and a barrier at every edge."""
        places = search(reach=reach_under(self.reach, setting), weight=self.time_weight, epochs=setting.updates)
        edge = Rules(selection=Selection(self.share(setting)), pace=Pace(setting.updates))
        return Plan(root=Rules(pace=pace, merge=merge, structure=places), edge=edge)


@dataclass(frozen=True)
class HiFlash(PlacedDevices, kind="hiflash"):
    """Synchronous edges, an asynchronous cloud with a staleness limit, devices associated by label mix and speed.

    Attributes:
        kappa2: Edge rounds per report to the cloud.
        alpha0: Share of a fresh report in the new model.
        power: How fast the share falls with staleness.
        control: How the staleness limit is found.
        target: The accuracy that the learnt control's reward measures by.
        episodes: Its episodes of pre-training.
        reach: Which edges a device may be associated with.
        time_weight: Weight of time against label mix in the association.
        fraction: Share of an edge's devices in each round (default: the experiment's).
    """

    title: ClassVar[str] = "HiFlash"
    category: ClassVar[Category] = "hierarchical"
    citation: ClassVar[str] = (
        "Wu et al., HiFlash: Communication-Efficient Hierarchical Federated Learning with Adaptive Staleness Control "
        "and Heterogeneity-Aware Client-Edge Association, TPDS 2023"
    )
    reconstruction: ClassVar[str] = (
        "The mechanism is the abstract's; the mixing rule, the staleness control and the association's cost are ours."
    )

    control: Literal["climbing", "dqn", "none"] = "climbing"
    target: float = 0.9
    episodes: PositiveInt = 50

    def plan(self, setting: Setting) -> Plan:
        """A cohort per edge at the root, a barrier at every edge."""
        controls: dict[str, StalenessControl] = {
            "climbing": Climbing(),
            "dqn": Learnt(setting.updates, self.kappa2, self.share(setting), self.target, self.episodes),
            "none": NoControl(),
        }
        mixing = Mixing(self.alpha0, self.power, controls[self.control])
        return self.placed(setting, Balanced, Asynchronous(self.kappa2), mixing)
