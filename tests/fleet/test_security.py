"""Who is not let in, and what is not listened to: refused, told why, and written into the run's record."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from espalier.core.errors import ConfigError
from espalier.core.messages import Word
from espalier.fleet import certs
from espalier.fleet.certs import Bundle
from espalier.fleet.coordinator import enrolment
from espalier.fleet.links import wire
from espalier.fleet.links.admission import ALL_REFUSALS_AT_ONCE, Refusals
from espalier.fleet.links.framing import Letter, LetterPart, frames
from espalier.fleet.links.hub import Settings
from espalier.fleet.links.limits import Limits
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.links.transport import HANDSHAKE_MS, METHOD, SERVICE
from espalier.fleet.node import launch
from espalier.fleet.node.host import Host
from espalier.fleet.node.log import Log
from espalier.fleet.secure.credentials import CertificateCredentials
from espalier.record.run import Run
from tests.fleet.net import OneMore, Serving, manifest, signed
from tests.fleet.test_authority import Places

LIMITS = Limits(letter_bytes=1 << 20, content_bytes=1 << 16, parts=4, letters_per_second=20, children=4)


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet") / "ca"
    certs.init(folder)
    for name, role in (("cloud", "cloud"), ("edge-0", "edge"), *((f"d{i}", "device") for i in range(9))):
        certs.issue(folder, name, role, ["127.0.0.1"])
    return folder


class Visitor:
    """Somebody with a certificate who says whatever it likes."""

    def __init__(self, bundle: Bundle, target: str) -> None:
        self.credentials, self.run = CertificateCredentials(bundle, lambda serial: False), ""
        credentials = grpc.ssl_channel_credentials(bundle.ca, bundle.key, bundle.cert)
        self.channel = grpc.aio.secure_channel(target, credentials, [("grpc.ssl_target_name_override", "cloud")])
        self.call = self.channel.stream_stream(f"/{SERVICE}/{METHOD}")()

    async def say(self, frame: pb.Frame | bytes) -> None:
        data = frame if isinstance(frame, bytes) else signed(frame, self.credentials, self.run).SerializeToString()
        await self.call.write(data)

    async def hear(self) -> pb.Frame | None:
        """The next frame, None at the end."""
        data = await asyncio.wait_for(self.call.read(), 10)
        return None if data is grpc.aio.EOF else pb.Frame.FromString(data)

    async def until(self, kind: str) -> pb.Frame | None:
        """The next frame of a kind, None if the stream ends first."""
        while (frame := await self.hear()) is not None:
            if frame.WhichOneof("kind") == kind:
                return frame
        return None

    async def greet(self, **fields: Any) -> pb.Frame:
        member = pb.Member(incarnation=1, stamp=1, samples=10)
        await self.say(
            pb.Frame(hello=pb.Hello(**{"version": wire.VERSIONS.newest, "member": member, "wish": -1, **fields}))
        )
        frame = await self.hear()
        assert frame is not None
        self.run = frame.welcome.run
        return frame

    async def enter(self, wish: int = -1) -> int:
        """Greet and say who is here; return the address."""
        welcome = (await self.greet(wish=wish)).welcome
        via = welcome.parent.address
        member = pb.Member(address=welcome.address, incarnation=1, stamp=1, samples=10, via=via)
        await self.say(pb.Frame(reach=pb.Reach(members=[member], full=True)))
        return int(welcome.address)


class Scene:
    """A cloud that listens, and visitors."""

    def __init__(self, host: Host, ca: Path, folder: Path) -> None:
        self.host, self.ca, self.folder = host, ca, folder
        self.visitors: list[Visitor] = []

    def visitor(self, name: str, authority: Path | None = None) -> Visitor:
        found = Visitor(Bundle.read((authority or self.ca) / name), self.host.endpoint)
        self.visitors.append(found)
        return found

    async def refusals(self, count: int = 1) -> list[str]:
        """What the record says was refused, as soon as there are so many."""
        for _ in range(200):
            found = [f"{e['who']}: {e['why']}" for e in Run(self.folder).events("refused")]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.02)
        raise AssertionError(f"{len(found)} refusals are recorded: {found}")


@asynccontextmanager
async def cloud(ca: Path, folder: Path, *, limits: Limits = LIMITS, **settings: Any) -> AsyncIterator[Scene]:
    made = manifest(4, 1, 3, limits=limits, patience=1.0)
    told = Settings(lambda c, a: Serving(), folder, "127.0.0.1:0", manifest=made, start_with=99, **settings)
    log = Log("cloud", folder / "log")
    host = Host(Bundle.read(ca / "cloud"), told, log)
    task = asyncio.create_task(host.run())
    while not host.endpoint and not task.done():
        await asyncio.sleep(0.01)
    scene = Scene(host, ca, folder)
    try:
        yield scene
    finally:
        for visitor in scene.visitors:
            visitor.call.cancel()
            await visitor.channel.close()
        host.stop()
        await task
        log.close()


def play(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scene())


def test_a_greeting_is_answered_with_the_charter(ca: Path, quick: Path) -> None:
    async def scene() -> None:
        async with cloud(ca, quick) as s:
            frame = await s.visitor("d0").greet(wish=3)
            assert frame.welcome.address == 3
            assert frame.welcome.parent.name == "cloud"
            assert b'"hierfavg"' in frame.welcome.manifest

    play(scene)


def test_another_authoritys_certificate_gets_no_answer(ca: Path, quick: Path, tmp_path: Path) -> None:
    async def scene() -> None:
        other = tmp_path / "other"
        certs.init(other)
        forged = Bundle.read(certs.issue(other, "d0", "device"))
        async with cloud(ca, quick) as s:
            # it believes in our authority, we do not in its
            stranger = Visitor(replace(forged, ca=(ca / "ca.pem").read_bytes()), s.host.endpoint)
            s.visitors.append(stranger)
            with pytest.raises(grpc.RpcError) as refused:
                await stranger.greet()
            assert refused.value.code() == grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
            # and without any certificate
            channel = grpc.aio.secure_channel(
                s.host.endpoint,
                grpc.ssl_channel_credentials((ca / "ca.pem").read_bytes()),
                [("grpc.ssl_target_name_override", "cloud")],
            )
            with pytest.raises(grpc.RpcError):
                await channel.stream_stream(f"/{SERVICE}/{METHOD}")().read()
            await channel.close()

    play(scene)


def test_who_is_not_on_the_list_is_refused(ca: Path, quick: Path) -> None:
    async def scene() -> None:
        names = quick / "allow"
        names.write_text("d0  # the first\nedge-0\n")
        async with cloud(ca, quick, allow=names) as s:
            assert (await s.visitor("d0").greet()).HasField("welcome")
            frame = await s.visitor("d1").greet()
            assert frame.refusal.final
            assert frame.refusal.why == "d1 is not on the list of nodes that may join."
            # also when it comes by way of an edge
            edge = s.visitor("edge-0")
            await edge.enter()
            await edge.say(pb.Frame(enrol=pb.Enrol(name="d2", role="device", wish=-1)))
            answer = await edge.until("enrolled")
            assert answer is not None
            assert "not on the list" in answer.enrolled.refused
            assert [r.split(":")[0] for r in await s.refusals(2)] == ["d1", "d2"]
            # the list is read again when it changes
            names.write_text("d0\nd1\n")
            for _ in range(100):
                if (await s.visitor("d1").greet()).HasField("welcome"):
                    break
                await asyncio.sleep(0.05)
            else:
                raise AssertionError("d1 was not let in")

    play(scene)


def test_a_revoked_certificate_is_cut_off_at_once(ca: Path, quick: Path) -> None:
    async def scene() -> None:
        crl = quick / "crl.pem"
        async with cloud(ca, quick, crl=crl) as s:
            thief = s.visitor("d8")
            await thief.enter()
            while not s.host.routes.below(0):
                await asyncio.sleep(0.01)
            certs.revoke(ca, "d8")
            crl.write_bytes((ca / "crl.pem").read_bytes())
            frame = await thief.until("refusal")
            assert frame is not None
            assert frame.refusal.final
            # a lost child is waited for, one that cannot come back is not
            assert not s.host.routes.below(0)
            assert (await s.visitor("d8").hear()).refusal.why == "the certificate of d8 is revoked"  # type: ignore[union-attr]
            assert all(r == "d8: the certificate of d8 is revoked" for r in await s.refusals(2))

    play(scene)


def word(
    origin: int, dest: int, number: int, sender: int | None = None, parts: tuple[LetterPart, ...] = ()
) -> list[pb.Frame]:
    """The frames of a letter that says a word."""
    said = wire.pack(Word("awake", origin if sender is None else sender, dest, 0.0), Places())
    return list(frames(Letter(dest, 1 << 50, number, said, parts), origin))


CLOUD = 5


@pytest.mark.parametrize(
    ("frame", "what"),
    [
        (b"\xff\xff\xff\xff", "no frame of this protocol"),
        (pb.Frame(welcome=pb.Welcome()), "a device sends 'welcome'"),
        (pb.Frame(enrol=pb.Enrol(name="friend", role="device")), "a device sends 'enrol'"),
        (word(1, CLOUD, 1)[0], "claims to be from host 1"),
        (word(CLOUD, CLOUD, 1)[0], "claims to be from host 5"),
        (
            pb.Frame(reach=pb.Reach(members=[pb.Member(address=1, name="d1", role="device")])),
            "d0 says that d1 is reached through it",
        ),
        (pb.Frame(ping=pb.Ping(ballast=bytes(2 << 20))), "A ping of 2097152 bytes"),
        (
            pb.Frame(head=pb.Head(envelope=pb.Envelope(dest=CLOUD, number=1), parts=[pb.Part(size=1 << 50)])),
            "65536, 4 and 6176 are accepted",
        ),
        (
            pb.Frame(head=pb.Head(envelope=pb.Envelope(dest=CLOUD, number=1), content=bytes(1 << 17))),
            "A letter of 131072 bytes",
        ),
    ],
)
def test_what_no_device_may_send_ends_its_link(ca: Path, quick: Path, frame: Any, what: str) -> None:
    async def scene() -> None:
        async with cloud(ca, quick) as s:
            rogue = s.visitor("d0")
            assert await rogue.enter(0) == 0
            await rogue.say(frame)
            answer = await rogue.until("refusal")
            assert answer is not None
            assert what.lower() in answer.refusal.why.lower()
            assert what.lower() in (await s.refusals())[0].lower()
            assert await rogue.hear() is None
            # the fleet goes on
            assert (await s.visitor("d1").greet()).HasField("welcome")

    play(scene)


@pytest.mark.parametrize("name", ["x" * (1 << 20), "d0\x1b[2J", "", "no such name"])
def test_an_edge_enrols_only_names_that_can_be(ca: Path, quick: Path, name: str) -> None:
    # they were kept in the cloud's register for good, and told whole in its log and record
    async def scene() -> None:
        async with cloud(ca, quick) as s:
            rogue = s.visitor("edge-0")
            await rogue.enter(0)
            await rogue.say(pb.Frame(enrol=pb.Enrol(name=name, role="device", wish=-1)))
            answer = await rogue.until("refusal")
            assert answer is not None and "which no certificate can say" in answer.refusal.why
            [refused] = await s.refusals()
            assert refused.startswith("edge-0: ") and len(refused) < 300 and refused.isprintable()
            assert s.host.registry is not None and set(s.host.registry.known) == {"edge-0"}

    play(scene)


def test_a_register_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment, "MOST_SERVERS", 3)
    registry = enrolment.Registry(2, 3)
    assert [registry.enrol(f"edge-{n}", "edge") for n in range(3)] == [2, 4, 5]
    with pytest.raises(ConfigError, match="3 edges have enrolled"):
        registry.enrol("edge-3", "edge")
    assert registry.enrol("edge-1", "edge") == 4
    # whoever wished for a number of its own found no bound
    other = enrolment.Registry(2, 3)
    assert [other.enrol(f"edge-{n}", "edge", wish) for n, wish in enumerate([1 << 40, 2, 7])] == [2, 5, 4]
    with pytest.raises(ConfigError, match="3 edges have enrolled"):
        other.enrol("edge-3", "edge", 9)


def test_a_word_in_anothers_name_is_refused(ca: Path, quick: Path) -> None:
    async def scene() -> None:
        async with cloud(ca, quick) as s:
            rogue = s.visitor("d0")
            await rogue.enter(0)
            for frame in word(0, CLOUD, 1, sender=2):
                await rogue.say(frame)
            assert "nobody speaks for another" in (await s.refusals())[0]
            # an instruction that is the cloud's to give
            told = wire.control("finish", {})
            for frame in frames(Letter(CLOUD, 1 << 50, 2, told), 0):
                await rogue.say(frame)
            assert "not its to say" in (await s.refusals(2))[1]
            malformed = wire.control("notes", {})
            for frame in frames(Letter(CLOUD, 1 << 50, 3, malformed), 0):
                await rogue.say(frame)
            assert "is malformed" in (await s.refusals(3))[2]

    play(scene)


def test_a_replay_is_taken_once(ca: Path, quick: Path) -> None:
    async def scene() -> None:
        async with cloud(ca, quick) as s:
            rogue = s.visitor("d0")
            await rogue.enter(0)
            empty: dict[str, Any] = {"spans": [], "scores": {}, "traffic": [], "final": False}
            note = wire.control("notes", {"events": [[0.0, "hello", None, {}]], **empty})
            for _ in range(3):
                for frame in frames(Letter(CLOUD, 1 << 50, 1, note), 0):
                    await rogue.say(frame)
                ack = await rogue.until("ack")
                assert ack is not None
                assert ack.ack.envelope.number == 1
            await asyncio.sleep(0.7)
            assert len(Run(quick).events("hello")) == 1

    play(scene)


def test_damaged_models_are_refused(ca: Path, quick: Path) -> None:
    async def scene() -> None:
        async with cloud(ca, quick) as s:
            rogue = s.visitor("d0")
            await rogue.enter(0)
            # 64 numbers are 256 bytes
            for frame in word(0, CLOUD, 1, parts=(LetterPart.of(bytes(100), 0),)):
                await rogue.say(frame)
            assert "256 are expected" in (await s.refusals())[0]
            head, chunk = word(0, CLOUD, 2, parts=(LetterPart.of(bytes(256), 0),))
            chunk.chunk.data = b"\x01" + chunk.chunk.data[1:]
            await rogue.say(head)
            await rogue.say(chunk)
            assert "checksum is wrong" in (await s.refusals(2))[1]

    play(scene)


def test_too_many_letters_and_too_many_children(ca: Path, quick: Path) -> None:
    async def scene() -> None:
        async with cloud(ca, quick) as s:
            rogue = s.visitor("d0")
            await rogue.enter(0)
            # 20 a second, and ten seconds' worth at once
            for number in range(400):
                for frame in word(0, CLOUD, number):
                    try:
                        await rogue.say(frame)
                    except (grpc.RpcError, asyncio.InvalidStateError):
                        break
            assert "More than 20 frames" in (await s.refusals())[0]
            for name in ("d1", "d2", "d3", "d4"):
                frame = await s.visitor(name).greet()
            assert frame.HasField("welcome") or "enrolled" in frame.refusal.why
            assert (await s.visitor("d5").greet()).HasField("refusal")

    play(scene)


def test_versions_and_roles_must_fit(ca: Path, quick: Path) -> None:
    async def scene() -> None:
        async with cloud(ca, quick) as s:
            frame = await s.visitor("d0").greet(version=99)
            assert frame.refusal.final
            why = f"it speaks version 99 of the protocol, this node {wire.VERSIONS}: upgrade the older one"
            assert frame.refusal.why == why
            frame = await s.visitor("cloud").greet()
            assert frame.refusal.why == "a cloud has no parent"
            rogue = s.visitor("d1")
            await rogue.say(pb.Frame(bye=pb.Bye()))
            answer = await rogue.hear()
            assert answer is not None
            assert "a greeting is accepted" in answer.refusal.why

    play(scene)


def test_a_name_that_hurries_is_held_back(ca: Path, quick: Path) -> None:
    async def scene() -> None:
        async with cloud(ca, quick, limits=replace(LIMITS, greetings_per_minute=12.0)) as s:
            kinds = [(await s.visitor("d0").greet()).WhichOneof("kind") for _ in range(12)]
            assert kinds == ["welcome"] * 10 + ["refusal"] * 2
            assert (await s.visitor("d1").greet()).HasField("welcome"), "others are not concerned"

    play(scene)


def test_models_of_the_users_own_are_not_imported_unasked(quick: Path) -> None:
    from espalier.core.errors import ConfigError
    from espalier.fleet.coordinator.manifest import Manifest
    from espalier.fleet.node.data import Holdings
    from espalier.fleet.node.trainer import ArrayTrainer

    made = manifest(4, 1, 3)
    wicked = replace(made, card=replace(made.card, model="os:system", options={"command": "touch /tmp/owned"}))
    with pytest.raises(ConfigError, match="--allow-model os:system"):
        ArrayTrainer(wicked, Holdings())
    training = replace(made.experiment.training, optimizer="os:system")
    for card, experiment in (
        (replace(made.card, loss="os:system"), made.experiment),
        (made.card, replace(made.experiment, training=training)),
    ):
        wicked = replace(made, card=card, experiment=experiment)
        with pytest.raises(ConfigError, match="--allow-model os:system"):
            ArrayTrainer(Manifest.of_bytes(wicked.to_bytes()), Holdings(), allowed=["os:remove"])
    assert OneMore().samples == 10


def test_connections_that_say_nothing_are_closed(ca: Path, quick: Path) -> None:
    # H4: over a thousand of them kept a node's door closed for as long as they liked
    async def scene() -> None:
        async with cloud(ca, quick) as s:
            name, _, port = s.host.endpoint.rpartition(":")
            idle = [await asyncio.open_connection(name, int(port)) for _ in range(40)]
            assert (await s.visitor("d0").greet()).HasField("welcome")
            async with asyncio.timeout(HANDSHAKE_MS / 1000 + 5):
                for reader, _ in idle:
                    assert await reader.read() == b""
            for _, writer in idle:
                writer.close()

    play(scene)


def test_a_door_leaves_files_for_the_node_itself(ca: Path, quick: Path) -> None:
    # in a process of its own, which may open 256 files: what is left when twice as many knock at the door
    code = f"""
