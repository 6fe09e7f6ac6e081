"""What the links of one host share: who and where it is, its routes, its engine, and the event loop's tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from espalier._version import __version__
from espalier.fleet.certs import Bundle
from espalier.fleet.coordinator.coordinator import Coordinator
from espalier.fleet.coordinator.enrolment import Registry
from espalier.fleet.coordinator.manifest import Manifest
from espalier.fleet.coordinator.member import Participant
from espalier.fleet.links import wire
from espalier.fleet.links.delivery import Transmitter
from espalier.fleet.links.door import Door, in_few_words
from espalier.fleet.links.link import WINDOW_BYTES, Link
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.links.relay import Relay
from espalier.fleet.links.routes import RoutingTable
from espalier.fleet.links.signing import LetterSignatures
from espalier.fleet.membership import Member
from espalier.fleet.node.clock import FleetClock
from espalier.fleet.node.engine import Engine
from espalier.fleet.node.events import Call, Item, Linked
from espalier.fleet.node.journal import Journal
from espalier.fleet.node.log import Log
from espalier.fleet.node.threads import Driver
from espalier.fleet.node.trainer import NodeTrainer
from espalier.fleet.secure.credentials import CertificateCredentials

T = TypeVar("T")

#: what a frame over a link that this host has made counts for besides its bytes
FRAME_COSTS = 64 << 10


@dataclass(frozen=True)
class Settings:
    """One node's settings.

    Attributes:
        trainer: Makes the trainer once manifest and address are known.
        directory: Where the node's state is kept (at the cloud: the run's); None: in memory, a restart begins anew.
        listen: ``host:port`` for children and peers; None: nobody can link to this node.
        advertise: ``host:port`` under which others reach it, if not as it listens.
        parents: Where to go, first choice first: (name or None, ``host:port``). None for the cloud.
        wish: The number that the node would like.
        aggregates: Whether a device may run an aggregator.
        manifest: The cloud's: what the fleet does; None: nothing, as long as nobody submits a run.
        start_with: The cloud's: the run begins when so many devices are there.
        allow: The cloud's: a file with the names that may join.
        crl: The cloud's: the list of revoked certificates, looked at while it runs.
        numbers: The cloud's: the numbers that nodes had in earlier runs.
        declined: A run that this node cannot take part in, and why not.
        versions: Of the protocol. Only tests of older and newer nodes give others.
    """

    trainer: Callable[[Manifest, int], NodeTrainer]
    directory: Path | None = None
    listen: str | None = None
    advertise: str | None = None
    parents: tuple[tuple[str | None, str], ...] = ()
    wish: int = -1
    aggregates: bool = False
    manifest: Manifest | None = None
    start_with: int = 1
    allow: Path | None = None
    crl: Path | None = None
    numbers: Mapping[str, int] = field(default_factory=dict)
    declined: tuple[str, str] = ("", "")
    versions: wire.WireVersions = wire.VERSIONS


class Hub:
    """The middle of a host, to which its links are given. All is called in the event loop's thread.

    Attributes:
        engine: None until the host knows what the fleet does; so are conduct, relay and transmitter.
        registry: The cloud's: who may join under which number.
        names: Numbers of names that the cloud has told.
        stopping: Whether this host is about to end.
        idle: Whether it is known that there is no run for this host now.
        door: What outlives this host.
    """

    def __init__(self, bundle: Bundle, settings: Settings, log: Log, door: Door | None = None) -> None:
        self.bundle, self.settings, self.log = bundle, settings, log
        self.identity = bundle.identity
        self.clock = FleetClock()
        self.routes = RoutingTable()
        self.engine: Engine | None = None
        self.conduct: Participant | Coordinator | None = None
        self.manifest: Manifest | None = settings.manifest
        self.registry: Registry | None = None
        self.relay: Relay | None = None
        self.transmitter: Transmitter | None = None
        self.door = Door(bundle) if door is None else door
        self.admission, self.refusals = self.door.admission, self.door.refusals
        self.credentials = CertificateCredentials(bundle, self.admission.is_revoked)
        self.signatures: LetterSignatures | None = None
        #: what members below have signed of themselves: address -> certificate, signature
        self.vouched: dict[int, tuple[bytes, bytes]] = {}
        #: what the run does, as the cloud has signed it: the part of a welcome that is the same for all
        self.charter = pb.Welcome()
        self.idle = settings.manifest is None and not settings.parents
        self.names: dict[str, int] = {}
        self.stopping = False
        self.model_bytes = 0
        self.driver = Driver()
        self.journal: Journal | None = None
        #: what this host knows of itself before it has an engine: address, incarnation, stamp, samples
        self.own: dict[str, int] = {}
        self.tasks: set[asyncio.Task[Any]] = set()
        self.failed: asyncio.Future[None]

    # -- tasks and the engine --------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something beside; if it fails, the host does."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.failed.done():
            self.failed.set_exception(error)

    def put(self, item: Item) -> None:
        """Let something happen to the engine."""
        self.driver.put(item)

    async def keep_pace(self, link: Link, frame: pb.Frame) -> None:
        """Read no more over a link that this host has made than its engine takes: nobody else bounds what comes."""
        link.untaken += FRAME_COSTS + frame.ByteSize()
        if link.untaken > WINDOW_BYTES:
            link.untaken = 0
            await self.call(lambda: None)

    async def call(self, what: Callable[[], T]) -> T:
        """Do something in the engine's thread, as part of a transaction; return what it returned."""
        return await self.driver.call(what)

    # -- who this host is ------------------------------------------------------------------------------------

    @property
    def me(self) -> int:
        """This host's address."""
        return self.routes.me

    @property
    def run_name(self) -> str:
        """The run that this host's state belongs to, or empty."""
        return self.manifest.run if self.manifest is not None and self.engine is not None else ""

    @property
    def endpoint(self) -> str:
        """Where this host is reached, or empty."""
        if self.door.server is None or self.settings.listen is None:
            return ""
        return self.settings.advertise or f"{self.settings.listen.rpartition(':')[0]}:{self.door.server.port}"

    def myself(self) -> Member:
        """Return what this host says of itself."""
        known = self.engine.directory.members.get(self.me) if self.engine is not None else None
        busy = self.engine is not None and bool(self.engine.jobs.waiting)
        mine = self.own.get("address", 0)
        base = known or Member(mine, self.identity.name, self.identity.role, via=mine)
        return replace(
            base, incarnation=self.own["incarnation"], stamp=self.own["stamp"], samples=self.own.get("samples", 0),
            aggregates=self.settings.aggregates, endpoint=self.endpoint, busy=busy, version=__version__,
        )  # fmt: skip

    def everybody(self) -> list[Member]:
        """Return this host and everybody below it."""
        assert self.engine is not None
        others = [m for m in list(self.engine.directory.members.values()) if m.address != self.me]
        return [self.myself(), *others]

    async def next_stamp(self) -> int:
        """Number another link to a parent."""
        self.own["stamp"] += 1
        if self.engine is not None:
            await self._keep("host", dict(self.own))
        return self.own["stamp"]

    async def learn_name(self, name: str, address: int) -> None:
        """Remember the number of a name."""
        self.names[name] = address
        await self._keep("names", dict(self.names))

    async def _keep(self, key: str, value: Any) -> None:
        journal = self.journal
        assert journal is not None
        await self.call(lambda: journal.put(key, value))

    async def linked(self, parent: Member, model_seconds: float) -> None:
        """The link to a parent is there."""
        engine = self.engine
        assert engine is not None

        def note() -> None:
            mine, script = engine.directory.members[self.me], engine.manifest.script
            seconds = model_seconds if script is None else script.hop
            engine.directory.members[self.me] = replace(mine, via=parent.address, model_seconds=seconds)

        await self.call(note)
        self.put(Linked(parent))

    # -- what it tells others --------------------------------------------------------------------------------

    def hello(self) -> pb.Hello:
        """Return a greeting that says who this host is and what it speaks."""
        versions = self.settings.versions
        return pb.Hello(
            version=versions.oldest, newest=versions.newest, member=self.myself().to_wire(), run=self.run_name,
            declined=self.settings.declined[0], why=self.settings.declined[1],
        )  # fmt: skip

    def welcome(self, address: int, version: int) -> pb.Welcome:
        """Return the welcome for a child, in a version that it speaks."""
        assert self.manifest is not None
        found = pb.Welcome(
            version=version, address=address, parent=self.myself().to_wire(), now=self.clock.now(),
            crl=self.admission.crl, standing=self.manifest.standing,
        )  # fmt: skip
        found.MergeFrom(self.charter)
        return found

    def name_of(self, host: int) -> str | None:
        """Return a host's name; None if it is not known here."""
        directory = self.engine.directory if self.engine is not None else None
        member = None if directory is None else directory.members.get(host) or directory.others.get(host)
        return None if member is None else member.name

    def announce(self, joined: Sequence[Member], gone: Iterable[int]) -> None:
        """Tell the parent who came and went below."""
        gone = list(gone)
        if self.routes.parent is not None and (joined or gone):
            self.routes.parent.post(pb.Frame(reach=pb.Reach(members=map(self.reached, joined), gone=gone)))

    def reached(self, member: Member) -> pb.Member:
        """Return what a parent is told of this host or of one below it, signed by whom it is of."""
        found = member.to_wire()
        if member.address == self.me and self.signatures is not None:
            self.signatures.vouch(found)
        else:
            found.certificate, found.signature = self.vouched.get(member.address, (b"", b""))
        return found

    def resend(self, hosts: Sequence[int] | None) -> None:
        """Links were made anew: what is not acknowledged goes out again."""
        if self.transmitter is not None:
            self.transmitter.again(hosts)

    def refused(self, who: str, why: str) -> None:
        """Write down that something was refused; of many refusals, not each one."""
        who = in_few_words(who)
        before = self.refusals.told(who)
        if before is None:
            return
        why = in_few_words(why)
        data: dict[str, Any] = {"by": self.identity.name, "who": who, "why": why}
        if before:
            data["untold"] = before
        self.log("refused", level="warning", who=who, why=why, **({"untold": before} if before else {}))
        conduct = self.conduct
        if conduct is not None:
            self.put(Call(lambda: conduct.record(None, "refused", data)))
