from __future__ import annotations

import contextlib
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from espalier.core import codec
from espalier.core.errors import ProtocolError
from espalier.core.messages import Order, Part, Report, Word
from espalier.core.store import Ref
from espalier.fleet.links import wire

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


class Same(Parts):
    """Leaves models their numbers."""

    def place(self, ref: Ref) -> int:
        return int(ref)


def read(data: bytes, refs: list[Ref], restore: Any = None) -> Any:
    """A message as it arrives."""
    found = wire.unpack(data)
    assert not isinstance(found, wire.ControlLetter)
    return wire.enclosed(found, refs, restore, 8)


@settings(deadline=None)
@given(data=st.dictionaries(st.text(max_size=8), plain, max_size=4))
def test_plain_data_survives_the_wire(data: dict[str, Any]) -> None:
    parts = Parts()
    word = Word("note", 3, (1 << 32) | 7, 1.25, data)
    back = read(wire.pack(word, parts), parts.refs)
    assert isinstance(back, Word)
    assert (back.kind, back.sender, back.to, back.sent) == ("note", 3, (1 << 32) | 7, 1.25)
    assert same(back.data, data)


def test_orders_and_reports_survive_the_wire() -> None:
    order = Order(7, 15, 3, {"b": Ref(5), "a": Ref(2)}, 4, 2, 1, 10.5, 2.5, Ref(9), "losses", {"k": [Ref(2)]}, True)
    report = Report(7, 15, 3, 15, {"": Ref(5)}, {"": 12}, 4, 2, 11.5, 0.25, 1.5, {"histogram": np.arange(3)})
    for message in (order, report):
        parts = Parts()
        content = wire.pack(message, parts)
        # the receiver's names are its own: a model that travels once is one model there
        mine = [Ref(100 + i) for i in range(len(parts.refs))]
        back = read(content, mine)
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
    back = read(wire.pack(word, Parts()), [], restore)
    assert back.data["crop"] == Part(Ref(50), ((1, 3), (10, 13)))
    assert restored == [(((1, 3), (10, 13)), [0, 1, 2, 3, 4])]
    for spans, numbers in ((((3, 1),), b""), (((1, 3),), b"1234"), ((("a", 3),), b""), (7, b""), (((1, 2),), "1234")):
        wrong = wire.ModelCut(spans, numbers)  # type: ignore[arg-type]
        with pytest.raises(ProtocolError, match="A cut of a model"):
            read(codec.pack(Word("w", 0, 1, 0.0, {"k": wrong})), [], restore)


def test_an_order_without_optional_fields() -> None:
    order = Order(1, 4, 0, {}, 1, 0, 0, 0.0)
    back = read(wire.pack(order, Parts()), [])
    assert isinstance(back, Order)
    assert (back.budget, back.anchor, back.ask, back.args) == (None, None, None, {})


