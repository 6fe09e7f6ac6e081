"""A control node that builds the devices' tree from all it knows, and rebuilds it between rounds (for KMA).

Devices register with it. It builds the tree once, then again at the end of a full round of the root, if anyone came
or went meanwhile; until then newcomers wait and whose parent is gone idles. Only when the root itself is gone, or has
nobody left to work with, it rebuilds at once: else there would be no end of the round. Building takes the time of a
message to the farthest device and back. A control node that comes back without its memory asks all to register again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from espalier.core.address import Address, host_of, level_of, role
from espalier.core.aggregator_state import AggregatorState
from espalier.core.codec import register
from espalier.core.device import Device, DeviceState
from espalier.core.environment import Environment
from espalier.core.memory import Product
from espalier.core.messages import (
    ALL,
    Action,
    Alarm,
    Arrange,
    Arrived,
    Deadline,
    Event,
    Lost,
    Order,
    Record,
    Report,
    Send,
    SetDeadline,
    Started,
    Word,
)
from espalier.core.method import Speaker
from espalier.core.policies import Local, Pace
from espalier.core.store import Ref
from espalier.methods.easf.dsf import messages
from espalier.methods.easf.dsf.formulas import TreeLevel
from espalier.methods.easf.dsf.head import ClusterHead

#: builds the levels of a tree: (environment, devices and their accuracies, number of the tree) -> levels
Build = Callable[[Environment, dict[int, float], int], list[TreeLevel]]
#: bytes of a message about a device's new place
PLACE_BYTES = 8
#: after how long a device without a place registers again, and how often it does
REGISTER_SECONDS, MOST_REGISTRATIONS = 30.0, 200
#: whether a head has begun a round as the root
BEGUN_AS_ROOT = Product("begun as root", bool)


class ControlKind:
    """Control messages of this structure; those between an aggregator and its own host are DSF's."""

    #: device to control node, at first and while it has no place: its accuracy
    REGISTER = "register"
    #: control node that is back without its memory to all devices: register again
    REGISTER_AGAIN = "register_again"
    #: root to control node, when a round has closed: may the next begin?
    ROUND_CLOSED = "round_closed"
    #: the answer if the root stays
    NEXT_ROUND = "next_round"
    #: the answer if another is the root now: send it your model
    HAND_OVER = "hand_over"
    #: control node to the device of a new root whose predecessor is gone: begin with the newest model you have
    START_ROOT = "start_root"


@register
@dataclass(slots=True)
class ControlState:
    """Registered devices, the root, whether the tree is out of date, whether it is being built, trees built so far."""

    devices: dict[int, float] = field(default_factory=dict)
    root: Address | None = None
    stale: bool = False
    building: bool = False
    waiting: bool = False
    built: int = 0


