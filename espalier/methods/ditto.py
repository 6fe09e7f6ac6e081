"""Ditto: a personal model per device, pulled to the shared one.

Li, Hu, Beirami, Smith. Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021.

1. A device trains the received model w and reports it: FedAvg, untouched by what follows.
2. Then it trains its personal model v_k, from where it was, on its own loss plus ``lam/2 * ||v_k - w||^2``.
3. v_k never leaves the device, and is what the device uses.

``lam = 0`` is training alone beside FedAvg; a large ``lam`` keeps personal models at the shared one. Its time is that
of two trainings.

Differences: the personal model is pulled to the model as it was received, as in the paper's Algorithm 1, and trained
as long as the shared one unless ``personal_updates`` says otherwise. A device's first personal model is the shared one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from espalier.core.messages import Order, Train
from espalier.core.method import Category, Plan, SampledMethod, Setting
from espalier.core.policies import Contribution, Local, LocalView, Pace, Rules, Selection
from espalier.core.store import Ref

PERSONAL = "personal"


@dataclass(frozen=True)
class WithPersonal(Local, kind="ditto"):
    """Trains the shared model, then the device's own, pulled to the shared one as it was received.

    Attributes:
        lam: Strength of that pull.
        updates: Local updates of the personal model; None: as many as the order says.
    """

    @dataclass(slots=True)
    class State:
        """The personal model."""

        model: Ref | None = None

    lam: float = 0.1
    updates: int | None = None

    def then(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Train | None:
        """After the shared model, train the personal one."""
        if PERSONAL in models:
            return None
        received = next(iter(order.models.values()))
        start, updates = view.state(self).model, order.updates if self.updates is None else self.updates
        return Train(
            name=PERSONAL, start=received if start is None else start, updates=updates, clock=order.clock,
            anchor=received, mu=self.lam, args=order.args,
        )  # fmt: skip

    def done(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Contribution:
        """Report the shared model; keep and use the personal one."""
        view.state(self).model = models[PERSONAL]
        return replace(super().done(view, order, models), uses=models[PERSONAL])


@dataclass(frozen=True)
class Ditto(SampledMethod, kind="ditto"):
    """HierFAVG, and beside it a personal model per device.

    Attributes:
        lam: Strength of the pull of personal models to the shared one, lambda.
        personal_updates: Local updates of the personal model per order (default: as many as of the shared one).
        kappa2: Edge rounds per cloud round.
        fraction: Share of an edge's devices in each round (default: the experiment's).
    """

    title: ClassVar[str] = "Ditto"
    category: ClassVar[Category] = "personal"
    citation: ClassVar[str] = "Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021"

    lam: float = 0.1
    personal_updates: int | None = None
    kappa2: int = 1

    def check(self) -> None:
        """Refuse impossible values."""
        self.require(self.lam >= 0, "lam", "0 or more")
        self.require(self.personal_updates is None or self.personal_updates >= 1, "personal_updates", "at least 1")
        self.require(self.kappa2 >= 1, "kappa2", "at least 1")

    def plan(self, setting: Setting) -> Plan:
        """HierFAVG's barriers; a device uses its own model."""
        return Plan(
            root=Rules(pace=Pace(self.kappa2)),
            edge=Rules(selection=Selection(self.share(setting)), pace=Pace(setting.updates)),
            local=WithPersonal(lam=self.lam, updates=self.personal_updates),
            serves="device",
        )
