"""What the world does while a run goes on: devices come, go and move, servers fail, data drift."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from espalier.core.address import Address, host_of
from espalier.core.messages import ChildJoined, ChildLeft, Lost, Started
from espalier.core.policies import Structure
from espalier.core.runtime import Runtime
from espalier.core.tree import NOBODY
from espalier.simulator.checkpoint import Saved
from espalier.simulator.clock import WORLD, ToWorld, WorldBlock
from espalier.simulator.delivery import Delivery
from espalier.simulator.environment import SimulationContext

#: churn, moves and drift are looked up for so many seconds at once
WINDOW_SECONDS = 50.0
#: departures per device, on average, since a round was closed, after which the run counts as stalled
STALLED_DEPARTURES_PER_DEVICE = 1000
#: windows in a row without an event at any node after which the run counts as stalled
QUIET_WINDOWS = 2000


class WorldProcess(Saved):
    """Applies the world's changes to a simulation.

    Args:
        context: What the parts of the simulation share.
        runtime: The nodes.
        delivery: Gives nodes their events and changes the tree.
        stall: Ends the run because nothing will come of it.
    """

    SAVED = ("_unnoticed", "_homes", "_quiet_windows", "_goings")

    def __init__(
        self, context: SimulationContext, runtime: Runtime, delivery: Delivery, stall: Callable[[str], None]
    ) -> None:
        self._world, self._fleet, self._presence = context.world, context.fleet, context.presence
        self._conditions, self._clock, self._recorder = context.conditions, context.clock, context.recorder
        self._runtime, self._delivery, self._stall = runtime, delivery, stall
        self._starts_devices = runtime.plan.starts == "device"
        self._structure: Structure = runtime.plan.root.structure
        self._unnoticed: set[int] = set()
        self._homes: dict[Address, Address] = {}
        #: windows without an event at a node
        self._quiet_windows = 0
        #: how many devices have gone since a round was closed
        self._goings = 0

    # -- the beginning, rounds and moves ------------------------------------------------------------------

    def begin(self) -> None:
        """Set the world as it is at time 0."""
        present = self._world.churn.initial()
        self._fleet.alive[:] = present
        self._presence.dead = set(np.flatnonzero(~present).tolist())
        self._drift()
        if self._world.changes_in_time:
            self._window(0.0)

    def new_round(self, number: int) -> None:
        """The root has closed a round: what is redrawn per round is redrawn, and data may drift."""
        self._conditions.new_round(number)
        if self._world.drift.clock == "round":
            self._drift()

    def round_closed(self, node: Address) -> None:
        """A node has closed a round: if it is an edge, its devices may move on."""
        self._goings = 0
        host = host_of(node)
        n = self._fleet.n_devices
        if self._world.mobility.when != "boundary" or not self._fleet.shape.is_edge(host):
            return
        if self._structure.follows_moves():
            devices = np.asarray(self._fleet.children(node), dtype=np.int64)
            self._draw_moves(devices[devices < n])

    def trained(self, device: int) -> None:
        """A device has trained but not yet reported: it may move on meanwhile."""
        if self._world.mobility.when == "mid_round" and self._structure.follows_moves():
            self._draw_moves(np.array([device]))

    def _draw_moves(self, devices: NDArray[np.int64]) -> None:
        if len(devices) == 0:
            return
        fleet = self._fleet
        old = fleet.location[devices]
        new = self._world.mobility.moves(devices, fleet.moved[devices], old)
        fleet.moved[devices] += 1
        movers, edges = devices[new != old], new[new != old]
        places = self._own_places(edges)
        at = 0
        while at < len(movers):
            stop = at + self._delivery.quiet_moves(movers[at:], places[at:])
            if stop == at:
                self._move(int(movers[at]), int(edges[at]))
                at += 1
                continue
            fleet.location[movers[at:stop]] = edges[at:stop]
            self._delivery.reparent_all(movers[at:stop], places[at:stop])
            at = stop

    def _own_places(self, edges: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where devices at these edges report if everything is as usual; NOBODY: each is asked by itself."""
        places = self._fleet.n_devices + edges
        for host in set(places.tolist()):
            if self._structure.flat or not self._presence.alive(host):
                places[places == host] = NOBODY
        return places

    def _move(self, device: int, edge: int) -> None:
        fleet = self._fleet
        fleet.location[device] = edge
        if fleet.parent(device) is not None and self._structure.follows_moves():
            self._delivery.reparent(device, self._place(device))

    def _place(self, device: int) -> Address:
        """Return where a device reports: its edge (a live one), or the root of a flat tree."""
        fleet = self._fleet
        if self._structure.flat:
            return fleet.tree.root
        if self._structure.orphans == "wait":
            return fleet.edge_host(int(fleet.location[device]))
        return self._conditions.nearest_edge(device)

    # -- changes in time --------------------------------------------------------------------------------

    def change(self, event: ToWorld) -> None:
        """Let a change happen."""
        data = event.data
        match event.kind:
            case "window":
                self._window(self._clock.now)
            case "churn":
                if data["alive"]:
                    self._host_came_back(data["host"], data["forgets"])
                else:
                    self._host_left(data["host"], data["silent"], data["forgets"])
            case "noticed":
                host = data["host"]
                if self._presence.incarnation(host) == data["incarnation"] and not self._presence.alive(host):
                    self._noticed(host)
            case "move":
                self._move(data["device"], data["edge"])
            case "drift":
                self._drift()

    def _window(self, start: float) -> None:
        stop = start + WINDOW_SECONDS
        goings = self._world.churn.window(start, stop)
        what = {"host": goings.device, "alive": goings.alive, "silent": goings.silent, "forgets": goings.forgets}
        self._clock.push_block(WorldBlock("churn", goings.time, what))
        if self._world.mobility.when == "time":
            moves = self._world.mobility.window(start, stop)
            self._clock.push_block(WorldBlock("move", moves.time, {"device": moves.device, "edge": moves.edge}))
        if self._world.drift.clock == "time":
            for time in self._world.drift.changes(stop):
                if start <= time < stop:
                    self._clock.push(max(time, self._clock.now), WORLD, ToWorld("drift"))
        self._quiet_windows += 1
        if self._quiet_windows < QUIET_WINDOWS:
            self._clock.push(stop, WORLD, ToWorld("window"))

    def node_was_active(self) -> None:
        """A node had an event: the run is not stuck."""
        self._quiet_windows = 0

    # -- coming and going ----------------------------------------------------------------------------------

    def _host_left(self, host: int, silent: bool, forgets: bool) -> None:
        if not self._presence.alive(host):
            return
        self._presence.dies(host, forgets)
        self._conditions.hosts_changed()
        if host < self._fleet.n_devices:
            self._fleet.alive[host] = False
            self._fleet.working[host] = False
            self._goings += 1
            if self._goings > STALLED_DEPARTURES_PER_DEVICE * max(5, self._fleet.n_devices):
                self._stall(
                    f"Devices have gone {self._goings:,} times since a round was closed: none of them stays for as "
                    "long as its work takes, or a server that they need is gone for good. Let them stay longer "
                    "(world.churn), or give them less to do."
                )
                return
        self._delivery.died(host, forgets)
        self._recorder.event(self._clock.now, "gone", host, {"silent": silent})
        if silent:
            self._unnoticed.add(host)
            what = {"host": host, "incarnation": self._presence.incarnation(host)}
            self._clock.push(self._clock.now + self._world.notice, WORLD, ToWorld("noticed", what))
        else:
            self._noticed(host)

    def _noticed(self, host: int) -> None:
        """A host is known to be gone: it leaves the tree, and its children find another parent."""
        fleet = self._fleet
        self._unnoticed.discard(host)
        if host < fleet.n_devices:
            parent, root = fleet.parent(host), fleet.tree.root
            self._delivery.reparent(host, None)
            for role in fleet.tree.roles(host):
                self._delivery.reparent(role, None)
            if parent != root and self._structure.places_newcomers():
                self._delivery.inform(root, ChildLeft(host))
            self._tell_watchers(host)
            return
        if host == fleet.tree.root:
            return
        parent = fleet.parent(host)
        if parent is None:
            return
        self._homes[host] = parent
        self._delivery.reparent(host, None)
        children = list(fleet.children(host))
        for child in children:
            self._delivery.reparent(child, self._place(child) if fleet.is_device(child) else parent)
        by = {str(p): 0 for c in children if (p := fleet.parent(c)) not in (None, host)}
        for child in children:
            if str(fleet.parent(child)) in by:
                by[str(fleet.parent(child))] += 1
        kind = "taken_over" if by else "orphaned"
        self._recorder.event(self._clock.now, kind, host, {"children": len(children), "by": by})

    def _tell_watchers(self, host: int) -> None:
        for address in self._runtime.watchers(host):
            self._delivery.inform(address, Lost(host))

    def _host_came_back(self, host: int, forgets: bool) -> None:
        fleet = self._fleet
        if self._presence.alive(host):
            return
        if host in self._unnoticed and host < fleet.n_devices:
            self._noticed(host)  # it is back before anyone missed it, but what it was doing is lost
        self._presence.returns(host)
        self._conditions.hosts_changed()
        self._recorder.event(self._clock.now, "came", host, {"forgot": True} if forgets else {})
        if host < fleet.n_devices:
            fleet.alive[host] = True
            places = self._structure.places_newcomers()
            if self._starts_devices:
                if places:
                    fleet.tree.attach(host, self._place(host))
                self._delivery.tell(host, Started())
            elif places:
                self._delivery.reparent(host, self._place(host))
            return
        if host in self._homes:
            self._delivery.reparent(host, self._homes.pop(host))
        self._delivery.returned(host, forgets)
        self.node_was_active()
        unnoticed = host in self._unnoticed
        self._unnoticed.discard(host)
        parent = fleet.parent(host)
        if unnoticed and forgets and parent is not None:
            # Nobody missed it, but it no longer knows what it was asked: it joins its parent again.
            self._delivery.inform(parent, ChildLeft(host))
            self._delivery.inform(parent, ChildJoined(host))
        if fleet.shape.is_edge(host):
            self._regather(host)

    def _regather(self, edge: int) -> None:
        """Bring devices to an edge that is back: its own, and those that found no live one."""
        fleet = self._fleet
        parents = fleet.tree.device_parent
        lost = np.isin(parents, [h for h in self._presence.dead if fleet.shape.is_edge(h)])
        here = (fleet.location == edge - fleet.n_devices) & (parents != NOBODY)
        if self._structure.follows_moves():
            for device in np.flatnonzero(lost | here).tolist():
                self._delivery.reparent(device, self._place(device))

    # -- drift -----------------------------------------------------------------------------------------------

    def _drift(self) -> None:
        now, epoch = self._clock.now, self._conditions.epoch
        changed = self._conditions.drift(now)
        if len(changed) and (now > 0 or epoch > 0):
            self._recorder.event(now, "drift", None, {"devices": changed.tolist(), "round": epoch})
