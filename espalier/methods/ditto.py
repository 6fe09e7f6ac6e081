"""Ditto: a personal model per device, pulled to the shared one.

Li, Hu, Beirami, Smith. Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021.

1. A device trains the received model w and reports it: FedAvg, untouched by what follows.
2. Then it trains its personal model v_k, from where it was, on its own loss plus ``lam/2 * ||v_k - w||^2``.
3. v_k never leaves the device, and is what the device uses.

``lam = 0`` is training alone beside FedAvg; a large ``lam`` keeps personal models at the shared one. Its time is that
of two trainings.

Differences: the personal model is pulled to the model as it was received, as in the paper's Algorithm 1, and trained
as long as the shared one unless ``personal_updates`` says otherwise. A device's first personal model is the shared one
as it first gets it (in the authors' code the initial one). Averages are weighted by samples (there devices are drawn by
samples and weighed evenly). ``lam`` is what the paper tunes; its dynamic choice is among 0.1, 1 and 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from espalier.core.bounds import NonNegativeFloat, PositiveInt
from espalier.core.messages import Order, Train
from espalier.core.method import PersonalModels, Setting
from espalier.core.policies import Contribution, Local, LocalView
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
class Ditto(PersonalModels, kind="ditto"):
    """HierFAVG, and beside it a personal model per device.

    Attributes:
        lam: Strength of the pull of personal models to the shared one, lambda.
        personal_updates: Local updates of the personal model per order (default: as many as of the shared one).
        fraction: Share of an edge's devices in each round (default: the experiment's).
    """

    title: ClassVar[str] = "Ditto"
    citation: ClassVar[str] = "Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021"

    lam: NonNegativeFloat = 0.1
    personal_updates: PositiveInt | None = None

    def local(self, setting: Setting) -> Local:
        """Train the personal model after the shared one."""
        return WithPersonal(lam=self.lam, updates=self.personal_updates)
