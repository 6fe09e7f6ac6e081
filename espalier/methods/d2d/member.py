"""What devices and cluster heads do in a global round of the D2D paper (stages 1 and 3 of Algorithm 1).

A device answers the server's survey with its feature and with how long its links and its computing take; in
the first round of its cluster it goes on from the model that it trained for the survey. A head (an aggregator
that a device runs beside its own training) averages its members' models as often as the server asked it to, and
notices members that take longer than they said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from torch import Tensor

from espalier.core.address import Address, level_of
from espalier.core.aggregator import Aggregator
from espalier.core.codec import register
from espalier.core.environment import Environment
from espalier.core.memory import Product
from espalier.core.messages import ALL, Action, ChildLeft, Event, Order, Part, Serve, Train
from espalier.core.method import Node
from espalier.core.policies import Assignment, Contribution, HandDown, Local, LocalView, Pace, Progress, Rules
from espalier.core.statistics import LocalData, register_statistic
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.methods.d2d.defence import throttling
from espalier.methods.d2d.features import FORWARD_SHARE, crop_slices, mean_prediction

Feature = Literal["phi", "phi_crop", "skew", "pred"]

#: sums of a few seconds are exact to far less than this share of them
SLACK = 1e-9

#: seconds of a global round in which nobody takes part
EMPTY_ROUND_SECONDS = 60.0


@register
@dataclass(slots=True)
class Cluster:
    """A cluster of a global round: its head, its members, its rounds, and (for the defence) when reports are due."""

    head: Address
    members: list[Address]
    rounds: int
    due: dict[Address, float] | None = None


@register
@dataclass(slots=True)
class GlobalRound:
    """What the server decided for a global round.

    Attributes:
        clusters: The clusters.
        features: The model of the survey's training of each placed device, where it counts.
        samples: Of each placed device.
        t_g: Seconds that the round lasts.
    """

    clusters: list[Cluster] = field(default_factory=list)
    features: dict[Address, Ref] = field(default_factory=dict)
    samples: dict[Address, int] = field(default_factory=dict)
    t_g: float = EMPTY_ROUND_SECONDS


GLOBAL_ROUND = Product("global round", GlobalRound)


@register_statistic("d2d_presence", models=False)
def presence(local: LocalData, vectors: Sequence[Tensor]) -> dict[str, Any]:
    """Return nothing: the device's links and speed, which go with every answer, are all that is asked."""
    return {}


@register_statistic("mean_prediction", lambda n_batches, n_models: n_batches * FORWARD_SHARE)
def prediction(local: LocalData, vectors: Sequence[Tensor]) -> dict[str, Any]:
    """Return the mean output of the common model over whole batches drawn at random, ``prediction [C]``."""
    outputs = local.logits(vectors)[0].flatten(1).numpy()
    drawn = local.rng.permutation(len(outputs))
    return {"prediction": mean_prediction(outputs[drawn], local.batch_size)}


