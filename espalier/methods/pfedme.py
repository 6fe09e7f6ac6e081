"""pFedMe: personal models by Moreau envelopes.

Dinh, Tran, Nguyen. Personalized Federated Learning with Moreau Envelopes. NeurIPS 2020.

A device's loss as a function of the shared model w is its Moreau envelope,
``min_theta f(theta) + lam/2 ||theta - w||^2``, whose gradient is ``lam (w - theta)``. Per order a device repeats
``rounds`` times:

1. train theta from the last one, pulled to its local w (approximately the minimum above),
2. ``w <- w - eta lam (w - theta)``.

It reports w; theta is its personal model, which it uses. Edges average, and the cloud moves by ``beta`` to the average.

``eta lam = 1`` with one round reports theta itself: FedProx with mu = lam.

Differences: the inner problem is solved by the experiment's own local updates (the paper takes K = 5 mini-batch steps
on one batch, by a rate of their own, 0.09), so ``rounds`` is 5 by default, where the paper has R = 20; lambda, eta and
beta are those of the authors' code. There, devices that are not drawn train, too, and nothing comes of it but a
personal model. Averages are weighted by samples, as in the authors' code (the paper's are even). w and theta start anew
from the received model in every order, as published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from espalier.core.bounds import PositiveFloat, PositiveInt
from espalier.core.messages import Order, Train
from espalier.core.method import Category, Plan, SampledMethod, Setting
from espalier.core.policies import Contribution, Local, LocalView, Merge, Pace, Rules, Selection
from espalier.core.store import Ref
from espalier.core.view import Arrival, View


def envelope_step(shared: Ref, personal: Ref, rate: float) -> list[tuple[float, Ref]]:
    """Return ``w - eta lam (w - theta)`` as coefficients, ``rate = eta lam``."""
    return [(rate, personal)] if rate == 1.0 else [(1.0 - rate, shared), (rate, personal)]


@dataclass(frozen=True)
class Envelope(Local, kind="pfedme"):
    """Alternates between a personal model that is pulled to the shared one, and a step of the shared one towards it."""

    @dataclass(slots=True)
    class State:
        """The shared model as it stands at the device during an order."""

        shared: Ref | None = None

    lam: PositiveFloat = 15.0
    eta: PositiveFloat = 0.005
    rounds: PositiveInt = 1

    def train(self, view: LocalView, order: Order) -> Train:
        """Begin with the received model."""
        received = next(iter(order.models.values()))
        view.state(self).shared = received
        return self._inner(order, received, received, 0)

    def then(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Train | None:
        """Step with the last personal model; train on from it while rounds are left."""
        state, last = view.state(self), next(reversed(list(models.values())))
        assert state.shared is not None
        state.shared = view.env.store.combine(envelope_step(state.shared, last, self.eta * self.lam))
        return self._inner(order, last, state.shared, len(models)) if len(models) < self.rounds else None

    def done(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Contribution:
        """Report the shared model; use the personal one."""
        shared = view.state(self).shared
        view.drop_state(self)
        assert shared is not None
        return Contribution({next(iter(order.models)): shared}, uses=next(reversed(list(models.values()))))

    def _inner(self, order: Order, start: Ref, shared: Ref, number: int) -> Train:
        return Train(
            name=str(number), start=start, updates=order.updates, clock=order.clock, anchor=shared, mu=self.lam,
            args=order.args,
        )  # fmt: skip


@dataclass(frozen=True)
class Towards(Merge, kind="towards"):
    """Move by ``beta`` from the current model to the average of the reports."""

    beta: PositiveFloat = 1.0

    def merge(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
        """Return ``(1 - beta) w + beta average``."""
        merged = super().merge(view, arrivals)
        if self.beta == 1.0:
            return merged
        for group, average in merged.items():
            old = view.models[group]
            merged[group] = view.store.combine([(1.0 - self.beta, old), (self.beta, average)], fallback=old)
        return merged


@dataclass(frozen=True)
class PFedMe(SampledMethod, kind="pfedme"):
    """Averaging of models whose devices keep personal ones near by.

    Attributes:
        lam: How strongly personal models are pulled to the shared one, lambda.
        eta: The step of a device's shared model.
        rounds: How often a device alternates per order, the paper's R.
        beta: How far the cloud moves to the average.
        fraction: Share of an edge's devices in each round (default: the experiment's).
    """

    title: ClassVar[str] = "pFedMe"
    category: ClassVar[Category] = "personal"
    citation: ClassVar[str] = "Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020"

    lam: PositiveFloat = 15.0
    eta: float = 0.005
    rounds: PositiveInt = 5
    beta: PositiveFloat = 1.0

    def check(self) -> None:
        """Refuse steps that overshoot the anchor."""
        self.require(0 < self.eta * self.lam <= 1, "eta", "more than 0 and at most 1 / lam")

    def plan(self, setting: Setting) -> Plan:
        """Barriers; a device uses its own model."""
        return Plan(
            root=Rules(merge=Towards(self.beta)),
            edge=Rules(selection=Selection(self.share(setting)), pace=Pace(setting.updates)),
            local=Envelope(lam=self.lam, eta=self.eta, rounds=self.rounds),
            serves="device",
        )
