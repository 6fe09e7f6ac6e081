"""The device with its agent: it trains as any device does, and finds its place in the tree itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from espalier.core.address import Address
from espalier.core.codec import register
from espalier.core.device import Device, DeviceState
from espalier.core.environment import Environment
from espalier.core.messages import Action, Alarm, Arrived, Deadline, Event, Lost, Order, Started, Word
from espalier.core.policies import Local, Pace
from espalier.core.store import Ref
from espalier.methods.easf.dsf import (
    absence,
    ascent,
    assembly,
    founding,
    joining,
    membership,
    pulse,
    seats,
    transfer,
    trees,
)
from espalier.methods.easf.dsf.agent import Agent
from espalier.methods.easf.dsf.state import AgentState, Bounds

#: the modules that take the agents' words: importing them makes them known
PARTS = (founding, joining, transfer, membership, assembly, seats, trees, ascent, absence, pulse)


@register
@dataclass(slots=True)
class PeerState(DeviceState):
    """A device's state and its agent's."""

    agent: AgentState = field(default_factory=AgentState)


class Peer(Device):
    """A device that takes part in DSF."""

    state: PeerState

    def __init__(self, me: Address, local: Local, pace: Pace, env: Environment, bounds: Bounds) -> None:
        super().__init__(me, local, pace, env, PeerState())
        self.bounds = bounds

    @property
    def idle(self) -> bool:
        """Never: its place in the tree must be remembered."""
        return False

    def watches(self, host: int) -> bool:
        """Tell whether it matters that a host is gone."""
        return self._agent(0.0).watches(host)

    def on(self, event: Event, now: float) -> list[Action]:
        """Take one event; return what is to be done."""
        agent = self._agent(now)
        match event:
            case Started():
                founding.start(agent)
            case Arrived(message=Word(kind="fresh", data=data)):
                self._seen(data["clock"], data["model"])
            case Arrived(message=Word() as word):
                agent.hear(word)
            case Deadline(wake=Alarm() as alarm):
                agent.ring(alarm)
            case Lost():
                agent.miss(event)
            case Arrived(message=Order() as order):
                if order.sender != self.env.parent(self.me):
                    return []  # of a parent that it had before: the message was slow
                self._seen(order.clock, next(iter(order.models.values())))
                return super().on(event, now)
            case _:
                return super().on(event, now)
        return agent.out

    def _seen(self, clock: int, model: Ref) -> None:
        """Remember the newest global model: the first one handed down in each of the root's rounds."""
        agent = self.state.agent
        if clock > agent.clock:
            agent.clock, agent.model = clock, model

    def _agent(self, now: float) -> Agent:
        return Agent(self.me, self.bounds, self.env, self.state.agent, now)
