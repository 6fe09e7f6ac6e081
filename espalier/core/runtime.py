"""The runtime: nodes, what happens to them and what they ask for, under a virtual or a real clock.

    event ─> node.on(event, now) ─> actions ─> ports: send, train, measure, remind, serve, close, arrange, record

A :class:`Runtime` drives the nodes of a simulation, or those of one host of a fleet. What differs between the two are
the ports: a simulation's are a heap, the world's links and the lazy ledger, a host's are a journal, sockets and a
worker's thread. Which round the run is in says :class:`espalier.core.run_rounds.RunRounds`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from copy import copy
from typing import Any, Protocol

from espalier.core.address import Address, level_of, role
from espalier.core.aggregator import Aggregator
from espalier.core.environment import Environment
from espalier.core.errors import ProtocolError
from espalier.core.messages import (
    ALL,
    Action,
    Arrange,
    AwaitSum,
    Closed,
    Deadline,
    Event,
    Measure,
    Message,
    Record,
    Send,
    Serve,
    SetDeadline,
    Train,
    Trained,
)
from espalier.core.method import Node, Plan, Watcher
from espalier.core.params import ParamSpec, Spans
from espalier.core.policies import Rules
from espalier.core.store import Ref
from espalier.core.tree import Tree

# -- ports ---------------------------------------------------------------------------------------------------


class Clock(Protocol):
    """Tells the time and reminds nodes."""

    def time(self) -> float:
        """Return the seconds since the run began."""
        ...

    def remind(self, node: Address, seconds: float, deadline: Deadline) -> None:
        """Give a node its deadline after some seconds."""
        ...


class Messenger(Protocol):
    """Carries messages between nodes."""

    def send(self, message: Message) -> None:
        """Let a message arrive."""
        ...


class DeviceWork(Protocol):
    """Computes what devices ask for; ``number`` is the job's place in the device's random streams."""

    def train(self, device: Address, train: Train, number: int) -> None:
        """Begin a training; the node is given :class:`~espalier.core.messages.Trained` when it is done."""
        ...

    def measure(self, device: Address, measure: Measure, number: int) -> None:
        """Begin a statistic; the node is given :class:`~espalier.core.messages.Measured` when it is done."""
        ...


class MaskedSums(Protocol):
    """Sums up models that came masked."""

    def await_sum(self, node: Address, wanted: AwaitSum) -> None:
        """Give a node :class:`~espalier.core.messages.Summed` when the sums are there, and nothing else till then."""
        ...


class RunControl(Protocol):
    """Passes on to the run as a whole what its nodes have done."""

    def serve(self, node: Address, models: dict[str, Ref]) -> None:
        """A node has other models in use."""
        ...

    def close(self, node: Address, progress: int) -> None:
        """A node has closed a round."""
        ...

    def waits(self, device: Address) -> bool:
        """Tell whether a device that trains alone must wait; it is sent ``Started`` again when it may go on."""
        ...

    def arrange(self, node: Address, arrange: Arrange) -> None:
        """A node wants the tree or the groups changed."""
        ...

    def record(self, node: Address, kind: str, data: dict[str, Any]) -> None:
        """Write something into the run's record."""
        ...


class Ports(Clock, Messenger, DeviceWork, MaskedSums, RunControl, Protocol):
    """All that a runtime needs of the world outside."""


class RuntimeEnvironment(Environment, Protocol):
    """The environment of nodes, and the tree and the ranges of addresses behind it."""

    tree: Tree
    n_devices: int
    n_edges: int
    cloud: Address


# -- nodes ---------------------------------------------------------------------------------------------------


class Counts(Protocol):
    """A number per device, 0 where none was set."""

    def __getitem__(self, device: Address, /) -> Any: ...

    def __setitem__(self, device: Address, count: int, /) -> None: ...


#: trainings that follow another of the same order have numbers from here on
FIRST_FOLLOWING = 1 << 36


