"""A member with a real certificate, over real links, that says whatever it likes: the run is still the others'."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from safetensors.numpy import load_file

from espalier.core.errors import RunError
from espalier.core.messages import Word
from espalier.core.store import Ref
from espalier.fleet import certs
from espalier.fleet.authority.rules import SERVED
from espalier.fleet.certs import Bundle
from espalier.fleet.coordinator.coordinator import Coordinator
from espalier.fleet.links import wire
from espalier.fleet.links.framing import Letter, LetterPart, frames
from espalier.fleet.links.hub import Settings
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.links.transport import METHOD, SERVICE
from espalier.fleet.node import host
from espalier.fleet.node.host import Host
from espalier.fleet.node.log import Log
from espalier.fleet.secure.credentials import CertificateCredentials
from espalier.record.run import Run
from tests.fleet.net import OneMore, Serving, manifest, signed
from tests.fleet.test_authority import Places, model, order

ROUNDS = 60
# devices 0, 1 and (the dishonest one) 2, the edge, the cloud
ROGUE, EDGE, CLOUD = 2, 3, 4


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet") / "ca"
    certs.init(folder)
    for name, role in (("cloud", "cloud"), ("edge-0", "edge"), *((f"d{i}", "device") for i in range(3))):
        certs.issue(folder, name, role, ["127.0.0.1"])
    return folder


class Rogue:
    """A device's certificate, a link to the edge (or whoever is called so), and letters of its own making."""

    def __init__(self, bundle: Bundle, target: str, address: int = ROGUE, name: str = "edge-0") -> None:
        self.address, self.run = address, ""
        self.credentials = CertificateCredentials(bundle, lambda serial: False)
        credentials = grpc.ssl_channel_credentials(bundle.ca, bundle.key, bundle.cert)
        self.channel = grpc.aio.secure_channel(target, credentials, [("grpc.ssl_target_name_override", name)])
        self.call = self.channel.stream_stream(f"/{SERVICE}/{METHOD}")()
        self._numbers: dict[int, int] = {}

    async def say(self, frame: pb.Frame) -> None:
        await self.call.write(signed(frame, self.credentials, self.run).SerializeToString())

    async def hear(self) -> pb.Frame | None:
        try:
            data = await asyncio.wait_for(self.call.read(), 10)
        except grpc.RpcError:
            return None
        return None if data is grpc.aio.EOF else pb.Frame.FromString(data)

    async def enter(self, incarnation: int = 1, stamp: int = 1) -> pb.Frame:
        member = pb.Member(incarnation=incarnation, stamp=stamp, samples=10)
        await self.say(pb.Frame(hello=pb.Hello(version=wire.VERSIONS.newest, member=member, wish=self.address)))
        frame = await self.hear()
        assert frame is not None
        if frame.HasField("welcome"):
            assert frame.welcome.address == self.address
            self.run = frame.welcome.run
            member.address, member.via = self.address, frame.welcome.parent.address
            await self.say(pb.Frame(reach=pb.Reach(members=[member], full=True)))
        return frame

    async def letter(self, dest: int, content: bytes, parts: tuple[LetterPart, ...] = ()) -> None:
        number = self._numbers[dest] = self._numbers.get(dest, 0) + 1
        for frame in frames(Letter(dest, 1 << 50, number, content, parts), self.address):
            await self.say(frame)

    async def control(self, dest: int, kind: str, **data: Any) -> None:
        await self.letter(dest, wire.control(kind, data))

    async def close(self) -> None:
        self.call.cancel()
        await self.channel.close()


class Scene:
    """Cloud, edge and two honest devices, each with its own state and certificate."""

    def __init__(self, ca: Path, folder: Path) -> None:
        self.ca, self.folder = ca, folder
        self.hosts: dict[str, Host] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, name: str, learner: Any, **settings: Any) -> Host:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        told = Settings(lambda c, a: learner, folder, **settings)
        made = self.hosts[name] = Host(Bundle.read(self.ca / name), told, Log(name, folder / "log"))
        self.tasks[name] = asyncio.create_task(made.run())
        while settings.get("listen") and not made.endpoint:
            await asyncio.sleep(0.01)
        return made

    async def end(self) -> None:
        for one in self.hosts.values():
            one.stop()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        for one in self.hosts.values():
            one.log.close()

    async def until_refused(self, count: int, *names: str) -> None:
        await until(lambda: sum(self.hosts[n].refusals.count for n in names or self.hosts) >= count)


