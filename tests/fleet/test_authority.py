"""Who may say what: hosts that say what is not theirs to say, in any form, against every kind of host."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from espalier.core import codec
from espalier.core.address import role
from espalier.core.aggregator import Aggregator
from espalier.core.messages import Order, Report, Word
from espalier.core.store import Ref
from espalier.fleet.authority.rules import CONTROLS, RULES, SERVED, as_markdown
from espalier.fleet.links import wire
from espalier.fleet.links.encoding import encode
from espalier.fleet.links.framing import LetterPart, ReceivedLetter
from espalier.fleet.membership import Member
from tests.fleet.net import Net, manifest

ROUNDS = 3
# four devices 0 … 3 at edges 4 and 5, the cloud is 6; device 0 (at edge 4) is the dishonest one
ROGUE, VICTIM, EDGE, OTHER_EDGE, CLOUD = 0, 2, 4, 5, 6


def test_the_documentation_shows_the_table() -> None:
    text = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text()
    assert as_markdown() in text, "copy espalier.fleet.authority.rules.as_markdown() into docs/deployment.md"


def test_every_control_letter_has_a_rule() -> None:
    package = Path(__file__).parents[2] / "espalier" / "fleet"
    said = set()
    for path in package.rglob("*.py"):
        said |= set(re.findall(r"_?(?:engine|outbox)\.say\(\s*[^,]+(?:\([^)]*\))?[^,]*,\s*\"(\w+)\"", path.read_text()))
    assert said - {"kind"} <= CONTROLS.keys()
    assert {"closed", "gave_up", "arrange", "spent", "notes", "place", "finish"} <= said


class Places:
    """Every model of a rogue letter is its first part."""

    def place(self, ref: Ref) -> int:
        return 0

    def numbers(self, part: Any) -> bytes:
        return b""


class Rogue(Net):
    """A fleet of which one device also sends letters of its own making."""

    def __init__(self, folder: Path, method: Any = "hierfavg", **options: Any) -> None:
        super().__init__(manifest(4, 2, ROUNDS, method, **options), folder, hostile=True)
        self._sent: dict[tuple[int, int], int] = {}

    def member(self, host: int, via: int | None = None, stamp: int = 1) -> Member:
        """Devices may lead others, where the method lets them."""
        found = super().member(host, via, stamp)
        return replace(found, aggregates=found.role == "device")

    def attack(self, dest: int, content: Any, parts: tuple[LetterPart, ...] = (), origin: int = ROGUE) -> str | None:
        """Give a host a letter; return why it was refused."""
        # a device that sends what it likes begins a series of its own
        number = self._sent[dest, origin] = self._sent.get((dest, origin), 0) + 1
        before = len(self.refused)
        series = self.engines[dest].outbox.delivery.heard(origin)[0] if number > 1 else 1 << 50
        self.give(dest, ReceivedLetter(origin, series, number, content, parts))
        return self.refused[before][2] if len(self.refused) > before else None

    def control(self, dest: int, kind: str, data: dict[str, Any], origin: int = ROGUE) -> str | None:
        return self.attack(dest, wire.control(kind, data), origin=origin)


def model(value: float = 0.666) -> tuple[LetterPart, ...]:
    return (encode(torch.full((64,), value)),)


def finished(net: Net, rogue: int | None = ROGUE) -> None:
    """The rogue leaves; the others end their run, and no number of the model is the rogue's."""
    if rogue is not None:
        net.leave(rogue)
    net.run()
    assert net.coordinator.round == ROUNDS
    found = net.model()
    assert float(found[4:].abs().max()) == 0.0
    assert not torch.isclose(found, torch.tensor(0.666)).any()


