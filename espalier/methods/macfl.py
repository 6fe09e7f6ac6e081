"""MACFL: hierarchical averaging for devices on the move.

Feng, Yang, Hu, Zhao, Quek, Min. Mobility-Aware Cluster Federated Learning in Hierarchical Wireless Networks. IEEE
TWC 21(10), 2022.

1. Access: a device uploads at the edge where it *is* after training, so that moving loses no work.
2. Local update: a device that arrived from another edge starts between the edge's model and its own last one.
3. Aggregation: an edge weighs a device's model by its samples and by how well its direction since the last cloud
   model agrees with the edge's own. The cloud averages edges by samples every ``kappa2`` edge rounds.

Reconstructed from the abstract; the formulas are ours: the start is (1 - rho) w_e + rho w_prev; the agreement is
s = cos(w_n - w_g, w_e - w_g) over the parameters, the weight n (1 + s) / 2. The cosine of the models themselves
would be near 1 for everybody. Right after a cloud merge the edge has no direction of its own, and its first round
is plain averaging.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from espalier.core.address import Address
from espalier.core.bounds import PositiveInt, UnitFloat
from espalier.core.memory import Product
from espalier.core.messages import ALL, Order, Train
from espalier.core.method import Category, Plan, SampledMethod, Setting
from espalier.core.policies import Contribution, HandDown, Local, LocalView, Merge, Pace, Rules, Selection, normalised
from espalier.core.store import Ref
from espalier.core.view import Arrival, View


def _none() -> Ref | None:
    return None


#: the model that the cloud handed down last
CLOUD_MODEL = Product("cloud's last model", _none)


def agreement(models: Tensor, edge: Tensor, reference: Tensor) -> Tensor:
    """Return ``cos(w_n - w_g, w_e - w_g)`` of each model; 0 where a norm is below 1e-12.

    Args:
        models: The devices' models w_n, [n, d].
        edge: The edge's model w_e, [d].
        reference: The last cloud model w_g, [d].

    Returns:
        Cosines, float64, [n].
    """
    steps, own = (models - reference).double(), (edge - reference).double()
    norms = steps.norm(dim=1) * own.norm()
    flat = (steps.norm(dim=1) < 1e-12) | (own.norm() < 1e-12)
    return torch.where(flat, 0.0, (steps @ own) / norms.clamp_min(1e-300)).clamp(-1.0, 1.0)


def agreement_weights(samples: Sequence[float], agreements: Sequence[float]) -> list[float]:
    """Return ``n (1 + s) / 2`` scaled to sum one; by samples alone if all are zero."""
    found = [n * (1.0 + s) / 2.0 for n, s in zip(samples, agreements, strict=True)]
    found = found if sum(found) > 0 else list(samples)
    total = sum(found)
    return [f / total for f in found]


@dataclass(frozen=True)
class Agreeing(Merge, kind="agreeing"):
    """Weigh models by samples and by agreement with the edge's direction since the last cloud model."""

    needs = (CLOUD_MODEL,)

    def weights(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, list[tuple[float, Ref]]]:
        """Return the coefficients; plain averaging where the edge still has the cloud's model."""
        reference, own = view.product(CLOUD_MODEL), view.models.get(ALL)
        plain = super().weights(view, arrivals)
        if reference is None or own is None or own == reference or ALL not in plain:
            return plain
        refs = [arrival.report.models[ALL] for arrival in arrivals]
        vectors = view.store.vectors([reference, own, *refs])[:, : view.store.spec.n_params]
        found = agreement(vectors[2:], vectors[1], vectors[0])
        # A model with numbers that are not finite agrees with nothing; the store leaves it out.
        agreements = torch.nan_to_num(found, nan=0.0).tolist()
        weights = agreement_weights([self.weight(view, a, ALL) for a in arrivals], agreements)
        senders = [a.report.sender for a in arrivals]
        view.note("agreement", round=view.round, values=dict(zip(senders, agreements, strict=True)))
        return {ALL: normalised(list(zip(weights, refs, strict=True)))}


@dataclass(frozen=True)
class WithReference(HandDown, kind="with_reference"):
    """Replace, and remember the cloud's model."""

    provides = (CLOUD_MODEL,)

    def receive(self, view: View, order: Order) -> dict[str, Ref]:
        """Take over the cloud's model."""
        view.provide(CLOUD_MODEL, order.models[ALL])
        return dict(order.models)


@dataclass(frozen=True)
class Travelling(Local, kind="travelling"):
    """A device that arrived from another edge starts between the edge's model and its own last one."""

    @dataclass(slots=True)
    class State:
        """The device's last model and the edge that ordered it."""

        model: Ref | None = None
        edge: Address | None = None

    rho: float = 0.5

    def train(self, view: LocalView, order: Order) -> Train:
        """Return the training, from a mixture after a move."""
        start = next(iter(order.models.values()))
        last = view.state(self)
        if last.model is not None and last.edge != order.sender:
            start = view.env.store.combine([(1.0 - self.rho, start), (self.rho, last.model)], fallback=start)
        return Train(start=start, updates=order.updates, clock=order.clock, args=order.args)

    def done(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Contribution:
        """Remember the model and the edge that ordered it."""
        last = view.state(self)
        (last.model,), last.edge = models.values(), order.sender
        return super().done(view, order, models)


@dataclass(frozen=True)
class MACFL(SampledMethod, kind="macfl"):
    """Work is uploaded where a device arrives; edges weigh devices by agreement.

    Attributes:
        kappa2: Edge rounds per cloud round.
        rho: Share of its own last model in the start of a device that has moved.
        similarity: Whether edges weigh by agreement (else by samples).
        fraction: Share of an edge's devices in each round (default: the experiment's).
    """

    title: ClassVar[str] = "MACFL"
    category: ClassVar[Category] = "hierarchical"
    citation: ClassVar[str] = (
        "Feng et al., Mobility-Aware Cluster Federated Learning in Hierarchical Wireless Networks, TWC 2022"
    )
    reconstruction: ClassVar[str] = (
        "The three redesigned parts are the abstract's; the start after a move and the weights by agreement are ours."
    )

    kappa2: PositiveInt = 1
    rho: UnitFloat = 0.5
    similarity: bool = True

    def plan(self, setting: Setting) -> Plan:
        """Two barriers; devices remember their last model only where they move."""
        return Plan(
            root=Rules(pace=Pace(self.kappa2)),
            edge=Rules(
                selection=Selection(self.share(setting)),
                pace=Pace(setting.updates, late="keep"),
                merge=Agreeing() if self.similarity else Merge(),
                hand_down=WithReference(),
            ),
            local=Travelling(rho=self.rho) if self.rho > 0 and setting.stay < 1.0 else Local(),
        )
