"""The simulation: virtual time drives the nodes, the world says how long things take.

    pop the next event → the node it is for says what to do → do it: send (links say when it arrives),
    train (the ledger writes it down, compute says when it is done), arrange, serve, record → repeat

Time never depends on this machine. All state is plain data, so a run can be saved at any event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from espalier.core.address import Address, host_of, level_of, role
from espalier.core.codec import refs_in
from espalier.core.device import Device
from espalier.core.errors import ProtocolError
from espalier.core.limits import EvaluationSchedule, RunLimits
from espalier.core.messages import (
    Action,
    Arrange,
    Arrived,
    ChildJoined,
    ChildLeft,
    Closed,
    Deadline,
    Lost,
    Measure,
    Measured,
    Record,
    Send,
    Serve,
    SetDeadline,
    Started,
    Train,
    Trained,
)
from espalier.core.method import Node, Plan
from espalier.core.policies import Rules
from espalier.core.statistics import statistic
from espalier.core.store import Ref
from espalier.data.partition import Partition
from espalier.policies.privacy import PRIVATE
from espalier.record.database import Recorder
from espalier.simulator.attacks import Tampering
from espalier.simulator.dataviews import Views
from espalier.simulator.environment import Fleet
from espalier.simulator.jobs import Job
from espalier.simulator.ledger import Ledger
from espalier.simulator.local import SimulatedData
from espalier.simulator.meter import Meter
from espalier.simulator.queue import LATE, NODE, Queue, ToNode, ToWorld
from espalier.simulator.rounds import Rounds
from espalier.simulator.task import Task
from espalier.simulator.transport import Transport
from espalier.simulator.trials import SimulatedTrials
from espalier.simulator.world_process import Weather
from espalier.world.protocols import Shape
from espalier.world.world import World

#: run-time noise is drawn by the number of a job; questions have numbers of their own, from here on
ASKED = 1 << 32


class Simulation:
    """One method's plan × one world × one task × one seed."""

    def __init__(
        self,
        plan: Plan,
        task: Task,
        world: World,
        partition: Partition,
        seed: int,
        *,
        recorder: Recorder,
        limits: RunLimits | None = None,
        schedule: EvaluationSchedule | None = None,
        tiers: tuple[int, ...] = (),
        spans: bool = True,
    ) -> None:
        self.plan, self.task, self.seed = plan, task, seed
        self.limits, self.schedule = limits or RunLimits(), schedule or EvaluationSchedule()
        self.recorder, self.spans = recorder, spans
        batches = -(-partition.sizes // task.training.batch_size)
        shape = Shape(
            partition.n_devices, partition.n_edges, seed, batches.astype(np.int64), task.spec.model_bytes,
            partition.edge, sum(tiers),
        )  # fmt: skip
        self.world = world.bind(shape)
        self.fleet = Fleet(seed, shape, self.world, partition, tiers)
        self.views = Views(task.dataset, partition, seed)
        self.tampering = Tampering(self)
        self.ledger = Ledger(
            task.spec,
            self.tampering.computing(task.computer(seed, self.views)),
            lambda index: task.initial(seed, index),
            self._roots,
            self._rejected,
        )
        self.queue = Queue()
        self.now = 0.0
        self.finished = False
        #: why the run ended before it had reached its limits ("": it has not)
        self.stalled = ""
        self.nodes: dict[Address, Node] = {}
        #: of the nodes so far: how many levels of roles they have, and whether one wants to know who is gone
        self.levels, self.watched = 1, False
        self.served: dict[Address, dict[str, Ref]] = {}
        self.jobs = np.zeros(shape.n_devices, dtype=np.int64)
        self.asked = np.zeros(shape.n_devices, dtype=np.int64)
        self.revealed = np.zeros(shape.n_devices, dtype=np.int64)
        self.messages = 0
        self._event: Any = None
        self._held: list[ToNode] = []
        self._restarts: list[Address] = []
        self.rounds = Rounds(self)
        self.transport = Transport(self)
        self.weather = Weather(self)
        self.meter = Meter(self)
        trials = SimulatedTrials(
            task, partition, self.views, self.ledger, seed, lambda: self.world.drift.concepts(0, 0.0), self.weather.look
        )
        self.fleet.connect(
            self.ledger, self.meter.judge, self.weather,
            lambda device: task.training.batches(self.fleet.samples(device), 1), trials,
        )  # fmt: skip

    @property
    def round(self) -> int:
        """Return how many rounds the run has closed."""
        return self.rounds.done

    # -- running ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Plant the tree and let the run begin."""
        self.weather.begin()
        if self.plan.root.structure.plants():
            self.fleet.plant(self.plan.root.structure.flat)
        self.meter.describe_fleet()
        for node in self.fleet.tree.aggregators():
            if node != self.fleet.tree.root:
                self.recorder.move(0.0, node, self.fleet.tree.parent(node), "")
        if not self.plan.root.structure.flat:
            # the record's fleet table has every device at its partition's edge: write who is elsewhere, or absent
            home = self.fleet.n_devices + self.fleet.partition.edge
            for device in np.flatnonzero(self.fleet.tree.device_parent != home).tolist():
                self.recorder.move(0.0, device, self.fleet.tree.parent(device), "")
        if self.plan.starts == "root":
            self.queue.push(0.0, NODE, ToNode(self.fleet.tree.root, Started()))
        else:
            for device in np.flatnonzero(self.fleet.alive).tolist():
                self.queue.push(0.0, NODE, ToNode(device, Started()))
        self.evaluate_later()
        self.meter.measure()

    def step(self) -> bool:
        """Let one event happen; return whether the run goes on."""
        if self.finished:
            return False
        if self.limits.seconds is not None and self.queue.next_time > self.limits.seconds:
            self.now = self.limits.seconds
            self.finish()
            return False
        if not len(self.queue):
            self.stall("Nothing is going to happen any more.")
            return False
        self.now, self._event = self.queue.pop()
        self.ledger.young.clear()
        if isinstance(self._event, ToNode):
            self._deliver(self._event)
        else:
            self.weather.change(self._event)
        self._event = None
        return not self.finished

    def _deliver(self, what: ToNode) -> None:
        host = host_of(what.node)
        self.weather.stirred()
        if not self.weather.alive(host) and host >= self.fleet.n_devices:
            self._held.append(what)  # a server that is down: the sender tries until it is back
        elif host >= self.fleet.n_devices:
            # What a server set itself is gone with its memory; what others send comes all the same.
            if isinstance(what.event, Arrived) or self.weather.remembers(host, what.life):
                self.tell(what.node, what.event)
        elif self.weather.alive(host) and self.weather.life(host) == what.life:
            self.tell(what.node, what.event)

    def died(self, host: int, forgets: bool) -> None:
        """A host is gone: a device forgets its order, a server that forgets loses its state."""
        for address in [a for level in range(self.levels) if (a := role(host, level)) in self.nodes]:
            node = self.nodes[address]
            if isinstance(node, Device):
                node.state.order, node.state.waiting = None, []
            if forgets or (host < self.fleet.n_devices and node.idle):
                del self.nodes[address]
                if host < self.fleet.n_devices:
                    self.served.pop(address, None)
                else:  # what a server has served is in use elsewhere
                    self._restarts.append(address)
        self.rounds.gone(host, forgets)

    def returned(self, host: int, forgets: bool) -> None:
        """A server is back, without its state if it ``forgets``: what was sent to it meanwhile arrives now."""
        again = [a for a in self._restarts if host_of(a) == host]
        if forgets and host == self.fleet.tree.root and host not in again:
            again.append(host)
        self._restarts = [a for a in self._restarts if host_of(a) != host]
        for address in again:
            models, progress = self.served.get(address, {}), self.rounds.closed.get(address, 0)
            self.tell(address, Started(dict(models), progress, self.weather.life(host)))
        mine = [what for what in self._held if host_of(what.node) == host]
        self._held = [what for what in self._held if host_of(what.node) != host]
        for what in mine:
            if isinstance(what.event, Arrived):
                self.queue.push(self.now, NODE, what)
            else:  # what it would have known by now comes before what happens next
                self._deliver(what)

    def run(self, progress: Callable[[Simulation], None] | None = None) -> None:
        """Run to the end; ``progress`` is called after every event."""
        while self.step():
            if progress is not None:
                progress(self)

    def evaluate_later(self) -> None:
        """Plan the next evaluation, if they go by time; the end has its own, which a rounding must not double."""
        if self.schedule.seconds is not None:
            at, end = self.now + self.schedule.seconds, self.limits.seconds
            if end is None or at < end * (1 - 1e-9):
                self.queue.push(at, LATE, ToWorld("evaluate"))

    def stall(self, why: str) -> None:
        """End the run before it has reached its limits."""
        self.stalled = why
        self.recorder.event(self.now, "stalled", None, {"why": why})
        self.finish()

    def finish(self) -> None:
        """End the run with a last evaluation."""
        if not self.finished:
            self.finished = True
            self.meter.measure(last=True)

    # -- nodes -------------------------------------------------------------------------------------------

    def node(self, address: Address) -> Node:
        """Return the node at an address, making it if need be."""
        found = self.nodes.get(address)
        if found is None:
            found = self._make(address)
            self.nodes[address] = found
            self.levels = max(self.levels, 1 + level_of(address))
            self.watched = self.watched or hasattr(found, "watches")
        return found

    def _make(self, address: Address) -> Node:
        node: Node | None = None
        if self.plan.node is not None:
            node = self.plan.node(address, self.fleet)
        if node is None:
            if self.fleet.is_device(address):
                node = self.plan.device(address, self.plan.local, self.plan.child, self.fleet)
            else:
                node = self.plan.aggregator(address, self._rules(address), self.fleet)
        return node

    def _rules(self, address: Address) -> Rules:
        if address == self.fleet.tree.root:
            return self.plan.root
        between = self.fleet.n_devices + self.fleet.shape.n_edges <= address < self.fleet.cloud
        return self.plan.middle if between else self.plan.edge

    def tell(self, address: Address, event: Any) -> None:
        """Give a node an event and do what it says."""
        node = self.node(address)
        device = address < self.fleet.n_devices
        if device and isinstance(event, Trained | Measured):
            self.fleet.working[address] = False
            if isinstance(event, Trained):
                self.weather.trained(address)
        for action in node.on(event, self.now):
            self.act(address, action)
        if device and node.idle:
            self.nodes.pop(address, None)

    def act(self, address: Address, action: Action) -> None:
        """Do what a node asked for."""
        match action:
            case Send(message=message):
                self.transport.send(self.tampering.outgoing(message))
            case Train():
                if not self.rounds.waits(address):
                    self._train(address, action)
            case Measure():
                self._measure(address, action)
            case SetDeadline(seconds=seconds, key=key, number=number):
                life = self.weather.life(host_of(address))
                self.queue.push(self.now + seconds, LATE, ToNode(address, Deadline(key, number), life))
            case Serve(models=models):
                self.served[address] = models
            case Closed(progress=progress):
                self.rounds.close(address, progress)
            case Arrange():
                self._arrange(action)
            case Record(kind=kind, data=data):
                self.recorder.event(self.now, kind, host_of(address), data)

    def _train(self, device: Address, train: Train) -> None:
        if not self.fleet.is_device(device):
            raise ProtocolError(f"Node {device} has no data to train on: only devices train.")
        number = int(self.jobs[device])
        self.jobs[device] += 1
        look = self.tampering.look(device, self.weather.look(device))
        ref = self.ledger.submit(Job(device, number, train, look))
        rows = len(self.views.rows(device, look)) if look else self.fleet.samples(device)
        batches = self.task.training.batches(rows, train.updates)
        seconds = self.weather.compute().duration(device, batches, self.now, number)
        self._busy(device, "train", seconds)
        done = Trained(train.token, ref, seconds, train.updates)
        self.queue.push(self.now + seconds, NODE, ToNode(device, done, self.weather.life(device)))

    def _measure(self, device: Address, measure: Measure) -> None:
        # Counted apart: a method that asks questions trains on the same batches as one that does not.
        number = int(self.asked[device])
        self.asked[device] += 1
        self.revealed[device] += measure.what in PRIVATE
        found = statistic(measure.what)
        look = self.tampering.look(device, self.weather.look(device))
        rows = self.views.rows(device, look)
        rng = self.fleet.rng("statistic", measure.what, device, number)
        local = SimulatedData(self.task, self.views.pool(look), rows, rng, self.views.held_out(device, look))
        vectors: list[Tensor] = list(self.ledger.vectors(measure.models)) if measure.models and found.models else []
        values = found.compute(local, vectors, **measure.args)
        batches = found.batches(-(-len(rows) // self.task.training.batch_size), len(vectors))
        seconds = self.weather.compute().duration(device, batches, self.now, ASKED + number) if batches else 0.0
        self._busy(device, "measure", seconds)
        event = Measured(measure.token, values, seconds)
        self.queue.push(self.now + seconds, NODE, ToNode(device, event, self.weather.life(device)))

    def _busy(self, device: Address, kind: str, seconds: float) -> None:
        self.fleet.working[device] = True
        self.meter.spent(device, kind, seconds)
        if self.spans and seconds > 0:
            self.recorder.span(device, kind, self.now, self.now + seconds)

    # -- the tree ----------------------------------------------------------------------------------------

    def _arrange(self, arrange: Arrange) -> None:
        if arrange.root is not None:
            self.fleet.tree.root = arrange.root
        for device, group in arrange.groups.items():
            if self.fleet.tree.group(device) != group:
                self.fleet.tree.set_group(device, group)
                self.recorder.move(self.now, device, self.fleet.tree.parent(device), group)
        for node, parent in arrange.parents.items():
            self.reparent(node, parent)

    def reparent(self, node: Address, parent: Address | None) -> None:
        """Make a node report to another parent; both parents learn it (unless they run on a device that is gone)."""
        tree = self.fleet.tree
        old = tree.parent(node)
        if old == parent:
            return
        tree.attach(node, parent)
        self.recorder.move(self.now, node, parent, tree.group(node))
        if old is not None:
            self.inform(old, ChildLeft(node))
        if parent is not None:
            self.inform(parent, ChildJoined(node))

    def inform(self, address: Address, event: ChildLeft | ChildJoined | Lost) -> None:
        """Let an aggregator learn something: at once, or (a server that is down) when it is back."""
        host = host_of(address)
        if self.weather.alive(host):
            self.tell(address, event)
        elif host >= self.fleet.n_devices:
            self._held.append(ToNode(address, event, self.weather.life(host)))

    # -- what is alive -----------------------------------------------------------------------------------

    def _roots(self, found: set[int]) -> None:
        for node in self.nodes.values():
            refs_in(node.state, found)
        refs_in(self._held, found)
        for entry in self.queue.entries():
            refs_in(entry[3], found)
        refs_in(self.served, found)
        refs_in(self._event, found)

    def _rejected(self, ref: int) -> None:
        self.recorder.event(self.now, "rejected", None, {"model": ref, "why": "it has numbers that are not finite"})

    # -- saving ------------------------------------------------------------------------------------------

    def save(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the whole state: plain data, and vectors by name."""
        ledger, tensors = self.ledger.save()
        plain = {
            "now": self.now,
            "round": self.round,
            "finished": self.finished,
            "stalled": self.stalled,
            "messages": self.messages,
            "jobs": self.jobs.copy(),
            "asked": self.asked.copy(),
            "revealed": self.revealed.copy(),
            "alive": self.fleet.alive.copy(),
            "working": self.fleet.working.copy(),
            "location": self.fleet.location.copy(),
            "moved": self.fleet.moved.copy(),
            "tree": self.fleet.tree.to_plain(),
            "queue": self.queue.save(),
            "nodes": {a: n.state for a, n in self.nodes.items()},
            "served": self.served,
            "closed": self.rounds.closed,
            "held": self._held,
            "restarts": self._restarts,
            "looks": self.views.looks,
            "weather": self.weather.save(),
            "meter": self.meter.save(),
            "uplinks": self.transport.uplinks.save(),
            "ledger": ledger,
        }
        return plain, tensors

    def restore(self, plain: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Become the simulation that :meth:`save` described."""
        self.now, self.finished = plain["now"], plain["finished"]
        self.stalled = plain.get("stalled", "")
        self.messages = plain["messages"]
        self.jobs[:], self.asked[:], self.revealed[:] = plain["jobs"], plain["asked"], plain["revealed"]
        fleet = self.fleet
        fleet.alive[:], fleet.working[:] = plain["alive"], plain["working"]
        fleet.location[:], fleet.moved[:] = plain["location"], plain["moved"]
        fleet.tree.restore(plain["tree"])
        self.queue.restore(plain["queue"])
        self.rounds.restore(plain["round"], plain["closed"])
        self.served = plain["served"]
        self._held, self._restarts = plain["held"], plain["restarts"]
        self.views.restore(plain["looks"])
        self.weather.restore(plain["weather"])
        self.meter.restore(plain["meter"])
        self.transport.uplinks.restore(plain["uplinks"])
        self.ledger.restore(plain["ledger"], tensors)
        self.nodes = {}
        for address, state in plain["nodes"].items():
            self.node(address).state = state
