"""SCAFFOLD: control variates against the drift of devices.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.
ICML 2020.

1. The server has a model x and a variate c (an estimate of everybody's gradient), device k a variate c_k (of its own).
2. A device starts from x and adds c - c_k to the gradient of each of its K steps, which ends at y.
3. Its new variate is c_k - c + (x - y) / (K lr) (option II of the paper).
4. It reports y, and beside it the mean gradient (x - y) / (K lr): c plus the change of its variate.
5. The server averages the models; c moves to each reported gradient by the device's share of *all* samples, so that
   devices that did not report leave their part of it as it was (the paper's factor |S| / N).

In a tree every aggregator does 5, with the shares of what is registered below it, and hands x and c down. Both are
sent both ways: twice FedAvg's bytes.

Differences: models and variates are weighted by samples, as FedAvg's (the paper weighs devices equally); the server's
step is 1, as in the paper's experiments (another merge at the root takes another). All variates are zero at first; a
server that loses its state begins again with c = 0. The step of a variate is right for plain SGD alone, so other
optimisers are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from espalier.core.messages import Order, Train
from espalier.core.method import Setting, TwoBarriers
from espalier.core.policies import Contribution, Local, LocalView, Merge, Rules
from espalier.core.store import Ref
from espalier.core.view import Arrival, View

VARIATE = "control variate"
Terms = list[tuple[float, Ref]]


def mean_gradient(start: Ref, trained: Ref, steps: int, lr: float) -> Terms:
    """Return ``(x - y) / (K lr)`` as coefficients: the mean of a training's K steps, its corrections included."""
    return [(1.0 / (steps * lr), start), (-1.0 / (steps * lr), trained)]


def correction(common: Ref | None, own: Ref | None) -> Terms:
    """Return ``c - c_k`` as coefficients; a variate that is not there yet is zero."""
    return [(sign, ref) for sign, ref in ((1.0, common), (-1.0, own)) if ref is not None]


def new_variate(common: Ref | None, own: Ref | None, gradient: Ref) -> Terms:
    """Return Eq. (4), option II: ``c_k - c + (x - y) / (K lr)``, as coefficients."""
    return [(1.0, gradient), *((-sign, ref) for sign, ref in correction(common, own))]


def merged_variate(common: Ref | None, gradients: Sequence[tuple[float, Ref]]) -> Terms:
    """Return ``c + sum_k share_k (g_k - c)`` as coefficients; shares are of all samples, also of who did not report."""
    total = sum(share for share, _ in gradients)
    scale = max(1.0, total)  # more than all: a child has reported twice
    rest = [] if common is None or total >= 1.0 else [(1.0 - total, common)]
    return [*((share / scale, ref) for share, ref in gradients), *rest]


@dataclass(frozen=True)
class Controlled(Local, kind="scaffold"):
    """Local training whose gradients are corrected by the server's variate and the device's own."""

    @dataclass(slots=True)
    class State:
        """The device's variate."""

        variate: Ref | None = None

    def train(self, view: LocalView, order: Order) -> Train:
        """Start from the received model, corrected."""
        terms = correction(order.auxiliary.get(VARIATE), view.state(self).variate)
        return replace(super().train(view, order), correction=view.env.store.combine(terms) if terms else None)

    def done(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Contribution:
        """Renew the device's variate; report the mean gradient beside the model."""
        store, state = view.env.store, view.state(self)
        (start,), (trained,) = order.models.values(), models.values()
        gradient = store.combine(mean_gradient(start, trained, view.steps(view.done), view.lr(order)))
        state.variate = store.combine(new_variate(order.auxiliary.get(VARIATE), state.variate, gradient))
        return replace(super().done(view, order, models), auxiliary={VARIATE: gradient})


@dataclass(frozen=True)
class VariateMerge(Merge, kind="scaffold"):
    """Average the models; move the variate by each report's share of all samples below."""

    def auxiliary(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
        """Return the new variate."""
        below = view.env.samples(view.me)
        reports = [a.report for a in arrivals if VARIATE in a.report.auxiliary]
        found = [(sum(r.samples.values()) / below, r.auxiliary[VARIATE]) for r in reports]
        old = view.auxiliary.get(VARIATE)
        return {VARIATE: view.store.combine(merged_variate(old, found), fallback=old)} if found else {}


@dataclass(frozen=True)
class Scaffold(TwoBarriers, kind="scaffold"):
    """HierFAVG with control variates at the devices and at every server.

    Attributes:
        fraction: Share of an edge's devices in each round (default: the experiment's).
    """

    title: ClassVar[str] = "SCAFFOLD"
    needs: ClassVar[str] = "plain SGD"
    citation: ClassVar[str] = (
        "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020"
    )

    def rules(self) -> Rules:
        """Keep a variate."""
        return Rules(merge=VariateMerge())

    def local(self, setting: Setting) -> Local:
        """Correct plain SGD's steps: variates are mean gradients."""
        name, momentum = setting.training.optimizer, setting.training.momentum
        given = f"training.optimizer = {name!r} with momentum {momentum:g} is given"
        self.demand(name == "sgd" and not momentum, "plain SGD, for its variates are mean gradients", given)
        return Controlled()