def test_a_device_cannot_make_itself_the_root(quick: Path) -> None:
    # C1: three letters, and the run was over with the device's model
    net = Rogue(quick)
    why = net.control(CLOUD, "arrange", {"parents": {}, "groups": {}, "root": role(ROGUE, 1)})
    assert why is not None and "has no such thing" in why
    served = Word(SERVED, ROGUE, CLOUD, 0.0, {"models": {"": Ref(0)}})
    assert net.attack(CLOUD, wire.pack(served, Places()), model()) is not None
    why = net.control(CLOUD, "closed", {"node": ROGUE, "progress": 5000})
    assert why is not None and "not the root" in why
    assert net.engines[CLOUD].directory.tree.root == CLOUD
    assert net.coordinator.round == 0
    finished(net)


@pytest.mark.parametrize("root", ["junk", 1 << 70, math.inf, -1, CLOUD, role(VICTIM, 1)])
def test_a_root_that_is_none_changes_nothing(quick: Path, root: Any) -> None:
    # H2: kept in the cloud's journal, the run could not be saved
    for method in ("hierfavg", "easf"):
        net = Rogue(quick / method, method)
        assert net.control(CLOUD, "arrange", {"parents": {}, "groups": {}, "root": root}) is not None
        assert net.engines[CLOUD].directory.tree.root == CLOUD
        net.kill(CLOUD)
        assert net.engines[CLOUD].directory.tree.root == CLOUD


def handover(sender: int, to: int) -> bytes:
    """A report that brings a model to begin with as the root."""
    return wire.pack(Report(0, to, sender, to, {"": Ref(0)}, {"": 0}, 0, 0, 0.0, stats={"root_round": 1}), Places())


def test_a_root_is_whom_others_follow(quick: Path) -> None:
    # a device that may lead claimed to be the root before there was one, and closed the run with its own model
    net = Rogue(quick, "easf")
    mine, theirs = role(ROGUE, 1), role(VICTIM, 1)

    def root_after(origin: int, root: int | None, parents: dict[int, int | None]) -> int:
        assert net.control(CLOUD, "arrange", {"parents": parents, "groups": {}, "root": root}, origin) is None
        return net.engines[CLOUD].directory.tree.root

    # nobody is under it: its own places do not count for more than one device
    assert root_after(ROGUE, mine, {ROGUE: mine}) == CLOUD
    assert root_after(ROGUE, role(ROGUE, 2), {mine: role(ROGUE, 2)}) == CLOUD
    # two devices put themselves under another: that is a root
    assert root_after(VICTIM, None, {VICTIM: theirs}) == CLOUD
    assert root_after(3, None, {3: theirs}) == CLOUD
    assert root_after(VICTIM, theirs, {}) == theirs
    # a smaller tree's claim is passed over
    assert root_after(ROGUE, role(ROGUE, 2), {}) == theirs
    assert root_after(ROGUE, mine, {mine: None}) == theirs
    # one that has just left is not followed by anybody, also if nobody is left
    for host in range(4):
        net.leave(host)
    assert root_after(ROGUE, mine, {}) == theirs


def test_a_head_begins_as_the_root_only_with_a_model_that_it_asked_for(quick: Path) -> None:
    # any device could hand any head a model: it left its parent and had its devices train that
    net = Rogue(quick, "easf")
    head = role(VICTIM, 1)
    why = net.attack(VICTIM, handover(ROGUE, head), model())
    assert why is not None and "asked for the newest model" in why
    engine = net.engines[VICTIM]
    engine.authority.sends(Word("model_request", VICTIM, ROGUE, 0.0, {"head": head}))
    assert net.attack(VICTIM, handover(ROGUE, head), model()) is None
    assert net.attack(VICTIM, handover(ROGUE, head), model()) is not None, "asked once, answered once"
    engine.directory.tree.root = role(ROGUE, 1)
    assert net.attack(VICTIM, handover(role(ROGUE, 1), head), model()) is None


def order(to: int, sender: int = ROGUE, **changes: Any) -> Order:
    given: dict[str, Any] = {"models": {"": Ref(0)}, "updates": 1, "round": 1, "clock": 1, "sent": 0.0} | changes
    return Order(1 << 40, sender, to, **given)


