"""FedAvg and FedProx: federated averaging without edges.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-Efficient Learning of Deep Networks from
Decentralized Data. AISTATS 2017.
Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys 2020.

The cloud draws ``fraction`` of all devices uniformly; each trains from the cloud's model; the cloud waits
for all of them and averages, weighted by samples. FedProx adds ``mu/2 * ||w - received||^2`` to the local
loss, and keeps the work of devices that manage only part of it (``partial``: a share of the drawn devices
runs a uniformly drawn smaller number of epochs).

On a three-tier network every model pays both hops: edges pass messages on but do not merge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from espalier.core.address import Address
from espalier.core.bounds import NonNegativeFloat, UnitFloat
from espalier.core.method import Plan, SampledMethod, Setting
from espalier.core.policies import Assignment, Local, Pace, Rules, Selection, Structure
from espalier.core.view import View


@dataclass(frozen=True)
class PartialWork(Pace, kind="partial"):
    """A barrier at which ``share`` of the drawn children do only part of the work, and it counts."""

    share: float = 0.0

    def assign(self, view: View, chosen: Sequence[Address]) -> Mapping[Address, Assignment]:
        """Return full work for most, U{1 … updates-1} for the others."""
        rng = view.env.rng("partial", view.me, view.round)
        short = set(rng.choice(len(chosen), size=int(self.share * len(chosen)), replace=False).tolist())
        drawn = rng.integers(1, max(2, self.updates), size=len(chosen))
        return {child: Assignment(int(drawn[i]) if i in short else self.updates) for i, child in enumerate(chosen)}


@dataclass(frozen=True)
class FedAvg(SampledMethod, kind="fedavg"):
    """The cloud averages the devices, weighted by samples."""

    title: ClassVar[str] = "FedAvg"
    citation: ClassVar[str] = (
        "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017"
    )

    def plan(self, setting: Setting) -> Plan:
        """One barrier over the devices."""
        return Plan(root=self._root(setting, Pace(setting.updates)))

    def _root(self, setting: Setting, pace: Pace) -> Rules:
        fraction = self.share(setting)
        return Rules(Selection(fraction), pace, self.merge(), structure=Structure(flat=True))


@dataclass(frozen=True)
class FedProx(FedAvg, kind="fedprox"):
    """FedAvg whose devices are pulled to the model they received; ``partial`` work counts."""

    title: ClassVar[str] = "FedProx"
    citation: ClassVar[str] = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"

    mu: NonNegativeFloat = 0.01
    partial: UnitFloat = 0.0

    def plan(self, setting: Setting) -> Plan:
        """FedAvg's plan with another local objective."""
        pace = PartialWork(setting.updates, share=self.partial) if self.partial else Pace(setting.updates)
        return Plan(root=self._root(setting, pace), local=Local(self.mu))
