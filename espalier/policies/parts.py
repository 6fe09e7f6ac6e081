"""Models of which a part is shared and the rest stays at the device (FedPer, FedRep, LG-FedAvg, FedBN).

    { name = "fedavg", local = { kind = "parts", own = ["head.*"] }, serve = { model = "own" } }

Parts are named by patterns of the names of parameters and buffers, as file names are. A device trains from what it
receives with its own part put in, reports what it received with the shared part of its training put in, and (where
the method or ``serve`` says that devices use their own models) uses all of its training. So the own part of a model
that travels is never a device's, costs no bytes, and does not leave the device on a fleet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from espalier.core.messages import Order, Train
from espalier.core.params import ParamSpec, Spans
from espalier.core.policies import Contribution, Local, LocalView
from espalier.core.store import Ref


@dataclass(frozen=True)
class Parts(Local, kind="parts"):
    """Shares a part of the model and keeps the rest; both are trained together.

    Attributes:
        own: Patterns of what stays at the device; neither ``own`` nor ``shared``: the last layer.
        shared: Patterns of what is shared, where that is easier to say.
    """

    @dataclass(slots=True)
    class State:
        """The device's last model, of which its own part counts."""

        model: Ref | None = None

    own: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse two answers to one question."""
        self.require(not (self.own and self.shared), "shared", "left out where own is given")

    def shares(self, spec: ParamSpec) -> Spans:
        """Return the places that are shared."""
        return spec.spans(self.shared) if self.shared else spec.rest(spec.spans(self.own or spec.last_layer()))

    def parameters(self, spec: ParamSpec, *, shared: bool) -> tuple[str, ...]:
        """Return the names of the parameters that are shared, or of the device's own."""
        spans = self.shares(spec)
        return tuple(e.name for e in spec.parameters if any(a <= e.start < b for a, b in spans) == shared)

    def start(self, view: LocalView, order: Order) -> Ref:
        """Return the received model with the device's own part, at first the initial one."""
        store, received = view.env.store, next(iter(order.models.values()))
        own = view.state(self).model
        return store.splice(store.initial() if own is None else own, received, self.shares(store.spec))

    def train(self, view: LocalView, order: Order) -> Train:
        """Train both parts together."""
        return replace(super().train(view, order), start=self.start(view, order))

    def done(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Contribution:
        """Keep the device's own part, report the other."""
        store = view.env.store
        (group, received), trained = next(iter(order.models.items())), list(models.values())[-1]
        view.state(self).model = trained
        return Contribution({group: store.splice(received, trained, self.shares(store.spec))}, uses=trained)