@pytest.mark.parametrize(
    "wicked",
    [
        order(VICTIM), order(VICTIM, back=True), order(VICTIM, back=True, round=1 << 30, clock=1 << 30),
        order(VICTIM, ask="label_histogram", back=True), order(VICTIM, updates=1 << 40), order(1), order(EDGE),
    ],
)  # fmt: skip
@pytest.mark.parametrize("secure", [False, True])
def test_a_device_cannot_order_another(quick: Path, wicked: Order, secure: bool) -> None:
    # C2: the victim trained the attacker's model, and told it what it holds; under secure aggregation it ended
    edge = {"edge": {"merge": {"kind": "secure"}}} if secure else {}
    net = Rogue(quick, {"name": "hierfavg", **edge})
    while not net.jobs:
        net.step()
    before = dict(net.engines[wicked.to].jobs.waiting)
    why = net.attack(wicked.to, wire.pack(wicked, Places()), model())
    assert (why is not None and "may send it" in why) or "accepted is" in str(why)
    assert net.engines[wicked.to].jobs.waiting == before
    assert not [x for dest, origin, x in net.wire if dest == ROGUE and origin == wicked.to]
    finished(net)


def test_a_parents_orders_have_bounds(quick: Path) -> None:
    net = Rogue(quick)
    for changes in ({"updates": 1 << 40}, {"clock": 1 << 30}, {"round": 1 << 40}, {"budget": -1.0}, {"models": {}},
                    {"ask": "label_histogram"}, {"back": True}):  # fmt: skip
        wicked = order(VICTIM, EDGE, **changes)
        assert net.attack(VICTIM, wire.pack(wicked, Places()), model(), origin=EDGE) is not None, changes
        assert not net.engines[VICTIM].jobs.waiting
    finished(net)


@pytest.mark.parametrize("late", ["drop", "keep"])
def test_a_report_is_taken_of_children_only(quick: Path, late: str) -> None:
    # device 0 is at edge 4: edge 5 and the cloud have not ordered it to do anything
    net = Rogue(
        quick,
        {
            "name": "hierfavg",
            "edge": {"pace": {"kind": "barrier", "late": late}},
            "root": {"pace": {"kind": "barrier", "late": late}},
        },
    )
    for dest in (OTHER_EDGE, CLOUD):
        report = Report(1, dest, ROGUE, dest, {"": Ref(0)}, {"": 10}, 1, 0, 0.0)
        why = net.attack(dest, wire.pack(report, Places()), model())
        assert why is not None and "child" in why
        word = Word("awake", ROGUE, dest, 0.0)
        assert net.attack(dest, wire.pack(word, Places())) is not None
    finished(net)


#: values of wrong types and out of every range
ODD = [math.inf, -math.inf, math.nan, 1 << 70, -1, "junk", b"junk", None, [], {}, True, 1.5, (1, 2), [[]], {"a": 1}]


@pytest.mark.parametrize("dest", [CLOUD, EDGE, VICTIM])
@pytest.mark.parametrize("kind", sorted(CONTROLS))
def test_no_control_letter_ends_a_process(quick: Path, dest: int, kind: str) -> None:
    # H1: inf, NaN, 2**70 and wrong types in any field, by a device and by the cloud itself, ended processes
    net = Rogue(quick)
    rogue_is = {"node": ROGUE, "child": ROGUE, "parent": EDGE, "host": ROGUE}
    whole: dict[str, Any] = {name: rogue_is.get(name, 1) for name in CONTROLS[kind].fields}
    for name in CONTROLS[kind].fields:
        for odd in ODD:
            net.control(dest, kind, {**whole, name: odd})
    for data in ({}, {"unknown": 1}, {"node": ROGUE, "unknown": 1}):
        net.control(dest, kind, data)
    assert net.control(dest, "no such kind", {}) is not None
    finished(net)
    assert net.engines[dest].directory.tree.root == CLOUD


