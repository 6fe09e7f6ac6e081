"""What the world does while a run goes on: devices come, go and move, servers fail, data drift.

Every draw is the world's own (a pure function of the seed), so every method meets the same weather.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from espalier.core.address import Address, host_of
from espalier.core.messages import ChildJoined, ChildLeft, Lost, Started
from espalier.core.method import Watcher
from espalier.core.tree import NOBODY
from espalier.simulator.dataviews import Look
from espalier.simulator.queue import WORLD, ToWorld
from espalier.world.protocols import BoundCompute, BoundLinks

if TYPE_CHECKING:
    from espalier.simulator.simulation import Simulation

#: seconds of churn, moves and drift that are looked up at once
WINDOW = 50.0
#: how often devices must have gone, on average, without any round being closed, until it is clear that none will be
VAIN = 1000
#: windows without a single event at a node after which nothing will ever happen again
QUIET = 2000


class Weather:
    """Applies the world's changes to a simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation
        world, shape = simulation.world, simulation.fleet.shape
        self._lives: dict[int, int] = {}
        self._dead: set[int] = set()
        self._unnoticed: set[int] = set()
        self._homes: dict[Address, Address] = {}
        self._since: dict[int, int] = {}
        self._quiet = 0
        #: how many devices have gone since a round was closed
        self._vain = 0
        self._epoch = 0
        self._links: BoundLinks | None = None
        self._compute: BoundCompute | None = None
        self._looks: NDArray[np.int64] = np.zeros(shape.n_devices, dtype=np.int64)
        self._timed = world.changes_in_time

    # -- what the simulation asks ------------------------------------------------------------------------

    def life(self, host: int) -> int:
        """Return the number of a host's life; events of an earlier one never reach it."""
        return self._lives.get(host, 0)

    def remembers(self, host: int, life: int) -> bool:
        """Tell whether a host still knows what it did in an earlier life."""
        return life >= self._since.get(host, 0)

    def via(self, device: int) -> int | None:
        """Return the edge that relays between a device and the cloud now: the nearest live one."""
        return self._nearest(device) if self.sim.fleet.shape.n_edges else None

    def alive(self, host: int) -> bool:
        """Tell whether a host is there."""
        return host not in self._dead

    def links(self) -> BoundLinks:
        """Return the links of now."""
        if self._links is None:
            links = self.sim.world.links.at(self._epoch)
            if links.relays:
                links = links.without(frozenset(h for h in self._dead if h < self.sim.fleet.n_devices))
            self._links = links
        return self._links

    def compute(self) -> BoundCompute:
        """Return the compute speeds of now."""
        if self._compute is None:
            self._compute = self.sim.world.compute.at(self._epoch)
        return self._compute

    def look(self, device: int) -> int:
        """Return the number of the look that a device's data have now."""
        return int(self._looks[device])

    def looks(self) -> NDArray[np.int64]:
        """Return the number of every device's look, [N]."""
        return self._looks

    # -- the beginning, rounds and moves ------------------------------------------------------------------

    def begin(self) -> None:
        """Set the world as it is at time 0."""
        sim = self.sim
        present = sim.world.churn.initial()
        sim.fleet.alive[:] = present
        self._dead = set(np.flatnonzero(~present).tolist())
        self._drift()
        if self._timed:
            self._window(0.0)

    def new_round(self, number: int) -> None:
        """The root has closed a round: what is redrawn per round is redrawn, and data may drift."""
        self._epoch = number
        self._links = self._compute = None
        if self.sim.world.drift.clock == "round":
            self._drift()

    def round_closed(self, node: Address) -> None:
        """A node has closed a round: if it is an edge, its devices may move on."""
        self._vain = 0
        sim = self.sim
        host = host_of(node)
        n = sim.fleet.n_devices
        if sim.world.mobility.when != "boundary" or not sim.fleet.shape.is_edge(host):
            return
        if sim.plan.root.structure.follows():
            devices = np.asarray(sim.fleet.children(node), dtype=np.int64)
            self._wander(devices[devices < n])

    def trained(self, device: int) -> None:
        """A device has trained but not yet reported: it may move on meanwhile."""
        if self.sim.world.mobility.when == "mid_round" and self.sim.plan.root.structure.follows():
            self._wander(np.array([device]))

    def _wander(self, devices: NDArray[np.int64]) -> None:
        if len(devices) == 0:
            return
        fleet = self.sim.fleet
        old = fleet.location[devices]
        new = self.sim.world.mobility.moves(devices, fleet.moved[devices], old)
        fleet.moved[devices] += 1
        for device, edge in zip(devices[new != old].tolist(), new[new != old].tolist(), strict=True):
            self._move(device, edge)

    def _move(self, device: int, edge: int) -> None:
        fleet = self.sim.fleet
        fleet.location[device] = edge
        if fleet.parent(device) is not None and self.sim.plan.root.structure.follows():
            self.sim.reparent(device, self._place(device))

    def _place(self, device: int) -> Address:
        """Return where a device reports: its edge (a live one), or the root of a flat tree."""
        fleet = self.sim.fleet
        if self.sim.plan.root.structure.flat:
            return fleet.tree.root
        if self.sim.plan.root.structure.orphans == "wait":
            return fleet.edge_host(int(fleet.location[device]))
        return self._nearest(device)

    def _nearest(self, device: int) -> int:
        """Return the live edge nearest to a device (around the ring of edges), or its own if all are down."""
        fleet = self.sim.fleet
        edges, here = fleet.shape.n_edges, int(fleet.location[device])
        for step in range(edges):
            for edge in ((here + step) % edges, (here - step) % edges):
                if self.alive(fleet.edge_host(edge)):
                    return fleet.edge_host(edge)
        return fleet.edge_host(here)

    # -- changes in time --------------------------------------------------------------------------------

    def change(self, event: ToWorld) -> None:
        """Let a change happen."""
        sim = self.sim
        data = event.data
        match event.kind:
            case "window":
                self._window(sim.now)
            case "churn":
                if data["alive"]:
                    self._comes(data["host"], data["forgets"])
                else:
                    self._goes(data["host"], data["silent"], data["forgets"])
            case "noticed":
                if self.life(data["host"]) == data["life"] and not self.alive(data["host"]):
                    self._noticed(data["host"])
            case "move":
                self._move(data["device"], data["edge"])
            case "drift":
                self._drift()
            case "evaluate":
                sim.meter.measure()
                if len(sim.queue):  # else nothing will ever change again
                    sim.evaluate_later()
            case "resend":
                if self.life(host_of(data["message"].sender)) == data["life"]:
                    sim.transport.send(data["message"], since=data["since"])

    def _window(self, start: float) -> None:
        sim, stop = self.sim, start + WINDOW
        goings = sim.world.churn.window(start, stop)
        for time, host, alive, silent, forgets in zip(
            goings.time.tolist(), goings.device.tolist(), goings.alive.tolist(), goings.silent.tolist(),
            goings.forgets.tolist(), strict=True,
        ):  # fmt: skip
            what = {"host": host, "alive": alive, "silent": silent, "forgets": forgets}
            sim.queue.push(time, WORLD, ToWorld("churn", what))
        if sim.world.mobility.when == "time":
            moves = sim.world.mobility.window(start, stop)
            for time, device, edge in zip(moves.time.tolist(), moves.device.tolist(), moves.edge.tolist(), strict=True):
                sim.queue.push(time, WORLD, ToWorld("move", {"device": device, "edge": edge}))
        if sim.world.drift.clock == "time":
            for time in sim.world.drift.changes(stop):
                if start <= time < stop:
                    sim.queue.push(max(time, sim.now), WORLD, ToWorld("drift"))
        self._quiet += 1
        if self._quiet < QUIET:
            sim.queue.push(stop, WORLD, ToWorld("window"))

    def stirred(self) -> None:
        """A node had an event: the run is not stuck."""
        self._quiet = 0

    # -- coming and going ----------------------------------------------------------------------------------

    def _goes(self, host: int, silent: bool, forgets: bool) -> None:
        sim = self.sim
        if not self.alive(host):
            return
        self._dead.add(host)
        self._lives[host] = self.life(host) + 1
        if forgets:
            self._since[host] = self.life(host)
        self._links = None
        if host < sim.fleet.n_devices:
            sim.fleet.alive[host] = False
            sim.fleet.working[host] = False
            self._vain += 1
            if self._vain > VAIN * max(5, sim.fleet.n_devices):
                sim.stall(
                    f"Devices have gone {self._vain:,} times since a round was closed: none of them stays for as "
                    "long as its work takes, or a server that they need is gone for good. Let them stay longer "
                    "(world.churn), or give them less to do."
                )
                return
        sim.died(host, forgets)
        sim.recorder.event(sim.now, "gone", host, {"silent": silent})
        if silent:
            self._unnoticed.add(host)
            what = {"host": host, "life": self.life(host)}
            sim.queue.push(sim.now + sim.world.notice, WORLD, ToWorld("noticed", what))
        else:
            self._noticed(host)

    def _noticed(self, host: int) -> None:
        """A host is known to be gone: it leaves the tree, and its children find another parent."""
        sim, fleet = self.sim, self.sim.fleet
        self._unnoticed.discard(host)
        if host < fleet.n_devices:
            parent, root = fleet.parent(host), fleet.tree.root
            sim.reparent(host, None)
            for role in [a for a in fleet.tree.aggregators() if host_of(a) == host]:
                sim.reparent(role, None)
            if parent != root and sim.plan.root.structure.plants():
                sim.inform(root, ChildLeft(host))
            self._tell_watchers(host)
            return
        if host == fleet.tree.root:
            return
        parent = fleet.parent(host)
        if parent is None:
            return
        self._homes[host] = parent
        sim.reparent(host, None)
        children = list(fleet.children(host))
        for child in children:
            sim.reparent(child, self._place(child) if fleet.is_device(child) else parent)
        by = {str(p): 0 for c in children if (p := fleet.parent(c)) not in (None, host)}
        for child in children:
            if str(fleet.parent(child)) in by:
                by[str(fleet.parent(child))] += 1
        kind = "taken_over" if by else "orphaned"
        sim.recorder.event(sim.now, kind, host, {"children": len(children), "by": by})

    def _tell_watchers(self, host: int) -> None:
        sim = self.sim
        if not sim.watched:
            return
        # A protocol's isinstance is slow.
        several = [(a, n) for a, n in sim.nodes.items() if hasattr(n, "watches")]
        watchers = [a for a, n in several if isinstance(n, Watcher) and n.watches(host)]
        for address in sorted(watchers):
            sim.inform(address, Lost(host))

    def _comes(self, host: int, forgets: bool) -> None:
        sim, fleet = self.sim, self.sim.fleet
        if self.alive(host):
            return
        if host in self._unnoticed and host < fleet.n_devices:
            self._noticed(host)  # it is back before anyone missed it, but what it was doing is lost
        self._dead.discard(host)
        self._links = None
        sim.recorder.event(sim.now, "came", host, {"forgot": True} if forgets else {})
        if host < fleet.n_devices:
            fleet.alive[host] = True
            plants = sim.plan.root.structure.plants()
            if sim.plan.starts == "device":
                if plants:
                    fleet.tree.attach(host, self._place(host))
                sim.tell(host, Started())
            elif plants:
                sim.reparent(host, self._place(host))
            return
        if host in self._homes:
            sim.reparent(host, self._homes.pop(host))
        sim.returned(host, forgets)
        unnoticed = host in self._unnoticed
        self._unnoticed.discard(host)
        parent = fleet.parent(host)
        if unnoticed and forgets and parent is not None:
            # Nobody missed it, but it no longer knows what it was asked: it greets its parent anew.
            sim.inform(parent, ChildLeft(host))
            sim.inform(parent, ChildJoined(host))
        if fleet.shape.is_edge(host):
            self._settle(host)

    def _settle(self, edge: int) -> None:
        """Bring devices to an edge that is back: its own, and those that found no live one."""
        fleet = self.sim.fleet
        parents = fleet.tree.device_parent
        lost = np.isin(parents, [h for h in self._dead if fleet.shape.is_edge(h)])
        here = (fleet.location == edge - fleet.n_devices) & (parents != NOBODY)
        if self.sim.plan.root.structure.follows():
            for device in np.flatnonzero(lost | here).tolist():
                self.sim.reparent(device, self._place(device))

    # -- drift -----------------------------------------------------------------------------------------------

    def _drift(self) -> None:
        sim = self.sim
        concepts, which = sim.world.drift.concepts(self._epoch, sim.now)
        planted = sim.fleet.partition.concept.astype(np.int64)
        width = int(planted.max(initial=0)) + 1
        codes = which * width + planted
        there = np.bincount(codes)
        for code in np.flatnonzero(there).tolist():
            there[code] = sim.views.number(Look(concepts[code // width], code % width))
        looks = there[codes]
        changed = np.flatnonzero(looks != self._looks)
        if len(changed) and (sim.now > 0 or self._epoch > 0):
            sim.recorder.event(sim.now, "drift", None, {"devices": changed.tolist(), "round": self._epoch})
        self._looks = looks

    # -- saving ----------------------------------------------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """Return the weather as plain data."""
        return {
            "lives": dict(self._lives),
            "dead": set(self._dead),
            "unnoticed": set(self._unnoticed),
            "homes": dict(self._homes),
            "since": dict(self._since),
            "quiet": self._quiet,
            "vain": self._vain,
            "epoch": self._epoch,
            "looks": self._looks.copy(),
        }

    def restore(self, plain: dict[str, Any]) -> None:
        """Become the weather that :meth:`save` described."""
        self._lives, self._dead = dict(plain["lives"]), set(plain["dead"])
        self._unnoticed, self._since = set(plain["unnoticed"]), dict(plain["since"])
        self._homes, self._quiet, self._epoch = dict(plain["homes"]), plain["quiet"], plain["epoch"]
        self._vain = plain.get("vain", 0)
        self._looks = plain["looks"]
        self._links = self._compute = None
