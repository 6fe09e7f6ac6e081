from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from espalier.core.errors import ProtocolError
from espalier.core.messages import Order, Part, Report, Word
from espalier.core.store import Ref
from espalier.fleet.links import wire
from espalier.fleet.links.protocol import espalier_pb2 as pb

scalars = (
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False) | st.text() | st.binary()
)
keys = st.text() | st.integers() | st.tuples(st.integers(), st.integers())
arrays = nps.arrays(st.sampled_from([np.float32, np.int64, np.bool_]), nps.array_shapes(max_dims=3, max_side=4)).filter(
    lambda a: not np.isnan(a).any()
)
plain = st.recursive(
    scalars | st.integers(0, 9).map(Ref) | arrays,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(keys, inner, max_size=4)
        | st.sets(st.integers(), max_size=4)
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


class Parts:
    """Numbers models in the order they are met, as a letter does."""

    def __init__(self) -> None:
        self.refs: list[Ref] = []

    def place(self, ref: Ref) -> int:
        if ref not in self.refs:
            self.refs.append(ref)
        return self.refs.index(ref)

    def numbers(self, part: Part) -> bytes:
        return np.arange(part.size, dtype="<f4").tobytes()


@settings(deadline=None)
@given(data=st.dictionaries(st.text(max_size=8), plain, max_size=4))
def test_plain_data_survives_the_wire(data: dict[str, Any]) -> None:
    parts = Parts()
    word = Word("note", 3, (1 << 32) | 7, 1.25, data)
    content = pb.Content.FromString(wire.pack(word, parts).SerializeToString())
    back = wire.unpack(content, parts.refs)
    assert isinstance(back, Word)
    assert (back.kind, back.sender, back.to, back.sent) == ("note", 3, (1 << 32) | 7, 1.25)
    assert same(back.data, data)


def test_orders_and_reports_survive_the_wire() -> None:
    order = Order(7, 15, 3, {"b": Ref(5), "a": Ref(2)}, 4, 2, 1, 10.5, 2.5, Ref(9), "losses", {"k": [Ref(2)]}, True)
    report = Report(7, 15, 3, 15, {"": Ref(5)}, {"": 12}, 4, 2, 11.5, 0.25, 1.5, {"histogram": np.arange(3)})
    for message in (order, report):
        parts = Parts()
        content = pb.Content.FromString(wire.pack(message, parts).SerializeToString())
        # the receiver's names are its own: a model that travels once is one model there
        mine = [Ref(100 + i) for i in range(len(parts.refs))]
        back = wire.unpack(content, mine)
        renamed = dict(zip(parts.refs, mine, strict=True))
        assert isinstance(back, type(message))
        assert list(back.models.items()) == [(g, renamed[r]) for g, r in message.models.items()]
        for name in (
            "id",
            "order",
            "back",
            "sender",
            "to",
            "updates",
            "round",
            "sent",
            "budget",
            "ask",
            "samples",
            "compute",
        ):
            assert getattr(back, name, None) == getattr(message, name, None)
    assert len(parts.refs) == 1
    parts = Parts()
    wire.pack(order, parts)
    assert parts.refs == [Ref(5), Ref(2), Ref(9)]


def test_some_numbers_of_a_model() -> None:
    # two spans of 2 and 3 numbers: 20 bytes, whatever the model's size
    restored: list[Any] = []

    def restore(spans: Any, numbers: Any) -> Ref:
        restored.append((spans, numbers.tolist()))
        return Ref(50)

    word = Word("w", 0, 1, 0.0, {"crop": Part(Ref(3), ((1, 3), (10, 13)))})
    content = pb.Content.FromString(wire.pack(word, Parts()).SerializeToString())
    back = wire.unpack(content, [], restore)
    assert back.data["crop"] == Part(Ref(50), ((1, 3), (10, 13)))  # type: ignore[union-attr]
    assert restored == [(((1, 3), (10, 13)), [0, 1, 2, 3, 4])]
    for wrong in (pb.Cut(starts=[3], stops=[1]), pb.Cut(starts=[1], stops=[3], data=b"1234"), pb.Cut(starts=[1])):
        with pytest.raises(ProtocolError, match="A cut of a model"):
            wire.unpack(table(pb.Value(cut=wrong)), [], restore)


def test_an_order_without_optional_fields() -> None:
    order = Order(1, 4, 0, {}, 1, 0, 0, 0.0)
    back = wire.unpack(pb.Content.FromString(wire.pack(order, Parts()).SerializeToString()), [])
    assert isinstance(back, Order)
    assert (back.budget, back.anchor, back.ask, back.args) == (None, None, None, {})


ORDER = {"id": 1, "sender": 4, "to": 0, "updates": 1}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (pb.Content(), "holds no message"),
        (pb.Content(order=pb.Order(**{**ORDER, "sender": -1})), "no address"),
        (pb.Content(order=pb.Order(**{**ORDER, "updates": -5})), "updates is -5"),
        (pb.Content(order=pb.Order(**ORDER, sent=math.nan)), "sent is nan"),
        (pb.Content(order=pb.Order(**ORDER, budget=math.inf)), "budget is inf"),
        (pb.Content(order=pb.Order(**ORDER, models=[pb.Model(part=1)])), "names part 1"),
        (pb.Content(order=pb.Order(**ORDER, models=[pb.Model(), pb.Model()])), "two models of the group"),
        (pb.Content(order=pb.Order(**ORDER, args=pb.Value(whole=1))), "args is a int"),
        (pb.Content(report=pb.Report(samples=[pb.Samples(count=-1)])), "samples is -1"),
        (pb.Content(word=pb.Word(kind="")), "kind has 0 letters"),
        (pb.Content(word=pb.Word(kind="x" * 65)), "kind has 65 letters"),
    ],
)
def test_what_no_node_may_send_is_refused(content: pb.Content, what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        wire.unpack(content, [Ref(1)])


def table(value: pb.Value) -> pb.Content:
    pair = pb.Table(keys=[pb.Value(text="k")], values=[value])
    return pb.Content(word=pb.Word(kind="w", data=pb.Value(table=pair)))


def nested(depth: int) -> pb.Value:
    value = pb.Value(whole=1)
    for _ in range(depth):
        value = pb.Value(items=pb.Items(values=[value]))
    return value


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (pb.Value(), "unknown kind"),
        (pb.Value(big="9" * 65), "more than 64 digits"),
        (pb.Value(big="1e9"), "or letters"),
        (pb.Value(array=pb.Array(dtype="|O", shape=[1], data=b"12345678")), "numbers and truth values"),
        (pb.Value(array=pb.Array(dtype="<f4", shape=[4_000_000_000, 4_000_000_000], data=b"1234")), "has 4 bytes"),
        (pb.Value(array=pb.Array(dtype="<f4", shape=[1] * 9, data=b"1234")), "has 4 bytes"),
        (pb.Value(table=pb.Table(keys=[pb.Value(text="a")])), "another number of keys"),
        (pb.Value(table=pb.Table(keys=[pb.Value(real=0.5)], values=[pb.Value(whole=1)])), "float as key"),
        (pb.Value(bag=pb.Items(values=[pb.Value(items=pb.Items())])), "list as key"),
        (nested(40), "nested more than 32 deep"),
    ],
)
def test_malformed_plain_data_is_refused(value: pb.Value, what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        wire.unpack(table(value), [])


def test_only_plain_data_can_be_sent() -> None:
    for thing in (object(), np.array(["a"]), np.array([object()]), lambda: 0, 1 + 2j):
        with pytest.raises(ProtocolError):
            wire.pack(Word("w", 0, 1, 0.0, {"thing": thing}), Parts())
    with pytest.raises(ProtocolError, match="no models"):
        wire.control("note", {"model": Ref(1)})


@settings(deadline=None)
@given(data=st.binary(max_size=200))
def test_noise_is_refused_or_read_but_never_more(data: bytes) -> None:
    from google.protobuf.message import DecodeError

    try:
        content = pb.Content.FromString(data)
        wire.unpack(content, [Ref(1)])
    except (DecodeError, ProtocolError):
        pass
