"""FedRep: a shared representation, a head of each device's own.

Collins, Hassani, Mokhtari, Shakkottai. Exploiting Shared Representations for Personalized Federated Learning. ICML
2021.

1. A device puts its own head on the received representation.
2. It trains the head alone, then the representation alone, with the new head.
3. It reports the representation, which is averaged; the head stays.

Only the representation is sent and counted in bytes. With everything a head (``head = ["*"]``) nothing is shared and
every device trains alone.

Differences: the average is weighted by samples (the paper's is even); the head's length is the experiment's updates and
the representation's one update, as in the paper's experiments, both options here. What a device uses between two
orders is what it has trained, not the newest average under its head: it does not have that one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from espalier.core.bounds import PositiveInt
from espalier.core.messages import Order, Train
from espalier.core.method import PersonalModels, Setting
from espalier.core.policies import Local, LocalView
from espalier.core.store import Ref
from espalier.policies.local_policies import Parts

HEAD, BODY = "head", "representation"


@dataclass(frozen=True)
class InTurn(Parts, kind="fedrep"):
    """Trains the device's own part alone, then the shared part alone.

    Attributes:
        own_updates: Local updates of the own part; None: as many as the order says.
        shared_updates: Local updates of the shared part.
    """

    own_updates: PositiveInt | None = None
    shared_updates: PositiveInt = 1

    def train(self, view: LocalView, order: Order) -> Train:
        """Train the own part; if there is none, the shared one."""
        own = self.parameters(view.env.store.spec, shared=False)
        updates = order.updates if self.own_updates is None else self.own_updates
        head = replace(super().train(view, order), name=HEAD, updates=updates, trains=own)
        return head if own else replace(head, name=BODY, updates=self.shared_updates)

    def then(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Train | None:
        """Go on with the shared part."""
        shared = self.parameters(view.env.store.spec, shared=True)
        if BODY in models or not shared:
            return None
        return Train(
            name=BODY,
            start=models[HEAD],
            updates=self.shared_updates,
            clock=order.clock,
            trains=shared,
            args=order.args,
        )


@dataclass(frozen=True)
class FedRep(PersonalModels, kind="fedrep"):
    """HierFAVG of a representation under heads that stay at the devices.

    Attributes:
        head: Patterns of the names of the head's parameters (default: the last layer's).
        head_updates: Local updates of the head per order (default: the experiment's).
        body_updates: Local updates of the representation per order.
        fraction: Share of an edge's devices in each round (default: the experiment's).
    """

    title: ClassVar[str] = "FedRep"
    citation: ClassVar[str] = (
        "Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021"
    )

    head: tuple[str, ...] = ()
    head_updates: PositiveInt | None = None
    body_updates: PositiveInt = 1

    def local(self, setting: Setting) -> Local:
        """Train the head, then what is shared."""
        return InTurn(own=self.head, own_updates=self.head_updates, shared_updates=self.body_updates)
