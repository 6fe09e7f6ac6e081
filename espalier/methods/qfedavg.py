"""q-FedAvg: averaging in which devices with high losses count more, so that accuracies are even.

Li, Sanjabi, Beirami, Smith. Fair Resource Allocation in Federated Learning. ICLR 2020.

1. A device computes the loss F_k of the model w that it received, then trains it to w_k.
2. With ``L = 1 / lr``, its change is ``D_k = F_k^q L (w - w_k)``, and its step may be as long as
   ``h_k = q F_k^(q-1) ||L (w - w_k)||^2 + L F_k^q`` says.
3. The server's new model is ``w - sum_k D_k / sum_k h_k``.

``q = 0`` is FedAvg; the larger q, the more the worst-off count. In a tree edges do 3 over their devices and tell their
``sum_k h_k``, by which the servers above weigh the edges' models: that is 3 over all devices, exactly. So a cloud round
has one edge round.

Differences: devices are drawn uniformly and both sums are weighted by their samples, where the paper draws by samples
and weighs evenly. A report that does not tell its loss does not count where others do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from espalier.core.bounds import NonNegativeFloat
from espalier.core.codec import register
from espalier.core.memory import Product
from espalier.core.messages import Order
from espalier.core.method import Plan, SampledMethod, Setting
from espalier.core.policies import Contribution, HandDown, Local, LocalView, Merge, Pace, Rules, Selection, normalised
from espalier.core.store import Ref
from espalier.core.view import Arrival, View

LOSS, BOUND = "loss at the start", "bound"
#: losses count as at least this much, for powers below zero
_LEAST_LOSS = 1e-10


def step_bound(loss: float, squared: float, q: float, lipschitz: float) -> float:
    """Return ``h_k = q F^(q-1) ||L (w - w_k)||^2 + L F^q``; ``squared`` is ``||w - w_k||^2``."""
    known = max(_LEAST_LOSS, loss)
    bound: float = q * known ** (q - 1.0) * lipschitz**2 * squared + lipschitz * known**q
    return bound


def fair_step(
    model: Ref, ends: Sequence[tuple[float, float, float, Ref]], q: float, lipschitz: float
) -> tuple[list[tuple[float, Ref]], float]:
    """Return ``w - sum_k p_k D_k / sum_k p_k h_k`` as coefficients, and the sum below.

    Args:
        model: Where all started, w.
        ends: Weight, loss at w, ``||w - w_k||^2`` and w_k of each report.
        q: How much high losses count.
        lipschitz: L.
    """
    below = sum(share * step_bound(loss, squared, q, lipschitz) for share, loss, squared, _ in ends)
    terms = [(share * lipschitz * max(_LEAST_LOSS, loss) ** q / below, end) for share, loss, _, end in ends]
    rest = 1.0 - sum(c for c, _ in terms)
    return ([*terms, (rest, model)] if abs(rest) > 1e-12 else terms), below


@register
@dataclass(slots=True)
class Bounds:
    """The sum of the bounds of an aggregator's last merge."""

    below: float = 0.0


BOUNDS = Product("bounds of steps", Bounds)


def _number(arrival: Arrival, name: str) -> float | None:
    """Return a number that a report tells, if it is one that can be."""
    value = arrival.report.stats.get(name)
    fine = isinstance(value, int | float) and math.isfinite(value) and value >= 0
    return float(value) if fine and value is not None else None


@dataclass(frozen=True)
class AskedLoss(Local, kind="qfedavg"):
    """Plain local training that tells the loss of the model it received."""

    reported_statistics = ("losses",)

    def question(self, view: LocalView, order: Order) -> str:
        """Ask for the loss of the received model."""
        return "losses"

    def answer(self, view: LocalView, order: Order, values: Mapping[str, Any]) -> Order:
        """Keep the loss with the order."""
        return replace(order, args={**order.args, LOSS: float(values["losses"][0])})

    def done(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Contribution:
        """Report the model and the loss."""
        return replace(super().done(view, order, models), stats={LOSS: order.args[LOSS]})


@dataclass(frozen=True)
class FairMerge(Merge, kind="qfedavg"):
    """One step along the devices' changes, those of high losses first; above, averages weighted by what edges tell."""

    provides = (BOUNDS,)

    q: NonNegativeFloat = 1.0

    def merge(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
        """Return the models after the step."""
        merged, lipschitz = super().merge(view, arrivals), 1.0 / view.env.training.lr_at(view.clock)
        bounds = view.product(BOUNDS)
        bounds.below = 0.0
        for group in merged:
            reports = [a for a in arrivals if group in a.report.models]
            edges = [(below, a.report.models[group]) for a in reports if (below := _number(a, BOUND)) is not None]
            if edges and sum(below for below, _ in edges) > 0:
                bounds.below += sum(below for below, _ in edges)
                merged[group] = view.store.combine(normalised(edges), fallback=view.models.get(group))
                continue
            ends = self._ends(view, reports, group)
            if ends:
                terms, below = fair_step(view.models[group], ends, self.q, lipschitz)
                bounds.below += below
                merged[group] = view.store.combine(terms, fallback=view.models[group])
        return merged

    def _ends(self, view: View, reports: Sequence[Arrival], group: str) -> list[tuple[float, float, float, Ref]]:
        """Return weight, loss, squared length of its change and model of each device that tells its loss."""
        known = [(a, loss) for a in reports if (loss := _number(a, LOSS)) is not None]
        if not known or group not in view.models:
            return []
        refs = [a.report.models[group] for a, _ in known]
        lengths = [0.0] * len(refs)
        if self.q:  # else nobody needs to look at a number
            vectors = view.store.vectors([view.models[group], *refs]).double()[:, : view.store.spec.n_params]
            lengths = (vectors[1:] - vectors[0]).square().sum(1).tolist()
        weights = [self.weight(view, a, group) for a, _ in known]
        return [
            (w, loss, squared, ref)
            for w, (_, loss), squared, ref in zip(weights, known, lengths, refs, strict=True)
            if math.isfinite(squared) and w > 0
        ]


@dataclass(frozen=True)
class TellBounds(HandDown, kind="qfedavg"):
    """Replace; the parent is told by what an edge's model is to be weighed."""

    uses = (BOUNDS,)

    def statistics(self, view: View) -> dict[str, Any]:
        """Return the sum of the bounds."""
        below = view.product(BOUNDS).below
        return {BOUND: below} if below > 0 else {}


@dataclass(frozen=True)
class QFedAvg(SampledMethod, kind="qfedavg"):
    """Averaging over the tree that is fair to the worst-off.

    Attributes:
        q: How much high losses count; 0 is FedAvg.
        fraction: Share of an edge's devices in each round (default: the experiment's).
    """

    title: ClassVar[str] = "q-FedAvg"
    citation: ClassVar[str] = "Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020"

    q: NonNegativeFloat = 1.0

    def plan(self, setting: Setting) -> Plan:
        """Barriers; edges make the step and tell its bound."""
        rules = Rules(merge=FairMerge(self.q), hand_down=TellBounds())
        edge = replace(rules, selection=Selection(self.share(setting)), pace=Pace(setting.updates))
        return Plan(root=Rules(merge=FairMerge(self.q)), middle=rules, edge=edge, local=AskedLoss())
