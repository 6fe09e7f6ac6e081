"""FedDyn: dynamic regularisation, so that devices' optima agree with the fleet's.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama. Federated Learning Based on Dynamic Regularization. ICLR 2021.

1. Device k remembers g_k, an estimate of its own gradient at the model that it ended with. It starts from x and
   minimises ``L_k(y) - <g_k, y> + alpha/2 ||y - x||^2``.
2. Then ``g_k <- g_k - alpha (y - x)``, and it reports y.
3. The server sums up what devices have moved away, ``h <- h - alpha sum_k share_k (y_k - x)`` with shares of *all*
   samples, and its new model is the average of the reports minus ``h / alpha``.

In a tree edges average and say how many samples have reported; the root does 3 over them, so that h remains the mean
of all g_k. For the same reason a cloud round has one edge round.

Differences: models are weighted by samples, as FedAvg's (the paper weighs devices equally; the authors' code, too, and
divides a device's alpha by its samples over the mean, which weighs their losses by samples). A server that loses its
state begins again with h = 0. As published, h grows as long as few devices report in a round; ``alpha`` is the option
that the paper tunes (0.1, 0.01 or 0.001).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from espalier.core.bounds import PositiveFloat
from espalier.core.messages import Order, Train
from espalier.core.method import Plan, SampledMethod, Setting
from espalier.core.policies import Contribution, Local, LocalView, Merge, Pace, Rules, Selection
from espalier.core.store import Ref
from espalier.core.view import Arrival, View

Terms = list[tuple[float, Ref]]


def moved(past: Ref | None, start: Ref, ends: Sequence[tuple[float, Ref]], alpha: float) -> Terms:
    """Return ``past - alpha sum_k share_k (y_k - x)`` as coefficients: a device's g (one end) or the server's h."""
    shares = sum(share for share, _ in ends)
    kept = [] if past is None else [(1.0, past)]
    return [*kept, *((-alpha * share, end) for share, end in ends), (alpha * shares, start)]


@dataclass(frozen=True)
class DynamicLocal(Local, kind="feddyn"):
    """Local training with a linear and a quadratic term that change from order to order."""

    @dataclass(slots=True)
    class State:
        """The device's estimate of its own gradient."""

        gradient: Ref | None = None

    alpha: PositiveFloat = 0.01

    def train(self, view: LocalView, order: Order) -> Train:
        """Pull to the received model; take the remembered gradient off each step's."""
        store, own = view.env.store, view.state(self).gradient
        plain = super().train(view, order)
        correction = None if own is None else store.combine([(-1.0, own)])
        return replace(plain, anchor=plain.start, mu=self.alpha, correction=correction)

    def done(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Contribution:
        """Remember the gradient at the model that came out."""
        state, (start,), (end,) = view.state(self), order.models.values(), models.values()
        state.gradient = view.env.store.combine(moved(state.gradient, start, [(1.0, end)], self.alpha))
        return super().done(view, order, models)


@dataclass(frozen=True)
class PresentMerge(Merge, kind="present"):
    """The average, which stands for the samples of those that have reported alone."""

    def samples(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, int]:
        """Return the samples behind the reports."""
        found: Counter[str] = Counter()
        for arrival in arrivals:
            found.update(arrival.report.samples)
        return dict(found)


@dataclass(frozen=True)
class DynamicMerge(Merge, kind="feddyn"):
    """The average, moved against what devices have moved away so far."""

    @dataclass(slots=True)
    class State:
        """h by group."""

        drift: dict[str, Ref] = field(default_factory=dict)

    alpha: PositiveFloat = 0.01

    def merge(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
        """Return the averages minus h / alpha."""
        merged, drift, everybody = super().merge(view, arrivals), view.state(self).drift, view.env.samples(view.me)
        for group, average in merged.items():
            reports = [a.report for a in arrivals if group in a.report.models]
            ends = [(r.samples.get(group, 0) / everybody, r.models[group]) for r in reports]
            drift[group] = view.store.combine(moved(drift.get(group), view.models[group], ends, self.alpha))
            step = [(1.0, average), (-1.0 / self.alpha, drift[group])]
            merged[group] = view.store.combine(step, fallback=view.models[group])
        return merged


@dataclass(frozen=True)
class FedDyn(SampledMethod, kind="feddyn"):
    """Averaging over the tree with dynamic regularisation.

    Attributes:
        alpha: Strength of the regularisation.
        fraction: Share of an edge's devices in each round (default: the experiment's).
    """

    title: ClassVar[str] = "FedDyn"
    citation: ClassVar[str] = "Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021"

    alpha: PositiveFloat = 0.01

    def plan(self, setting: Setting) -> Plan:
        """Barriers; the root keeps h."""
        edge = Rules(selection=Selection(self.share(setting)), pace=Pace(setting.updates), merge=PresentMerge())
        return Plan(
            root=Rules(merge=DynamicMerge(self.alpha)),
            middle=Rules(merge=PresentMerge()),
            edge=edge,
            local=DynamicLocal(alpha=self.alpha),
        )