@dataclass(frozen=True)
class ClusterMember(Local, kind="d2d"):
    """A device of the D2D paper.

    Attributes:
        feature: What it tells the server about its learning direction.
        crop_layers: How many of the model's smallest convolution layers ``phi_crop`` consists of.
        keep: Whether its first training in a cluster goes on from the one for the survey.
        updates: Local updates of one round in a cluster, whose duration it estimates for the server.
    """

    @dataclass(slots=True)
    class State:
        """The model that was trained for the survey, until the next training."""

        feature: Ref | None = None

    feature: Feature = "phi"
    crop_layers: int = 1
    keep: bool = True
    updates: int = 1

    def train(self, view: LocalView, order: Order) -> Train:
        """Start from the received model; in a cluster's first round from the survey's."""
        train = super().train(view, order)
        earlier = view.state(self).feature
        view.drop_state(self)
        if earlier is not None and order.args.get("first"):
            return replace(train, start=earlier)
        return train

    def done(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Contribution:
        """After the survey's training: remember the model, tell links and speed; send the model, or its crop alone."""
        whole = super().done(view, order, models)
        if not order.back:
            return whole
        (model,) = models.values()
        if self.keep:
            view.state(self).feature = model
        stats = self._circumstances(view, order)
        if self.feature == "phi_crop":
            spans = tuple((s.start, s.stop) for s in crop_slices(view.env.store.spec, self.crop_layers))
            stats["crop"] = Part(model, spans)
            return Contribution(stats=stats)
        return replace(whole, stats=stats)

    def reply(self, view: LocalView, order: Order, values: dict[str, Any]) -> dict[str, Any]:
        """Tell links and speed with the answer to a question."""
        return {**values, **self._circumstances(view, order)}

    def _circumstances(self, view: LocalView, order: Order) -> dict[str, Any]:
        return {
            "links": view.env.links.link_report(view.me, order.clock),
            "seconds": self.updates * view.env.speeds.update_time(view.me, view.now, order.clock),
        }


@register
@dataclass(slots=True)
class HeadRound:
    """A global round at a head.

    Attributes:
        fresh: Whether its first round in the cluster has yet to begin.
        ends: When it ends (None: not by time).
        seen: How long each member took for its reports, if the server said how long it should.
    """

    fresh: bool = False
    ends: float | None = None
    seen: dict[Address, list[float]] = field(default_factory=dict)


HEAD_ROUND = Product("global round at a head", HeadRound)


@dataclass(frozen=True)
class HeadPace(Pace, kind="d2d_head"):
    """A barrier that ends in time: no further round if it would end after the global round."""

    needs = (HEAD_ROUND,)

    @dataclass(slots=True)
    class State:
        """When the round was opened."""

        opened: float = 0.0

    def assign(self, view: View, chosen: Sequence[Address]) -> Mapping[Address, Assignment]:
        """Give all the same work; in the first round they go on from what they have."""
        view.state(self).opened = view.now
        head = view.product(HEAD_ROUND)
        work = Assignment(self.updates, args={"first": True} if head.fresh else {})
        head.fresh = False
        return dict.fromkeys(chosen, work)

    def deadline(self, view: View, work: Mapping[Address, Assignment]) -> float | None:
        """Close with whoever has reported when the global round ends."""
        ends = view.product(HEAD_ROUND).ends
        return None if ends is None else ends - view.now

    def learn(self, view: View, arrivals: Sequence[Arrival]) -> None:
        """Remember how long each member took, if the server said how long it should."""
        if view.order is None or "due" not in view.order.args:
            return
        took = {a.report.sender: a.at - view.state(self).opened for a in arrivals}
        seen = view.product(HEAD_ROUND).seen
        for member in view.order.args["due"]:
            if member in view.children:
                seen.setdefault(member, []).append(took.get(member, float("inf")))

    def enough(self, progress: Progress) -> bool:
        """Report after the rounds that were ordered, or when another would take too long."""
        budget = progress.order.budget
        late = budget is not None and progress.spent + progress.last > budget * (1 + SLACK)
        return late or super().enough(progress)


@dataclass(frozen=True)
class HeadDown(HandDown, kind="d2d_head"):
    """A head takes the global model from its host (which has it from the survey) and tells on slow members.

    ``tolerance`` is the relative lateness that a true estimate may show.
    """

    provides = (HEAD_ROUND,)

    tolerance: float = 0.2

    def receive(self, view: View, order: Order) -> dict[str, Ref]:
        """Begin afresh."""
        ends = None if order.budget is None else view.now + order.budget * (1 + SLACK / 2)
        view.provide(HEAD_ROUND, HeadRound(fresh=True, ends=ends))
        return {ALL: order.args["base"]}

    def statistics(self, view: View) -> dict[str, Any]:
        """Name the members whose reports kept coming later than they said."""
        seen = view.product(HEAD_ROUND).seen
        if not seen or view.order is None:
            return {}
        due: Mapping[Address, float] = view.order.args["due"]
        named = [m for m, took in sorted(seen.items()) if throttling([due[m]], np.c_[took], self.tolerance)[0]]
        return {"throttled": named} if named else {}


class Head(Aggregator):
    """A device's aggregator for one global round; when the next one has no use for it, it lets go of its models."""

    def on(self, event: Event, now: float) -> list[Action]:
        """Take one event; return what is to be done."""
        if self.state.order is not None and self.env.parent(self.me) is None:
            if isinstance(event, ChildLeft) and not self.env.children(self.me):
                self.state = type(self.state)(orders=self.state.orders)
                return [Serve({})]
            return []
        return super().on(event, now)


def nodes(rules: Rules) -> Callable[[Address, Environment], Node | None]:
    """Return the maker of heads: every aggregator that runs on a device is one."""

    def make(me: Address, env: Environment) -> Node | None:
        return Head(me, rules, env) if level_of(me) > 0 else None

    return make