class JobNumbers:
    """How many trainings and statistics each device was asked for: they number its random streams.

    Statistics are counted apart: a method that asks questions trains on the same batches as one that does not. So are
    trainings that follow another of the same order (``following`` of all ``trainings``). ``revealed`` counts those
    statistics that cost privacy.
    """

    def __init__(self, private: Collection[str], counts: Callable[[], Counts]) -> None:
        self._private = private
        self.trainings, self.statistics, self.revealed = counts(), counts(), counts()
        self.following = counts()

    def training(self, device: Address, follows: bool = False, again: bool = False) -> int:
        """Return the number of a device's next training; ``again``: that of the order's first, which it follows."""
        ordered, following = int(self.trainings[device]), int(self.following[device])
        self.trainings[device] = ordered + 1
        if not follows:
            return ordered - following
        self.following[device] = following + 1
        return ordered - following - 1 if again else FIRST_FOLLOWING + following

    def statistic(self, device: Address, what: str) -> int:
        """Return the number of a device's next statistic."""
        number = int(self.statistics[device])
        self.statistics[device] = number + 1
        if what in self._private:
            self.revealed[device] = int(self.revealed[device]) + 1
        return number

    def save(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return {name: copy(getattr(self, name)) for name in ("trainings", "following", "statistics", "revealed")}

    def restore(self, plain: dict[str, Any]) -> None:
        """Become what :meth:`save` described."""
        for name, counts in plain.items():
            setattr(self, name, Counter(counts) if isinstance(counts, dict) else counts)


class Runtime:
    """Makes nodes, gives them events and does what they ask for.

    Attributes:
        nodes: The nodes that are remembered, by address.
        served: The models in use, by node and group.
        numbers: The numbers of devices' jobs.
    """

    def __init__(
        self,
        plan: Plan,
        env: RuntimeEnvironment,
        ports: Ports,
        private: Collection[str] = (),
        counts: Callable[[], Counts] = Counter,
    ) -> None:
        """Drive a plan's nodes; ``private`` names the statistics that cost privacy."""
        self.plan, self._env, self._ports = plan, env, ports
        self.nodes: dict[Address, Node] = {}
        self.served: dict[Address, dict[str, Ref]] = {}
        self.numbers = JobNumbers(private, counts)
        #: of the nodes so far: how many levels of roles they have, and whether one wants to know who is gone
        self._levels, self._watched = 1, False
        self._alone = plan.clock == "device"

    def node(self, address: Address) -> Node:
        """Return the node at an address, making it if need be."""
        found = self.nodes.get(address)
        if found is None:
            found = self.nodes[address] = self._make(address)
            self._levels = max(self._levels, 1 + level_of(address))
            # a protocol's isinstance is slow
            self._watched = self._watched or hasattr(found, "watches")
        return found

    def _make(self, address: Address) -> Node:
        plan, env = self.plan, self._env
        node = plan.node(address, env) if plan.node is not None else None
        if node is not None:
            return node
        if env.is_device(address):
            return plan.device(address, plan.local, plan.child, env)
        return plan.aggregator(address, self.rules(address), env)

    def rules(self, address: Address) -> Rules:
        """Return the policies of an aggregator."""
        if address == self._env.tree.root:
            return self.plan.root
        between = self._env.n_devices + self._env.n_edges <= address < self._env.cloud
        return self.plan.middle if between else self.plan.edge

    def shares(self, child: Address, spec: ParamSpec) -> Spans | None:
        """Return which places of a model go between a host and those above it (None: all)."""
        found = self.plan.local.shares(spec)
        if not self._env.is_device(child):
            for rules in (self.plan.edge, self.rules(child)):
                found = spec.common(found, rules.hand_down.shares(spec))
        return found

    def _make_root(self, root: Address) -> None:
        """Let a node that becomes the root follow the root's rules from now on; who was it does so no longer."""
        new = self.nodes.get(root)
        if not isinstance(new, Aggregator) or new.rules is self.plan.root:
            return
        for node in self.nodes.values():
            if isinstance(node, Aggregator) and node.rules is self.plan.root:
                node.rules = self.plan.edge
        new.rules = self.plan.root

    def roles(self, host: int) -> list[Address]:
        """Return the addresses of a host's nodes."""
        return [a for level in range(self._levels) if (a := role(host, level)) in self.nodes]

    def watchers(self, host: int) -> list[Address]:
        """Return the nodes to which it matters that a host is gone, ascending."""
        if not self._watched:
            return []
        several = [(a, n) for a, n in self.nodes.items() if hasattr(n, "watches")]
        return sorted(a for a, n in several if isinstance(n, Watcher) and n.watches(host))

    def tell(self, address: Address, event: Event) -> None:
        """Give a node an event and do what it says."""
        if isinstance(event, Trained) and self.plan.serve.keeps_own:
            self.act(address, Serve({ALL: event.model}))
        for action in self.ask(address, event):
            self.act(address, action)

    def ask(self, address: Address, event: Event) -> list[Action]:
        """Give a node an event; return what it says."""
        return self.node(address).on(event, self._ports.time())

    def act(self, address: Address, action: Action) -> None:
        """Do what a node asked for."""
        ports = self._ports
        match action:
            case Send(message=message):
                ports.send(message)
            case Train():
                if not (self._alone and ports.waits(address)):
                    self._require_device(address)
                    ports.train(address, action, self.numbers.training(address, action.follows, action.again))
            case Measure(what=what):
                self._require_device(address)
                ports.measure(address, action, self.numbers.statistic(address, what))
            case SetDeadline(seconds=seconds, wake=wake):
                ports.remind(address, seconds, Deadline(wake))
            case Serve(models=models):
                self.served[address] = models
                ports.serve(address, models)
            case Closed(progress=progress):
                ports.close(address, progress)
            case Arrange():
                ports.arrange(address, action)
                if action.root is not None:
                    self._make_root(action.root)
            case Record(kind=kind, data=data):
                ports.record(address, kind, data)
            case AwaitSum():
                ports.await_sum(address, action)

    def _require_device(self, address: Address) -> None:
        if not self._env.is_device(address):
            raise ProtocolError(f"Node {address} has no data to train on: only devices train.")

    def save(self) -> dict[str, Any]:
        """Return nodes, models in use and numbers as plain data."""
        nodes = {address: node.state for address, node in self.nodes.items()}
        return {"nodes": nodes, "served": self.served, "numbers": self.numbers.save()}

    def restore(self, plain: dict[str, Any]) -> None:
        """Become what :meth:`save` described."""
        self.served = plain["served"]
        self.numbers.restore(plain["numbers"])
        self.nodes = {}
        for address, state in plain["nodes"].items():
            self.node(address).state = state