def raw(value: Any) -> bytes:
    """A word whose data is this, as msgpack has it."""
    table = {"!": "dict", "v": [["k", value]]}
    packed: bytes = msgpack.packb({"!": "data", "c": "Word", "v": ["w", 0, 1, 0.0, table]})
    return packed


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ({"x": 1}, "unknown kind"),
        ({"!": "moon", "v": 1}, "unknown kind"),
        ({"!": 7, "v": 1}, "unknown kind"),
        (msgpack.ExtType(5, b"x"), "unknown kind"),
        ({"!": "big", "v": "9" * 65}, "more than 64 digits"),
        ({"!": "big", "v": "1e9"}, "or letters"),
        ({"!": "ref", "v": -1}, "no number"),
        ({"!": "ref", "v": 1.5}, "no number"),
        ({"!": "array", "d": "|O", "s": [1], "v": b"12345678"}, "numbers and truth values"),
        ({"!": "array", "d": "<f4", "s": [4_000_000_000, 4_000_000_000], "v": b"1234"}, "has 4 bytes"),
        ({"!": "array", "d": "<f4", "s": [1] * 9, "v": b"1234"}, "cannot be"),
        ({"!": "array", "d": "<f4", "s": [-1, -1], "v": b"1234"}, "cannot be"),
        ({"!": "dict", "v": [["a"]]}, "another number of keys"),
        ({"!": "dict", "v": 1}, "that is none"),
        ({"!": "dict", "v": [[0.5, 1]]}, "float as key"),
        ({"!": "dict", "v": [[{"!": "tuple", "v": [[]]}, 1]]}, "dict as key"),
        ({"!": "set", "v": [[]]}, "list as key"),
        (nested(120), "nested more than 96 deep"),
        # a class of the project's that is saved in checkpoints is none of a message's
        ({"!": "data", "c": "DeviceState", "v": []}, "not accepted here"),
        ({"!": "data", "c": "Order", "v": [0] * 13}, "not accepted here"),
        ({"!": "data", "c": "os.system", "v": ["true"]}, "not accepted here"),
    ],
)
def test_malformed_plain_data_is_refused(value: Any, what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        wire.unpack(raw(value))


def test_what_is_no_message_is_refused() -> None:
    for data in (b"", b"\xff\xff\xff", b"\xc1", codec.pack(1), codec.pack([1]), msgpack.packb([1] * 10)):
        with pytest.raises(ProtocolError):
            wire.unpack(data)
    with pytest.raises(ProtocolError, match="lacks fields"):
        wire.unpack(msgpack.packb({"!": "data", "c": "Word", "v": ["w", 0]}))
    with pytest.raises(ProtocolError, match="names part 3 of a letter that has 1"):
        read(wire.pack(Word("w", 0, 1, 0.0, {"m": Ref(3)}), Same()), [Ref(1)])


PRIME = (1 << 61) - 1


def alike(count: int) -> dict[str, list[Any]]:
    """Keys of tables that all have one hash (numbers) or may have (tuples): by kind, as msgpack has them."""
    numbers = [{"!": "big", "v": str(PRIME * (9 + n))} for n in range(count)]
    pairs = [{"!": "tuple", "v": [0, n]} for n in range(count)]  # tuples' hashes can be computed backwards
    return {"big": numbers, "tuple": pairs}


@pytest.mark.parametrize("kind", ["big", "tuple"])
def test_keys_whose_hashes_can_be_chosen_are_few(kind: str) -> None:
    # a table of 40,000 of them took a minute to read, and so did every letter of a megabyte
    few, many = alike(1024)[kind], alike(1025)[kind]
    wire.unpack(raw({"!": "dict", "v": [[key, None] for key in few]}))
    wire.unpack(raw({"!": "set", "v": few}))
    for wicked in ({"!": "dict", "v": [[key, None] for key in many]}, {"!": "set", "v": many}):
        with pytest.raises(ProtocolError, match="more than"):
            wire.unpack(raw(wicked))
    if kind == "big":  # a policy may make a table of what came as a list
        with pytest.raises(ProtocolError, match="long whole numbers"):
            wire.unpack(raw(many))


def test_tables_that_are_not_the_codecs_are_not_built() -> None:
    # msgpack's own times may be its tables' keys, and their hashes can be chosen: a letter of 4 MB took 25 minutes
    times = {msgpack.Timestamp(seconds, 0): None for seconds in range(10)}
    for keys in (times, {1: None}, {None: None}):
        with pytest.raises(ProtocolError, match="not allowed for map key"):
            wire.unpack(msgpack.packb(keys, use_bin_type=True))


def test_only_plain_data_can_be_sent() -> None:
    for thing in (object(), np.array(["a"]), np.array([object()]), lambda: 0, 1 + 2j):
        with pytest.raises(ProtocolError):
            wire.pack(Word("w", 0, 1, 0.0, {"thing": thing}), Parts())
    with pytest.raises(ProtocolError, match="no models"):
        wire.control("note", {"model": Ref(1)})


@settings(deadline=None)
@given(data=st.binary(max_size=200))
def test_noise_is_refused_or_read_but_never_more(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        wire.unpack(data)