@pytest.mark.parametrize("kind", [Order, Report, Word])
def test_no_message_ends_a_process(quick: Path, kind: Any) -> None:
    # of a rightful sender: an edge to its device, a device to its edge
    whole = {
        Order: order(VICTIM, EDGE),
        Report: Report(1, EDGE, VICTIM, EDGE, {"": Ref(0)}, {"": 10}, 1, 0, 0.0),
        Word: Word("awake", VICTIM, EDGE, 0.0),
    }[kind]
    net = Rogue(quick)
    for field in fields(kind):
        for odd in ODD:
            wicked = codec.pack(replace(whole, **{field.name: odd}))
            net.attack(whole.to, wicked, model(0.0), origin=whole.sender)
    assert len(net.refused) >= 5 * len(fields(kind))
    assert all(engine.directory.tree.root == CLOUD for engine in net.engines.values())


class Numbered(Places):
    """Models are the letter's parts of their numbers."""

    def place(self, ref: Ref) -> int:
        return int(ref)


def with_more(net: Rogue, change: Callable[[Report], Report]) -> list[Any]:
    """Let the rogue's next reports of a training say something else; return those that were sent."""
    said = []
    for place, (dest, origin, letter) in enumerate(net.wire):
        report = wire.unpack(letter.content) if origin == ROGUE else None
        if isinstance(report, Report) and report.models and (changed := change(report)) != report:
            net.wire[place] = (dest, origin, replace(letter, content=wire.pack(changed, Numbered())))
            said.append(changed)
    return said


@pytest.mark.parametrize("group", ["a/b", "../b", "\0", "x" * 64, "é" * 64])
def test_a_device_has_no_groups_of_its_own(quick: Path, group: str) -> None:
    # every merge kept them, up to the cloud, which ended when it wrote the run's models: as files of these names
    net, said = Rogue(quick), []
    for _ in range(8000):
        said += with_more(net, lambda r: replace(r, models=r.models | {group: Ref(0)}, samples=r.samples | {group: 1}))
        if net.coordinator.finished or not net.step():
            break
    while not net.coordinator.finished:
        net.idle()
        net.step()
    assert len(said) == len([why for _, origin, why in net.refused if origin == ROGUE and "groups" in why]) > 0
    assert net.coordinator.round == ROUNDS
    assert [path.name for path in (quick / str(CLOUD) / "models").iterdir()] == ["global.safetensors"]
    assert all(e.served.get(h, {}).keys() <= {""} for h, e in net.engines.items())


def test_one_child_has_no_vectors_handed_to_all(quick: Path) -> None:
    # every name that a single device thought of was handed to everybody beside the model, for the rest of the run
    net, said, most = Rogue(quick), [], 0
    for number in range(8000):
        names = {f"v{number}-{n}": Ref(0) for n in range(8)}
        said += with_more(net, lambda r, names=names: replace(r, auxiliary=r.auxiliary or names))  # type: ignore[misc]
        if net.coordinator.finished or not net.step():
            break
        nodes = [e.nodes[h] for h, e in net.engines.items() if h in e.nodes]
        most = max([most, *(len(n.state.auxiliary) for n in nodes if isinstance(n, Aggregator))])
    assert said
    assert most == 0


def test_a_root_on_a_device_serves_models_of_the_runs_groups(quick: Path) -> None:
    net = Rogue(quick, "easf")
    net.engines[CLOUD].directory.tree.root = role(ROGUE, 1)
    served = Word(SERVED, role(ROGUE, 1), CLOUD, 0.0, {"models": {"a/b": Ref(0)}})
    why = net.attack(CLOUD, wire.pack(served, Places()), model())
    assert why is not None
    assert "groups that this run does not have: 'a/b'" in why


def notes(**changes: Any) -> dict[str, Any]:
    return {"events": [], "spans": [], "scores": {}, "traffic": [], "final": False} | changes


