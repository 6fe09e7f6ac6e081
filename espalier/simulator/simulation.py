"""The simulation: the runtime under virtual time.

    pop the next event ─> its node says what to do ─> do it: send (links say when it arrives), train (the ledger
    writes it down, compute says when it is done), arrange, serve, record ─> repeat

Time never depends on this machine. All state is plain data, so a run can be saved at any event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from espalier.core.address import Address, host_of
from espalier.core.codec import refs_in
from espalier.core.messages import Arrange, AwaitSum, Deadline, Measure, Message, Started, Summed, Train
from espalier.core.method import Node, Plan
from espalier.core.run_rounds import EvaluationSchedule, RunLimits, RunRounds
from espalier.core.runtime import Runtime
from espalier.core.serving import Serving
from espalier.core.store import Ref
from espalier.data.partition import Partition
from espalier.policies.privacy import PRIVATE
from espalier.record.database import Recorder
from espalier.simulator.attacks import Attacks
from espalier.simulator.checkpoint import Saved
from espalier.simulator.clock import LATE, NODE, ToNode, ToWorld, VirtualClock
from espalier.simulator.conditions import Conditions, Presence
from espalier.simulator.dataviews import Views
from espalier.simulator.delivery import Delivery
from espalier.simulator.device_work import SimulatedWork
from espalier.simulator.environment import Fleet, SimulationContext
from espalier.simulator.ledger import Ledger
from espalier.simulator.meter import Divergence, Meter
from espalier.simulator.metrics import Scores
from espalier.simulator.portions import Portions
from espalier.simulator.serving import ServedScores
from espalier.simulator.task import Task
from espalier.simulator.transport import Transport
from espalier.simulator.trials import SimulatedJudge, SimulatedTrials
from espalier.simulator.usage import Usage
from espalier.simulator.world_process import WorldProcess
from espalier.world.shape import Shape
from espalier.world.world import World

#: rounds at one moment after which a run that ends by virtual time alone is ended
TIMELESS_ROUNDS = 50


class Simulation:
    """One method's plan × one world × one task × one seed: implements the ports of the runtime and of its rounds."""

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
        self.plan, self.task, self.seed, self.recorder = plan, task, seed, recorder
        self.limits = limits or RunLimits()
        batches = -(-partition.sizes // task.training.batch_size)
        shape = Shape(
            partition.n_devices, partition.n_edges, seed, batches.astype(np.int64),
            plan.local.shared_bytes(task.spec) or task.spec.model_bytes, partition.edge, sum(tiers),
        )  # fmt: skip
        self.world = world.bind(shape)
        self.fleet = Fleet(seed, shape, self.world, partition, tiers)
        self.views = Views(task.dataset, partition, seed)
        self.clock, self.presence, self.usage = VirtualClock(), Presence(), Usage(shape.n_hosts)
        self.conditions = Conditions(
            self.world, shape, self.presence, self.fleet.location, partition.concept.astype(np.int64), self.views
        )
        self.runtime = Runtime(plan, self.fleet, self, PRIVATE, lambda: np.zeros(shape.n_devices, dtype=np.int64))
        self._schedule = schedule or EvaluationSchedule()
        self.rounds = RunRounds(plan, self.fleet, self.limits, self._schedule, self)
        context = SimulationContext(
            self.world, self.fleet, self.presence, self.conditions, self.clock, recorder, self.usage, spans
        )
        self._wire_computing(context, partition)
        self._wire_world(context)
        self._divergence = Divergence()
        self.finished = False
        #: why the run ended before it had reached its limits ("": it has not)
        self.stalled = ""
        #: whether that was because the training diverged
        self.diverged = False
        #: the last moment at which a round closed, and the round before the first that did
        self._moment = (-1.0, 0)
        self._event: ToNode | ToWorld | None = None

    def _wire_computing(self, context: SimulationContext, partition: Partition) -> None:
        """Make what computes models and judges them."""
        task, seed, fleet, views = self.task, self.seed, self.fleet, self.views
        edges = np.full(fleet.n_devices, -1) if self.plan.root.structure.flat else partition.edge.astype(np.int64)
        self.attacks = Attacks(self.world, task, views, edges, seed)
        computer = task.computer(seed, views)
        portions = Portions(task, views, computer)
        self.ledger = Ledger(
            task.spec,
            self.attacks.computing(computer),
            lambda index: task.initial(seed, index),
            self._roots,
            self._rejected,
        )
        serve = self.plan.serve
        prior = Serving(prior="validated") if self._schedule.prior else None
        outputs = prior is not None or not serve.plain
        parts = task, partition, views, self.ledger
        scores = Scores(*parts, self.conditions, outputs=outputs, portions=portions, most=self._schedule.rows)
        served = None if serve.plain else ServedScores(serve, *parts, scores)
        with_prior = None if prior is None else ServedScores(prior, *parts, scores)
        self.meter = Meter(
            context, self.runtime, self.rounds, self.ledger, views, scores, served, with_prior, self._schedule.share,
            task.training.batch_size,
        )  # fmt: skip
        trials = SimulatedTrials(
            task, partition, views, self.ledger, seed, lambda: self.world.drift.concepts(0, 0.0), self.conditions.look,
            portions,
        )  # fmt: skip
        data = task.dataset
        judge = SimulatedJudge(fleet, views, self.conditions, scores, len(data.cell_train), len(data.cell_test))
        fleet.connect(self.ledger, judge, self.conditions, task.training, trials)

    def _wire_world(self, context: SimulationContext) -> None:
        """Make what carries messages, does devices' work and lets the world act."""
        runtime = self.runtime
        self.delivery = Delivery(context, runtime, self.rounds, lambda device: self.process.trained(device))
        self.process = WorldProcess(context, runtime, self.delivery, self.stall)
        self.transport = Transport(context, self.task.spec, self.plan.local, runtime.shares, self.delivery.inform)
        self._work = SimulatedWork(context, self.task, self.views, self.ledger, self.attacks)

    @property
    def now(self) -> float:
        """Seconds of virtual time since the run began."""
        return self.clock.now

    @property
    def round(self) -> int:
        """Return how many rounds the run has closed."""
        return self.rounds.done

    @property
    def nodes(self) -> dict[Address, Node]:
        """The nodes that are remembered."""
        return self.runtime.nodes

    @property
    def served(self) -> dict[Address, dict[str, Ref]]:
        """The models in use, by node and group."""
        return self.runtime.served

    # -- running ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Plant the tree and let the run begin."""
        structure, tree = self.plan.root.structure, self.fleet.tree
        self.process.begin()
        if structure.places_newcomers():
            self.fleet.plant(structure.flat)
        self.meter.describe_fleet()
        for node in tree.aggregators():
            if node != tree.root:
                self.recorder.move(0.0, node, tree.parent(node), "")
        if not structure.flat:
            # the record's fleet table has every device at its partition's edge: write who is elsewhere, or absent
            home = self.fleet.n_devices + self.fleet.partition.edge
            for device in np.flatnonzero(tree.device_parent != home).tolist():
                self.recorder.move(0.0, device, tree.parent(device), "")
        if self.plan.starts == "root":
            self.clock.push(0.0, NODE, ToNode(tree.root, Started()))
        else:
            for device in np.flatnonzero(self.fleet.alive).tolist():
                self.clock.push(0.0, NODE, ToNode(device, Started()))
        self._evaluate_later()
        self.meter.measure()

    def step(self) -> bool:
        """Let one event happen; return whether the run goes on."""
        if self.finished:
            return False
        if self.limits.seconds is not None and self.clock.next_time > self.limits.seconds:
            self.clock.now = self.limits.seconds
            self.end()
            return False
        if not len(self.clock):
            self.stall("Nothing is going to happen any more.")
            return False
        self._event = self.clock.pop()
        self.ledger.young.clear()
        if isinstance(self._event, ToNode):
            self.process.node_was_active()
            self.delivery.deliver(self._event)
        else:
            self._change(self._event)
        self._event = None
        return not self.finished

    def run(self, progress: Callable[[Simulation], None] | None = None) -> None:
        """Run to the end; ``progress`` is called after every event."""
        while self.step():
            if progress is not None:
                progress(self)

    def _change(self, event: ToWorld) -> None:
        match event.kind:
            case "evaluate":
                self.evaluate()
                if len(self.clock) and not self.finished:  # else nothing will ever change again
                    self._evaluate_later()
            case "resend":
                message = event.data["message"]
                if self.presence.incarnation(host_of(message.sender)) == event.data["incarnation"]:
                    self.transport.send(message, since=event.data["since"])
            case _:
                self.process.change(event)

    def _evaluate_later(self) -> None:
        at = self.rounds.next_evaluation(self.now)
        if at is not None:
            self.clock.push(at, LATE, ToWorld("evaluate"))

    def stall(self, why: str) -> None:
        """End the run before it has reached its limits."""
        self._note_stall(why)
        self.end()

    def _note_stall(self, why: str) -> None:
        self.stalled = why
        self.recorder.event(self.now, "stalled", None, {"why": why})

    # -- the run's steps ---------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.finished

    def present(self) -> int:
        """Return how many devices are there."""
        return int(np.count_nonzero(self.fleet.alive))

    def reached(self, round: int) -> None:
        """The run has closed a round: the world learns it. A run that ends by time alone may see that none passes."""
        self.process.new_round(round)
        if self.rounds.out_of_time(self.now):
            self.end()  # at once: what would be sent at this moment for another round is not of this run
        if self.now > self._moment[0]:
            self._moment = (self.now, round - 1)
        elif self.limits.rounds is None and round - self._moment[1] >= TIMELESS_ROUNDS:
            self.stall(
                f"{TIMELESS_ROUNDS} rounds took no virtual time, so {self.limits.seconds:g} s will never be over; give "
                "stop.rounds, or a world in which computing or links take time."
            )

    def evaluate(self, *, last: bool = False) -> None:
        """Evaluate the models in use; a run of which no update can be used any more ends."""
        if self.finished:
            return
        self.meter.measure(last=last)
        why = self._divergence.noticed(self.ledger.computed, self.present(), self.round)
        if self.meter.lost:  # where devices keep their own models, no merge rejects them
            why = why or f"The training has diverged: in round {self.round} no model in use has finite numbers."
        if why and not self.stalled:
            self.diverged = True
            self._note_stall(f"{why} Try a lower training.lr (it is {self.task.training.lr:g}).")
            self._finish()

    def end(self) -> None:
        """End the run with a last evaluation."""
        if not self.finished:
            self.evaluate(last=True)
            self._finish()

    def _finish(self) -> None:
        if not self.finished:
            self.finished = True
            self.meter.account_for_time()
            if self._schedule.by_source and not self.diverged:
                self.meter.compare_sources(self.task.training.updates)

    def proceed(self, device: Address) -> None:
        """Let a lone device that waited train on."""
        self.delivery.tell(device, Started())

    # -- the runtime's ports -----------------------------------------------------------------------------

    def time(self) -> float:
        """Return the seconds of virtual time since the run began."""
        return self.clock.now

    def remind(self, node: Address, seconds: float, deadline: Deadline) -> None:
        """Give a node its deadline after some seconds."""
        incarnation = self.presence.incarnation(host_of(node))
        self.clock.push(self.clock.now + seconds, LATE, ToNode(node, deadline, incarnation))

    def send(self, message: Message) -> None:
        """Let a message arrive when the links say; a hostile device's is not what it was told to send."""
        self.transport.send(self.attacks.outgoing(message))

    def train(self, device: Address, train: Train, number: int) -> None:
        """Begin a training."""
        self._work.train(device, train, number)

    def measure(self, device: Address, measure: Measure, number: int) -> None:
        """Begin a statistic."""
        self._work.measure(device, measure, number)

    def await_sum(self, node: Address, wanted: AwaitSum) -> None:
        """Both sides of the protocol are played where models are merged: nothing is to be waited for."""
        self.clock.push(self.clock.now, NODE, ToNode(node, Summed(wanted.cohort)))

    def serve(self, node: Address, models: dict[str, Ref]) -> None:
        """Models in use are evaluated when it is time to."""

    def close(self, node: Address, progress: int) -> None:
        """A node has closed a round: its devices may move on, and perhaps the run is a round further."""
        self.rounds.closed[node] = progress  # before anybody moves: a move may close another node's round
        self.process.round_closed(node)
        self.rounds.close(node, progress)

    def waits(self, device: Address) -> bool:
        """Tell whether a lone device must not train yet."""
        return self.rounds.waits(device)

    def arrange(self, node: Address, arrange: Arrange) -> None:
        """Change the tree and the groups."""
        self.delivery.arrange(arrange)

    def record(self, node: Address, kind: str, data: dict[str, Any]) -> None:
        """Write something into the run's record."""
        self.recorder.event(self.now, kind, host_of(node), data)

    # -- what is alive -----------------------------------------------------------------------------------

    def _roots(self, found: set[int]) -> None:
        for node in self.runtime.nodes.values():
            refs_in(node.state, found)
        refs_in(self.delivery.held, found)
        for entry in self.clock.entries():
            refs_in(entry[3], found)
        refs_in(self.runtime.served, found)
        refs_in(self._event, found)

    def _rejected(self, ref: int) -> None:
        self._divergence.rejected(ref)
        self.recorder.event(self.now, "rejected", None, {"model": ref, "why": "it has numbers that are not finite"})

    # -- saving ------------------------------------------------------------------------------------------

    def _parts(self) -> dict[str, Saved | Usage]:
        """Return the parts that save themselves, in the order in which they are restored."""
        return {
            "clock": self.clock, "presence": self.presence, "conditions": self.conditions, "delivery": self.delivery,
            "process": self.process, "transport": self.transport, "usage": self.usage, "meter": self.meter,
            "divergence": self._divergence,
        }  # fmt: skip

    def save(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the whole state: plain data, and vectors by name."""
        ledger, tensors = self.ledger.save()
        plain = {
            "finished": self.finished,
            "stalled": self.stalled,
            "diverged": self.diverged,
            "runtime": self.runtime.save(),
            "rounds": {"done": self.rounds.done, "closed": self.rounds.closed},
            "looks": self.views.looks,
            "moment": list(self._moment),
            "ledger": ledger,
        }
        return plain | self.fleet.save() | {name: part.save() for name, part in self._parts().items()}, tensors

    def restore(self, plain: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Become the simulation that :meth:`save` described."""
        self.finished, self.stalled, self.diverged = plain["finished"], plain["stalled"], plain["diverged"]
        self.fleet.restore(plain)
        self.rounds.restore(**plain["rounds"], present=np.flatnonzero(self.fleet.alive).tolist())
        self.views.restore(plain["looks"])
        for name, part in self._parts().items():
            part.restore(plain[name])
        self._moment = (plain["moment"][0], plain["moment"][1])
        self.ledger.restore(plain["ledger"], tensors)
        self.runtime.restore(plain["runtime"])
