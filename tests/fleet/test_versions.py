"""Older and newer nodes in one fleet: both ends of a link speak the newest version that both know."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from espalier.fleet.links.framing import CERTIFICATE_BYTES, CERTIFICATES, Certificates
from espalier.fleet.links.link import Link
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.links.wire import VERSIONS, WireVersions
from espalier.record.run import Run
from tests.fleet import counting

OLDER, NEWER = WireVersions(6, 6), WireVersions(7, 8)


def test_these_are_an_older_and_a_newer_one() -> None:
    assert WireVersions(6, 7) == VERSIONS


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [((6, 7), (6, 7), 7), ((6, 7), (6, 6), 6), ((6, 7), (7, 8), 7), ((6, 7), (8, 9), None), ((6, 6), (7, 7), None)],
)
def test_the_newest_common_version(one: tuple[int, int], other: tuple[int, int], common: int | None) -> None:
    assert WireVersions(*one).common(WireVersions(*other)) == common


@given(*[st.integers(1, 9)] * 4)
def test_both_ends_find_the_same_version_and_speak_it(a: int, b: int, c: int, d: int) -> None:
    one, other = WireVersions(min(a, b), max(a, b)), WireVersions(min(c, d), max(c, d))
    common = one.common(other)
    assert common == other.common(one)
    spoken = set(range(one.oldest, one.newest + 1)) & set(range(other.oldest, other.newest + 1))
    assert common == max(spoken, default=None)


# -- what version 7 does otherwise: an origin's certificate goes over a link once ---------------------------------


def head(origin: int, certificate: bytes) -> pb.Frame:
    return pb.Frame(head=pb.Head(envelope=pb.Envelope(origin=origin), certificate=certificate, signature=b"s"))


async def through(version: int, frames: list[pb.Frame]) -> tuple[list[pb.Frame], list[pb.Frame]]:
    """Send frames over a link of a version; return what was on the wire, and what the other end makes of it."""
    near, far, wire = Link("near", version=version), Link("far", version=version), []

    async def write(frame: pb.Frame) -> None:
        wire.append(pb.Frame.FromString(frame.SerializeToString()))

    for frame in frames:
        assert await near.send(frame)
    pump = asyncio.create_task(near.pump(write))
    await asyncio.sleep(0)
    near.close()
    await pump
    return wire, [far.whole(pb.Frame.FromString(f.SerializeToString())) for f in wire]


@pytest.mark.parametrize(("version", "certificates"), [(6, [b"a", b"a", b"b", b"a"]), (7, [b"a", b"", b"b", b""])])
def test_how_a_version_writes_certificates(version: int, certificates: list[bytes]) -> None:
    said = [(0, b"a"), (0, b"a"), (1, b"b"), (0, b"a")]
    wire, heard = asyncio.run(through(version, [head(*one) for one in said]))
    assert [f.head.certificate for f in wire] == certificates
    assert heard == [head(*one) for one in said]


def test_an_older_node_understands_no_letter_without_a_certificate() -> None:
    assert Link("far", version=6).whole(head(0, b"")).head.certificate == b""


SIZES = st.sampled_from([0, 1, 2, CERTIFICATE_BYTES, CERTIFICATE_BYTES + 1])


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([b"a", b"b"]), SIZES), max_size=30))
def test_the_other_end_has_every_certificate_again(said: list[tuple[int, bytes, int]]) -> None:
    sent, heard = Certificates(), Certificates()
    for origin, letter, size in said:
        whole = head(origin, letter * size).head
        cut = head(origin, letter * size).head
        sent.leave_out(cut)
        heard.put_back(cut)
        # a head that had none gets its origin's last: whether the signature is that one's is checked then
        assert cut == whole or not size


def test_a_link_remembers_a_bounded_number_of_certificates() -> None:
    sent, heard = Certificates(), Certificates()
    for _ in range(2):
        for origin in range(CERTIFICATES + 10):
            cut = head(origin, b"a").head
            sent.leave_out(cut)
            heard.put_back(cut)
            assert cut.certificate == b"a"
    assert len(heard._of) == len(sent._of) == CERTIFICATES


# -- fleets of several versions ---------------------------------------------------------------------------------


def test_a_rolling_upgrade_in_the_middle_of_a_run_loses_nothing(tmp_path: Path) -> None:
    # all are older but device 1, which is newer than all; they are upgraded one by one, as a service manager does it,
    # but for device 0
    rounds, devices = 12, 4
    made = counting.experiment(devices, 2, rounds)
    with counting.fleet(made, tmp_path, patience=30.0) as nodes:
        for name in ("cloud", "edge-0", "edge-1", *(f"device-{number}" for number in range(devices))):
            nodes.launch(name, versions=WireVersions(6, 8) if name == "device-1" else OLDER)
        for turn, name in enumerate(("edge-0", "device-2", "cloud", "edge-1", "device-3"), 1):
            nodes.until("cloud", lambda s, least=2 * turn: s.get("round", -1) >= least)  # type: ignore[misc]
            nodes.kill(name, signal.SIGHUP)
            assert nodes.processes[name].exitcode == 0
            nodes.launch(name, versions=NEWER if name == "device-3" else VERSIONS)
        nodes.wait(60)
    found = counting.counts(tmp_path / "cloud", devices, counting.weights_of(made))
    torch.testing.assert_close(found, torch.full((devices,), rounds / devices, dtype=torch.float64), atol=1e-5, rtol=0)
    times = counting.merged(Run(tmp_path / "cloud"))
    assert (sum(times.values()), set(times.values())) == (rounds * devices, {1})


def test_a_node_with_which_nobody_shares_a_version_is_told_so(tmp_path: Path) -> None:
    with counting.fleet(counting.experiment(1, 1, 1), tmp_path) as nodes:
        nodes.start("cloud")
        nodes.launch("edge-0", versions=WireVersions(8, 9))
        nodes.processes["edge-0"].join(30)
        assert nodes.processes["edge-0"].exitcode == 2
    log = (tmp_path / "edge-0" / "node.log").read_text()
    assert f"it speaks versions 8 to 9 of the protocol, this node {VERSIONS}: upgrade the older one" in log
