"""One process of the fleet: the engine, its links to parent, children and peers, its timers and its worker.

The event loop does nothing but pass things on: frames to the engine or to the next hop, effects of the engine to links,
timers and the worker. The engine runs in a thread of its own, one batch of items after the other; training in another.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from espalier.core.errors import ConfigError
from espalier.fleet.certs import Bundle
from espalier.fleet.coordinator.coordinator import Coordinator
from espalier.fleet.coordinator.enrolment import Registry, read_names
from espalier.fleet.coordinator.manifest import Charter
from espalier.fleet.coordinator.member import Participant
from espalier.fleet.links import wire
from espalier.fleet.links.admission import Admission, Refusals
from espalier.fleet.links.children import ChildLinks
from espalier.fleet.links.delivery import Transmitter
from espalier.fleet.links.limits import Limits
from espalier.fleet.links.parent import ParentLink
from espalier.fleet.links.peers import PeerLinks
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.links.relay import Relay
from espalier.fleet.links.routes import RoutingTable
from espalier.fleet.links.transport import LinkServer
from espalier.fleet.membership import Member
from espalier.fleet.node.clock import FleetClock
from espalier.fleet.node.driver import Driver
from espalier.fleet.node.engine import Engine
from espalier.fleet.node.events import Call, Due, Effects, Item, Linked
from espalier.fleet.node.housekeeping import Housekeeping
from espalier.fleet.node.journal import Journal
from espalier.fleet.node.log import Log
from espalier.fleet.node.settings import Settings
from espalier.fleet.node.worker import Worker

T = TypeVar("T")


class Host:
    """A node of the fleet."""

    def __init__(self, bundle: Bundle, settings: Settings, log: Log) -> None:
        self.bundle, self.settings, self.log = bundle, settings, log
        self.identity = bundle.identity
        self.clock = FleetClock()
        self.routes = RoutingTable()
        self.engine: Engine | None = None
        self.steward: Participant | Coordinator | None = None
        self.charter: Charter | None = settings.charter
        self.registry: Registry | None = None
        self.relay: Relay | None = None
        self.transmitter: Transmitter | None = None
        self.admission = Admission(bundle, settings.charter.limits if settings.charter is not None else Limits())
        self.child_links = ChildLinks(self)
        self.parent_link: ParentLink | None = None
        self.server: LinkServer | None = None
        self.housekeeping = Housekeeping(self)
        self.peer_links = PeerLinks(self)
        self.names: dict[str, int] = {}
        self.stopping = False
        self.refusals = Refusals()
        self.model_bytes = 0
        self._driver = Driver()
        self._worker = Worker(self)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failed: asyncio.Future[None]
        self._stop = asyncio.Event()
        self._journal: Journal
        self._self: dict[str, int] = {}

    # -- life --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until the fleet is done or :meth:`stop` is called.

        Raises:
            EspalierError: What the operator must mend.
        """
        self._failed = asyncio.get_running_loop().create_future()
        self._journal = await self._driver.at_once(lambda: Journal(self.settings.directory))
        try:
            await self._wake_up()
            if self.settings.listen is not None:
                self.server = LinkServer(
                    self.bundle, self.child_links.accept, self.child_links.lost, self.child_links.malformed
                )
                await self.server.start(self.settings.listen)
                self.log("listening", endpoint=self.endpoint)
            if self.settings.parents:
                self.parent_link = ParentLink(self, list(self.settings.parents))
                self.spawn(self.parent_link.run())
            self.spawn(self._driver.run(lambda: self.engine, self._carry_out))
            self.spawn(self._tick())
            stop = asyncio.create_task(self._stop.wait())
            waited: set[asyncio.Future[Any]] = {stop, self._failed}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            if self._failed.done():
                self._failed.result()
        finally:
            await self._shut_down()

    def stop(self, why: str = "asked to") -> None:
        """End in good order."""
        if not self._stop.is_set():
            self.log("stopping", why=why)
            self._stop.set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something beside; if it fails, the host does."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failed.done():
            self._failed.set_exception(error)

    async def _shut_down(self) -> None:
        self.stopping = True
        failed = self._failed.done() and not self._failed.cancelled() and self._failed.exception() is not None
        if self.parent_link is not None and not failed:
            # a node that fails may be started again: it is waited for as one whose link is lost
            self.parent_link.leave("stops")
        self.child_links.close()
        if self.server is not None:
            await self.server.stop()
        await asyncio.sleep(0.05)
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.transmitter is not None:
            await self.transmitter.close()
        self._worker.close()
        journal = getattr(self, "_journal", None)
        if journal is not None:
            await self._driver.at_once(self._close)
        self._driver.close()
        if not self._failed.done():
            self._failed.cancel()

    def _close(self) -> None:
        if isinstance(self.steward, Coordinator):
            self.steward.close()
        self._journal.close()

    # -- waking up -----------------------------------------------------------------------------------------------

    async def _wake_up(self) -> None:
        """Go on from an earlier life, or (at the cloud) begin."""
        kept = await self._driver.at_once(lambda: self._journal.get("host"))
        self._self = kept or {"life": secrets.randbits(63), "stamp": 0}
        # Children may report before a parent tells the time: what took them so long must not become negative.
        self.clock.resume(await self._driver.at_once(lambda: self._journal.get("now")) or 0.0)
        self.names = await self._driver.at_once(lambda: self._journal.get("names")) or {}
        if self.settings.charter is not None:
            await self._begin_run(self.settings.charter)
        else:
            charter = await self._driver.at_once(lambda: self._journal.get("charter"))
            if charter is not None:
                await self._build(Charter.of_bytes(charter), self._self["address"])

    async def _begin_run(self, charter: Charter) -> None:
        fleet = charter.experiment.fleet
        epoch = await self._driver.at_once(lambda: self._journal.get("epoch"))
        if epoch is None:
            epoch = time.time()
            await self._driver.at_once(lambda: self._journal.put("epoch", epoch))
        self.clock.begin(epoch)
        known = await self._driver.at_once(lambda: self._journal.get("registry"))
        self.registry = Registry(fleet.devices, charter.cloud, known)
        if self.settings.allow is not None:
            self.registry.allowed = read_names(self.settings.allow)
        await self._build(charter, charter.cloud)

    async def _build(self, charter: Charter, address: int) -> None:
        """Make the engine for a charter."""
        self.charter, self.model_bytes = charter, charter.card.spec.model_bytes
        self.admission.limits = charter.limits
        self._self["address"] = self.routes.me = address
        self._self["stamp"] += 1

        def make() -> Effects:
            trainer = self.settings.trainer(charter, address)
            self._self["samples"] = trainer.samples
            me = self.myself()
            if trainer.samples and charter.script is None:
                me = replace(me, seconds_per_batch=trainer.probe())
            elif charter.script is not None:
                me = replace(me, seconds_per_batch=charter.script.batch)
            engine = Engine(me, charter, self._journal, trainer, self.clock.now)
            if self.registry is not None:
                assert self.settings.directory is not None
                steward: Participant | Coordinator = Coordinator(
                    engine, self.registry, self.settings.directory, self.settings.start_with
                )
            else:
                steward = Participant(engine, self.settings.directory)
                self._journal.put("charter", charter.to_bytes())
            engine.steward = self.steward = steward
            self._journal.put("host", self._self)
            self.engine = engine
            return engine.resume()

        effects = await self._driver.at_once(make)
        self.routes.recall(self.engine.directory.members.values() if self.engine is not None else ())
        if self.transmitter is not None:
            await self.transmitter.close()
        self.transmitter = Transmitter(address, self.routes.route)
        self.relay = Relay(self.routes, self.transmitter, charter.bounds, charter.experiment.fleet.devices, self.put)
        for member in list(self.engine.directory.members.values()) if self.engine is not None else ():
            if member.via == address and member.address != address:
                self.child_links.wait_for(member.address)
        self._carry_out(effects)

    async def follow(self, welcome: pb.Welcome) -> None:
        """Take over what the parent says the fleet does."""
        self.child_links.revocations(welcome.crl)
        if self.engine is not None and self.run_name == welcome.run and self.routes.me == welcome.address:
            return
        charter = Charter.of_bytes(welcome.charter)
        if self.engine is not None:
            raise ConfigError(
                f"The fleet has begun another run ({welcome.run}); this node's state is of {self.run_name}. Start it "
                "again with an empty directory."
            )
        await self._build(charter, welcome.address)

    # -- the engine ------------------------------------------------------------------------------------------------

    def put(self, item: Item) -> None:
        """Let something happen to the engine."""
        self._driver.put(item)

    async def call(self, what: Callable[[], T]) -> T:
        """Do something in the engine's thread, as part of a transaction; return what it returned."""
        return await self._driver.call(what)

    def _carry_out(self, effects: Effects) -> None:
        assert self.transmitter is not None
        loop = asyncio.get_running_loop()
        for origin, (series, number) in effects.acks.items():
            self._answer(origin, self.transmitter.ack(origin, series, number))
        for origin, (series, known) in effects.restarts.items():
            self._answer(origin, self.transmitter.restart(origin, series, known))
        for dest, letters in effects.replaced.items():
            self.transmitter.replace(dest, letters)
        if self.engine is not None and self.engine.trainer.samples != self._self["samples"]:
            # the parent must know before it gets a report that counts so many
            self._self["samples"] = self.engine.trainer.samples
            self.announce([self.myself()], [])
        self.transmitter.post(effects.letters)
        for timer in effects.timers:
            loop.call_later(self.clock.until(timer.due), self.put, Due(timer.id))
        for work in effects.jobs:
            self._worker.add(work)
        for origin, why in effects.refused:
            self.refused(f"host {origin}", why)
            if self.refusals.offends(f"host {origin}"):
                self._expel(origin)
        steward = self.steward
        if isinstance(steward, Participant):
            if steward.redirect is not None and self.parent_link is not None:
                (endpoint, name), steward.redirect = steward.redirect, None
                self.parent_link.move(name, endpoint, "is told to")
            self.peer_links.look()
            for expelled in steward.expelled:
                self.child_links.expel(expelled)
            steward.expelled.clear()
        if steward is not None and steward.wants_count:
            self.housekeeping.tick()
        if steward is not None and steward.finished and not self._stop.is_set():
            self.spawn(self._finish())

    def _answer(self, origin: int, frame: pb.Frame) -> None:
        link = self.routes.route(origin)
        if link is not None:
            link.post(frame)

    async def _finish(self) -> None:
        """The run is over: leave when everybody below has (or does not answer)."""
        transmitter = self.transmitter
        assert transmitter is not None
        # only the cloud's letters still matter: those that tell the others that it is over
        conducts = self.registry is not None
        loop = asyncio.get_running_loop()
        until = loop.time() + 10
        while (self.routes.children or (conducts and transmitter.reachable())) and loop.time() < until:
            await asyncio.sleep(0.02)
        self.stop("the run is finished")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self.housekeeping.tick()

    # -- what the parts ask ------------------------------------------------------------------------------------------

    @property
    def me(self) -> int:
        """This host's address."""
        return self.routes.me

    @property
    def work_seconds(self) -> float:
        """Seconds that the worker was busy."""
        return self._worker.seconds

    @property
    def run_name(self) -> str:
        """The run that this host's state belongs to, or empty."""
        return self.charter.run if self.charter is not None and self.engine is not None else ""

    @property
    def endpoint(self) -> str:
        """Where this host is reached, or empty."""
        if self.server is None or self.settings.listen is None:
            return ""
        return self.settings.advertise or f"{self.settings.listen.rpartition(':')[0]}:{self.server.port}"

    def myself(self) -> Member:
        """Return what this host says of itself."""
        known = self.engine.directory.members.get(self.me) if self.engine is not None else None
        busy = self.engine is not None and bool(self.engine.jobs.waiting)
        mine = self._self.get("address", 0)
        base = known or Member(mine, self.identity.name, self.identity.role, via=mine)
        return replace(
            base, life=self._self["life"], stamp=self._self["stamp"], samples=self._self.get("samples", 0),
            aggregates=self.settings.aggregates, endpoint=self.endpoint, busy=busy,
        )  # fmt: skip

    def everybody(self) -> list[Member]:
        """Return this host and everybody below it."""
        assert self.engine is not None
        others = [m for m in list(self.engine.directory.members.values()) if m.address != self.me]
        return [self.myself(), *others]

    async def next_stamp(self) -> int:
        """Number another link to a parent."""
        self._self["stamp"] += 1
        if self.engine is not None:
            await self.call(lambda: self._journal.put("host", dict(self._self)))
        return self._self["stamp"]

    async def linked(self, parent: Member, model_seconds: float) -> None:
        """The link to a parent is there."""
        engine = self.engine
        assert engine is not None

        def note() -> None:
            mine, script = engine.directory.members[self.me], engine.charter.script
            seconds = model_seconds if script is None else script.model
            engine.directory.members[self.me] = replace(mine, via=parent.address, model_seconds=seconds)

        await self.call(note)
        self.put(Linked(parent))

    def welcome(self, address: int) -> pb.Welcome:
        """Return the welcome for a child."""
        assert self.charter is not None
        return pb.Welcome(
            version=wire.VERSION, address=address, parent=self.myself().to_wire(), run=self.charter.run,
            charter=self.charter.to_bytes(), now=self.clock.now(), crl=self.admission.crl,
        )  # fmt: skip

    async def learn_name(self, name: str, address: int) -> None:
        """Remember the number of a name."""
        self.names[name] = address
        await self.call(lambda: self._journal.put("names", dict(self.names)))

    def announce(self, joined: Sequence[Member], gone: Iterable[int]) -> None:
        """Tell the parent who came and went below."""
        gone = list(gone)
        if self.routes.parent is not None and (joined or gone):
            self.routes.parent.post(pb.Frame(reach=pb.Reach(members=[m.to_wire() for m in joined], gone=gone)))

    def resend(self, hosts: Sequence[int] | None) -> None:
        """Links were made anew: what is not acknowledged goes out again."""
        if self.transmitter is not None:
            self.transmitter.again(hosts)

    def refused(self, who: str, why: str) -> None:
        """Write down that something was refused; of many refusals, not each one."""
        before = self.refusals.told(who)
        if before is None:
            return
        data: dict[str, Any] = {"by": self.identity.name, "who": who, "why": why}
        if before:
            data["untold"] = before
        self.log("refused", level="warning", who=who, why=why, **({"untold": before} if before else {}))
        steward = self.steward
        if steward is not None:
            self.put(Call(lambda: steward.recorded(None, "refused", data)))

    def _expel(self, origin: int) -> None:
        """Close the link of a host that has offended too often; if it is linked elsewhere, the cloud has it closed."""
        engine = self.engine
        if self.child_links.expel(origin) or self.registry is None or engine is None:
            return

        def tell() -> None:
            member = engine.directory.members.get(origin)
            if member is not None and member.via != self.me:
                engine.say(member.via, "expel", host=origin)

        self.put(Call(tell))
