"""A hostile member against engines of a fleet: any letter, in any order, with any field, restarts in between.

The member is an enrolled device: its letters come under its own address, as its certificate says, whatever else they
hold. Most are its own: an honest engine of its own takes orders and trains, and what it would say is kept from the
wire. The member says it, or something like it: again, too late, to others, with another field, from another place.
The rest is made up. `tests/fleet/test_hostile.py` plays some hundred letters, `benchmarks/hostile.py` as many as it is
told.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import Message
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from espalier.core.address import role
from espalier.core.errors import EspalierError
from espalier.core.messages import Order, Report, Word
from espalier.core.store import Ref
from espalier.fleet.authority.check import Authority
from espalier.fleet.authority.rules import CONTROLS, IN_USE, SERVED
from espalier.fleet.links import wire
from espalier.fleet.links.encoding import Encoding, encode
from espalier.fleet.links.framing import LetterPart
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.node.events import Gone
from tests.fleet.test_authority import CLOUD, EDGE, ROGUE, ROUNDS, VICTIM, Places, Rogue

HONEST = [1, VICTIM, 3, EDGE, EDGE + 1, CLOUD]
#: what every number of the member's own models is
MARK = 0.666
METHODS: dict[str, Any] = {
    "hierfavg": "hierfavg",
    "secure": {"name": "hierfavg", "edge": {"merge": {"kind": "secure"}}},
    "d2d": {"name": "d2d", "rounds": 1},
    "easf": "easf",
    "standalone": "standalone",
}

numbers = st.one_of(
    st.integers(-2, 8), st.sampled_from([2**31, 2**53, 2**63, 2**64, 2**70, -(2**70)]),
    st.sampled_from([float("nan"), float("inf"), -float("inf"), 0.5, 1e308]),
)  # fmt: skip
nodes = st.sampled_from([*range(CLOUD + 2), *(role(h, n) for h in (VICTIM, ROGUE, EDGE) for n in (1, 2)), -1, 2**40])
words = st.one_of(
    st.text(max_size=8), st.sampled_from(["", "awake", SERVED, IN_USE, "label_histogram", "help", "keys"])
)
plain = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, nodes, words, st.binary(max_size=8), st.just(Ref(0))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(words, st.integers(0, 5)), inner, max_size=3)
    ),
    max_leaves=6,
)
#: values that a field may well have, by its name
LIKELY: dict[str, st.SearchStrategy[Any]] = {
    "node": nodes, "child": nodes, "parent": nodes, "root": nodes, "host": nodes, "to": nodes, "dispatcher": nodes,
    "sender": st.sampled_from([ROGUE, role(ROGUE, 1), VICTIM, EDGE, CLOUD]),
    "progress": st.integers(0, ROUNDS + 2), "round": st.integers(0, ROUNDS), "clock": st.integers(0, ROUNDS),
    "updates": st.sampled_from([0, 1, 2, 2**40]), "samples": st.sampled_from([{"": 10}, {"": 2**40}, {}, {"x": 1}]),
    "models": st.sampled_from([{"": Ref(0)}, {}, {"x": Ref(0)}, {"": Ref(0), "x": Ref(0)}]),
    "model": st.just(Ref(0)), "anchor": st.sampled_from([None, Ref(0)]),
    "ask": st.sampled_from([None, "label_histogram"]),
    "back": st.booleans(), "final": st.booleans(), "groups": st.just({}), "stats": st.just({}), "args": st.just({}),
    "parents": st.sampled_from([{}, {ROGUE: EDGE}, {VICTIM: role(ROGUE, 1)}, {role(ROGUE, 1): CLOUD}]),
    "sent": st.sampled_from([0.0, 1.0, 1e9]), "at": st.sampled_from([0.0, 1e9]), "download": st.just(0.0),
    "compute": st.sampled_from([0.0, 1e9]), "order": st.integers(0, 6), "id": st.integers(0, 6),
    "events": st.sampled_from([[], [[0.0, "rejected", ROGUE, {}]], [[0.0, "refused", VICTIM, {"by": "cloud"}]]]),
    "spans": st.sampled_from([[], [[ROGUE, "train", 0.0, 1.0]], [[VICTIM, "train", 0.0, 1.0]]]),
    "scores": st.sampled_from([{}, {"acc": 1.0}]), "traffic": st.just([]), "data": st.just({}), "kind": words,
    "step": st.sampled_from(["begin", "keys", "shares", "boxes", "void", "there", "help"]), "sum": st.integers(0, 3),
}  # fmt: skip


def field(name: str) -> st.SearchStrategy[Any]:
    """Return values of a field: likely ones, and any."""
    return st.one_of(LIKELY.get(name, plain), LIKELY.get(name, plain), plain)


@st.composite
def controls(draw: st.DrawFn) -> bytes | None:
    """Draw a control letter."""
    kind = draw(st.one_of(st.sampled_from(sorted(CONTROLS)), words))
    rules = CONTROLS.get(kind)
    data = {name: draw(field(name)) for name in (rules.fields if rules else ()) if draw(st.integers(0, 9))}
    if not draw(st.integers(0, 5)):
        data[draw(words)] = draw(plain)
    return _written(lambda: wire.control(kind, data))


@st.composite
def messages(draw: st.DrawFn) -> bytes | None:
    """Draw a message between nodes."""
    kind = draw(st.sampled_from([Order, Report, Word]))
    values = {f.name: draw(field(f.name)) for f in fields(kind) if draw(st.integers(0, 19)) or f.name in LIKELY}
    return _written(lambda: wire.pack(kind(**values), Places()))


def _written(write: Any) -> bytes | None:
    """Return what a letter would be on the wire; None if it cannot even be written."""
    try:
        found: bytes = write()
    except (EspalierError, TypeError, ValueError, OverflowError, AttributeError, KeyError, RecursionError):
        return None
    return found


def _model(size: int) -> LetterPart:
    return encode(torch.full((size,), MARK))


#: models that no merge can take
unusable = st.one_of(
    st.just(()), st.just((_model(63),)), st.just((encode(torch.full((64,), float("nan"))),)),
    st.builds(
        lambda data, code, base: (LetterPart.of(data, code, base),),
        st.binary(max_size=64), st.one_of(st.sampled_from([int(e) for e in Encoding]), st.just(99)), st.integers(0, 4),
    ),
)  # fmt: skip
parts = st.one_of(st.just((_model(64),)), st.just((_model(64),) * 3), unusable)


#: models that a merge takes, and that nobody would want
EXTREME = {value: (encode(torch.full((64,), value)),) for value in (1e30, 3e38, -1e30, 1e-40)}

#: values within the rules that no honest device would send, by field
LEGAL: dict[str, list[Any]] = {
    "samples": [{"": 0}, {"": 1}, {"": 10}, {"": 11}], "updates": [0, 1, 2**32], "sent": [0.0, 1e9],
    "download": [-1e9, 1e9], "compute": [0.0, 1e9], "loss": [None, -1e9, 1e9], "models": [{}],
    "stats": [{}, {"histogram": [1.0]}], "dispatcher": [EDGE, EDGE + 1, CLOUD, VICTIM], "final": [True, False],
    "events": [[], [[0.0, "rejected", ROGUE, {}]], [[1e9, "late", None, {"round": 2**40}]]],
    "spans": [[], [[ROGUE, "train", 0.0, 1e9]], [[ROGUE, "train", 1e9, 0.0]]],
    "scores": [{}, {"acc": 1e38}, {"acc": 1e300}, {"acc": float("nan"), "loss": -1e38}],
    "traffic": [[], [["dev-edge", "up", "model", 2**62]], [["dev-dev", "peer", "ctrl", 2**62]] * 64],
    "node": [ROGUE, role(ROGUE, 1)], "step": ["keys", "shares", "help"], "seed": [bytes(32)], "certificate": [b""],
    "accused": [[], {}, [1, VICTIM, 3], {VICTIM: bytes(32)}], "opens": [{}], "boxes": [{}], "commitments": [{}],
    "lost": [{}], "there": [{}],
}  # fmt: skip

#: what a member may do with a letter of its own
DEVIATIONS = [
    "true",
    "true",
    "changed",
    "changed",
    "shifted",
    "flipped",
    "model",
    "extreme",
    "elsewhere",
    "readdressed",
    "restated",
]
#: numbers that a statistic may hold as far as the wire is concerned
ODD = [-1.0, 0.0, 1e9, 1e300, float("nan"), float("inf")]

#: values of a frame's fields, by the field's type
COUNTS = [0, 1, 2, 3, 4, 5, 2**31, 2**32 - 1]
LONG_COUNTS = [*COUNTS, 2**53, 2**63 - 1, 2**63, 2**64 - 1]
ANY: dict[int, list[Any]] = {
    Field.TYPE_UINT32: COUNTS, Field.TYPE_FIXED32: COUNTS, Field.TYPE_UINT64: LONG_COUNTS,
    Field.TYPE_INT64: [-1, -(2**63), *LONG_COUNTS[:-2]], Field.TYPE_BOOL: [True, False],
    Field.TYPE_DOUBLE: [0.0, -1.0, 1e308, float("nan"), float("inf")],
    Field.TYPE_BYTES: [b"", b"x", bytes(40)],
    Field.TYPE_STRING: ["", "d0", "d2", "edge-0", "device", "edge", "run", "x" * 70, "\x1b[2J", "127.0.0.1:1"],
}  # fmt: skip

Said = tuple[int, bytes, tuple[LetterPart, ...]]


class Door:
    """The check at a host's door, which tells whether a letter got through."""

    def __init__(self, authority: Authority) -> None:
        self._authority, self.passed = authority, False

    def check(self, origin: int, message: Any) -> None:
        self._authority.check(origin, message)
        self.passed = True

    def check_control(self, origin: int, kind: str, data: Any) -> None:
        self._authority.check_control(origin, kind, data)
        self.passed = True


