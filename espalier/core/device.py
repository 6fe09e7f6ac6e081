"""The device: takes an order, trains on its own data, reports to its parent of that moment.

A newer order supersedes an older one; a question waits until the device is free, and so does an order that
comes while a question is being answered. A device that moves while it trains reports where it has arrived.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from espalier.core.address import Address
from espalier.core.codec import register
from espalier.core.environment import Environment
from espalier.core.memory import Memory
from espalier.core.messages import (
    ALL,
    Action,
    Arrived,
    Event,
    Measure,
    Measured,
    Order,
    Report,
    Send,
    Serve,
    Train,
    Trained,
)
from espalier.core.policies import Contribution, Local, LocalView, Pace, Progress
from espalier.core.store import Ref


@register
@dataclass(slots=True)
class DeviceState:
    """All that a device remembers. ``memory`` outlives an order; the rest is empty between orders.

    Attributes:
        order: The order under way.
        order_at: When it arrived.
        done: Updates made for it so far.
        spent: Seconds spent on it so far.
        token: The number of the training or statistic under way; results of another are dropped.
        memory: What its policies remember.
        waiting: Orders that cannot be begun yet.
        superseded: Whether a training whose order was replaced may still end, so that tokens must not start over.
        training: The name of the training under way.
        models: The models of the order's trainings so far, by the trainings' names.
        decides: Whether the pace is asked after each update if the first training goes on.
    """

    order: Order | None = None
    order_at: float = 0.0
    done: int = 0
    spent: float = 0.0
    token: int = 0
    memory: Memory = field(default_factory=Memory)
    waiting: list[Order] = field(default_factory=list)
    superseded: bool = False
    training: str = ""
    models: dict[str, Ref] = field(default_factory=dict)
    decides: bool = False


class Device:
    """Trains by its local policy; ``pace`` decides, after each update, whether to go on."""

    def __init__(
        self, me: Address, local: Local, pace: Pace, env: Environment, state: DeviceState | None = None
    ) -> None:
        self.me = me
        self.local = local
        self.pace = pace
        self.env = env
        self.state = state or DeviceState()

    @property
    def idle(self) -> bool:
        """Whether the node may be forgotten: it has neither work nor memories."""
        return self.state.order is None and not self.state.memory and not self.state.superseded

    def on(self, event: Event, now: float) -> list[Action]:
        """Take one event; return what is to be done."""
        match event:
            case Arrived(message=Order() as order):
                return self._on_order(order, now)
            case Trained(token=token) if token == self.state.token and self.state.order is not None:
                return self._on_trained(event, now)
            case Measured(token=token) if token == self.state.token and self.state.order is not None:
                return self._on_measured(event, now)
            case _:
                return []

    def _on_order(self, order: Order, now: float) -> list[Action]:
        state = self.state
        if state.order is not None:
            surveyed = state.order.back and not order.back
            if order.ask is not None or state.order.ask is not None or surveyed:
                # Neither may be dropped: the node that asked and the node that ordered both wait for an answer.
                state.waiting.append(order)
                return []
            if not order.supersedes(state.order):
                return []  # overtaken on the way by a newer one
            parent = self.env.parent(self.me)
            if state.order.sender == parent != order.sender and not order.back:
                return []  # a late order of a former parent: taking it would leave the present parent without a report
            state.superseded = True
        state.order, state.order_at, state.done, state.spent, state.models = order, now, 0, 0.0, {}
        state.token += 1
        if order.ask is not None:
            args = self.local.arguments(self._view(now), order)
            return [Measure(state.token, order.ask, tuple(order.models.values()), args)]
        question = self.local.question(self._view(now), order)
        if question is not None:
            return [Measure(state.token, question, self.local.question_models(self._view(now), order), order.args)]
        return self._train(order, now)

    def _train(self, order: Order, now: float) -> list[Action]:
        train = self._decided(self._view(now), order)
        self.state.decides = self.pace.child_decides
        if self.state.decides:
            # Update by update: the optimiser's state goes from one to the next, as if they were one training.
            train = replace(train, updates=1, keep_optimizer_state=True)
        return [self._begin(train)]

    def _decided(self, view: LocalView, order: Order) -> Train:
        """Return the order's first training."""
        train = self.local.train(view, order)
        right = isinstance(train, Train) and all(isinstance(model, Ref) for model in train.models.values())
        return self.local.returned("train", train, right, "a Train: where it starts, how long it is; models are Refs")

    def _begin(self, train: Train) -> Train:
        """Return a training as the one under way."""
        self.state.training = train.name
        return replace(train, token=self.state.token)

    def _on_trained(self, event: Trained, now: float) -> list[Action]:
        state = self.state
        order = state.order
        assert order is not None
        state.done += event.updates
        state.spent += event.seconds
        state.models[state.training] = event.model
        view, progress = self._view(now), Progress(order, state.done, state.spent, event.seconds, state.memory)
        if state.decides and not self.pace.enough(progress):
            state.token += 1
            train, last = self._decided(view, order), event.model
            carried = replace(train, optimizer_state=last, keep_optimizer_state=True)
            return [self._begin(replace(carried, start=last, updates=1))]
        state.decides = False
        following = self.local.then(view, order, state.models)
        if following is not None:
            new = isinstance(following, Train) and following.name not in state.models
            self.local.returned("then", following, new, "the order's next Train, with a name of its own, or None")
            state.token += 1
            return [self._begin(replace(following, follows=True))]
        contribution = self.local.done(view, order, state.models)
        self.local.returned(
            "done", contribution, isinstance(contribution, Contribution), "a Contribution: what is reported"
        )
        return self._report(now, contribution)

    def _on_measured(self, event: Measured, now: float) -> list[Action]:
        state = self.state
        state.spent += event.seconds
        assert state.order is not None
        if state.order.ask is None:
            state.order = self.local.answer(self._view(now), state.order, event.values)
            state.token += 1
            return self._train(state.order, now)
        return self._report(now, Contribution(stats=self.local.reply(self._view(now), state.order, event.values)))

    def _report(self, now: float, made: Contribution) -> list[Action]:
        state = self.state
        order = state.order
        assert order is not None
        samples = self.env.samples(self.me)
        # An answer to a survey goes back to the node that asked; trained models go to the parent of now.
        parent = self.env.parent(self.me)
        to = order.sender if order.ask is not None or order.back or parent is None else parent
        state.order, state.models = None, {}
        report = Report(
            order.id, order.sender, self.me, to, made.models, dict.fromkeys(made.models, samples), state.done,
            order.round, now, download=state.order_at - order.sent, compute=state.spent, stats=made.stats,
            auxiliary=made.auxiliary,
        )  # fmt: skip
        served: list[Action] = [] if made.uses is None else [Serve({ALL: made.uses})]
        return [*served, Send(report), *(self._on_order(state.waiting.pop(0), now) if state.waiting else [])]

    def _view(self, now: float) -> LocalView:
        return LocalView(now, self.me, self.state.memory, self.env, self.state.done)
