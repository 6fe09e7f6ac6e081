"""A fleet without a network: engines that hand each other letters through a channel that loses, doubles and delays.

Everything is driven by one random generator: which letter arrives next, whether it is lost or comes twice, which host
is killed (before or after its transaction is committed) and starts again from its journal.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import shutil
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from espalier.experiment import Experiment
from espalier.fleet import certs
from espalier.fleet.certs import Bundle
from espalier.fleet.coordinator.coordinator import Coordinator
from espalier.fleet.coordinator.enrolment import Registry
from espalier.fleet.coordinator.manifest import Card, Manifest
from espalier.fleet.coordinator.member import Participant
from espalier.fleet.links.framing import Letter, ReceivedLetter
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.links.signing import LetterSignatures
from espalier.fleet.membership import Member
from espalier.fleet.node.engine import Engine
from espalier.fleet.node.events import Acknowledged, Call, Due, Effects, Gone, Item, JobDone, Joined, Linked, Restarted
from espalier.fleet.node.journal import Journal
from espalier.fleet.node.trainer import TrainingRequest, TrainingResult
from espalier.fleet.secure.credentials import CertificateCredentials
from espalier.secure.identity import Credentials


@lru_cache(maxsize=1)
def _authority() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="espalier-ca-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    certs.init(folder)
    return folder


@lru_cache(maxsize=64)
def bundle(name: str, role: str) -> Bundle:
    """A certificate of the one authority of all fleets here."""
    return Bundle.read(certs.issue(_authority(), name, role))


def credentials(name: str, role: str) -> CertificateCredentials:
    """What a host of that name signs with."""
    return CertificateCredentials(bundle(name, role), lambda serial: False)


class Killed(Exception):
    """The process is dead."""


class OneMore:
    """A trainer whose training adds one to the number of its device; it has nothing to test on."""

    samples = 10

    def train(self, request: TrainingRequest) -> TrainingResult:
        vector = request.work.start.clone()
        vector[request.device] += 1.0
        return TrainingResult(vector, 0.0, None, 1)

    def probe(self) -> float:
        return 0.0

    def trial(self, device: int, epochs: int) -> float:
        return 0.5

    def measure(self, what: str, vectors: Sequence[Tensor], args: dict[str, Any], rng: np.random.Generator) -> Any:
        return {"histogram": np.ones(3, dtype=np.float32)}

    def score(self, vectors: Sequence[Tensor], where: str) -> list[dict[str, float]]:
        return []

    def initial(self, seed: int, index: int) -> Tensor:
        return torch.zeros(64)


class Serving(OneMore):
    """The same for a host that has no samples."""

    samples = 0


def manifest(devices: int, edges: int, rounds: int, method: Any = "hierfavg", **options: Any) -> Manifest:
    """A manifest over a model of 64 numbers."""
    table = {"methods": [method], "fleet": {"devices": devices, "edges": edges}, "stop": {"rounds": rounds}}
    card = Card("logistic", {}, (64,), 10, 10, "classification", None, (("w", (64,), "float32"),), 64, ("w",))
    return Manifest("run", Experiment.build(table), card, **options)


class Net:
    """Cloud, edges and devices; device d is at edge d % edges."""

    def __init__(
        self, made: Manifest, directory: Path, seed: int = 0, trouble: float = 0.0, hostile: bool = False
    ) -> None:
        self.manifest, self.directory = made, directory
        self.rng, self.trouble = random.Random(seed), 0.0
        fleet = made.experiment.fleet
        self.n, self.e = fleet.devices, fleet.edges
        self.cloud = self.n + self.e
        self.engines: dict[int, Engine] = {}
        self.now = 0.0
        self.kills = 0
        #: letters that are under way: (destination, origin, letter)
        self.wire: list[tuple[int, int, Letter]] = []
        self.boxes: dict[int, dict[int, list[Letter]]] = {}
        self.jobs: list[tuple[int, Any]] = []
        self.timers: list[tuple[int, Any]] = []
        #: what was refused: (by whom, whose, why); only where somebody is expected to send such things
        self.refused: list[tuple[int, int, str]] = []
        self.hostile = hostile
        self.incarnations = {h: 1000 + h for h in range(self.cloud + 1)}
        for host in (self.cloud, *range(self.n, self.cloud), *range(self.n)):
            self.start(host)
        for edge in range(self.n, self.cloud):
            self.give(edge, Linked(self.member(self.cloud)))
            self.give(self.cloud, Joined([self.member(edge)]))
        for device in range(self.n):
            self.join(device, self.edge_of(device))
        # greetings are not letters: a new link brings them again, which this channel does not do
        self.trouble = trouble

    def edge_of(self, device: int) -> int:
        return self.n + device % self.e

    def member(self, host: int, via: int | None = None, stamp: int = 1) -> Member:
        role = "device" if host < self.n else ("cloud" if host == self.cloud else "edge")
        parent = via if via is not None else (self.edge_of(host) if host < self.n else self.cloud)
        samples = 10 if role == "device" else 0
        return Member(host, f"{role}-{host}", role, self.incarnations[host], stamp, parent, samples)

    def join(self, device: int, edge: int, stamp: int = 1) -> None:
        """A device is linked to an edge."""
        self.give(device, Linked(self.member(edge)))
        self.give(edge, Joined([self.member(device, edge, stamp)]))
        self.give(self.cloud, Joined([self.member(device, edge, stamp)]))

    # -- processes ---------------------------------------------------------------------------------------------

    def start(self, host: int) -> None:
        """Start a process, from its journal if it has one."""
        folder = self.directory / str(host)
        journal = Journal(folder)
        trainer = OneMore() if host < self.n else Serving()
        me = self.member(host)
        engine = Engine(me, self.manifest, journal, trainer, lambda: self.now, credentials(me.name, me.role))
        if host == self.cloud:
            registry = Registry(self.n, self.cloud, journal.get("registry"))
            engine.conduct = Coordinator(engine, registry, folder, self.n)
        else:
            engine.conduct = Participant(engine)
        self.engines[host] = engine
        self.boxes[host] = {}
        self.jobs = [(h, w) for h, w in self.jobs if h != host]
        self.timers = [(h, t) for h, t in self.timers if h != host]
        self.carry_out(host, engine.resume())

    def kill(self, host: int, *, forget: bool = False) -> None:
        """Kill a process and start it again; what was not committed (``forget``: all it knew) is gone."""
        self.kills += 1
        engine = self.engines[host]
        engine.journal._db.close()
        if engine.journal._lock is not None:
            os.close(engine.journal._lock)
        if isinstance(engine.conduct, Coordinator):
            engine.conduct.recorder.connection.close()
        if forget:
            shutil.rmtree(self.directory / str(host))
        self.start(host)

    def give(self, host: int, *items: Item) -> None:
        """Let something happen to a host."""
        engine = self.engines[host]
        if self.rng.random() < self.trouble / 4:
            # killed after the nodes have decided and before anything is committed
            engine.journal.commit = _dies  # type: ignore[method-assign]
            try:
                engine.take(items)
            except Killed:
                self.kill(host)
            return
        self.carry_out(host, engine.take(items))
        if self.rng.random() < self.trouble / 4:
            self.kill(host)

    def carry_out(self, host: int, effects: Effects) -> None:
        for dest, letters in effects.replaced.items():
            self.boxes[host][dest] = list(letters)
        for letter in effects.letters:
            self.boxes[host].setdefault(letter.dest, []).append(letter)
        fresh = [*effects.letters, *(x for letters in effects.replaced.values() for x in letters)]
        self.wire += [(letter.dest, host, letter) for letter in fresh]
        for origin, (series, number) in effects.acks.items():
            if self.rng.random() >= self.trouble:
                self.boxes[origin][host] = [
                    x for x in self.boxes[origin].get(host, []) if x.series != series or x.number > number
                ]
                self.carry_out(origin, self.engines[origin].take([Acknowledged(host, series, number)]))
        for origin, (series, known) in effects.restarts.items():
            self.carry_out(origin, self.engines[origin].take([Restarted(host, series, known)]))
        self.jobs += [(host, work) for work in effects.jobs]
        self.timers += [(host, timer) for timer in effects.timers]
        self.refused += [(host, origin, why) for origin, why in effects.refused]
        assert self.hostile or not effects.refused, effects.refused

    # -- time --------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Let one thing happen; False if nothing can."""
        self.now += 0.01
        roll = self.rng.random()
        if self.wire and roll < 0.7:
            # of those between the same two hosts, only the first: links keep the order
            first: dict[tuple[int, int], int] = {}
            for place, (dest, origin, _) in enumerate(self.wire):
                first.setdefault((dest, origin), place)
            dest, origin, letter = self.wire.pop(self.rng.choice(list(first.values())))
            if self.rng.random() < self.trouble:
                if self.rng.random() < 0.5:
                    return True  # lost
                self.wire.append((dest, origin, letter))  # comes again later
            self.give(dest, arrival(letter, origin))
        elif self.jobs:
            host, work = self.jobs.pop(self.rng.randrange(len(self.jobs)))
            todo = self.engines[host].jobs.perform(work)
            if todo is not None:
                self.give(host, JobDone(work.id, todo(), 0.01))
        elif not self.wire and not self.resend():
            # a letter is sent again long before anybody's patience is over
            if not self.timers or self.coordinator.ending:
                return False  # when the run is over no deadline matters any more
            # clocks run: whatever was set last, what is due first happens first
            host, timer = self.timers.pop(min(range(len(self.timers)), key=lambda at: self.timers[at][1].due))
            self.now = max(self.now, timer.due)
            self.give(host, Due(timer.id))
        return True

    def resend(self) -> bool:
        """Send again what is not acknowledged, as after a link was made anew."""
        before = len(self.wire)
        for host, boxes in self.boxes.items():
            for dest, letters in boxes.items():
                self.wire += [(dest, host, letter) for letter in letters]
        return len(self.wire) > before

    def run(self, steps: int = 100_000) -> None:
        """Run until the run is over."""
        coordinator = self.coordinator
        for _ in range(steps):
            if self.coordinator.finished:
                return
            if not self.step():
                self.idle()
        raise AssertionError(f"not over after {steps} steps: round {coordinator.round}")

    def idle(self) -> None:
        """Let time pass in which nothing happens: everybody looks at what it has sent."""
        self.now += 1.0
        for host, engine in self.engines.items():
            self.carry_out(host, engine.take([Call(lambda e=engine: e.conduct.counted({}))]))  # type: ignore[misc]

    @property
    def coordinator(self) -> Coordinator:
        conduct = self.engines[self.cloud].conduct
        assert isinstance(conduct, Coordinator)
        return conduct

    def leave(self, device: int) -> None:
        """A device is gone for good: nothing of it or for it is under way any more."""
        for host in (self.edge_of(device), self.cloud):
            self.give(host, Gone([device]))
        self.forget(device)

    def forget(self, device: int) -> None:
        """Lose everything that is under way from or to a device."""
        self.wire = [w for w in self.wire if device not in w[:2]]
        self.jobs = [(h, w) for h, w in self.jobs if h != device]
        for boxes in self.boxes.values():
            boxes.pop(device, None)
        self.boxes[device] = {}

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What the cloud's record says of a kind."""
        self.coordinator.recorder.commit()
        rows = self.coordinator.recorder.connection.execute(
            "SELECT data FROM events WHERE kind = ? ORDER BY rowid", (kind,)
        )
        return [json.loads(text) for (text,) in rows]

    def model(self) -> Tensor:
        """The root's model."""
        engine = self.engines[self.cloud]
        return engine.store.vector(engine.served[self.cloud][""])


def arrival(letter: Letter, origin: int) -> ReceivedLetter:
    """A letter as it arrives."""
    return ReceivedLetter(origin, letter.series, letter.number, letter.content, letter.parts)


def _dies() -> None:
    raise Killed


def signed(frame: pb.Frame, by: Credentials, run: str) -> pb.Frame:
    """Sign a letter's head, or what a member says of itself, as an honest node would."""
    signatures = LetterSignatures(by, run, 0, 0, lambda host: None)
    if frame.HasField("head") and not frame.head.signature:
        signatures.sign(frame.head)
    for member in frame.reach.members if frame.HasField("reach") else ():
        member.name, member.role = member.name or by.author.name, member.role or by.author.role
        signatures.vouch(member)
    return frame