class ControlNode:
    """The control node."""

    hears: ClassVar[Mapping[str, Speaker]] = {ControlKind.REGISTER: "device", ControlKind.ROUND_CLOSED: "device"}

    def __init__(self, me: Address, build: Build, env: Environment, patience: float) -> None:
        self.me, self.env = me, env
        self.build, self.patience = build, patience
        self.state = ControlState()

    @property
    def idle(self) -> bool:
        """Never."""
        return False

    def watches(self, host: int) -> bool:
        """Tell whether a host is registered."""
        return host in self.state.devices

    def on(self, event: Event, now: float) -> list[Action]:
        """Take one event; return what is to be done."""
        state = self.state
        match event:
            case Started():
                devices = self.env.devices()
                tops = sorted({self._above(d)[-1] for d in devices})
                state.root = next((t for t in tops if level_of(t) and self._answers(host_of(t))), None)
                return [Send(Word(ControlKind.REGISTER_AGAIN, self.me, device, now)) for device in devices]
            case Arrived(message=Word(kind=ControlKind.REGISTER, sender=device, data=data)):
                state.stale |= device not in state.devices
                state.devices[device] = data["accuracy"]
                return self._plan(self.patience) if state.root is None else []
            case Arrived(message=Word(kind=ControlKind.ROUND_CLOSED, sender=root)) if root == state.root:
                if not state.stale:
                    return [Send(Word(ControlKind.NEXT_ROUND, self.me, root, now))]
                state.waiting = True
                return self._plan(self._exchange())
            case Lost(host=host):
                state.devices.pop(host, None)
                state.stale = True
                if state.root is not None and host_of(state.root) == host:
                    state.root, state.waiting = None, False
                    return self._plan(self._exchange())
            case Deadline(wake=Alarm(key="build")):
                return self._build(now)
        return []

    def _answers(self, host: int) -> bool:
        return self.env.places.answers(host)

    def _above(self, device: Address) -> list[Address]:
        """Return a device and the aggregators above it, the root last."""
        path, at = [device], self.env.parent(device)
        while at is not None:
            path.append(at)
            at = self.env.parent(at)
        return path

    def _plan(self, seconds: float) -> list[Action]:
        if self.state.building:
            return []
        self.state.building = True
        return [SetDeadline(seconds, Alarm("build", self.state.built))]

    def _exchange(self) -> float:
        """Return the seconds in which every device is asked and has answered."""
        delays = self.env.links.delays(sorted(self.state.devices), PLACE_BYTES)
        # A device that died unnoticed has an infinite delay: it is not waited for.
        return 2.0 * float(np.max(delays, initial=0.0, where=np.isfinite(delays)))

    def _build(self, now: float) -> list[Action]:
        state = self.state
        state.building = False
        old, waiting = state.root, state.waiting
        heads = {a for d in self.env.devices() for a in self._above(d)[1:]}
        levels = self.build(self.env, dict(state.devices), state.built) if state.devices else []
        if not levels:
            return []  # nobody may lead: the next who registers may
        state.built += 1
        state.stale, state.waiting = False, False
        parents: dict[Address, Address | None] = {}
        for number, level in enumerate(levels):
            for centre, members in level.items():
                parents |= {role(m, number): role(centre, number + 1) for m in members}
        state.root = role(next(iter(levels[-1])), len(levels))
        parents |= dict.fromkeys(sorted(heads - set(parents.values())), None)
        parents[state.root] = None
        actions: list[Action] = [Arrange(parents, {})]
        actions.append(Record("rebuilt", {"clusters": len(levels[0]), "devices": len(state.devices)}))
        if waiting and old == state.root:
            actions.append(Send(Word(ControlKind.NEXT_ROUND, self.me, old, now)))
        elif waiting and old is not None:
            actions.append(Send(Word(ControlKind.HAND_OVER, self.me, old, now, {"head": state.root})))
        elif old is None:
            actions.append(Send(Word(ControlKind.START_ROOT, self.me, host_of(state.root), now, {"head": state.root})))
        return actions


@register
@dataclass(slots=True)
class ControlledDeviceState(DeviceState):
    """A device's state, the newest global model it has seen, and the aggregators that it runs."""

    model_round: int = -1
    model: Ref | None = None
    heads: set[Address] = field(default_factory=set)


