"""FedNova: devices that make different numbers of steps count by direction, not by length.

Wang, Liu, Liang, Joshi, Poor. Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization.
NeurIPS 2020.

1. Device k makes tau_k steps from x to y_k. The weight of its gradients in ``x - y_k`` sums to ``a_k``: tau_k for plain
   SGD, more with momentum.
2. The server averages the normalised changes ``d_k = (x - y_k) / a_k`` by samples and steps
   ``x <- x - tau_eff sum_k p_k d_k`` with ``tau_eff = sum_k p_k a_k``.

With equal work this is FedAvg. In a tree every aggregator does 2 over its children; an aggregator's own ``a`` is the
sum of its rounds' ``tau_eff``.

Differences: local momentum and plain SGD are normalised as in the paper; its proximal variant and Adam are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from espalier.core.codec import register
from espalier.core.memory import Product
from espalier.core.messages import Order
from espalier.core.method import Setting, TwoBarriers
from espalier.core.policies import Contribution, HandDown, Local, LocalView, Merge, Rules
from espalier.core.store import Ref
from espalier.core.view import Arrival, View

STEPS = "normalised steps"


def accumulated(steps: int, momentum: float) -> float:
    """Return ``a``, the sum of the weights of a training's gradients (the paper's section 4, SGD with momentum).

    The gradient of a step counts in all later ones: ``a = (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho)``.
    """
    if momentum == 0.0:
        return float(steps)
    return (steps - momentum * (1.0 - momentum**steps) / (1.0 - momentum)) / (1.0 - momentum)


def effective(shares: Sequence[float], lengths: Sequence[float]) -> float:
    """Return ``tau_eff = sum_k p_k a_k`` (the shares sum to one)."""
    if len(set(lengths)) == 1:
        return lengths[0]
    return sum(p * a for p, a in zip(shares, lengths, strict=True))


def normalised_step(
    start: Ref, ends: Sequence[Ref], shares: Sequence[float], lengths: Sequence[float]
) -> list[tuple[float, Ref]]:
    """Return ``x - tau_eff sum_k p_k (x - y_k) / a_k`` as coefficients."""
    if len(set(lengths)) == 1:
        return list(zip(shares, ends, strict=True))
    length = effective(shares, lengths)
    terms = [(length * p / a, end) for p, a, end in zip(shares, lengths, ends, strict=True)]
    return [*terms, (1.0 - sum(c for c, _ in terms), start)]


@register
@dataclass(slots=True)
class Travelled:
    """How far an aggregator has come since its parent's order: the sum of its rounds' effective steps."""

    order: int = 0
    length: float = 0.0


TRAVELLED = Product("effective steps", Travelled)


@dataclass(frozen=True)
class NovaLocal(Local, kind="fednova"):
    """Plain local training that tells how much its steps add up to."""

    momentum: float = 0.0

    def done(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Contribution:
        """Report the model and the sum of its gradients' weights."""
        length = accumulated(view.steps(view.done), self.momentum)
        return replace(super().done(view, order, models), stats={STEPS: length})


@dataclass(frozen=True)
class NovaMerge(Merge, kind="fednova"):
    """Average directions; step as far as the average step is long."""

    provides = (TRAVELLED,)

    def merge(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
        """Return the models after one normalised step."""
        merged = {}
        travelled = view.product(TRAVELLED)
        order = 0 if view.order is None else view.order.id
        if travelled.order != order:
            travelled.order, travelled.length = order, 0.0
        for group, terms in self.weights(view, arrivals).items():
            reports = [a.report for a in arrivals if group in a.report.models]
            lengths = [float(r.stats.get(STEPS, 1.0)) for r in reports]
            shares, ends = [share for share, _ in terms], [ref for _, ref in terms]
            old = view.models.get(group)
            step = terms if old is None else normalised_step(old, ends, shares, lengths)
            merged[group] = view.store.combine(step, fallback=old)
            travelled.length += effective(shares, lengths)
        return merged


@dataclass(frozen=True)
class TellSteps(HandDown, kind="fednova"):
    """Replace; the parent is told how many effective steps a model stands for."""

    uses = (TRAVELLED,)

    def statistics(self, view: View) -> dict[str, Any]:
        """Return the sum of the effective steps since the parent's order."""
        return {STEPS: view.product(TRAVELLED).length}


@dataclass(frozen=True)
class FedNova(TwoBarriers, kind="fednova"):
    """Averaging over the tree whose reports are normalised by the steps behind them.

    Attributes:
        fraction: Share of an edge's devices in each round (default: the experiment's).
    """

    title: ClassVar[str] = "FedNova"
    needs: ClassVar[str] = "SGD"
    citation: ClassVar[str] = (
        "Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, "
        "NeurIPS 2020"
    )

    def rules(self) -> Rules:
        """Normalise; tell the parent how many steps that were."""
        return Rules(merge=NovaMerge(), hand_down=TellSteps())

    def local(self, setting: Setting) -> Local:
        """Tell the steps, which only SGD's can be normalised."""
        name = setting.training.optimizer
        given = f"training.optimizer = {name!r} is given"
        self.demand(name == "sgd", "SGD, whose steps it can normalise", given)
        return NovaLocal(momentum=setting.training.momentum)