class HostileMember(RuleBasedStateMachine):
    """The run of the others, while one member says what it likes."""

    @initialize(method=st.sampled_from(["hierfavg", "hierfavg", "secure", *METHODS]))
    def begin(self, method: str) -> None:
        memory = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(prefix="espalier-", dir=memory if memory.is_dir() else None))
        self.method = method
        self.net = Rogue(self.folder, METHODS[method])
        #: what the member's honest engine would have said, the newest last
        self.true: list[Said] = []
        self.at, self.moves = EDGE, 0
        self.reported = self.altered = self.extreme = False
        #: letters by what became of them
        self.fates: Counter[str] = Counter()

    def hold(self) -> None:
        """Keep what the member's own engine says from the wire."""
        net = self.net
        mine = [(dest, letter) for dest, origin, letter in net.wire if origin == ROGUE]
        self.true += [(dest, letter.content, tuple(letter.parts)) for dest, letter in mine]
        self.true = self.true[-40:]
        net.wire = [w for w in net.wire if w[1] != ROGUE]
        net.boxes[ROGUE] = {}

    def steps(self, count: int) -> None:
        """Let things happen."""
        for _ in range(count):
            self.hold()
            if self.net.coordinator.finished or not self.net.step():
                break
        self.hold()

    def send(self, dest: int, content: bytes, parts: tuple[LetterPart, ...]) -> None:
        """Say something, and see what becomes of it."""
        # an answer to an order that it was given may be merged: that is its office
        self.reported = self.reported or _reports(content)
        self.hold()
        inbox = self.net.engines[dest].inbox
        authority = inbox._authority
        door = Door(authority)
        inbox._authority = door  # type: ignore[assignment]
        try:
            why = self.net.attack(dest, content, parts)
        finally:
            inbox._authority = authority
        if door.passed:
            self.fates["taken" if why is None else "refused behind the door"] += 1
        else:
            self.fates["passed over" if why is None else "refused at the door"] += 1
        self.hold()

    @rule(dest=st.sampled_from(HONEST), content=st.one_of(controls(), messages(), st.binary(max_size=40)), parts=parts)
    def say(self, dest: int, content: bytes | None, parts: tuple[LetterPart, ...]) -> None:
        """Anything at all."""
        if content is not None:
            self.altered = self.altered or _reports(content)
            self.send(dest, content, parts)

    @rule(
        pick=st.integers(0, 39), how=st.sampled_from(DEVIATIONS), dest=st.sampled_from(HONEST), keep=st.booleans(),
        number=st.integers(0, 1 << 16), other=st.one_of(unusable, st.just((_model(64),))),
    )  # fmt: skip
    def answer(self, pick: int, how: str, dest: int, keep: bool, number: int, other: tuple[LetterPart, ...]) -> None:
        """What it should say, or something like it; what is kept may be said again."""
        if not self.true:
            self.steps(20)
        if not self.true:
            return
        at = len(self.true) - 1 - pick % min(len(self.true), 1 + pick // 4)
        to, content, parts = self.true[at] if keep else self.true.pop(at)
        if _reports(content):
            self.altered = self.altered or keep or how != "true"
        if how == "model" and parts:
            parts = other
        elif how == "extreme" and parts:
            self.extreme, parts = True, list(EXTREME.values())[number % len(EXTREME)]
        elif how == "elsewhere":
            to = dest
        elif how in ("changed", "shifted", "flipped", "readdressed", "restated"):
            if how == "readdressed":
                to = dest
            content = changed(content, how, number, dest) or content
        self.send(to, content, parts)

    @rule(what=st.integers(0, 7), number=st.integers(0, 9))
    def claim(self, what: int, number: int) -> None:
        """Something that it may say of itself at any time."""
        net, empty = self.net, {"events": [], "spans": [], "scores": {}, "traffic": [], "final": False}
        at = net.coordinator.round
        said: list[tuple[int, bytes]] = [
            (self.at, wire.control("gave_up", {"node": ROGUE})),
            (CLOUD, wire.control("gave_up", {"node": ROGUE})),
            (CLOUD, wire.control("notes", {**empty, "scores": {"acc": 1.0}, "final": bool(number % 2)})),
            (CLOUD, wire.control("notes", {**empty, "events": [[0.0, "late", ROGUE, {"round": number}]] * 200})),
            (self.at, wire.pack(Word("awake", ROGUE, self.at, net.now), Places())),
            (CLOUD, wire.control("closed", {"node": ROGUE, "progress": at + number})),
            (CLOUD, wire.control("arrange", {"parents": {role(ROGUE, 1): None}, "groups": {}, "root": role(ROGUE, 1)})),
            (VICTIM, wire.pack(Word("hello", ROGUE, VICTIM, net.now, {"at": number}), Places())),
        ]
        self.send(*said[what], ())

    @rule()
    def move(self) -> None:
        """The member goes to the other edge: what it says from there on is of a device that was just re-parented."""
        if self.method in ("d2d", "easf"):
            return
        before, self.at, self.moves = self.at, EDGE + (self.at == EDGE), self.moves + 1
        self.net.join(ROGUE, self.at, stamp=1 + self.moves)
        self.net.give(before, Gone([ROGUE]))
        self.hold()

    @rule(count=st.integers(1, 40))
    def go_on(self, count: int) -> None:
        self.steps(count)

    @rule(host=st.sampled_from(HONEST))
    def restart(self, host: int) -> None:
        self.hold()
        self.net.kill(host)

    @invariant()
    def only_the_member_is_blamed(self) -> None:
        # what its own engine refuses, which nobody hears properly, is its own affair
        assert {origin for by, origin, _ in self.net.refused if by != ROGUE} <= {ROGUE}, self.net.refused[-3:]

    @invariant()
    def nobody_elses_place_has_changed(self) -> None:
        if self.method in ("d2d", "easf"):
            return  # members choose places there, or are given them
        for host in HONEST:
            directory = self.net.engines[host].directory
            assert directory.tree.root == CLOUD
            assert not directory.groups()
            if host < EDGE:
                assert directory.parent(host) == self.net.edge_of(host) or self.method == "standalone"

    def teardown(self) -> None:
        """Let the others end their run: it is theirs, unless the member's own updates were in it."""
        try:
            if self.method in ("hierfavg", "secure"):
                self._end()
        finally:
            for engine in self.net.engines.values():
                engine.journal.close()
            self.net.coordinator.recorder.connection.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self) -> None:
        net = self.net
        for _ in range(20_000):
            self.hold()
            if net.coordinator.finished:
                break
            if not net.step():
                net.idle()
        assert net.coordinator.finished
        assert net.coordinator.round == ROUNDS
        found = net.model()
        assert torch.isfinite(found).all()
        if self.method == "secure" or self.extreme:
            return
        if not self.altered:
            # Each edge's round adds one to its model's numbers together, whoever is in it.
            assert not found[4:].any()
            assert float(found[:4].sum()) == pytest.approx(ROUNDS, abs=1e-4)
        if not self.reported and not self.moves:
            # Edge 4 stands for devices 0 and 2, half of all samples, and merges device 2's model alone: 1/2 a round;
            # devices 1 and 3 share the other half.
            expected = torch.tensor([0.0, ROUNDS / 4, ROUNDS / 2, ROUNDS / 4])
            torch.testing.assert_close(found[:4], expected)
        assert float(found[4:].max()) <= MARK + 1e-6
        assert float(found[:4].max()) <= ROUNDS + MARK + 1e-6


