"""Every host but the cloud: it follows the coordinator's instructions and keeps it informed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from espalier.core.address import Address, host_of, level_of
from espalier.core.messages import Arrange, Measure, Order, Started, Train, Word
from espalier.core.store import Ref
from espalier.fleet.authority.fields import NOTE_BYTES
from espalier.fleet.authority.rules import IN_USE, SERVED
from espalier.fleet.coordinator.models import hand_models_in_use, save_models, source_of
from espalier.fleet.membership import Member
from espalier.fleet.node.engine import Engine
from espalier.fleet.node.events import PendingJob, ScoreModels
from espalier.record.database import plain_json

#: seconds between two batches of notes to the cloud
NOTES_SECONDS = 1.0


class Participant:
    """What an edge or a device does for the run as a whole."""

    def __init__(self, engine: Engine, folder: Path | None = None) -> None:
        """Serve an engine; models at the end go into a folder, if there is one."""
        self.engine, self.folder = engine, folder
        self.finished = False
        #: where an arrangement wants this host's link to lead: (endpoint, name), or None
        self.redirect: tuple[str, str] | None = None
        #: peers that this host should have links of its own to: address -> (endpoint, name)
        self.peers: dict[int, tuple[str, str]] = engine.journal.get("peers") or {}
        #: hosts whose link here the cloud wants closed, because they send what they may not
        self.expelled: set[int] = set()
        #: how many other devices were known when links were measured last
        self.measured_peers = 0
        #: peers that may link here: name -> address
        self.invited: dict[str, int] = engine.journal.get("invited") or {}
        #: bytes this host has sent so far: (tier, direction, kind) -> bytes; set by the host
        self.traffic: dict[tuple[str, str, str], int] = {}
        self._told: dict[tuple[str, str, str], int] = {}
        kept = engine.journal.get("notes") or {"events": [], "spans": [], "scores": {}}
        self._events: list[tuple[float, str, int | None, dict[str, Any]]] = kept["events"]
        self._spans: list[tuple[int, str, float, float]] = kept["spans"]
        self._scores: dict[str, Any] = kept["scores"]
        pace = engine.journal.get("pace") or {"round": 0, "closed": {}, "waiting": set()}
        #: the run's round, as far as the cloud has told; the rounds that lone devices have closed, and who waits
        self._round: int = pace["round"]
        self._closed: dict[Address, int] = pace["closed"]
        self._waiting: set[Address] = pace["waiting"]
        self._at = 0.0
        #: the cloud waits for the last notes; for those with the score of the model in use, and that has come
        self._asked, self._evaluating, self._handed = False, False, False
        #: whether the bytes must be counted anew before account can be given
        self.wants_count = False

    # -- what the nodes of this host do ----------------------------------------------------------------------

    def close(self, node: Address, progress: int) -> None:
        """Tell the cloud, if these rounds are the run's."""
        engine, directory = self.engine, self.engine.directory
        clock, last = engine.plan.clock, engine.manifest.experiment.stop.rounds
        level = "device" if directory.is_device(node) else "edge"
        if clock == level and (last is None or progress <= last):
            # a node does not wait for the cloud to say that the run is over: it may have begun another round by then
            engine.final[node] = dict(engine.served.get(node, {}))
            self._served(node, engine.final[node])
        if clock == level or node == directory.tree.root:
            self._closed[node] = progress
            engine.say(directory.cloud, "closed", node=node, progress=progress)

    def waits(self, device: Address) -> bool:
        """Tell whether a lone device is a round ahead of the run; it starts again when the cloud says so."""
        ahead = self._closed.get(device, 0) > self._round
        if ahead:
            self._waiting.add(device)
        return ahead

    def _start(self, at: float) -> None:
        """Let the device of this host begin (all at one time, if the fleet is scripted), unless a lone one has."""
        engine = self.engine
        at_work = any(isinstance(w.action, Train) for w in engine.jobs.waiting.values())
        if engine.plan.clock != "device" or not (at_work or self._waiting):
            engine.happen(engine.me, at, Started())

    def _reached(self, round: int) -> None:
        """The run has closed so many rounds: lone devices that have waited for it go on."""
        self._round = max(self._round, round)
        for device in [d for d in sorted(self._waiting) if self._closed.get(d, 0) <= self._round]:
            self._waiting.discard(device)
            self.engine.begin(device, Started())

    def serve(self, node: Address, models: dict[str, Ref]) -> None:
        """Score the models in use here, if this host has something to score them on."""
        engine = self.engine
        level = "device" if engine.directory.is_device(node) else "edge"
        if node == engine.directory.tree.root:
            # the run's root lives on this device: the cloud, which only watches, evaluates its models
            word = Word(SERVED, node, engine.directory.cloud, engine.now(), {"models": dict(models)})
            engine.outbox.send(word)
        if engine.plan.clock != level:
            self._served(node, models)

    def _served(self, node: Address, models: dict[str, Ref]) -> None:
        level = "device" if self.engine.directory.is_device(node) else "edge"
        plan = self.engine.plan
        if ("device" if plan.serve.keeps_own else plan.serves) == level and level_of(node) == 0 and len(models) == 1:
            self._score(node, next(iter(models.values())))

    def ordered(self, order: Order) -> None:
        """Score the model that a device is handed."""
        plan = self.engine.plan
        if plan.serves != "device" and not plan.serve.keeps_own and order.ask is None and order.models:
            self._score(order.to, next(iter(order.models.values())))

    def _score(self, node: Address, model: Ref) -> None:
        for work in [w for w in self.engine.jobs.waiting.values() if isinstance(w.action, ScoreModels)]:
            del self.engine.jobs.waiting[work.id]  # only the newest is of interest
        self.engine.jobs.assign(node, ScoreModels((model,), {"node": node}))

    def scored(self, work: PendingJob, figures: list[dict[str, float]]) -> None:
        """Tell the cloud how good the model in use is here."""
        if figures:
            self._scores = figures[0]
            if self.engine.plan.serves == "edge":
                self._at = -NOTES_SECONDS  # the run's curve is made of these: they do not wait for the next notes

    def record(self, node: Address | None, kind: str, data: dict[str, Any]) -> None:
        """Note something for the cloud's record."""
        try:
            long = len(plain_json(data)) > NOTE_BYTES
        except (TypeError, ValueError, OverflowError, RecursionError):
            long = True
        # the cloud refuses what is longer, and whoever sends such
        kept = {"cut": f"more than {NOTE_BYTES} bytes"} if long else data
        self._events.append((self.engine.now(), kind, None if node is None else host_of(node), kept))

    def worked(self, work: PendingJob, seconds: float, stop: float) -> None:
        """Note a span of work."""
        kind = "measure" if isinstance(work.action, Measure) else "train"
        self._spans.append((host_of(work.node), kind, max(0.0, stop - seconds), stop))

    def changed(self, joined: Sequence[Member], gone: Sequence[int]) -> None:
        """Greetings travel up by themselves."""

    def handed(self, word: Word) -> None:
        """At the end, score the model that the device of this host would use."""
        if word.kind == IN_USE and source_of(self.engine) != "own":
            model, self._handed = word.data["model"], True
            self._score(word.to, self.engine.store.initial() if model is None else model)

    def arrange(self, node: Address, arrange: Arrange) -> None:
        """A node of this host chose its own place: it is there at once, and the cloud tells everybody concerned."""
        engine, directory = self.engine, self.engine.directory
        if arrange.root is not None:
            directory.tree.root = arrange.root
        for mine, parent in arrange.parents.items():
            if host_of(mine) == engine.me:
                engine.tell(directory.place(mine, parent))
        engine.say(
            directory.cloud, "arrange", parents=dict(arrange.parents), groups=dict(arrange.groups),
            root=arrange.root,
        )  # fmt: skip

    # -- what others say -----------------------------------------------------------------------------------

    def control(self, origin: int, kind: str, data: dict[str, Any]) -> None:
        """Follow an instruction; who may give which was checked (`espalier.fleet.authority`)."""
        engine = self.engine
        match kind:
            case "gave_up":
                engine.gave_up(data["node"])
            case "overdue":
                self.record(data["node"], "late", {"parent": origin, "round": data["round"]})
            case "groups":
                engine.directory.set_groups(data["groups"])
            case "place":
                self._placed(data)
            case "adopt":
                self._adopted(data)
            case "release":
                engine.directory.placed.pop(data["child"], None)
                engine.tell(engine.directory.attach(data["child"], None))
            case "roster":
                for plain in data["joined"]:
                    engine.directory.others[plain[0]] = Member(*plain)
                for host in data["gone"]:
                    engine.directory.others.pop(host, None)
                    engine.lost(host)
            case "new_incarnation":
                engine.new_incarnation(data["host"])
            case "root":
                engine.directory.tree.root = data["root"]
            case "expel":
                self.expelled.add(data["host"])
            case "start":
                self._start(data["at"])
            case "round":
                self._reached(data["round"])
            case "account" | "evaluate" | "finish":
                self._ends(kind)

    def _ends(self, phase: str) -> None:
        """The run is over: nothing more happens to nodes, and the cloud wants to know all that is known."""
        engine, directory = self.engine, self.engine.directory
        engine.frozen = True
        if phase == "account":
            self._asked = self.wants_count = True
        elif phase == "evaluate":
            self._asked = self._evaluating = directory.is_device(engine.me)
            if source_of(engine) == "edge":
                for node in [n for n in engine.nodes if not directory.is_device(n)]:
                    hand_models_in_use(engine, directory.children(node), node)
        else:
            self.finished = True
            self._keep_models()

    def _placed(self, data: dict[str, Any]) -> None:
        """The cloud put a node of this host under another parent (or back under its link's)."""
        engine, node, parent = self.engine, data["node"], data["parent"]
        if data.get("relink"):
            # another server: not the logical parent alone, the link itself goes there
            self.redirect = (data["endpoint"], data["name"])
            engine.directory.placed.pop(node, None)
            return
        engine.tell(engine.directory.place(node, parent))
        for host in [h for h in self.peers if h not in {host_of(p) for p in engine.directory.placed.values()}]:
            del self.peers[host]
        if parent is not None and data.get("endpoint") and host_of(parent) != engine.me:
            self.peers[host_of(parent)] = (data["endpoint"], data["name"])
        engine.journal.put("peers", self.peers)

    def _adopted(self, data: dict[str, Any]) -> None:
        """A node reports to one of this host's from now on."""
        engine, child, parent = self.engine, data["child"], data["parent"]
        directory = engine.directory
        engine.tell(directory.attach(child, None))
        if directory.is_device(child):
            directory.tree.samples[child] = data["samples"]
        directory.placed[child] = parent
        if data["name"]:
            self.invited[data["name"]] = host_of(child)
            engine.journal.put("invited", self.invited)
        engine.tell(directory.attach(child, parent))

    def _keep_models(self) -> None:
        """Write what an edge serves at the end, where that is what is served."""
        engine = self.engine
        models = engine.final.get(engine.me) or engine.served.get(engine.me)
        if engine.plan.serves == "edge" and models is not None and self.folder is not None:
            save_models(
                engine,
                models,
                self.folder / "models",
                f"edge-{engine.me - engine.directory.n_devices}",
            )

    # -- notes -----------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Send what was noted, at most once a second; what is not sent yet is kept with the state."""
        engine = self.engine
        traffic = {k: v for k, v in self.traffic.items() if self._told.get(k) != v}
        noted = bool(self._events or self._spans or self._scores)
        scoring = any(isinstance(w.action, ScoreModels) for w in engine.jobs.waiting.values())
        final = (
            self._asked
            and not self.wants_count
            and not scoring
            and self._handed >= self._evaluating
            and len(self._events) <= 200
            and len(self._spans) <= 1000
        )
        if final or ((noted or self._worth(traffic)) and engine.now() - self._at >= NOTES_SECONDS):
            self._at = engine.now()
            self._asked = self._asked and not final
            engine.say(
                engine.directory.cloud, "notes", events=self._events[:200], spans=self._spans[:1000],
                scores=self._scores, traffic=[[*key, count] for key, count in traffic.items()], final=final,
            )  # fmt: skip
            self._told |= traffic
            self._events, self._spans, self._scores = self._events[200:], self._spans[1000:], {}
        engine.journal.put("notes", {"events": self._events, "spans": self._spans, "scores": self._scores})
        engine.journal.put("pace", {"round": self._round, "closed": self._closed, "waiting": self._waiting})

    def counted(self, traffic: dict[tuple[str, str, str], int]) -> None:
        """Take the bytes that this host has sent so far."""
        if not self.engine.frozen or self.wants_count:
            self.traffic = traffic
        self.wants_count = False

    def _worth(self, traffic: dict[tuple[str, str, str], int]) -> bool:
        """Whether bytes alone are worth a letter: each letter makes bytes of its own."""
        return sum(v - self._told.get(k, 0) for k, v in traffic.items()) > 20_000
