"""A member that takes what is not its share: of its parent's memory, its attention, its log, or its good name."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import msgpack
import pytest

from espalier.core.errors import ProtocolError
from espalier.core.messages import Part, Report
from espalier.core.store import Ref
from espalier.fleet.certs import Bundle, Identity
from espalier.fleet.coordinator.coordinator import Coordinator
from espalier.fleet.links import children, relay, transport, wire
from espalier.fleet.links import link as link_module
from espalier.fleet.links.delivery import BYTES_AHEAD, DeliveryState, Transmitter
from espalier.fleet.links.door import REASON_LETTERS
from espalier.fleet.links.framing import CHUNK_BYTES, LetterPart, ReceivedLetter
from espalier.fleet.links.hub import Settings
from espalier.fleet.links.limits import Limits
from espalier.fleet.links.link import Link
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.links.relay import Relay
from espalier.fleet.links.routes import RoutingTable
from espalier.fleet.links.signing import LetterSignatures
from espalier.fleet.membership import Member
from espalier.fleet.node.events import Acknowledged, Joined, Restarted
from espalier.fleet.node.host import Host
from espalier.fleet.node.journal import Journal
from espalier.fleet.node.log import Log
from espalier.fleet.status import Collector
from espalier.record.run import Run
from tests.fleet.net import Serving, credentials
from tests.fleet.test_authority import CLOUD, EDGE, ROGUE, VICTIM, Places, finished, model
from tests.fleet.test_authority import Rogue as RogueNet
from tests.fleet.test_rogue_member import ROGUE as LINKED_ROGUE
from tests.fleet.test_rogue_member import Rogue, Scene, ca, fleet, until

__all__ = ["ca"]

EMPTY: dict[str, Any] = {"events": [], "spans": [], "scores": {}, "traffic": [], "final": False}


def test_a_device_with_countless_samples_does_not_make_its_edge_a_liar(quick: Path) -> None:
    # the edge's report has the samples of all below it: the cloud refused it, and waited for another for ever
    net = RogueNet(quick)
    many = replace(net.member(ROGUE), samples=(1 << 32) - 1, stamp=2)
    for host in (EDGE, CLOUD):
        net.give(host, Joined([many]))
    net.hostile = False  # nobody is refused anything from here on
    net.run()
    assert net.coordinator.round == 3


def test_a_report_that_is_refused_is_not_waited_for(quick: Path) -> None:
    net = RogueNet(quick)
    for _ in range(200):
        if EDGE in (nodes := net.engines[EDGE].nodes) and ROGUE in nodes[EDGE].state.tickets:
            break
        net.step()
    assert ROGUE in net.engines[EDGE].nodes[EDGE].state.tickets
    odd = Report(1, EDGE, ROGUE, EDGE, {"": Ref(0)}, {"": -1}, 1, 0, 0.0)
    why = net.attack(EDGE, wire.pack(odd, Places()), model())
    assert why is not None and "samples" in why
    tickets = net.engines[EDGE].nodes[EDGE].state.cohorts[""].waiting
    assert ROGUE not in tickets, "its round goes on without it"
    finished(net)


def test_letters_that_wait_for_an_earlier_one_are_few(tmp_path: Path) -> None:
    # 64 letters of four megabytes, and as many models, were held for whoever left a gap in its numbers
    delivery = DeliveryState(Journal(None))
    first = ReceivedLetter(ROGUE, 1, 1, b"", ())
    assert delivery.fate(first) == "new"
    delivery.take(first)
    part = LetterPart.of(bytes(1 << 20), 0)
    for number in range(3, 67):
        assert delivery.fate(ReceivedLetter(ROGUE, 1, number, bytes(1 << 20), (part,))) == "early"
    held = delivery._early[ROGUE].values()
    assert 0 < sum(len(x.content) + sum(len(p.data) for p in x.parts) for x in held) <= BYTES_AHEAD
    # one that is larger than that is kept if it is the only one
    other = DeliveryState(Journal(None))
    other.take(first)
    other.fate(ReceivedLetter(ROGUE, 1, 3, bytes(BYTES_AHEAD + 1), ()))
    assert len(other._early[ROGUE]) == 1


def test_a_series_that_cannot_be_is_not_begun(quick: Path) -> None:
    # the next one did not fit into a frame any more: nothing was ever sent to it again, and the task died unseen
    net = RogueNet(quick)
    while ROGUE not in (sent := net.engines[EDGE].outbox.delivery._sent):
        net.step()
    series, _ = sent[ROGUE]
    net.give(EDGE, Restarted(ROGUE, series, (1 << 64) - 1))
    assert net.engines[EDGE].outbox.delivery._sent[ROGUE][0] == series


def test_a_letter_that_was_never_written_is_not_acknowledged(quick: Path) -> None:
    # a number that no row of the journal can hold ended whoever was told that it had arrived
    net = RogueNet(quick)
    while not (waiting := net.engines[EDGE].outbox.delivery.waiting.get(ROGUE)):
        net.step()
    series, before = net.engines[EDGE].outbox.delivery.series(ROGUE), dict(waiting)
    for number in (max(before) + 1, 1 << 63, (1 << 64) - 1):
        net.give(EDGE, Acknowledged(ROGUE, series, number))
        assert net.engines[EDGE].outbox.delivery.waiting[ROGUE] == before


def test_cuts_of_models_are_as_few_as_models(quick: Path) -> None:
    # each of fifteen thousand cuts of one number was kept as a whole model
    class OneNumber(Places):
        def numbers(self, part: Part) -> bytes:
            return bytes(4)

    net = RogueNet(quick)
    cuts = [Part(Ref(0), ((0, 1),))] * 9
    told = Report(1, EDGE, ROGUE, EDGE, {"": Ref(0)}, {"": 10}, 1, 0, 0.0, stats={"x": cuts})
    why = net.attack(EDGE, wire.pack(told, OneNumber()), model())
    assert why is not None and "more than 8 cuts" in why
    told = replace(told, stats={"x": cuts[1:]})
    assert net.attack(EDGE, wire.pack(told, OneNumber()), model()) is None


def test_two_devices_that_count_bytes_do_not_end_the_cloud(quick: Path) -> None:
    # 2^62 each is within the rules; their sum is more than a row of the record can hold
    net = RogueNet(quick)
    for liar in (ROGUE, VICTIM):
        told = {**EMPTY, "traffic": [["dev-edge", "up", "model", 1 << 62]]}
        assert net.control(CLOUD, "notes", told, origin=liar) is None
    net.coordinator.measure()
    net.engines[CLOUD].conduct.save()
    net.leave(VICTIM)
    net.leave(ROGUE)
    net.run()
    assert net.coordinator.finished


@pytest.mark.parametrize("endpoint", ["unix:///etc/passwd", "dns://192.0.2.1/x", "a b:1", "host", "host:port", ":1"])
def test_an_endpoint_is_a_host_and_a_port(endpoint: str) -> None:
    with pytest.raises(ProtocolError, match="impossible values"):
        Member.of_wire(pb.Member(endpoint=endpoint))


@pytest.mark.parametrize("endpoint", ["", "127.0.0.1:7700", "[::1]:80", "[fe80::1%eth0]:80", "edge-a.example.com:1"])
def test_endpoints_that_are(endpoint: str) -> None:
    assert Member.of_wire(pb.Member(endpoint=endpoint)).endpoint == endpoint


def test_a_version_does_not_command_the_operators_terminal() -> None:
    with pytest.raises(ProtocolError, match="impossible values"):
        Member.of_wire(pb.Member(version="\x1b[2J"))


def test_an_edge_is_not_refused_for_what_it_notes_about_others(quick: Path) -> None:
    # a note longer than the cloud takes was refused, and ten of them closed the edge's link
    net = RogueNet(quick)
    net.engines[EDGE].conduct.record(EDGE, "overdue", {"children": list(range(20_000))})
    net.now += 2.0
    net.hostile = False
    net.run()
    assert [e for e in net.events("overdue") if "cut" in e]


def test_frames_that_keep_an_edge_busy_are_counted(ca: Path, quick: Path) -> None:
    # seven thousand greetings a second over one link: no round of the others was closed while they lasted
    async def play() -> None:
        async with fleet(ca, quick) as (scene, rogue):
            member = pb.Member(incarnation=1, samples=10, address=LINKED_ROGUE, via=scene.hosts["edge-0"].me)
            await _flood(rogue, lambda n: pb.Frame(reach=pb.Reach(members=[_stamped(member, n)], full=True)))
            # a new link is no new allowance
            again = await _returned(ca, scene)
            await _flood(again, lambda n: pb.Frame(ping=pb.Ping(sent=float(n))))
            await again.close()
        refused = [e["why"] for e in Run(quick / "cloud").events("refused") if e["who"] == "d2"]
        assert len([why for why in refused if why.startswith("More than 200 frames")]) == 2

    asyncio.run(play())


def test_a_device_does_not_claim_more_samples_than_a_fleet_accepts(ca: Path, quick: Path) -> None:
    # a device's weight in a merge is its samples, of which it alone knows the number
    async def play() -> None:
        limits = Limits(samples=1000)
        async with fleet(ca, quick, limits=limits) as (scene, rogue):
            member = pb.Member(incarnation=1, samples=1_000_000, address=LINKED_ROGUE, stamp=2, via=3)
            await rogue.say(pb.Frame(reach=pb.Reach(members=[member])))
            edge = scene.hosts["edge-0"]
            await until(lambda: LINKED_ROGUE not in edge.routes.children)
        (why,) = [e["why"] for e in Run(quick / "cloud").events("refused") if e["who"] == "d2"]
        assert why == "d2 says that it has 1000000 samples; 1000 are accepted."

    asyncio.run(play())


def test_a_peers_frames_are_counted_as_a_childs_are() -> None:
    # devices that lead others have links of devices which are nobody's children
    def nowhere(*_: Any) -> Any:
        raise AssertionError("nothing is sent")

    passed_on = Relay(
        RoutingTable(1), Transmitter(1, nowhere, nowhere), Limits(letters_per_second=1.0), 4, nowhere,
        LetterSignatures(credentials("d1", "device"), "run", 4, 5, nowhere), nowhere,
    )  # fmt: skip
    for link in (Link("a", Identity("d3", "device", 7)), Link("b", Identity("d3", "device", 7))):
        with pytest.raises(ProtocolError, match="More than 1 frames"):
            for _ in range(11):
                passed_on.rate(link, 1, 0)
    made = Link("parent")
    for _ in range(100):
        passed_on.rate(made, 1, 0)


def test_who_reads_no_answers_gets_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "UNREAD_FRAMES", 3)
    link = Link("nowhere")
    for number in range(4):
        assert not link.unread
        link.post(pb.Frame(pong=pb.Pong(sent=float(number))))
    assert link.unread


def test_who_opens_a_link_and_says_nothing_is_sent_away(ca: Path, quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "GREETING_SECONDS", 0.2)

    async def play() -> None:
        async with fleet(ca, quick) as (_, rogue):
            silent = rogue.channel.stream_stream(f"/{transport.SERVICE}/{transport.METHOD}")()
            frame = pb.Frame.FromString(await asyncio.wait_for(silent.read(), 10))
            assert frame.refusal.why == "no greeting in 0.2 s"

    asyncio.run(play())


def test_a_long_goodbye_is_cut_in_the_log(ca: Path, quick: Path) -> None:
    # eight megabytes in the log for each, a hundred and twenty times a minute
    async def play() -> None:
        async with fleet(ca, quick) as (scene, rogue):
            await rogue.say(pb.Frame(bye=pb.Bye(why="\x1b[2J" + "x" * 1_000_000)))
            edge = scene.hosts["edge-0"]
            await until(lambda: LINKED_ROGUE not in edge.routes.children)
        lines = [json.loads(line) for line in (quick / "edge-0" / "log").read_text().splitlines()]
        (why,) = [line["why"] for line in lines if line["event"] == "left" and line["child"] == "d2"]
        assert len(why) == REASON_LETTERS
        assert why.isprintable()

    asyncio.run(play())


def test_a_scores_name_does_not_break_the_metrics(ca: Path, quick: Path) -> None:
    class Service:
        def __init__(self, host: Any) -> None:
            self.host = host

    async def play() -> None:
        async with fleet(ca, quick) as (scene, _):
            cloud = scene.hosts["cloud"]
            assert isinstance(cloud.conduct, Coordinator)
            cloud.conduct.last = {"a b-@.c_device": 1.0}
            collector = Collector(Service(cloud))  # type: ignore[arg-type]
            found = next(m for m in collector.collect() if m.name.startswith("espalier_score"))
            assert found.name == "espalier_score_a_b___c_device"

    asyncio.run(play())


def _stamped(member: pb.Member, number: int) -> pb.Member:
    member.stamp = number + 2
    return member


async def _flood(rogue: Rogue, frame: Callable[[int], pb.Frame]) -> None:
    """Send frames until the link is closed."""
    with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError, asyncio.CancelledError):
        for number in range(10_000):
            await rogue.say(frame(number))
        raise AssertionError("the link stayed open")


async def _returned(ca: Path, scene: Scene) -> Rogue:
    again = Rogue(Bundle.read(ca / "d2"), scene.hosts["edge-0"].endpoint)
    assert (await again.enter()).HasField("welcome")
    return again


def test_the_record_says_what_was_refused_in_few_words(ca: Path, quick: Path) -> None:
    async def play() -> None:
        async with fleet(ca, quick) as (scene, _):
            edge = scene.hosts["edge-0"]
            edge.refused("d2", "\x1b[2J" + "y" * 1_000_000)
            await until(lambda: edge.refusals.count)
        assert [len(e["why"]) for e in Run(quick / "cloud").events("refused") if e["who"] == "d2"] == [REASON_LETTERS]

    asyncio.run(play())


class Call:
    """A stream whose other end says nothing, as gRPC's server shows it."""

    def peer(self) -> str:
        return "somebody"

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    async def read(self) -> Any:
        await asyncio.Event().wait()

    async def write(self, frame: pb.Frame) -> None:
        return None


