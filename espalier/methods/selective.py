"""Power-of-choice, Oort and TiFL: averaging over devices that are chosen by their losses and times.

Cho, Wang, Joshi. Towards Understanding Biased Client Selection in Federated Learning. AISTATS 2022.
Lai, Zhu, Madhyastha, Chowdhury. Oort: Efficient Federated Learning via Guided Participant Selection. OSDI 2021.
Chai, Ali, Zawad, Truex, Anwar, Baracaldo, Zhou, Ludwig, Yan, Cheng. TiFL: A Tier-based Federated Learning System.
HPDC 2020.

1. Power-of-choice draws candidates by their samples, of which those with the highest last losses work.
2. Oort draws by utility: samples times loss, a bonus for those not seen for long, less for those slower than a time
   that a pacer sets; a share of the places, which falls, is for devices never seen.
3. TiFL profiles devices, sorts them into tiers by their times, draws a tier (those with high losses more often, within
   credits) and devices in it uniformly: nobody waits for a much slower one.

Then it is FedAvg. Each works at the cloud over all devices as published (``at = "cloud"``), or at every edge over its
own (``at = "edges"``). As selections they go with any other method at any tier: :mod:`espalier.policies.selections`,
which also says where they differ from the papers. With everybody chosen the first two are FedAvg. Oort's blacklist of
devices that were chosen often is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from espalier.core.method import Category, Plan, Setting, TwoBarriers
from espalier.core.policies import Pace, Rules, Selection, Structure
from espalier.policies.selections import ByTier, ByUtility, HighestLosses


@dataclass(frozen=True)
class _Selective(TwoBarriers):
    """Averaging whose devices are drawn by :meth:`selection`."""

    at: Literal["cloud", "edges"] = "cloud"

    def selection(self, fraction: float) -> Selection:
        """Return how a share of the devices is drawn: by default uniformly."""
        return Selection(fraction)

    def check(self) -> None:
        """Refuse what the selection would refuse."""
        self.selection(1.0)

    def plan(self, setting: Setting) -> Plan:
        """One barrier over all devices, or one at every edge."""
        devices = Rules(selection=self.selection(self.share(setting)), pace=Pace(setting.updates))
        if self.at == "cloud":
            return Plan(root=replace(devices, structure=Structure(flat=True)))
        return replace(super().plan(setting), edge=devices)


@dataclass(frozen=True)
class PowerOfChoice(_Selective, kind="power_of_choice"):
    """FedAvg of the devices with the highest losses among some candidates.

    Attributes:
        candidates: Candidates for each place, the paper's d / m.
        at: Where: at the cloud over all devices, or at every edge.
        fraction: Share of the devices in each round (default: the experiment's).
    """

    title: ClassVar[str] = "Power-of-Choice"
    category: ClassVar[Category] = "selection"
    citation: ClassVar[str] = (
        "Cho et al., Towards Understanding Biased Client Selection in Federated Learning, AISTATS 2022"
    )

    candidates: float = 2.0

    def selection(self, fraction: float) -> Selection:
        """Return the draw by losses."""
        return HighestLosses(fraction, candidates=self.candidates)


@dataclass(frozen=True)
class Oort(_Selective, kind="oort"):
    """FedAvg of devices that promise much in little time.

    Attributes:
        alpha: How much slowness matters; 0: not at all.
        explore: Share of the places for devices that have never reported, in the first round.
        at: Where: at the cloud over all devices, or at every edge.
        fraction: Share of the devices in each round (default: the experiment's).
    """

    title: ClassVar[str] = "Oort"
    category: ClassVar[Category] = "selection"
    citation: ClassVar[str] = (
        "Lai et al., Oort: Efficient Federated Learning via Guided Participant Selection, OSDI 2021"
    )

    alpha: float = 2.0
    explore: float = 0.9

    def selection(self, fraction: float) -> Selection:
        """Return the draw by utility."""
        return ByUtility(fraction, alpha=self.alpha, explore=self.explore)


@dataclass(frozen=True)
class TiFL(_Selective, kind="tifl"):
    """FedAvg of devices of one tier at a time.

    Attributes:
        tiers: Number of tiers.
        interval: Every so many rounds the tiers' probabilities may change.
        credits: How often a tier may be drawn (default: any number).
        at: Where: at the cloud over all devices, or at every edge.
        fraction: Share of the devices in each round (default: the experiment's).
    """

    title: ClassVar[str] = "TiFL"
    category: ClassVar[Category] = "selection"
    citation: ClassVar[str] = "Chai et al., TiFL: A Tier-based Federated Learning System, HPDC 2020"

    tiers: int = 5
    interval: int = 10
    credits: int | None = None

    def selection(self, fraction: float) -> Selection:
        """Return the draw by tiers."""
        return ByTier(fraction, tiers=self.tiers, interval=self.interval, credits=self.credits)