import asyncio, os, resource, socket, time
from pathlib import Path
from tests.fleet.test_security import cloud
async def scene():
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1024))
    async with cloud(Path({str(ca)!r}), Path({str(quick)!r})) as s:
        name, _, port = s.host.endpoint.rpartition(":")
        reader, writer = os.pipe()
        if os.fork() == 0:
            resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
            links = []
            for _ in range(512):
                links.append(socket.socket())
                links[-1].setblocking(False)
                links[-1].connect_ex((name, int(port)))
            os.write(writer, b"x")
            time.sleep(4)
            os._exit(0)
        await asyncio.get_running_loop().run_in_executor(None, os.read, reader, 1)
        most = 0
        for _ in range(20):
            most = max(most, len(os.listdir("/proc/self/fd")))
            await asyncio.sleep(0.1)
        assert 128 <= most < 192, most
        Path({str(quick)!r}, "new").write_text("the node can still write")
asyncio.run(scene())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (quick / "new").exists()


def test_a_node_raises_its_own_limit_of_files() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 2048));"
        "from espalier.fleet.node.launch import raise_file_limit; raise_file_limit();"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "(2048, 2048)", done.stderr


def test_a_node_does_so_when_it_starts(ca: Path, quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    async def nothing(*_: Any) -> None:
        done.append("ran")

    monkeypatch.setattr(launch, "raise_file_limit", lambda: done.append("raised"))
    monkeypatch.setattr(launch, "_run", nothing)
    launch.run(launch.Options(ca / "d0", directory=quick / "d0"))
    assert done == ["raised", "ran"]


def test_refusals_of_many_names_are_told_in_part() -> None:
    refusals = Refusals()
    told = [name for name in range(2000) if refusals.told(f"somebody {name}") is not None]
    assert len(told) == ALL_REFUSALS_AT_ONCE
    assert refusals.count == 2000


def test_rubbish_at_the_door_does_not_fill_the_log(ca: Path, quick: Path) -> None:
    # M3: every failed handshake was a row of the record and a line of the log
    async def scene() -> None:
        async with cloud(ca, quick) as s:
            for number in range(200):
                s.host.refused("somebody at the door", f"Handshake failed {number}")
            assert s.host.refusals.count == 200
            await s.refusals(20)
            await asyncio.sleep(0.3)
            assert len(await s.refusals(20)) == 20
        assert (quick / "log").read_text().count("Handshake failed") == 20

    play(scene)