@pytest.mark.parametrize("steps", range(6))
def test_a_stream_that_is_ended_from_both_sides_is_over(ca: Path, steps: int) -> None:
    # The second cancellation came while the last frames went out: nobody heard that the link was lost, its member
    # counted as linked for ever, and every round waited for it until its deadline.
    lost: list[Link] = []

    async def play() -> None:
        async def accept(link: Link) -> Any:
            return lost.append

        server = transport.LinkServer(Bundle.read(ca / "edge-0"), accept, lost.append, lambda link, why: None)
        call: Any = Call()
        stream = asyncio.create_task(server._serve(None, call))
        for count in (5, steps):
            for _ in range(count):
                await asyncio.sleep(0)
            stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)
        assert len(lost) == 1
        assert not server._links

    asyncio.run(play())


def test_a_member_waits_over_one_link(ca: Path, quick: Path) -> None:
    # ten thousand links of one device left no room for others to wait in
    async def play() -> None:
        bundle = Bundle.read(ca / "cloud")
        settings = Settings(lambda c, a: Serving(), quick, "127.0.0.1:0")
        cloud = Host(bundle, settings, Log("cloud", quick / "log"))
        task = asyncio.create_task(cloud.run())
        await until(lambda: cloud.endpoint)
        rogues = [Rogue(Bundle.read(ca / "d2"), cloud.endpoint, name="cloud") for _ in range(5)]
        try:
            for rogue in rogues:
                assert (await rogue.say(hello())) is None
                assert (frame := await rogue.hear()) is not None and frame.welcome.standing
            await until(lambda: len(cloud.door.room) == 1)
            assert await rogues[0].hear() is None
        finally:
            for rogue in rogues:
                await rogue.close()
            cloud.stop()
            await task
            cloud.log.close()

    asyncio.run(play())


