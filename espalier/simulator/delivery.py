"""Delivery of events to the nodes of a simulation: at once, or, to a server that is down, when it is back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from espalier.core.address import Address, host_of
from espalier.core.aggregator import Aggregator
from espalier.core.device import Device
from espalier.core.messages import (
    Arrange,
    Arrived,
    ChildJoined,
    ChildLeft,
    Event,
    Lost,
    Measured,
    Started,
    Trained,
)
from espalier.core.run_rounds import RunRounds
from espalier.core.runtime import Runtime
from espalier.core.tree import NOBODY
from espalier.simulator.checkpoint import Saved
from espalier.simulator.clock import NODE, ToNode
from espalier.simulator.environment import SimulationContext


class Delivery(Saved):
    """Gives nodes their events and changes the tree.

    Args:
        context: What the parts of the simulation share.
        runtime: The nodes.
        rounds: The run's rounds.
        trained: Called when a device has trained and has not reported yet.
    """

    SAVED = ("held", "_restarts")

    def __init__(
        self, context: SimulationContext, runtime: Runtime, rounds: RunRounds, trained: Callable[[int], None]
    ) -> None:
        self._fleet, self._presence, self._clock = context.fleet, context.presence, context.clock
        self._runtime, self._rounds, self._recorder, self._trained = runtime, rounds, context.recorder, trained
        #: what waits for servers that are down
        self.held: list[ToNode] = []
        #: nodes of servers that have lost their state, to be started when their hosts are back
        self._restarts: list[Address] = []

    # -- events --------------------------------------------------------------------------------------------

    def deliver(self, what: ToNode) -> None:
        """Let something from the heap reach its node, if it still can."""
        host = host_of(what.node)
        if host < self._fleet.n_devices:
            if self._presence.alive(host) and self._presence.incarnation(host) == what.incarnation:
                self.tell(what.node, what.event)
        elif not self._presence.alive(host):
            self.held.append(what)  # a server that is down: the sender tries until it is back
        elif isinstance(what.event, Arrived) or self._presence.remembers(host, what.incarnation):
            # What a server set itself is gone with its memory; what others send comes all the same.
            self.tell(what.node, what.event)

    def tell(self, address: Address, event: Event) -> None:
        """Give a node an event; an idle device is forgotten afterwards."""
        if address >= self._fleet.n_devices:
            self._runtime.tell(address, event)
            return
        if isinstance(event, Trained | Measured):
            self._fleet.working[address] = False
            if isinstance(event, Trained):
                self._trained(address)
        self._runtime.tell(address, event)
        nodes = self._runtime.nodes
        if address in nodes and nodes[address].idle:
            del nodes[address]

    def inform(self, address: Address, event: ChildLeft | ChildJoined | Lost) -> None:
        """Let an aggregator learn something: at once, or (a server that is down) when it is back."""
        host = host_of(address)
        if self._presence.alive(host):
            self.tell(address, event)
        elif host >= self._fleet.n_devices:
            self.held.append(ToNode(address, event, self._presence.incarnation(host)))

    # -- hosts that die and return -------------------------------------------------------------------------

    def died(self, host: int, forgets: bool) -> None:
        """A host is gone: a device forgets its order, a server that forgets loses its state."""
        nodes, device = self._runtime.nodes, host < self._fleet.n_devices
        for address in self._runtime.roles(host):
            node = nodes[address]
            if isinstance(node, Device):
                node.state.order, node.state.waiting = None, []
            if forgets or (device and node.idle):
                del nodes[address]
                if device:
                    self._runtime.served.pop(address, None)
                else:  # what a server has served is in use elsewhere
                    self._restarts.append(address)
        if forgets:
            self._rounds.forget(host)
        self._rounds.gone(host)

    def returned(self, host: int, forgets: bool) -> None:
        """A server is back, without its state if it ``forgets``: what was sent to it meanwhile arrives now."""
        again = [a for a in self._restarts if host_of(a) == host]
        if forgets and host == self._fleet.tree.root and host not in again:
            again.append(host)
        self._restarts = [a for a in self._restarts if host_of(a) != host]
        for address in again:
            models, progress = self._runtime.served.get(address, {}), self._rounds.closed.get(address, 0)
            self.tell(address, Started(dict(models), progress, self._presence.incarnation(host)))
        mine = [what for what in self.held if host_of(what.node) == host]
        self.held = [what for what in self.held if host_of(what.node) != host]
        for what in mine:
            if isinstance(what.event, Arrived):
                self._clock.push(self._clock.now, NODE, what)
            else:  # what it would have known by now comes before what happens next
                self.deliver(what)

    # -- the tree --------------------------------------------------------------------------------------------

    def arrange(self, arrange: Arrange) -> None:
        """Change the tree and the groups."""
        tree = self._fleet.tree
        if arrange.root is not None:
            tree.root = arrange.root
        for device, group in arrange.groups.items():
            if tree.group(device) != group:
                tree.set_group(device, group)
                self._recorder.move(self._clock.now, device, tree.parent(device), group)
        for node, parent in arrange.parents.items():
            self.reparent(node, parent)

    def reparent(self, node: Address, parent: Address | None) -> None:
        """Make a node report to another parent; both parents learn it (unless they run on a device that is gone)."""
        tree = self._fleet.tree
        old = tree.parent(node)
        if old == parent:
            return
        tree.attach(node, parent)
        self._recorder.move(self._clock.now, node, parent, tree.group(node))
        if old is not None:
            self.inform(old, ChildLeft(node))
        if parent is not None:
            self.inform(parent, ChildJoined(node))

    def quiet_moves(self, devices: NDArray[np.int64], parents: NDArray[np.int64]) -> int:
        """Return how many of these moves, from the first on, let no parent do more than forget who left."""
        old = self._fleet.tree.device_parent[devices]
        loud = (parents == NOBODY) | (old == NOBODY) | (old == parents)
        for parent in set(old.tolist()):
            node = self._plain_aggregator(parent)
            awaited = None if node is None else node.awaited()
            loud |= (old == parent) & (awaited is None or np.isin(devices, list(awaited)))
        for parent in set(parents.tolist()):
            node = self._plain_aggregator(parent)
            if node is None or not node.ignores_joins:
                loud |= parents == parent
        return int(loud.argmax()) if loud.any() else len(devices)

    def _plain_aggregator(self, address: Address) -> Aggregator | None:
        """Return the node at an address, if it is there and is an aggregator like any other."""
        node = self._runtime.nodes.get(address)
        return node if type(node) is Aggregator and self._presence.alive(host_of(address)) else None

    def reparent_all(self, devices: NDArray[np.int64], parents: NDArray[np.int64]) -> None:
        """Let moves happen that :meth:`quiet_moves` found."""
        tree, nodes = self._fleet.tree, self._runtime.nodes
        old, movers, to = tree.device_parent[devices], devices.tolist(), parents.tolist()
        for parent in set(old.tolist()):
            left = nodes[parent]
            assert isinstance(left, Aggregator)
            left.forget(devices[old == parent].tolist())
        for parent in set(to):
            joined = nodes[parent]
            assert isinstance(joined, Aggregator)
            if joined.state.idle:
                joined.state.idle.difference_update(movers)
        tree.move(devices, parents)
        groups = [tree.group_names[number] for number in tree.device_group[devices].tolist()]
        self._recorder.moves(self._clock.now, movers, to, groups)