class ControlledDevice(Device):
    """A device that registers with the control node."""

    state: ControlledDeviceState
    hears: ClassVar[Mapping[str, Speaker]] = {
        ControlKind.REGISTER_AGAIN: "coordinator",
        ControlKind.START_ROOT: "coordinator",
        messages.NEW_MODEL: "own",
    }

    def __init__(self, me: Address, local: Local, pace: Pace, env: Environment, epochs: int | None) -> None:
        super().__init__(me, local, pace, env, ControlledDeviceState())
        self.epochs = epochs

    @property
    def idle(self) -> bool:
        """Never: it keeps the newest model."""
        return False

    def on(self, event: Event, now: float) -> list[Action]:
        """Take one event; return what is to be done."""
        state = self.state
        match event:
            case Started():
                return [*self._reset_heads(now), *self._register(now, 0)]
            case Arrived(message=Word(kind=ControlKind.REGISTER_AGAIN)):
                return self._register(now, 0)
            case Deadline(wake=Alarm(key="register", number=number)):
                waits = self.env.parent(self.me) is None and number < MOST_REGISTRATIONS
                return self._register(now, number + 1) if waits else []
            case Arrived(message=Word(kind=ControlKind.START_ROOT, data=data)):
                start = {"round": max(0, state.model_round), "model": state.model}
                return [Send(Word(messages.BECOME_ROOT, self.me, data["head"], now, start))]
            case Arrived(message=Word(kind=messages.NEW_MODEL, sender=head, data=data)):
                state.heads.add(head)
                self._seen(data["round"], data["model"])
                return []
            case Arrived(message=Order() as order):
                if order.sender != self.env.parent(self.me):
                    return []  # of a parent that it had before: the message was slow
                self._seen(order.clock, next(iter(order.models.values())))
        return super().on(event, now)

    def _reset_heads(self, now: float) -> list[Action]:
        """Let the aggregators that it ran before it went forget what they knew: nobody has waited for them."""
        heads, self.state.heads = sorted(self.state.heads), set()
        return [Send(Word(messages.RESET, self.me, head, now)) for head in heads]

    def _register(self, now: float, number: int) -> list[Action]:
        """Register; until there is a place in the tree, say so again now and then."""
        trials = self.env.trials
        epochs = trials.epochs_above_chance() if self.epochs is None else self.epochs
        accuracy = trials.pretraining_accuracy(self.me, epochs)
        word = Word(ControlKind.REGISTER, self.me, self.env.places.cloud, now, {"accuracy": accuracy})
        return [Send(word), SetDeadline(REGISTER_SECONDS, Alarm("register", number))]

    def _seen(self, root_round: int, model: Ref) -> None:
        if root_round > self.state.model_round:
            self.state.model_round, self.state.model = root_round, model


class ControlledHead(ClusterHead):
    """A head whose rounds, when it is the root, begin when the control node says so."""

    hears: ClassVar[Mapping[str, Speaker]] = {
        **ClusterHead.hears,
        ControlKind.NEXT_ROUND: "coordinator",
        ControlKind.HAND_OVER: "coordinator",
    }

    def on(self, event: Event, now: float) -> list[Action]:
        """Take one event; return what is to be done."""
        match event:
            case Arrived(message=Word(kind=ControlKind.NEXT_ROUND)):
                return self._go(now)
            case Arrived(message=Word(kind=ControlKind.HAND_OVER, data=data)):
                state, to = self.state, data["head"]
                closed = state.progress
                models = {ALL: state.models[ALL]}
                self.state = AggregatorState(orders=state.orders)
                return [
                    Send(Report(0, to, self.me, to, models, {ALL: 0}, 0, closed, now, stats={"root_round": closed}))
                ]
        return super().on(event, now)

    def _become_root(self, root_round: int, model: Ref | None, now: float) -> list[Action]:
        actions = super()._become_root(root_round, model, now)
        news = {"round": root_round, "model": self.state.models[ALL]}
        return [Send(Word(messages.NEW_MODEL, self.me, host_of(self.me), now, news)), *actions] if actions else []

    def _begin(self, now: float) -> list[Action]:
        # The first round of a new root: the tree is new.
        return [self._consult(now)] if self.state.memory.product(BEGUN_AS_ROOT) else self._go(now)

    def _go(self, now: float) -> list[Action]:
        self.state.memory.provide(BEGUN_AS_ROOT, True)
        return super()._begin(now)

    def _stall(self, key: str, now: float) -> list[Action]:
        actions = super()._stall(key, now)
        nobody = self.state.order is None and not self.state.tickets and not actions
        return [self._consult(now)] if nobody else actions

    def _consult(self, now: float) -> Action:
        return Send(Word(ControlKind.ROUND_CLOSED, self.me, self.env.places.cloud, now))
