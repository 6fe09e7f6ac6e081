"""Personal models for edges: each mixes its own model with what all the others have learnt.

The aggregator above gives each child the average of *the others* (Eq. (6), (7) of PHE-FL), not of all: only
then does the child's own test of it say what the others are worth to it. One sum over all children serves
everybody, since leaving one out is a subtraction. The child tests both models on a set of its own and mixes
them by how well they do (Eq. (8), (9)).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from espalier.core.address import Address
from espalier.core.bounds import UnitFloat
from espalier.core.codec import register
from espalier.core.memory import Product
from espalier.core.messages import ALL, Order
from espalier.core.params import ParamSpec
from espalier.core.policies import Completion, HandDown, Merge
from espalier.core.store import Ref
from espalier.core.view import Arrival, View

#: a model and the samples it stands for
Share = tuple[int, Ref]


def others(reports: Mapping[Address, Share], mean: Ref, child: Address) -> list[tuple[float, Ref]]:
    """Eq. (6), (7): the average of all reports but the child's, as coefficients; empty if there is no other.

    ``mean`` is the average of all, weighted by samples: ``CAM_e = (n mean - n_e w_e) / (n - n_e)``, two terms
    however many reports there are. A child with more than half of all samples (there is at most one) gets the
    plain sum instead: the subtraction would cancel the leading digits.
    """
    total = sum(n for n, _ in reports.values())
    own, model = reports.get(child, (0, mean))
    rest = total - own
    if rest <= 0:
        return []
    if own == 0:
        return [(1.0, mean)]
    if 2 * own > total:
        return [(n / rest, ref) for other, (n, ref) in reports.items() if other != child and n > 0]
    return [(total / rest, mean), (-own / rest, model)]


def alpha_by_accuracy(own: float, rest: float, share: float) -> float:
    """Eq. (8): the own model's part in the accuracies' sum.

    Where both are 0, or nothing could be tested, it is the own share of the samples: the mixture is then the
    plain average of all edges.
    """
    return _ratio(own, rest, share)


def alpha_by_loss(own: float, rest: float, share: float) -> float:
    """Eq. (8) with 1/loss in place of accuracy: ``rest / (own + rest)``; a loss that is no number is infinite."""
    if math.isinf(own) and math.isinf(rest):
        return share
    if math.isinf(rest):
        return 1.0
    return 0.0 if math.isinf(own) else _ratio(rest, own, share)


def _ratio(one: float, other: float, otherwise: float) -> float:
    total = one + other
    return one / total if math.isfinite(total) and total > 0 else otherwise


def alpha_of_parts(scores: Sequence[float], by: Literal["accuracy", "loss"], share: float) -> tuple[float, float]:
    """Return the own part in the body and in the head.

    ``scores`` are those of the four models that can be put together: (own body, own head), (own, others'),
    (others', own), (others', others'). A body is judged by its mean score under both heads, and a head by its
    mean under both bodies, so that neither is blamed for the other.
    """
    alpha = alpha_by_accuracy if by == "accuracy" else alpha_by_loss
    both, body, head, none = scores
    return (alpha((both + body) / 2, (head + none) / 2, share), alpha((both + head) / 2, (body + none) / 2, share))


def head_slice(spec: ParamSpec) -> slice:
    """Return the place of a model's last layer, weight and bias, in its flat vector."""
    entries = list(spec.parameters)
    last = max(i for i, e in enumerate(entries) if len(e.shape) >= 2) if any(len(e.shape) >= 2 for e in entries) else 0
    return slice(entries[last].start, spec.n_params)


def with_head(body: Tensor, head: Tensor, place: slice) -> Tensor:
    """Return a model ``[size]`` with the body of one and the head of another."""
    model = body.clone()
    model[place] = head[place]
    return model


def mixed_parts(own: Tensor, rest: Tensor, place: slice, alpha: tuple[float, float], spec: ParamSpec) -> Tensor:
    """Eq. (9) with an alpha for the body and one for the head; integer buffers are those of the larger body."""
    body, head = alpha
    weight = torch.full((spec.size,), body, dtype=torch.float64)
    weight[place] = head
    weight[spec.n_float :] = float(body >= 0.5)
    return (weight * own.double() + (1.0 - weight) * rest.double()).to(own.dtype)


@register
@dataclass(slots=True)
class Mean:
    """A group's last average and what each child had reported for it."""

    model: Ref
    reports: dict[Address, Share]


#: what was averaged last, by group
MEANS = Product("reports behind the average", dict[str, Mean])


@dataclass(frozen=True)
class Remember(Merge, kind="remember"):
    """The average weighted by samples; the reports are kept so that each child can be left out of it."""

    provides = (MEANS,)

    def merge(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
        """Return the averages; remember them and what they are made of."""
        merged = super().merge(view, arrivals)
        reports: dict[str, dict[Address, Share]] = {}
        for arrival in arrivals:
            report = arrival.report
            for group, model in report.models.items():
                reports.setdefault(group, {})[report.sender] = (report.samples.get(group, 0), model)
        view.provide(MEANS, {group: Mean(model, reports[group]) for group, model in merged.items()})
        return merged


@dataclass(frozen=True)
class Personal(HandDown, kind="personal"):
    """Children get the average of the others, and mix it with their own model by their own test of both.

    Attributes:
        by: What the models are compared by: accuracy (Eq. (8)), loss (the choice for a regression), or just the
            samples they stand for.
        alpha: A fixed part of the own model instead.
        layers: One alpha for the whole model, or one for the body and one for the head (its last layer).
        tiers: With servers between edges and cloud: "edge" leaves the choice to the edges (each gets the
            average of all other edges), "all" lets every server weigh its own edges against the others.
    """

    uses = (MEANS,)
    closed_by_next_order: ClassVar[Completion] = "order"

    @dataclass(slots=True)
    class State:
        """At a server above edges: what came from outside by group, with its alpha and samples."""

        outside: dict[str, tuple[float, int, Ref]] = field(default_factory=dict)

    by: Literal["accuracy", "loss", "share"] = "accuracy"
    alpha: UnitFloat | None = None
    layers: Literal["whole", "head_body"] = "whole"
    tiers: Literal["edge", "all"] = "edge"

    def check(self) -> None:
        """Refuse a head and a body that no test tells apart."""
        parts = self.layers == "head_body"
        self.require(not (parts and (self.by == "share" or self.alpha is not None)), "layers", '"whole" unless tested')

    def send(self, view: View, child: Address) -> dict[str, Ref]:
        """Return a device's model as usual, and the others' models for a child that aggregates."""
        means = view.product(MEANS)
        if view.env.is_device(child) or not means:
            return super().send(view, child)
        return {group: self._others(view, group, found, child) for group, found in means.items()}

    def _others(self, view: View, group: str, found: Mean, child: Address) -> Ref:
        mean, reports = found.model, found.reports
        terms = others(reports, mean, child)
        outside = view.state(self).outside.get(group)
        if outside is not None:
            alpha, samples, beyond = outside
            inside = sum(n for n, _ in reports.values()) - reports.get(child, (0, mean))[0]
            part = 0.0  # nobody else is here
            if terms:
                part = alpha if self.tiers == "all" else inside / (inside + samples)
            terms = [*((part * c, ref) for c, ref in terms), (1.0 - part, beyond)]
        if not terms:
            return reports[child][1]  # nobody else is there
        return view.store.combine(terms, fallback=mean)

    def receive(self, view: View, order: Order) -> dict[str, Ref]:
        """Eq. (8), (9): mix each received model with the own one."""
        mixed: dict[str, Ref] = {}
        between = any(not view.env.is_device(c) for c in view.children[:1])
        for group, incoming in order.models.items():
            own = view.models.get(group)
            if own is None or own == incoming:
                mixed[group] = incoming
                view.state(self).outside.pop(group, None)
            elif between:
                mixed[group] = self._between(view, group, own, incoming)
            else:
                mixed[group] = self._mix(view, group, own, incoming)
        return mixed

    def _between(self, view: View, group: str, own: Ref, incoming: Ref) -> Ref:
        """At a server above edges: remember what comes from outside; its own edges are weighed against it."""
        here, everywhere = view.env.samples(view.me), view.env.samples(_root(view))
        alpha = self._alpha(view, group, own, incoming) if self.tiers == "all" else _share(view)
        view.state(self).outside[group] = (alpha, max(0, everywhere - here), incoming)
        return _combined(view, alpha, own, incoming)

    def _mix(self, view: View, group: str, own: Ref, incoming: Ref) -> Ref:
        if self.layers == "whole":
            return _combined(view, self._alpha(view, group, own, incoming), own, incoming)
        store = view.store
        place = head_slice(store.spec)
        mine, theirs = store.vectors([own, incoming])
        hybrids = [store.put(with_head(mine, theirs, place)), store.put(with_head(theirs, mine, place))]
        scores = self._scores(view, [own, *hybrids, incoming])
        by: Literal["accuracy", "loss"] = "loss" if self.by == "loss" else "accuracy"
        alpha = alpha_of_parts(scores, by, _share(view))
        self._note(view, group, {"alpha": alpha[0], "head": alpha[1], "own": scores[0], "others": scores[3]})
        return store.put(mixed_parts(mine, theirs, place, alpha, store.spec))

    def _alpha(self, view: View, group: str, own: Ref, incoming: Ref) -> float:
        if self.alpha is not None:
            return self.alpha
        if self.by == "share":
            return _share(view)
        mine, theirs = self._scores(view, [own, incoming])
        rule = alpha_by_accuracy if self.by == "accuracy" else alpha_by_loss
        alpha = rule(mine, theirs, _share(view))
        self._note(view, group, {"alpha": alpha, "own": mine, "others": theirs})
        return alpha

    def _scores(self, view: View, refs: Sequence[Ref]) -> list[float]:
        if self.by == "accuracy":
            return view.env.accuracy(refs, "personal", view.me)
        return [math.inf if math.isnan(x) else x for x in view.env.losses(refs, "personal", view.me)]

    def _note(self, view: View, group: str, values: dict[str, Any]) -> None:
        extra = {"group": group} if group != ALL else {}
        view.note("alpha", round=view.clock, values=values, **extra)


def _combined(view: View, alpha: float, own: Ref, rest: Ref) -> Ref:
    terms = [(c, ref) for c, ref in ((alpha, own), (1.0 - alpha, rest)) if c != 0.0]
    return view.store.combine(terms, fallback=own)


def _root(view: View) -> Address:
    at = view.me
    while (above := view.env.parent(at)) is not None:
        at = above
    return at


def _share(view: View) -> float:
    """The samples below this node as a part of all: the weight it has in a plain average."""
    everywhere = view.env.samples(_root(view))
    return view.env.samples(view.me) / everywhere if everywhere else 1.0