@pytest.mark.parametrize(
    "wicked",
    [
        notes(events=[[0.0, "refused", None, {"by": "cloud", "who": "device-1"}]]),
        notes(events=[[0.0, "failed", 1, {}]]),
        # the timeline marks the row of whom it is about
        notes(events=[[0.0, "failed", ROGUE, {"child": 1}]]),
        notes(events=[[0.0, "<img onerror=x>", None, {}]]),
        notes(events=[[0.0, "gone", ROGUE, {}]]),
        notes(events=[[math.nan, "failed", ROGUE, {}]]),
        notes(events=[[0.0, "failed", 1 << 70, {}]]),
        notes(events=[[0.0, "failed", ROGUE, {"why": "x" * 100_000}]]),
        notes(events=[[0.0, "failed", ROGUE, {}]] * 201),
        notes(spans=[[1, "train", 0.0, 1.0]]),
        notes(spans=[[ROGUE, "train", 0.0, math.inf]]),
        notes(scores={"acc": "junk"}),
        notes(traffic=[["dev-edge", "up", "model", 1 << 70]]),
        notes(traffic=[["moon", "up", "model", 1]]),
    ],
)
def test_notes_are_about_their_sender(quick: Path, wicked: dict[str, Any]) -> None:
    # M2: a device wrote refusals in the cloud's name; H1: one with NaN was answered with "the database is damaged"
    net = Rogue(quick)
    assert net.control(CLOUD, "notes", wicked) is not None
    assert net.control(CLOUD, "notes", notes(events=[[1e6, "failed", ROGUE, {"why": "mine"}]])) is None
    finished(net)
    rows = net.coordinator.recorder.connection.execute("SELECT time, kind, node FROM events WHERE kind = 'failed'")
    assert [(kind, node) for _, kind, node in rows] == [("failed", ROGUE)]
    assert net.events("refused") == []


def test_a_training_is_not_over_before_it_can_be(quick: Path) -> None:
    # one that would end in thirty years made everybody else's timeline too small to be seen
    net = Rogue(quick)
    assert net.control(CLOUD, "notes", notes(spans=[[ROGUE, "train", 1e8, 1e9]])) is None
    net.coordinator.recorder.commit()
    spans = net.coordinator.recorder.connection.execute("SELECT start, stop FROM spans").fetchall()
    assert [stop <= net.now for _, stop in spans] == [True]


def test_notes_have_a_rate(quick: Path) -> None:
    net = Rogue(quick)
    many = notes(events=[[0.0, "failed", ROGUE, {}]] * 200)
    refused = [net.control(CLOUD, "notes", many) for _ in range(40)]
    assert refused[0] is None
    assert "rows per second" in str(refused[-1])


def test_only_the_roots_rounds_are_the_runs(quick: Path) -> None:
    net = Rogue(quick)
    assert "is not the root" in str(net.control(CLOUD, "closed", {"node": ROGUE, "progress": 1}))


def test_rounds_do_not_leap(quick: Path) -> None:
    # where every device's rounds are the run's
    net = Rogue(quick, "standalone")
    assert "cannot be over" in str(net.control(CLOUD, "closed", {"node": ROGUE, "progress": 5000}))
    assert "a node of the sender's" in str(net.control(CLOUD, "closed", {"node": 1, "progress": 1}))
    assert net.control(CLOUD, "closed", {"node": ROGUE, "progress": 1}) is None


def test_words_of_the_tree_are_of_those_who_may_say_them(quick: Path) -> None:
    net = Rogue(quick, "easf")
    told: Callable[[Word, int], str | None] = lambda word, dest: net.attack(dest, wire.pack(word, Places()), model())  # noqa: E731
    # what a device says to itself, and an aggregator that nobody runs
    assert told(Word("fresh", ROGUE, VICTIM, 0.0, {"clock": 9, "model": Ref(0)}), VICTIM) is not None
    assert told(Word("hello", ROGUE, role(VICTIM, 77), 0.0), VICTIM) is not None
    assert told(Word("no such word", ROGUE, VICTIM, 0.0), VICTIM) is not None
    assert told(Word("hello", ROGUE, VICTIM, 0.0, {"degree": "junk"}), VICTIM) is not None
    for _ in range(30):
        net.step()
    assert role(VICTIM, 77) not in net.engines[VICTIM].nodes


def test_no_two_rules_are_of_one_kind() -> None:
    assert len({rule.kind for rule in RULES}) == len(RULES)