def hello() -> pb.Frame:
    return pb.Frame(hello=pb.Hello(version=wire.VERSIONS.newest, member=pb.Member(incarnation=1, stamp=1), wish=-1))


def test_a_letter_of_countless_values_is_not_read() -> None:
    # four megabytes of small lists took ten seconds to read, and two thousand such letters could be said at once
    for value in ([1] * 300_000, [[]] * 300_000, [[[]] * 600] * 600, {"!": "dict", "v": [["a", 1]] * 100_000}):
        letter = msgpack.packb({"!": "data", "c": "ControlLetter", "v": ["notes", {"!": "dict", "v": [["x", value]]}]})
        with pytest.raises(ProtocolError, match=r"values|exceeds"):
            wire.unpack(letter)
    # what the cloud says of a large fleet is read
    everybody = wire.control("groups", {"groups": {n: "" for n in range(200_000)}})
    with pytest.raises(ProtocolError, match="more than 262144 values"):
        wire.unpack(everybody)
    assert isinstance(wire.unpack(everybody, 1 << 32), wire.ControlLetter)


def test_who_says_much_is_read_slowly(ca: Path, quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # sixty letters of four megabytes kept an edge busy for minutes, and its memory full: no round was closed meanwhile
    monkeypatch.setattr(relay, "CONTENT_PER_SECOND", 1 << 20)
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        await asyncio.sleep(seconds)

    loop = asyncio.get_running_loop
    monkeypatch.setattr(children, "asyncio", SimpleNamespace(sleep=sleep, get_running_loop=loop))

    async def play() -> None:
        async with fleet(ca, quick, limits=Limits(content_bytes=1 << 18)) as (_, rogue):
            for number in range(8):
                told = Report(number, 3, rogue.address, 3, {}, {}, 1, 0, 0.0, stats={"x": bytes(250_000)})
                await rogue.letter(3, wire.pack(told, Places()))
            await rogue.say(pb.Frame(ping=pb.Ping(sent=7.0)))
            while (frame := await rogue.hear()) is not None and not frame.HasField("pong"):
                pass
        # two megabytes, of which a quarter is read at once
        assert sum(waited) > 1.0

    asyncio.run(play())


def test_what_waits_for_one_who_does_not_read_is_bounded() -> None:
    # the contents of letters did not count, and one sender could take all the room
    link = Link("somebody who does not read")

    def said(origin: int, size: int) -> bool:
        return link.relay(pb.Frame(head=pb.Head(envelope=pb.Envelope(origin=origin), content=bytes(size))), 1000, 500)

    assert [said(1, 200) for _ in range(4)] == [True, True, False, False]
    assert [said(2, 200), said(3, 300), said(4, 200)] == [True, True, False]

    async def read() -> None:
        written: list[pb.Frame] = []

        async def write(frame: pb.Frame) -> None:
            written.append(frame)

        reader = asyncio.create_task(link.pump(write))
        while len(written) < 4:
            await asyncio.sleep(0)
        assert said(1, 480)
        reader.cancel()

    asyncio.run(read())


def rejected(frames: list[pb.Frame], confer: bool = False) -> str:
    """Return why an edge (host 3) ends a device's link over these frames; empty: it does not."""
    routes, link = RoutingTable(3), Link("d1", Identity("d1", "device", 7))
    routes.add(1, "d1", "device", link, 1)
    routes.learn(1, Member(1, "d1", "device", stamp=1))
    routes.parent = Link("cloud")
    signatures = LetterSignatures(credentials("e", "edge"), "run", 3, 4, {1: "d1"}.get)
    passed_on = Relay(
        routes, Transmitter(3, routes.route, signatures.sign), Limits(), 3, lambda _: None, signatures,
        lambda who, why: None, confer,
    )  # fmt: skip
    author = LetterSignatures(credentials("d1", "device"), "run", 3, 4, {}.get)
    for frame in frames:
        if frame.HasField("head"):
            author.sign(frame.head)
        try:
            passed_on.take(link, frame)
        except ProtocolError as error:
            return str(error)
    return ""


def padded(frame: Any, bytes_: int) -> Any:
    """Return a message with bytes that nobody has asked for."""
    field = type(frame).FromString(frame.SerializeToString())
    size, length = bytes_, b""
    while size >= 128:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    field.MergeFromString(b"\xfa\x3f" + length + bytes([size]) + bytes(bytes_))
    return field


def to_cloud(**head: Any) -> pb.Frame:
    return pb.Frame(head=pb.Head(envelope=pb.Envelope(origin=1, dest=4, series=1, number=1), **head))


@pytest.mark.parametrize("where", ["frame", "head", "envelope", "digest"])
def test_what_is_beside_a_letters_content_is_bounded(where: str) -> None:
    # two hundred heads a second of eight megabytes each, that counted as nothing, waited in the edge's memory for
    # whoever reads slowly; and one that was larger with a certificate than the cloud takes had the edge's link cut
    many = 1 << 20
    frames = {
        "frame": lambda: padded(to_cloud(), many),
        "head": lambda: pb.Frame(head=padded(to_cloud().head, many)),
        "envelope": lambda: pb.Frame(head=pb.Head(envelope=padded(to_cloud().head.envelope, many))),
        "digest": lambda: to_cloud(parts=[pb.Part(size=1, digest=bytes(many))]),
    }
    assert rejected([to_cloud(parts=[pb.Part(size=1, digest=bytes(16))] * 8)]) == ""
    assert "besides its content" in rejected([frames[where]()])


@pytest.mark.parametrize("kind", ["ack", "restart", "chunk"])
def test_small_frames_are_small(kind: str) -> None:
    envelope = pb.Envelope(origin=1, dest=4) if kind == "chunk" else pb.Envelope(origin=4, dest=1)
    for place in (lambda e, f: padded(f, 1000), lambda e, f: pb.Frame(**{kind: {"envelope": padded(e, 1000)}})):
        plain = pb.Frame(**{kind: {"envelope": envelope}})
        assert rejected([plain]) == ""
        assert "besides its content" in rejected([place(envelope, plain)])


def test_chunks_of_nothing_are_counted() -> None:
    # neither frames nor bytes: as many as the network carries, and none of them was ever thrown away
    empty = pb.Frame(chunk=pb.Chunk(envelope=pb.Envelope(origin=1, dest=4)))
    assert "More than 200 frames" in rejected([empty] * 40_000)
    full = pb.Frame(chunk=pb.Chunk(envelope=pb.Envelope(origin=1, dest=4), data=bytes(CHUNK_BYTES)))
    assert rejected([full] * 2100) == "", "models are as fast as the link"


def test_a_device_does_not_fill_anothers_link() -> None:
    # 200 letters a second, each of eight models: they went to the other device before its orders did, it was late in
    # every round, and as it is nobody's parent nobody closed the sender's link
    envelope = pb.Envelope(origin=1, dest=2, series=1, number=1)
    for frame in (pb.Frame(head=pb.Head(envelope=envelope)), pb.Frame(chunk=pb.Chunk(envelope=envelope))):
        assert "nothing to say to each other" in rejected([frame])
        assert rejected([frame], confer=True) == ""
    answer = pb.Frame(ack=pb.Ack(envelope=pb.Envelope(origin=2, dest=1, series=1, number=1)))
    assert "nothing to say to each other" in rejected([answer])


def test_a_device_speaks_of_itself_once(ca: Path, quick: Path) -> None:
    # ten thousand times in one frame: every signature was checked, which took the edge a second and more
    async def play() -> None:
        async with fleet(ca, quick) as (_, rogue):
            # its edge is busy with them, and its log full of them
            member = pb.Member(incarnation=1, samples=10, address=LINKED_ROGUE, via=3)
            members = [_stamped(pb.Member.FromString(member.SerializeToString()), n) for n in range(50)]
            for one in members[:20]:
                await rogue.say(pb.Frame(reach=pb.Reach(members=[one])))
            await rogue.say(pb.Frame(reach=pb.Reach(members=members)))
            while (frame := await rogue.hear()) is not None and not frame.HasField("refusal"):
                pass
            assert frame is not None and "says of 50 hosts" in frame.refusal.why
        lines = [json.loads(line) for line in (quick / "edge-0" / "log").read_text().splitlines()]
        assert len([line for line in lines if line["event"] == "joined" and line["child"] == "d2"]) == 1

    asyncio.run(play())


def test_spendings_of_countless_incarnations_are_one_sum(quick: Path) -> None:
    # each was kept, and written with every transaction of the cloud: after an hour it did nothing else any more
    net = RogueNet(quick, {"name": "hierfavg", "local": {"kind": "private", "clip": 1.0}})
    for number in range(300):
        told = {"incarnation": number, "jobs": 2, "revealed": 1}
        assert net.control(CLOUD, "spent", told) is None
    assert len(net.coordinator._told.spent) <= 10
    assert net.coordinator._told.spendings() == ([600, 0, 0, 0], [300, 0, 0, 0])


@pytest.mark.parametrize("data", [{}, {"children": "all"}, {"children": [1], "reports": 1, "noise": -1.0}])
def test_notes_of_noise_are_an_aggregators(quick: Path, data: dict[str, Any]) -> None:
    # a device's note of a private merge ended the cloud when it computed what the run had spent, and after each
    # restart again
    net = RogueNet(quick, {"name": "hierfavg", "edge": {"merge": {"kind": "private", "clip": 10.0, "noise": 1.0}}})
    whole = {"children": [0, 2], "reports": 2, "noise": 1.0}
    for origin, said in ((ROGUE, data), (ROGUE, whole), (EDGE, data)):
        told = {**EMPTY, "events": [[0.0, "privacy", origin, said]]}
        why = net.control(CLOUD, "notes", told, origin=origin)
        assert why is not None and "events" in why
    net.leave(ROGUE)
    net.run()
    assert net.coordinator.finished
    assert net.coordinator.recorder.read_meta("privacy") is not None
