"""The coordinator: the cloud begins and ends the run, arranges the tree, evaluates, and writes the run's record.

The record is the simulator's (`espalier.record.database`): what watches, reports and tabulates simulated runs does
the same with real ones. Rows and state agree after any kill: the state notes the last row of every table, and rows
after it are dropped at a restart, because what made them comes again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from espalier.core.address import Address, host_of
from espalier.core.errors import ConfigError
from espalier.core.messages import ALL, Arrange, Order, Started, Word
from espalier.core.run_rounds import RunRounds
from espalier.core.store import Ref
from espalier.fleet.coordinator.accounts import Accounts, Laggards
from espalier.fleet.coordinator.bulletin import Bulletin
from espalier.fleet.coordinator.enrolment import Registry
from espalier.fleet.coordinator.host_figures import HostFigures
from espalier.fleet.coordinator.models import hand_models_in_use, open_record, save_models, source_of
from espalier.fleet.coordinator.topology import Arranger
from espalier.fleet.membership import Member
from espalier.fleet.node.engine import Engine
from espalier.fleet.node.events import PendingJob, ScoreModels
from espalier.privacy import is_private, spending
from espalier.simulator.meter import Divergence

#: a run is ended as diverged after so many times as many unusable updates as in a simulation
PATIENCE_TIMES = 4
#: how long a scripted fleet has to be told that it begins, as messages take
START_HOPS = 4


class Coordinator:
    """Conducts one run."""

    def __init__(self, engine: Engine, registry: Registry, directory: Path, start_with: int) -> None:
        """Go on with the run in a directory, or prepare a new one that begins with so many devices."""
        self.engine, self.registry, self.directory = engine, registry, directory
        experiment = engine.manifest.experiment
        fleet = experiment.fleet
        self.recorder = open_record(engine.manifest, directory)
        self._start_with = start_with
        plain = engine.journal.get("coordinator") or {}
        self.started: bool = plain.get("started", False)
        self.ending: bool = plain.get("ending", False)
        self.finished: bool = plain.get("finished", False)
        #: why the run ended before it had reached its limits ("": it has not)
        self.stalled: str = plain.get("stalled", "")
        #: who has stopped it ("": nobody)
        self.stopped: str = plain.get("stopped", "")
        self._divergence = Divergence()
        if "divergence" in plain:
            self._divergence.restore(plain["divergence"])
        self._trainings: int = plain.get("trainings", 0)
        #: when the last of the run's rounds was over; giving account does not count
        self._ended_at: float = plain.get("ended_at", 0.0)
        self.rounds = RunRounds(engine.plan, engine.directory, experiment.stop, experiment.evaluate, self)
        self.rounds.restore(plain.get("round", 0), plain.get("closed", {}), self._devices())
        #: the incarnations in which devices have closed rounds
        self._incarnations: dict[int, int] = plain.get("incarnations", {})
        #: when models are evaluated next, if that goes by time
        self._evaluate_at: float | None = plain.get("evaluate_at")
        self._told = HostFigures(engine.directory.n_devices, engine.directory.n_edges, plain)
        self.tree = Arranger(engine, self.recorder, plain.get("tree", {}))
        self.recorder.rewind(plain.get("rows") or dict.fromkeys(self.recorder.watermarks(), 0))
        self.bulletin = Bulletin(engine.directory, plain.get("bulletin", {}), self.recorder.connection)
        self.traffic: dict[tuple[str, str, str], int] = {}
        #: at the end: who has not given account yet, and until when they are waited for
        self._accounts = Accounts(engine.manifest.slowdown)
        self._laggards = Laggards(engine.manifest.round_deadline)
        self._laggards.begun(engine.now())
        #: whether devices have been handed the models that they would use
        self._handed = False
        self.wants_count = False  # whether the bytes must be counted anew before the last evaluation
        asked = [w.action for w in engine.jobs.waiting.values()]
        self._closing = any(isinstance(a, ScoreModels) and a.data["last"] for a in asked)
        #: figures of the last evaluation
        self.last: dict[str, float] = plain.get("last", {})
        self.recorder.meta("fleet", {"devices": fleet.devices, "edges": fleet.edges, "cloud": engine.me})
        if not self.finished:
            self.recorder.meta("status", {"state": "running"})
        engine.frozen = self.ending

    @property
    def round(self) -> int:
        """How many rounds the run has closed."""
        return self.rounds.done

    def summary(self) -> dict[str, Any]:
        """Return how far the run has come: its round and the figures of the last evaluation."""
        return {"round": self.round, "scores": {k: v for k, v in self.last.items() if math.isfinite(v)}}

    def _devices(self) -> list[int]:
        """Return the devices that are there."""
        return sorted(m.address for m in self.engine.directory.members.values() if m.role == "device")

    # -- the fleet -------------------------------------------------------------------------------------------

    def changed(self, joined: Sequence[Member], gone: Sequence[int]) -> None:
        """Hosts came or went: note it, begin the run when enough are there."""
        engine = self.engine
        self.tree.changed(joined, gone, self.started)
        self.bulletin.changed(joined, gone)
        for host in gone:
            self.recorder.event(engine.now(), "gone", host, {})
            self.rounds.gone(host)
        for member in joined:
            if member.role != "device":
                continue
            if self._incarnations.setdefault(member.address, member.incarnation) != member.incarnation:
                self._incarnations[member.address] = member.incarnation
                self.rounds.forget(member.address)
            if self.started and engine.plan.starts == "device":
                engine.say(member.address, "start", at=engine.now())
                self._pace(member.address)
        if not self.started and self.present() >= self._start_with:
            self._start()

    def _start(self) -> None:
        engine = self.engine
        if not engine.directory.places_newcomers and not any(m.aggregates for m in engine.directory.members.values()):
            raise ConfigError(
                "The devices of this method make their tree themselves, and none of them may be head of a cluster: "
                "start some with --head and --listen."
            )
        self.started = True
        self._evaluate_at = self.rounds.next_evaluation(engine.now())
        self._laggards.begun(engine.now())
        devices = self._devices()
        self.recorder.event(engine.now(), "started", None, {"devices": len(devices)})
        self.tree.introduce((), (), True)
        self.measure()
        if engine.plan.starts == "root":
            engine.begin(engine.me, Started())
        else:
            # on a scripted fleet they all begin at one time: when everybody has been told
            script = engine.manifest.script
            at = engine.now() + (0.0 if script is None else START_HOPS * script.hop)
            for device in devices:
                engine.say(device, "start", at=at)

    def arrange(self, node: Address, arrange: Arrange) -> None:
        """The root wants the tree or the groups changed."""
        self.tree.arrange(node, arrange)

    # -- rounds ----------------------------------------------------------------------------------------------

    def close(self, node: Address, progress: int) -> None:
        """A node has closed a round: does the run's round go on, or the run end?"""
        self._laggards.closed(node, self.engine.now())
        self.rounds.close(node, progress)
        self._pace(node)

    def _pace(self, device: Address) -> None:
        """Let a lone device that has closed a round go on, unless it is ahead of the others."""
        lone = self.engine.plan.clock == "device" and self.rounds.closed.get(device, 0) > 0
        if lone and device in self.engine.directory.members and not self.rounds.waits(device):
            self.proceed(device)

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.ending

    def present(self) -> int:
        """Return how many devices are there."""
        return len(self._devices())

    def reached(self, round: int) -> None:
        """Tell that a round is closed; nothing on a fleet is redrawn with it."""
        self._laggards.begun(self.engine.now())
        self.bulletin.round_closed(round, self.present())

    def evaluate(self) -> None:
        """Evaluate the models in use; a run of which no update can be used any more ends."""
        self._trainings += self._told.trained.total()
        for number in range(self._told.judged(self._below)):
            self._divergence.rejected(number)
        # what members tell is a second old: more updates must be unusable than in a simulation
        why = self._divergence.noticed(self._trainings, PATIENCE_TIMES * self.present(), self.round)
        if why and not self.ending:
            self.stalled = f"{why} Try a lower training.lr (it is {self.engine.manifest.experiment.training.lr:g})."
            self.recorder.event(self.engine.now(), "stalled", None, {"why": self.stalled})
            self.end()
        else:
            self.measure()

    def _below(self, host: int) -> int:
        """Return the trainings of a device, or of those that report to a host: it cannot have got more updates."""
        directory = self.engine.directory
        if directory.is_device(host) and not directory.tree.roles(host):
            return self._told.trained[host]
        if host == self.engine.me:
            return self._told.trained.total()
        devices = {m.address for m in directory.members.values() if m.via == host}
        devices |= {node for node, parent in directory.placed.items() if host_of(parent) == host}
        return sum(self._told.trained[d] for d in devices)

    def proceed(self, device: Address) -> None:
        """Tell a lone device which round the run is in: it may have waited for it."""
        self.engine.say(device, "round", round=self.rounds.done)

    def waits(self, device: Address) -> bool:
        """No device lives here."""
        return False

    def end(self) -> None:
        """The run is over: nothing more happens to nodes; when everybody has given account, evaluate once more."""
        if not self.ending:
            self.ending = self.engine.frozen = True
            self._ended_at = self.engine.now()
            self._accounts.ask(self.tree.hosts(), self.engine.now())
            self.wants_count = True
            for host in self.tree.hosts():
                self.engine.say(host, "account")
            self._accounted()

    def stop(self, why: str) -> None:
        """End the run before its time, in good order."""
        if not self.ending:
            self.stopped = why
            self.recorder.event(self.engine.now(), "stopped", None, {"why": why})
            self.end()

    def _accounted(self) -> None:
        waits = self.wants_count or self._accounts.waits(self.engine.directory.members.keys(), self.engine.now())
        if not self.ending or self._closing or waits:
            return
        if self._handed or source_of(self.engine) == "own":
            self._closing = True
            self.measure(last=True)
        else:
            self._hand_models_in_use()

    def _hand_models_in_use(self) -> None:
        """Bytes are counted: let every device evaluate the model that it would use now.

        Those who have not given account when their time was up are not waited for a second time.
        """
        engine, self._handed = self.engine, True
        self._accounts.ask(set(self._devices()) - self._accounts.missing, engine.now())
        everywhere = source_of(engine) != "edge"
        hand_models_in_use(engine, self._devices() if everywhere else engine.directory.children(engine.me))
        for host in self.tree.hosts():
            engine.say(host, "evaluate")
        self._accounted()

    def counted(self, traffic: dict[tuple[str, str, str], int]) -> None:
        """Take the bytes that this host has sent so far, and look at the clock: has the run's time run out?"""
        if not self.ending or self.wants_count:
            self.traffic = traffic
        self.wants_count = False
        self._accounted()
        now = self.engine.now()
        if self.started and self.rounds.out_of_time(now):
            self.end()
        late = self._laggards.late(self.rounds.behind(self._devices()), now) if not self.ending else set()
        if late:
            for node in late:
                self.engine.say(host_of(node), "overdue", node=node, round=self.rounds.done)
            self.record(self.engine.me, "overdue", {"children": sorted(late), "round": self.rounds.done})
        if self._evaluate_at is not None and not self.ending and now >= self._evaluate_at:
            self.measure()
            self._evaluate_at = self.rounds.next_evaluation(self._evaluate_at)

    def serve(self, node: Address, models: dict[str, Ref]) -> None:
        """The root's models are evaluated when its round is counted."""

    def ordered(self, order: Order) -> None:
        """No device lives here."""

    def handed(self, word: Word) -> None:
        """Keep what the root serves, if it lives on a device."""
        self.engine.served[word.sender] = dict(word.data.get("models", {}))

    def worked(self, work: PendingJob, seconds: float, stop: float) -> None:
        """No device lives here."""

    def record(self, node: Address | None, kind: str, data: dict[str, Any]) -> None:
        """Write something into the record."""
        self._told.noted(self.engine.me, kind, data)
        self.bulletin.noted(self.engine.me, kind, data)
        self.recorder.event(self.engine.now(), kind, None if node is None else host_of(node), data)
        if kind == "overdue":
            self.rounds.leave_out(data["children"])

    def control(self, origin: int, kind: str, data: dict[str, Any]) -> None:
        """Hear what another host's runtime has to say; who may say it was checked (`espalier.fleet.authority`)."""
        match kind:
            case "closed":
                self.close(data["node"], data["progress"])
            case "gave_up":
                self.engine.gave_up(data["node"])
            case "arrange":
                self.tree.arrange(origin, Arrange(data["parents"], {}, data["root"]))
            case "spent":
                self._told.has_spent(origin, data["incarnation"], data["jobs"], data["revealed"])
            case "notes":
                self._noted(origin, data)

    def _noted(self, origin: int, data: dict[str, Any]) -> None:
        for time, kind, node, what in data["events"]:
            self.recorder.event(min(float(time), self.engine.now()), str(kind), node, what)
            self.bulletin.noted(origin, str(kind), what)
        for node, kind, *span in data["spans"]:
            start, stop = (min(float(time), self.engine.now()) for time in span)
            if kind == "train":
                self.bulletin.worked(origin, stop)
            if self.engine.manifest.experiment.record.spans:
                self.recorder.span(int(node), str(kind), start, stop)
        self._told.take(origin, data)
        if data["final"]:
            self._accounts.given(origin, self.engine.now(), self._told.longest)
            self._accounted()

    # -- evaluating ------------------------------------------------------------------------------------------

    def measure(self, last: bool = False) -> None:
        """Evaluate the root's model (in the worker's thread) and write down what is known then."""
        engine = self.engine
        root = engine.served.get(engine.directory.tree.root, {})
        model = root.get(ALL) if root else engine.store.initial()
        models = (model,) if model is not None and engine.plan.clock == "root" else ()
        time = self._ended_at if last else engine.now()
        engine.jobs.assign(engine.me, ScoreModels(models, {"round": self.round, "time": time, "last": last}))

    def scored(self, work: PendingJob, figures: list[dict[str, float]]) -> None:
        """Write an evaluation down."""
        time, round, last = (work.action.data[k] for k in ("time", "round", "last"))
        row = {f"{name}_global": value for name, value in figures[0].items()} if figures else {}
        recorder = self.recorder
        for name, values, summary in self._told.spreads():
            recorder.array(time, round, name, values)
            row |= summary
        for name, value in row.items():
            recorder.metric(time, round, name, value)
        for (tier, direction, kind), count in sorted(self._told.sent(self.traffic).items()):
            recorder.traffic(time, round, tier, direction, kind, count)
        self.last = row
        self.bulletin.evaluated(round, time, row)
        self._account_for_privacy()
        if last:
            for kind in ("train", "measure"):
                recorder.array(time, round, f"seconds_{kind}", self._told.seconds_of(kind))
            self._finish()

    def _account_for_privacy(self) -> None:
        """Write what the run has spent of its devices' privacy, if anything in it is private."""
        plan, devices = self.engine.plan, self.engine.directory.n_devices
        if not is_private(plan):
            return
        jobs, revealed = self._told.spendings()
        self.recorder.commit()
        self.recorder.meta("privacy", spending(plan, devices, jobs, revealed, self.recorder.connection))

    def _finish(self) -> None:
        engine = self.engine
        root = engine.directory.tree.root
        save_models(engine, engine.served.get(root, {}), self.directory / "models", "global")
        for host in self.tree.hosts():
            engine.say(host, "finish")
        self.finished = True
        self.recorder.commit()
        why = {"stopped": self.stopped, "stalled": self.stalled}
        state = "stopped" if self.stopped else "finished"
        self.recorder.meta("status", {"state": state, **{name: text for name, text in why.items() if text}})

    def close_record(self) -> None:
        """Close the run's database."""
        if not self.finished:
            self._account_for_privacy()
            self.recorder.meta("status", {"state": "stopped"})
        self.recorder.close()

    # -- saving ----------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write the rows, and note how far they go together with the state."""
        self.recorder.commit()
        self.engine.journal.put(
            "coordinator",
            {
                "round": self.round, "started": self.started, "ending": self.ending, "finished": self.finished,
                "ended_at": self._ended_at, "stalled": self.stalled, "stopped": self.stopped,
                "divergence": self._divergence.save(),
                "trainings": self._trainings,
                "closed": self.rounds.closed, "incarnations": self._incarnations, "evaluate_at": self._evaluate_at,
                "tree": self.tree.to_plain(), "last": self.last,
                "bulletin": self.bulletin.to_plain(), "rows": self.recorder.watermarks(), **self._told.to_plain(),
            },
        )  # fmt: skip
        self.engine.journal.put("registry", self.registry.known)
