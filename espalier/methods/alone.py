"""Standalone, OnlyEdge and EdgeCloud: how far one gets without a cloud, or without personal models.

Standalone (as CFLHKD's comparison uses it): every device trains a model of its own and never sends it. All
devices train equally often: round t ends when the slowest has trained t times.
OnlyEdge and EdgeCloud (as PHE-FL's comparison defines them, its section IV-A3): OnlyEdge is federated
averaging inside every edge, the cloud only hands out the first model; EdgeCloud is HierFAVG with one edge
round per cloud round and everybody taking part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from espalier.core.address import Address
from espalier.core.codec import register
from espalier.core.environment import Environment
from espalier.core.messages import ALL, Action, Closed, Event, Order, Serve, Started, Train, Trained
from espalier.core.method import Category, Method, Node, Plan, Setting
from espalier.core.policies import HandDown, Pace, Progress, Rules, Selection
from espalier.core.store import Ref
from espalier.core.view import View

#: updates of an order that is never done: its receiver trains until the run ends
FOREVER = 2**31 - 1


@dataclass(frozen=True)
class Endless(Pace, kind="endless"):
    """A barrier whose aggregator never reports: it goes on with its children until the run ends."""

    def enough(self, progress: Progress) -> bool:
        """Never."""
        return False


@dataclass(frozen=True)
class OwnModel(HandDown, kind="own"):
    """An aggregator that has a model keeps it, whatever its parent sends."""

    def receive(self, view: View, order: Order) -> dict[str, Ref]:
        """Return the models that are there, or the first that came."""
        return dict(view.models) or dict(order.models)


@register
@dataclass(slots=True)
class HermitState:
    """A hermit's last training, and how many it has done."""

    model: Ref | None = None
    rounds: int = 0


class Hermit:
    """A device that trains its own model for ever, its optimiser's state included, and never sends it.

    Told to start again, it goes on with the model it has.
    """

    def __init__(self, me: Address, updates: int, env: Environment) -> None:
        self.me = me
        self.updates = updates
        self.env = env
        self.state = HermitState()

    @property
    def idle(self) -> bool:
        """Never: it keeps its model."""
        return False

    def on(self, event: Event, now: float) -> list[Action]:
        """Train; serve; train on."""
        state = self.state
        if isinstance(event, Started):
            return [self._train()]
        if isinstance(event, Trained) and event.token == state.rounds:
            state.model = event.model
            state.rounds += 1
            return [Serve({ALL: event.model}), Closed(state.rounds), self._train()]
        return []

    def _train(self) -> Train:
        state = self.state
        start = self.env.store.initial() if state.model is None else state.model
        return Train(
            token=state.rounds, start=start, updates=self.updates, clock=state.rounds, optimizer_state=state.model,
            keep_optimizer_state=True,
        )  # fmt: skip


@dataclass(frozen=True)
class Standalone(Method, kind="standalone"):
    """Every device trains its own model and sends nothing."""

    title: ClassVar[str] = "Standalone"
    category: ClassVar[Category] = "personal"
    citation: ClassVar[str] = "the baseline without communication"

    def plan(self, setting: Setting) -> Plan:
        """Devices go on alone; rounds are the slowest's."""

        def node(me: Address, env: Environment) -> Node | None:
            return Hermit(me, setting.updates, env) if env.is_device(me) else None

        return Plan(serves="device", clock="device", starts="device", node=node)


@dataclass(frozen=True)
class OnlyEdge(Method, kind="only_edge"):
    """Federated averaging inside every edge; edges never meet."""

    title: ClassVar[str] = "OnlyEdge"
    category: ClassVar[Category] = "hierarchical"
    citation: ClassVar[str] = "the edge-only baseline of PHE-FL"

    fraction: float = 1.0

    def plan(self, setting: Setting) -> Plan:
        """The cloud orders once; edges go on for ever."""
        return Plan(
            root=Rules(pace=Pace(FOREVER, admits=True)),
            edge=Rules(selection=Selection(self.fraction), pace=Endless(setting.updates), hand_down=OwnModel()),
            serves="edge",
            clock="edge",
        )


@dataclass(frozen=True)
class EdgeCloud(Method, kind="edge_cloud"):
    """HierFAVG with a cloud merge after every edge round and everybody taking part."""

    title: ClassVar[str] = "EdgeCloud"
    category: ClassVar[Category] = "hierarchical"
    citation: ClassVar[str] = "the edge-cloud baseline of PHE-FL"

    def plan(self, setting: Setting) -> Plan:
        """Two barriers, one edge round per cloud round."""
        return Plan(root=Rules(pace=Pace(1)), edge=Rules(pace=Pace(setting.updates)))
