"""A hostile member against engines of a fleet: any letter, in any order, with any field, restarts in between.

The member is an enrolled device: its letters come under its own address, as its certificate says, whatever else they
hold. `tests/fleet/test_hostile.py` plays some hundred letters, `benchmarks/hostile.py` as many as it is told.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from espalier.core.address import role
from espalier.core.errors import EspalierError
from espalier.core.messages import Order, Report, Word
from espalier.core.store import Ref
from espalier.fleet.authority.rules import CONTROLS, IN_USE, SERVED
from espalier.fleet.links import wire
from espalier.fleet.links.encoding import Encoding, encode
from espalier.fleet.links.framing import LetterPart
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


class HostileMember(RuleBasedStateMachine):
    """The run of the others, while one member says what it likes."""

    @initialize(method=st.sampled_from(["hierfavg", "hierfavg", *METHODS]))
    def begin(self, method: str) -> None:
        memory = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(prefix="espalier-", dir=memory if memory.is_dir() else None))
        self.method = method
        self.net = Rogue(self.folder, METHODS[method])
        self.reported = False
        self.letters = 0

    def mute(self) -> None:
        """The member's own engine says nothing: all that comes from it is made up here."""
        net = self.net
        net.jobs = [(h, w) for h, w in net.jobs if h != ROGUE]
        net.timers = [(h, t) for h, t in net.timers if h != ROGUE]
        net.wire = [w for w in net.wire if ROGUE not in w[:2]]
        net.boxes[ROGUE] = {}
        for boxes in net.boxes.values():
            boxes.pop(ROGUE, None)

    @rule(dest=st.sampled_from(HONEST), content=st.one_of(controls(), messages(), st.binary(max_size=40)), parts=parts)
    def say(self, dest: int, content: bytes | None, parts: tuple[LetterPart, ...]) -> None:
        if content is not None:
            # an answer to an order that it was given may be merged: that is its office
            self.reported = self.reported or _reports(content)
            self.mute()
            self.letters += 1
            self.net.attack(dest, content, parts)

    @rule(steps=st.integers(1, 40))
    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            self.mute()
            if self.net.coordinator.finished or not self.net.step():
                break

    @rule(host=st.sampled_from(HONEST))
    def restart(self, host: int) -> None:
        self.mute()
        self.net.kill(host)

    @invariant()
    def only_the_member_is_blamed(self) -> None:
        assert {origin for _, origin, _ in self.net.refused} <= {ROGUE}

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
            if self.method == "hierfavg":
                self._end()
        finally:
            for engine in self.net.engines.values():
                engine.journal.close()
            self.net.coordinator.recorder.connection.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self) -> None:
        net = self.net
        for _ in range(20_000):
            self.mute()
            if net.coordinator.finished:
                break
            if not net.step():
                net.idle()
        assert net.coordinator.finished
        assert net.coordinator.round == ROUNDS
        found = net.model()
        assert torch.isfinite(found).all()
        if not found[4:].any():
            # Edge 4 stands for devices 0 and 2, half of all samples, and merges device 2's model alone: 1/2 a round;
            # devices 1 and 3 share the other half.
            expected = torch.tensor([0.0, ROUNDS / 4, ROUNDS / 2, ROUNDS / 4])
            torch.testing.assert_close(found[:4], expected)
        else:
            assert self.reported, "nothing but an answer to an order may reach the model"
            assert float(found[4:].max()) <= MARK + 1e-6


def _reports(content: bytes) -> bool:
    try:
        return isinstance(wire.unpack(content), Report)
    except Exception:
        return False