async def until(holds: Callable[[], object]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def fleet(ca: Path, folder: Path, method: Any = "hierfavg", **options: Any) -> AsyncIterator[tuple[Scene, Rogue]]:
    made = manifest(3, 1, ROUNDS, method, **{"patience": 0.5, **options})
    scene = Scene(ca, folder)
    cloud = await scene.start("cloud", Serving(), listen="127.0.0.1:0", manifest=made, start_with=3)
    above = ((("cloud", cloud.endpoint),), "127.0.0.1:0")
    edge = await scene.start("edge-0", Serving(), parents=above[0], listen=above[1])
    for number in (0, 1):
        await scene.start(f"d{number}", OneMore(), parents=(("edge-0", edge.endpoint),), wish=number)
    await until(lambda: edge.routes.parent is not None)
    rogue = Rogue(Bundle.read(ca / "d2"), edge.endpoint)
    assert (await rogue.enter()).HasField("welcome")
    await until(lambda: isinstance(cloud.conduct, Coordinator) and cloud.conduct.started)
    try:
        yield scene, rogue
        # nobody's process has ended
        assert not [n for n, t in scene.tasks.items() if t.done() and t.exception() is not None]
        await rogue.close()
        await asyncio.wait_for(asyncio.gather(*scene.tasks.values()), 60)
    finally:
        await rogue.close()
        await scene.end()
    # the rogue left: the others' run is the others', to its last round
    run = Run(folder / "cloud")
    assert run.status["state"] == "finished"
    found = load_file(folder / "cloud" / "models" / "global.safetensors")["w"]
    assert 0 < found[0] == found[1] <= ROUNDS
    assert not found[3:].any()


@pytest.fixture
def confer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let devices write to each other, as some methods do: what they say is then for the other one to check."""
    monkeypatch.setattr(host, "devices_confer", lambda plan: True)


def test_a_device_does_not_write_to_another(ca: Path, quick: Path) -> None:
    async def play() -> None:
        async with fleet(ca, quick) as (_, rogue):
            await rogue.letter(0, wire.pack(order(0, ROGUE), Places()), model())
            while (frame := await rogue.hear()) is not None and not frame.HasField("refusal"):
                pass
            assert frame is not None and "nothing to say to each other" in frame.refusal.why

    asyncio.run(play())


@pytest.mark.usefixtures("confer")
def test_a_device_cannot_take_the_run_over(ca: Path, quick: Path) -> None:
    async def play() -> None:
        async with fleet(ca, quick) as (scene, rogue):
            await rogue.control(CLOUD, "arrange", parents={}, groups={}, root=ROGUE)
            await rogue.letter(
                CLOUD, wire.pack(Word(SERVED, ROGUE, CLOUD, 0.0, {"models": {"": Ref(0)}}), Places()), model()
            )
            await rogue.control(CLOUD, "closed", node=ROGUE, progress=ROUNDS)
            await rogue.control(CLOUD, "arrange", parents={}, groups={}, root="junk")
            await scene.until_refused(4, "cloud")
            victim = 0
            changes: dict[str, Any]
            for changes in ({"back": True}, {"ask": "label_histogram", "back": True}, {"updates": 1 << 40}):
                wicked = order(victim, ROGUE, **changes)
                await rogue.letter(victim, wire.pack(wicked, Places()), model())
            await scene.until_refused(3, "d0")
        refused = [e for e in Run(quick / "cloud").events("refused") if e["who"] == f"host {ROGUE}"]
        assert {e["by"] for e in refused} == {"cloud", "d0"}, "the record says who did it, and to whom"

    asyncio.run(play())


def test_a_device_that_never_reports_does_not_stop_the_run(ca: Path, quick: Path) -> None:
    async def play() -> None:
        async with fleet(ca, quick, round_deadline=0.5) as (scene, _):
            # it is linked, takes its order, and says nothing
            await asyncio.wait_for(asyncio.gather(*scene.tasks.values()), 60)
        assert [e["children"] for e in Run(quick / "cloud").events("overdue")] == [[ROGUE]]

    asyncio.run(play())


def test_a_node_that_fails_is_waited_for(ca: Path, quick: Path) -> None:
    # M7: it said good-bye, so a disk that was full for a moment cost its updates
    async def play() -> None:
        async with fleet(ca, quick, patience=60.0) as (scene, rogue):
            await rogue.say(pb.Frame(bye=pb.Bye(why="leaves")))
            edge = scene.hosts["edge-0"]
            await until(lambda: scene.hosts["d0"].routes.parent is not None)
            await until(lambda: edge.engine is not None and ROGUE not in edge.engine.directory.members)
            scene.hosts["d0"].failed.set_exception(RunError("the disk is full"))
            with pytest.raises(RunError):
                await scene.tasks["d0"]
            scene.hosts["d0"].log.close()
            await asyncio.sleep(0.5)
            assert edge.engine is not None
            assert 0 in edge.engine.directory.members
            await scene.start("d0", OneMore(), parents=(("edge-0", edge.endpoint),), wish=0)

    asyncio.run(play())


@pytest.mark.usefixtures("confer")
def test_odd_values_end_no_process(ca: Path, quick: Path) -> None:
    async def play() -> None:
        async with fleet(ca, quick) as (scene, rogue):
            await rogue.control(CLOUD, "closed", node=math.inf)
            await rogue.control(CLOUD, "gave_up", node=math.inf)
            empty: dict[str, Any] = {"spans": [], "scores": {}, "traffic": [], "final": False}
            await rogue.control(CLOUD, "notes", events=[[0.0, "x", 1 << 70, {}]], **empty)
            await rogue.control(CLOUD, "notes", events=[[math.nan, "x", None, {}]], **empty)
            for dest in (0, EDGE):
                await rogue.control(dest, "gave_up", node=math.inf)
            await scene.until_refused(6)

    asyncio.run(play())


def test_a_device_does_not_ask_for_who_comes_to_it(ca: Path, quick: Path) -> None:
    # a device that listens (it may lead others) asked its edge for the number of whoever came to it as a child; that is
    # not a device's to ask, and the edge closed its link
    async def play() -> None:
        scene = Scene(ca, quick)
        cloud = await scene.start("cloud", Serving(), listen="127.0.0.1:0", manifest=manifest(3, 1, 3), start_with=3)
        edge = await scene.start("edge-0", Serving(), parents=(("cloud", cloud.endpoint),), listen="127.0.0.1:0")
        device = await scene.start("d0", OneMore(), parents=(("edge-0", edge.endpoint),), listen="127.0.0.1:0")
        await until(lambda: device.routes.parent is not None)
        assert device.parent_link is not None
        rogue = Rogue(Bundle.read(ca / "d2"), device.endpoint, name="d0")
        try:
            assert (await rogue.enter()).refusal.why == "devices have no children"
            await asyncio.sleep(0.3)
            assert device.parent_link.made == 1
            assert edge.refusals.count == 0
        finally:
            await rogue.close()
            await scene.end()

    asyncio.run(play())


def test_who_replaces_one_that_told_of_countless_links_takes_part(ca: Path, quick: Path) -> None:
    async def play() -> None:
        async with fleet(ca, quick) as (scene, rogue):
            cloud, edge = scene.hosts["cloud"], scene.hosts["edge-0"]
            await rogue.close()
            await until(lambda: ROGUE not in cloud.engine.directory.members)
            for incarnation, stamp in ((2, (1 << 64) - 1), (3, 1)):
                other = Rogue(Bundle.read(ca / "d2"), edge.endpoint)
                assert (await other.enter(incarnation, stamp)).HasField("welcome")
                for host in (edge, cloud):
                    members = host.engine.directory.members
                    await until(lambda m=members, i=incarnation: ROGUE in m and m[ROGUE].incarnation == i)  # type: ignore[misc]
                await other.close()
                await until(lambda: ROGUE not in cloud.engine.directory.members)

    asyncio.run(play())


def test_who_offends_again_and_again_is_shown_the_door(ca: Path, quick: Path) -> None:
    async def play() -> None:
        async with fleet(ca, quick) as (scene, rogue):
            # it offends the cloud, whose letters the edge passes on: the edge closes the link
            for _ in range(12):
                await rogue.control(CLOUD, "finish")
            why = ""
            while (frame := await rogue.hear()) is not None:
                why = frame.refusal.why or why
            assert why == "d2 has sent too many letters that it may not send"
            again = Rogue(Bundle.read(ca / "d2"), scene.hosts["edge-0"].endpoint)
            assert (await again.enter()).refusal.why == why
            await again.close()

    asyncio.run(play())