def changed(content: bytes, how: str, number: int, dest: int) -> bytes | None:
    """Return a letter with another value in one of its fields; None if it has no such field."""
    said = wire.unpack(content)
    control = isinstance(said, wire.ControlLetter)
    data = dict(said.data) if control else {f.name: getattr(said, f.name) for f in fields(said)}
    if how == "readdressed":
        names = [n for n in ("to", "child", "node") if n in data]
        values: list[Any] = [dest]
    elif how == "shifted":
        names = [n for n, v in data.items() if type(v) is int]
        values = [-1, 1, 2]
    elif how == "flipped":
        names, values = [n for n, v in data.items() if _octets(v)], [None]
    elif how == "restated":
        names, values = [n for n in ("stats",) if data.get(n)], [None]
    else:
        names = [n for n in data if n in LEGAL]
        values = []
    if not names:
        return None
    name = names[number % len(names)]
    value = (values or LEGAL[name])[number // 16 % len(values or LEGAL[name])]
    if how == "shifted":
        value += data[name]
    elif how == "flipped":
        value = _flipped(data[name], number // 16)
    elif how == "restated":
        value = _restated(data[name], number // 16)
    data[name] = value
    return _written(lambda: wire.control(said.kind, data) if control else wire.pack(type(said)(**data), Places()))


def _restated(stats: dict[str, Any], at: int) -> dict[str, Any]:
    """Replace the numbers of one statistic by one that no honest device would tell."""
    name = list(stats)[at % len(stats)]
    odd, told = ODD[at // len(stats) % len(ODD)], stats[name]
    if isinstance(told, np.ndarray) and told.dtype.kind == "f":
        return {**stats, name: np.full_like(told, odd)}
    if isinstance(told, list | tuple) and all(isinstance(v, int | float) for v in told):
        return {**stats, name: [odd] * len(told)}
    return {**stats, name: odd} if isinstance(told, int | float) else stats


def any_frame(rng: random.Random, me: int, hosts: list[int], series: list[int]) -> pb.Frame:
    """Return a frame of any kind with any values; what numbers letters is likely to be of a letter that was sent."""
    frame = pb.Frame()
    kind = rng.choice(["ack", "restart"] * 4 + [f.name for f in frame.DESCRIPTOR.fields])
    part = getattr(frame, kind)
    _fill(rng, part)
    if kind in ("ack", "restart", "head", "chunk") and rng.random() < 0.8:
        mine, other = ("dest", "origin") if kind in ("ack", "restart") else ("origin", "dest")
        setattr(part.envelope, mine, me)
        setattr(part.envelope, other, rng.choice(hosts))
        part.envelope.series = rng.choice(series)
    return frame


def _fill(rng: random.Random, message: Message) -> None:
    """Put anything into the fields of a frame's part."""
    message.SetInParent()
    for field in message.DESCRIPTOR.fields:
        held, several = getattr(message, field.name), field.is_repeated
        for _ in range(rng.randint(0, 3) if several else rng.random() < 0.75):
            if field.cpp_type == field.CPPTYPE_MESSAGE:
                _fill(rng, held.add() if several else held)
                continue
            value = rng.choice(ANY[field.type])
            if several:
                held.append(value)
            else:
                setattr(message, field.name, value)


def _octets(value: Any) -> int:
    """Count the byte strings in plain data."""
    if isinstance(value, bytes):
        return int(bool(value))
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return sum(_octets(v) for v in inner)


def _flipped(value: Any, at: int) -> Any:
    """Flip a bit of one of the byte strings in plain data."""
    if isinstance(value, bytes):
        place = at % len(value)
        return value[:place] + bytes([value[place] ^ 1]) + value[place + 1 :]
    items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    able = [key for key, v in items if _octets(v)]
    chosen = able[at % len(able)]
    made = {key: _flipped(v, at // len(able)) if key == chosen else v for key, v in items}
    return made if isinstance(value, dict) else tuple(made.values())


def _reports(content: bytes) -> bool:
    try:
        return isinstance(wire.unpack(content), Report)
    except Exception:
        return False
