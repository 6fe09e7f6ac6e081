from __future__ import annotations

import random
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.core.errors import ProtocolError
from espalier.fleet.links.framing import CHUNK_BYTES, Assembler, Letter, LetterPart, frames
from espalier.fleet.links.limits import Limits, TokenBucket
from espalier.fleet.links.protocol import espalier_pb2 as pb


def letter(*parts: bytes, number: int = 1) -> Letter:
    return Letter(7, 5, number, b"content", [LetterPart.of(p, 0) for p in parts])


def fed(assembler: Assembler, cut: list[pb.Frame]) -> Any:
    found = None
    for frame in cut:
        found = assembler.head(frame.head) if frame.HasField("head") else assembler.chunk(frame.chunk)
    return found


SIZES = [0, 1, 1000, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES]


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(
        st.sampled_from([0, 1, 1000, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES]), max_size=3
    )
)
def test_cut_and_put_together(sizes: list[int]) -> None:
    parts = [random.Random(n).randbytes(size) for n, size in enumerate(sizes)]
    cut = list(frames(letter(*parts), origin=3))
    # every frame fits gRPC's bound with room to spare, and a part of n bytes has ceil(n / CHUNK_BYTES) chunks
    assert len(cut) == 1 + sum(-(-size // CHUNK_BYTES) for size in sizes)
    assert all(f.ByteSize() < CHUNK_BYTES + 200 for f in cut)
    found = fed(Assembler(Limits()), [pb.Frame.FromString(f.SerializeToString()) for f in cut])
    assert (found.origin, found.series, found.number) == (3, 5, 1)
    assert [bytes(p.data) for p in found.parts] == parts


def test_letters_of_two_origins_may_interleave() -> None:
    one, two = (list(frames(letter(bytes(2 * CHUNK_BYTES)), origin=o)) for o in (1, 2))
    assembler = Assembler(Limits())
    assert fed(assembler, [one[0], two[0], one[1], two[1], one[2]]).origin == 1
    assert fed(assembler, [two[2]]).origin == 2


def test_a_letter_that_begins_anew_replaces_the_unfinished_one() -> None:
    cut = list(frames(letter(bytes(2 * CHUNK_BYTES)), origin=1))
    assembler = Assembler(Limits())
    assert fed(assembler, [cut[0], cut[1], cut[0], cut[1], cut[2]]) is not None
    # a chunk whose predecessor was lost drops the letter: it comes again
    assert fed(assembler, [cut[0], cut[2]]) is None
    assert fed(assembler, [cut[1], cut[2]]) is None
    assert fed(assembler, cut) is not None


def damaged(frame: pb.Frame, **changes: object) -> pb.Frame:
    chunk = pb.Chunk()
    chunk.CopyFrom(frame.chunk)
    for name, value in changes.items():
        setattr(chunk, name, value)
    return pb.Frame(chunk=chunk)


def test_damage_is_noticed() -> None:
    head, chunk = frames(letter(b"abcdef"), origin=1)
    for changes, what in (
        ({"data": b"abcdeX"}, "checksum is wrong"),
        ({"data": b"abcdefg", "checksum": zlib.crc32(b"abcdefg")}, "of a part of 6 bytes"),
        ({"data": b"", "checksum": 0}, "A chunk of 0 bytes"),
        ({"part": 3}, "part 3 of a letter with 1"),
        ({"data": b"abcdeX", "checksum": zlib.crc32(b"abcdeX")}, "digest is wrong"),
    ):
        assembler = Assembler(Limits())
        assembler.head(head.head)
        with pytest.raises(ProtocolError, match=what):
            assembler.chunk(damaged(chunk, **changes).chunk)


def test_sizes_are_checked_before_anything_is_allocated() -> None:
    # a head that claims an exabyte costs nothing
    limits = Limits(letter_bytes=1000, content_bytes=100, parts=2)
    envelope = pb.Envelope(origin=1, dest=7, series=5, number=1)
    for head in (
        pb.Head(envelope=envelope, parts=[pb.Part(size=1 << 60)]),
        pb.Head(envelope=envelope, parts=[pb.Part(size=1)] * 3),
        pb.Head(envelope=envelope, content=bytes(101)),
    ):
        with pytest.raises(ProtocolError, match="are accepted"):
            Assembler(limits).head(head)


def test_unfinished_letters_are_bounded() -> None:
    assembler = Assembler(Limits())
    for number in range(Assembler.OPEN):
        assembler.head(next(frames(letter(b"ab"), origin=number)).head)
    with pytest.raises(ProtocolError, match="begun and none is finished"):
        assembler.head(next(frames(letter(b"ab"), origin=9999)).head)


def test_of_one_origin_one_letter_is_in_the_making() -> None:
    assembler = Assembler(Limits())
    one, two = (list(frames(letter(bytes(2 * CHUNK_BYTES), number=n), origin=1)) for n in (1, 2))
    assert fed(assembler, [one[0], one[1], two[0], one[2]]) is None, "the first one was given up"
    assert fed(assembler, [two[1], two[2]]).number == 2


def test_the_bound_of_a_letter_follows_from_the_model() -> None:
    # 55,210 numbers of 8 bytes, and a kilobyte each: eight of them in a device's letter, 256 in a server's
    limits = Limits().fitted(55_210)
    assert limits.of_device() == 8 * (8 * 55_211 + 1024)
    assembler = Assembler(limits, devices=3)
    for origin, size, accepted in ((2, 3_500_000, True), (2, 4_000_000, False), (3, 100_000_000, True)):
        head = pb.Head(envelope=pb.Envelope(origin=origin, dest=7, series=5, number=1), parts=[pb.Part(size=size)])
        if accepted:
            assert assembler.head(head) is None
            continue
        with pytest.raises(ProtocolError, match="are accepted"):
            assembler.head(head)


def test_a_meter_lets_through_a_burst_and_then_the_rate() -> None:
    meter = TokenBucket(rate=0.001, burst=3)
    assert [meter.take() for _ in range(5)] == [True, True, True, False, False]
    assert TokenBucket(rate=1e9, burst=1).take()


def test_limits_must_let_something_through() -> None:
    from espalier.core.errors import ConfigError

    with pytest.raises(ConfigError, match=r"limits.parts = 0: must be more than 0"):
        Limits(parts=0)
