"""APFL: a personal model per device that is a mixture of its own and the shared one.

Deng, Kamani, Mahdavi. Adaptive Personalized Federated Learning. 2020.

1. A device has a model v of its own, and gets the shared model w. It uses the mixture ``alpha v + (1 - alpha) w``.
2. Each of its steps moves both on one mini-batch: w by the gradient of its own loss, v by that of the mixture's loss,
   which is ``alpha`` times the gradient at the mixture.
3. It reports w, which is averaged over the tree: HierFAVG, untouched by the rest. v stays.
4. Before an order's training alpha moves, if ``adapt`` says so, down the slope of the mixture's loss:
   ``alpha <- alpha - adapt d/d alpha f(alpha v + (1 - alpha) w)``, kept in [0, 1].

The trainer's unit is one training of one model, so w is trained twice: once as the model that is reported, and once
more, on the same mini-batches and so with the same numbers, beside v. The steps are those of the paper's Algorithm 1;
an order takes the time of two trainings, as two gradients per step do.

``alpha = 0`` uses w alone, ``alpha = 1`` trains v alone.

Differences: the slope is that of the loss over all of the device's samples, as the difference of the losses at
``alpha +- 0.01`` (the paper takes the gradient on a mini-batch), and is found at the received w; looking at it costs
that the device's last training must be computed by then, one at a time. v is at first the initial model. Averages are
weighted by samples. The authors' code (FedTorch) mixes outputs in the place of weights, and steps w before it looks at
the mixture; the paper's Algorithm 1 is kept to. An optimiser given by its import path is refused: it could step v, but
not where it is mixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from espalier.core.bounds import NonNegativeFloat, UnitFloat
from espalier.core.code import is_own
from espalier.core.messages import Order, Train
from espalier.core.method import PersonalModels, Setting
from espalier.core.objectives import Mixture
from espalier.core.policies import Contribution, Local, LocalView
from espalier.core.store import Ref

OWN = "own"
#: h, how far to either side of alpha the loss is looked at
STEP = 0.01


def mixture(own: Ref, shared: Ref, alpha: float) -> list[tuple[float, Ref]]:
    """Return ``alpha v + (1 - alpha) w`` as coefficients."""
    return [(c, ref) for c, ref in ((alpha, own), (1.0 - alpha, shared)) if c]


def moved_share(alpha: float, above: float, below: float, rate: float) -> float:
    """Return ``alpha - rate (f(alpha + h) - f(alpha - h)) / 2h``, kept in [0, 1], with h = :data:`STEP`."""
    return min(1.0, max(0.0, alpha - rate * (above - below) / (2 * STEP)))


@dataclass(frozen=True)
class TrainedMixed(Local, kind="apfl"):
    """Trains the shared model, then the device's own where it is mixed with the shared one, step by step.

    Attributes:
        alpha: The own model's share in the mixture, at first.
        adapt: Step of the share per order; 0: it stays.
    """

    @dataclass(slots=True)
    class State:
        """The device's own model, and its share (None: the first)."""

        model: Ref | None = None
        alpha: float | None = None

    alpha: UnitFloat = 0.5
    adapt: NonNegativeFloat = 0.0

    def share(self, view: LocalView) -> float:
        """Return the own model's share now."""
        found = view.state(self).alpha
        return self.alpha if found is None else found

    def question(self, view: LocalView, order: Order) -> str | None:
        """Ask for the losses beside the mixture, once there is an own model."""
        return "losses" if self.adapt and view.state(self).model is not None else None

    def question_models(self, view: LocalView, order: Order) -> tuple[Ref, ...]:
        """Return the mixtures a little above and below the share."""
        own, alpha, shared = view.state(self).model, self.share(view), next(iter(order.models.values()))
        assert own is not None
        return tuple(view.env.store.combine(mixture(own, shared, a)) for a in (alpha + STEP, alpha - STEP))

    def answer(self, view: LocalView, order: Order, values: Mapping[str, Any]) -> Order:
        """Move the share."""
        above, below = (float(loss) for loss in values["losses"])
        view.state(self).alpha = moved_share(self.share(view), above, below, self.adapt)
        return order

    def then(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Train | None:
        """After the shared model, train the own one on the same mini-batches."""
        if OWN in models:
            return None
        own = view.state(self).model
        return Train(
            name=OWN, start=view.env.store.initial() if own is None else own, updates=view.done, clock=order.clock,
            objective=Mixture(self.share(view)), beside=next(iter(order.models.values())), args=order.args, again=True,
        )  # fmt: skip

    def done(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Contribution:
        """Report the shared model; keep the own one; use their mixture."""
        reported = super().done(view, order, models)
        own, shared = models[OWN], next(iter(reported.models.values()))
        view.state(self).model = own
        return replace(reported, uses=view.env.store.combine(mixture(own, shared, self.share(view))))


@dataclass(frozen=True)
class APFL(PersonalModels, kind="apfl"):
    """HierFAVG, and beside it a model per device that is mixed with the shared one.

    Attributes:
        alpha: The own model's share in the mixture, at first.
        adapt: Step of the share per order; 0: it stays, as in the paper's Algorithm 1.
        fraction: Share of an edge's devices in each round (default: the experiment's).
    """

    title: ClassVar[str] = "APFL"
    needs: ClassVar[str] = "SGD or Adam"
    citation: ClassVar[str] = "Deng et al., Adaptive Personalized Federated Learning, 2020"

    alpha: UnitFloat = 0.5
    adapt: NonNegativeFloat = 0.0

    def local(self, setting: Setting) -> Local:
        """Return that devices train a second model where it is mixed."""
        name = setting.training.optimizer
        given = f"training.optimizer = {name!r} is given"
        self.demand(not is_own(name), "'sgd' or 'adam', which step a mixture", given)
        return TrainedMixed(alpha=self.alpha, adapt=self.adapt)
