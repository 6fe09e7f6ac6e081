"""A node in one run: the engine, its links to parent, children and peers, its timers and its worker.

A node takes one run after another (`espalier.fleet.node.service`), with a host for each; as long as there is none, a
host without an engine waits for it on its links.

The event loop does nothing but pass things on: frames to the engine or to the next hop, effects of the engine to links,
timers and the worker. The engine runs in a thread of its own, one batch of items after the other; training in another.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from espalier.core.errors import EspalierError, ProtocolError, RunError
from espalier.fleet.authority.rules import devices_confer
from espalier.fleet.certs import Bundle
from espalier.fleet.coordinator.accounts import Accounts
from espalier.fleet.coordinator.coordinator import Coordinator
from espalier.fleet.coordinator.enrolment import Registry, read_names
from espalier.fleet.coordinator.manifest import Manifest
from espalier.fleet.coordinator.member import Participant
from espalier.fleet.links.children import ChildLinks
from espalier.fleet.links.delivery import Transmitter
from espalier.fleet.links.door import REASON_LETTERS, Door
from espalier.fleet.links.hub import Hub, Settings
from espalier.fleet.links.parent import ParentLink
from espalier.fleet.links.peers import PeerLinks
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.links.relay import Relay
from espalier.fleet.links.routes import SentBytes
from espalier.fleet.links.signing import LetterSignatures, is_of_cloud, sign_manifest
from espalier.fleet.node.engine import Engine
from espalier.fleet.node.events import Call, Due, Effects
from espalier.fleet.node.folders import RunFolders
from espalier.fleet.node.journal import Journal
from espalier.fleet.node.log import Log
from espalier.fleet.node.threads import Worker

#: seconds that a host waits at most, when the run is over, for those below to leave
FINISH_SECONDS = 10.0


class Host(Hub):
    """A node of the fleet."""

    def __init__(self, bundle: Bundle, settings: Settings, log: Log, door: Door | None = None) -> None:
        """Prepare one run of a node, or its waiting for one; ``door`` is what outlives it (None: nothing does)."""
        super().__init__(bundle, settings, log, door)
        self._own_door = door is None
        self._folders = RunFolders(settings.directory)
        self.peer_links = PeerLinks(self)
        self.child_links = ChildLinks(self, self.peer_links)
        self.parent_link: ParentLink | None = None
        self.sent_bytes = SentBytes(self.routes, bundle.identity.role)
        self._worker = Worker(self.driver, self.spawn, log)
        self._stop = asyncio.Event()
        self._returns = False
        self._allow_read = 0.0
        #: whether this node, while its run goes on or is over, should look for another one
        self.left = False
        #: a run that it cannot take part in, and why not
        self.declined = settings.declined

    # -- running -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until the run is over or :meth:`stop` is called.

        Raises:
            EspalierError: What the operator must mend.
        """
        self.failed = asyncio.get_running_loop().create_future()
        try:
            await self._wake_up()
            self.door.receiver = self.child_links
            if self.settings.listen is not None and self.door.server is None:
                await self.door.open(self.settings.listen)
                self.log("listening", endpoint=self.endpoint)
            if self.settings.parents:
                self.parent_link = ParentLink(self, self.child_links, self.follow, self.leave, self.doubts)
                self.spawn(self.parent_link.run())
            self.spawn(self.driver.run(lambda: self.engine, self._carry_out))
            self.spawn(self._tick())
            stop = asyncio.create_task(self._stop.wait())
            waited: set[asyncio.Future[Any]] = {stop, self.failed}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            if self.failed.done():
                self.failed.result()
        finally:
            await self._shut_down()

    @property
    def work_seconds(self) -> float:
        """Seconds that the worker was busy."""
        return self._worker.seconds

    def stop(self, why: str = "asked to", *, returns: bool = False) -> None:
        """End in good order; who ``returns`` soon is waited for as one whose link is lost."""
        if not self._stop.is_set():
            self.log("stopping", why=why)
            self._returns = returns
            self._stop.set()

    def leave(self, why: str) -> None:
        """Take no part in the run any more: its node looks for another."""
        self.left = True
        if self.registry is None:
            self._folders.leave()
        self.stop(why)

    async def _shut_down(self) -> None:
        self.stopping = True
        failed = self.failed.done() and not self.failed.cancelled() and self.failed.exception() is not None
        if self.parent_link is not None and not failed and not self._returns:
            # a node that fails may be started again: it is waited for as one whose link is lost
            self.parent_link.leave("stops")
        self.child_links.close()
        self.door.disconnect()
        if self._own_door:
            await self.door.close()
        await asyncio.sleep(0.05)
        for task in [*self.tasks]:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if self.transmitter is not None:
            await self.transmitter.close()
        self._worker.close()
        await self.driver.at_once(self._close)
        self.driver.close()
        if not self.failed.done():
            self.failed.cancel()

    def _close(self) -> None:
        if isinstance(self.conduct, Coordinator):
            self.conduct.close_record()
        if self.journal is not None:
            self.journal.close()

    # -- waking up -----------------------------------------------------------------------------------------------

    async def _wake_up(self) -> None:
        """Go on from an earlier incarnation, or (at the cloud) begin; without a run, wait for one."""
        # who has lost its memory has made links that others remember: it counts on from the time of day
        self.own = {"incarnation": secrets.randbits(63), "stamp": int(time.time())}
        current = self._folders.current
        if self.settings.manifest is not None:
            await self._open(self.settings.directory)
            await self._begin_run(self.settings.manifest)
        elif self.settings.parents and current is not None:
            kept = await self._open(self._folders.of(current))
            if kept is not None:
                self.charter = pb.Welcome.FromString(kept)
                await self._build(Manifest.of_bytes(self.charter.manifest), self.own["address"])
            elif self.journal is not None:
                # killed before it had begun
                await self.driver.at_once(self.journal.close)
                self.journal = None

    async def _open(self, folder: Path | None) -> bytes | None:
        """Open the journal of a run; return what a member's earlier incarnation was told there."""

        def recall() -> tuple[Journal, bytes | None]:
            journal = self.journal or Journal(folder)
            self.own = journal.get("host") or self.own
            # Children may report before a parent tells the time: what took them so long must not become negative.
            self.clock.resume(journal.get("now") or 0.0)
            self.names = journal.get("names") or {}
            return journal, journal.get("charter")

        self.journal, manifest = await self.driver.at_once(recall)
        return manifest

    async def _begin_run(self, manifest: Manifest) -> None:
        fleet, journal = manifest.experiment.fleet, self.journal
        assert journal is not None
        epoch = await self.driver.at_once(lambda: journal.get("epoch"))
        if epoch is None:
            epoch = time.time()
            await self.driver.at_once(lambda: journal.put("epoch", epoch))
        self.clock.slow(manifest.slowdown)
        self.clock.begin(epoch)
        known = await self.driver.at_once(lambda: journal.get("registry"))
        self.registry = Registry(fleet.devices, manifest.cloud, known, self.settings.numbers)
        if self.settings.allow is not None:
            self.registry.allowed = read_names(self.settings.allow)
        self.charter = pb.Welcome(run=manifest.run, manifest=manifest.to_bytes(), signed=time.time())
        sign_manifest(self.charter, self.credentials)
        await self._build(manifest, manifest.cloud)

    async def _build(self, manifest: Manifest, address: int) -> None:
        """Make the engine for a manifest."""
        journal = self.journal
        assert journal is not None
        self.manifest, self.model_bytes = manifest, manifest.card.spec.model_bytes
        self.admission.limits = manifest.limits
        self.clock.slow(manifest.slowdown)
        self.own["address"] = self.routes.me = address
        self.own["stamp"] += 1

        def make() -> Effects:
            trainer = self.settings.trainer(manifest, address)
            self.own["samples"] = trainer.samples
            me = self.myself()
            if trainer.samples:
                seconds, script = trainer.probe(), manifest.script
                me = replace(me, seconds_per_batch=seconds if script is None else script.batch)
            engine = Engine(me, manifest, journal, trainer, self.clock.now, self.credentials)
            if self.registry is not None:
                assert self.settings.directory is not None
                conduct: Participant | Coordinator = Coordinator(
                    engine, self.registry, self.settings.directory, self.settings.start_with
                )
            else:
                conduct = Participant(engine, self._folders.of(manifest.run))
                journal.put("charter", self.charter.SerializeToString())
            engine.conduct = conduct
            journal.put("host", self.own)
            # the engine first: whoever sees the conduct (every tick looks for it) gives the engine something to do
            self.engine = engine
            self.conduct = conduct
            return engine.resume()

        effects = await self.driver.at_once(make)
        self.routes.recall(self.engine.directory.members.values() if self.engine is not None else ())
        if self.transmitter is not None:
            await self.transmitter.close()
        devices = manifest.experiment.fleet.devices
        self.signatures = LetterSignatures(self.credentials, manifest.run, devices, manifest.cloud, self.name_of)
        self.transmitter = Transmitter(address, self.routes.route, self.signatures.sign)
        self.relay = Relay(
            self.routes, self.transmitter, manifest.bounds, devices, self.put, self.signatures, self.refused,
            self.engine is not None and devices_confer(self.engine.plan),
        )  # fmt: skip
        for member in list(self.engine.directory.members.values()) if self.engine is not None else ():
            if member.via == address and member.address != address:
                self.child_links.wait_for(member.address)
        self._carry_out(effects)
        self.door.room.release()

    async def follow(self, welcome: pb.Welcome) -> None:
        """Take over what the parent says the fleet does."""
        self.child_links.revocations(welcome.crl)
        self._folders.believe(welcome.run, welcome.signed)
        # after a change of certificates those below need the newest signature
        told = pb.Welcome(run=welcome.run, manifest=welcome.manifest, signed=welcome.signed)
        told.certificate, told.signature = welcome.certificate, welcome.signature
        if self.engine is None or welcome.run == self.run_name:
            self.charter = told
        if self.engine is not None:
            if self.run_name != welcome.run or self.routes.me != welcome.address:
                self.leave(f"the fleet is in another run: {welcome.run[:100]}")
            return
        try:
            await self._take_part(welcome)
        except EspalierError as error:
            if not welcome.standing or isinstance(error, RunError):
                raise
            self.declined = (welcome.run, str(error)[:REASON_LETTERS])
            self.log("cannot take part", level="error", run=welcome.run, why=str(error))
            self.leave("waits for another run")

    def doubts(self, welcome: pb.Welcome) -> str:
        """Say why what a parent says of the run is not believed; empty: it is the cloud's word, and no old one."""
        if not is_of_cloud(welcome, self.credentials):
            return "what it says that the run does is not signed by this fleet's cloud"
        if not self._folders.may_follow(welcome.run, welcome.signed):
            return f"run {welcome.run[:100]} is over: this node has taken part in a later one"
        mine, above = welcome.address, welcome.parent.address
        with contextlib.suppress(EspalierError):  # why a manifest cannot be followed is told by who tries to
            role_of = Manifest.of_bytes(welcome.manifest).role_of
            known = self.routes.me if self.run_name == welcome.run else mine
            if (role_of(mine), known) != (self.identity.role, mine) or above == mine or role_of(above) == "device":
                return f"it says that this {self.identity.role} is number {mine}, below number {above}"
        return ""

    async def _take_part(self, welcome: pb.Welcome) -> None:
        manifest, folder = Manifest.of_bytes(welcome.manifest), self._folders.of(welcome.run)
        if manifest.run != welcome.run:
            raise ProtocolError(f"The manifest of run {welcome.run!r} is of {manifest.run!r}.")
        await self.driver.at_once(lambda: self._folders.enter(welcome.run))
        kept = await self._open(folder)
        if kept is not None and self.own["address"] != welcome.address:
            raise RunError(
                f"{folder} holds the state of node {self.own['address']} of this run, which is node {welcome.address} "
                "now. Remove it and start the node again."
            )
        self.log("takes part", run=welcome.run)
        await self._build(manifest, welcome.address)

    # -- the engine ------------------------------------------------------------------------------------------------

    def _carry_out(self, effects: Effects) -> None:
        assert self.transmitter is not None
        loop = asyncio.get_running_loop()
        for origin, (series, number) in effects.acks.items():
            self._answer(origin, self.transmitter.ack(origin, series, number))
        for origin, (series, known) in effects.restarts.items():
            self._answer(origin, self.transmitter.restart(origin, series, known))
        for dest, letters in effects.replaced.items():
            self.transmitter.replace(dest, letters)
        if self.engine is not None and self.engine.trainer.samples != self.own["samples"]:
            # the parent must know before it gets a report that counts so many
            self.own["samples"] = self.engine.trainer.samples
            self.announce([self.myself()], [])
        self.transmitter.post(effects.letters)
        for timer in effects.timers:
            loop.call_later(self.clock.until(timer.due), self.put, Due(timer.id))
        for work in effects.jobs:
            assert self.engine is not None
            self._worker.add(work, self.engine)
        for origin, why in effects.refused:
            self.refused(f"host {origin}", why)
            if self.refusals.offends(f"host {origin}"):
                self._expel(origin)
        self._do_as_conducted()

    def _do_as_conducted(self) -> None:
        """Do what follows for links, bytes and the end from what the coordinator said."""
        conduct = self.conduct
        if isinstance(conduct, Participant):
            if conduct.redirect is not None and self.parent_link is not None:
                (endpoint, name), conduct.redirect = conduct.redirect, None
                self.parent_link.move(name, endpoint, "is told to")
            self.peer_links.look()
            for expelled in conduct.expelled:
                self.child_links.expel(expelled)
            conduct.expelled.clear()
        elif conduct is not None:
            while conduct.bulletin.lines:
                event, fields = conduct.bulletin.lines.popleft()
                self.log(event, **fields)
        if conduct is not None and conduct.wants_count:
            self._look_around()
        if conduct is not None and conduct.finished and not self._stop.is_set():
            self.spawn(self._finish())

    def _answer(self, origin: int, frame: pb.Frame) -> None:
        link = self.routes.route(origin)
        if link is not None:
            link.post(frame)

    async def _finish(self) -> None:
        """The run is over: leave when everybody below has (or takes much longer than the others)."""
        transmitter, children = self.transmitter, self.routes.children
        assert transmitter is not None
        # only the cloud's letters still matter: those that tell the others that it is over
        conducts = self.registry is not None
        loop, asked, leaving = asyncio.get_running_loop(), set(children), Accounts()
        now = loop.time()
        until = now + FINISH_SECONDS
        leaving.ask(asked, now)
        while now < until and (
            leaving.waits(children.keys(), now) or children.keys() - asked or (conducts and transmitter.reachable())
        ):
            await asyncio.sleep(0.02)
            now = loop.time()
            for gone in leaving.missing - children.keys():
                leaving.given(gone, now, 0.0)
        self.leave("the run is finished")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self._look_around()
            if self.parent_link is not None:
                self.parent_link.tell_who_waits()

    def _look_around(self) -> None:
        """Look at what changes by itself: the bytes that were sent, and lists on disk."""
        conduct = self.conduct
        self._read_lists()
        if conduct is not None:
            sent = self.sent_bytes.total()
            self.put(Call(lambda: conduct.counted(sent)))

    def _read_lists(self) -> None:
        """The cloud's lists may be changed while it runs: revoked certificates, names that may join."""
        crl, allow = self.settings.crl, self.settings.allow
        try:
            if crl is not None and crl.is_file():
                self.child_links.revocations(crl.read_bytes())
            if allow is not None and self.registry is not None and allow.stat().st_mtime != self._allow_read:
                self._allow_read = allow.stat().st_mtime
                self.registry.allowed = read_names(allow)
        except (OSError, EspalierError) as error:
            self.log("a list cannot be read", level="error", why=str(error))

    # -- members that misbehave ----------------------------------------------------------------------------------

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
