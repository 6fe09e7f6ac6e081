"""What a field of a letter may hold: a type, a range, and sometimes whose it must be."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from espalier.core.address import Address, host_of, level_of
from espalier.core.method import Node, Plan
from espalier.core.store import Ref
from espalier.core.tree import Tree
from espalier.experiment import Experiment
from espalier.fleet.membership import Member
from espalier.record.database import plain_json

#: levels of aggregators that one device may run above each other
LEVELS = 16
#: counts of rounds, samples and updates end here, those of orders and bytes there: SQLite's integers have 63 bits
COUNT, LONG_COUNT = 1 << 32, 1 << 62
#: seconds that anything may take, or be measured as
SECONDS = 1e9
#: updates that an order may ask for: so many, or so many times those of the experiment
UPDATES, UPDATES_TIMES = 10_000, 100
#: the root's round in an order: so many times the run's rounds, and some
CLOCK_TIMES, CLOCK_MORE = 2, 1000
#: rows of a batch of notes, and bytes of one note's data as JSON
EVENTS, SPANS, NOTE_BYTES = 200, 1000, 16_384
#: the event with which an aggregator tells of a private merge
NOISED = "privacy"
#: events of the record that only the coordinator writes
COORDINATORS_EVENTS = frozenset({"started", "stopped", "gone", "arranged", "rebuilt"})

_NAME = re.compile(r"[A-Za-z0-9_.@ -]{1,64}")


class KnownFleet(Protocol):
    """What a host knows of the fleet, as far as the rules need it."""

    me: int
    cloud: int
    tree: Tree
    members: dict[int, Member]

    def is_device(self, node: Address) -> bool:
        """Tell whether a node is a leaf device."""
        ...

    def parent(self, node: Address) -> Address | None:
        """Return the node's parent now."""
        ...

    def may_aggregate(self, device: Address) -> bool:
        """Tell whether a device may run an aggregator."""
        ...


@dataclass(frozen=True)
class Receiver:
    """The host that a letter came to.

    Attributes:
        fleet: What it knows of the others.
        plan: The run's method.
        experiment: The run.
        nodes: The nodes that it runs.
        node: Makes a node that it does not run yet.
        over: Tells whether the run is over.
    """

    fleet: KnownFleet
    plan: Plan
    experiment: Experiment
    nodes: Mapping[Address, Node]
    node: Callable[[Address], Node]
    over: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Statement:
    """Somebody says something to a host: fields are checked against who it is and who hears it."""

    origin: int
    receiver: Receiver


@dataclass(frozen=True, slots=True)
class FieldRule:
    """What a field may hold: in words, and as a test."""

    says: str
    holds: Callable[[Any, Statement], bool]


def whole(most: int, least: int = 0) -> FieldRule:
    """A whole number between two bounds."""
    bound = f"2^{most.bit_length() - 1}" if most >= 1 << 20 and most & (most - 1) == 0 else str(most)
    return FieldRule(f"{least} … {bound}", lambda v, _: type(v) is int and least <= v <= most)


def real(most: float = SECONDS, least: float = 0.0) -> FieldRule:
    """A finite number between two bounds."""

    def holds(value: Any, _: Statement) -> bool:
        return type(value) in (int, float) and math.isfinite(value) and least <= value <= most

    return FieldRule(f"{least:g} … {most:g}", holds)


def text(longest: int) -> FieldRule:
    """A text."""
    return FieldRule(f"text ≤ {longest}", lambda v, _: type(v) is str and len(v) <= longest)


def one_of(*values: str) -> FieldRule:
    """One of some words."""
    return FieldRule(" or ".join(values), lambda v, _: type(v) is str and v in values)


def maybe(inner: FieldRule) -> FieldRule:
    """Something, or nothing."""
    return FieldRule(f"{inner.says}, or none", lambda v, c: v is None or inner.holds(v, c))


def listed(most: int, inner: FieldRule) -> FieldRule:
    """Several of something."""

    def holds(value: Any, statement: Statement) -> bool:
        return (
            type(value) in (list, tuple, set) and len(value) <= most and all(inner.holds(v, statement) for v in value)
        )

    return FieldRule(f"{_most(most)}of ({inner.says})", holds)


def row(*columns: FieldRule) -> FieldRule:
    """A row of different things."""

    def holds(value: Any, statement: Statement) -> bool:
        if type(value) not in (list, tuple) or len(value) != len(columns):
            return False
        return all(column.holds(cell, statement) for cell, column in zip(value, columns, strict=True))

    return FieldRule("; ".join(c.says for c in columns), holds)


def table(most: int, key: FieldRule, value: FieldRule) -> FieldRule:
    """A table from one thing to another."""

    def holds(found: Any, statement: Statement) -> bool:
        if type(found) is not dict or len(found) > most:
            return False
        return all(key.holds(k, statement) and value.holds(v, statement) for k, v in found.items())

    return FieldRule(f"{_most(most)}of ({key.says}: {value.says})", holds)


def _most(most: int) -> str:
    return f"≤ {most} " if most < COUNT else ""


# -- whose ---------------------------------------------------------------------------------------------------


def is_address(value: Any) -> bool:
    """Tell whether a value names a node."""
    return type(value) is int and value >= 0 and level_of(value) <= LEVELS


def _leads(node: Any, statement: Statement) -> bool:
    """Tell whether a node is an aggregator of a device that may lead others (or that has just gone)."""
    if not is_address(node) or not level_of(node) or not statement.receiver.fleet.is_device(host_of(node)):
        return False
    member = statement.receiver.fleet.members.get(host_of(node))
    return member is None or member.aggregates


NODE = FieldRule("a node", lambda v, _: is_address(v))
HOST = FieldRule("a host", lambda v, _: is_address(v) and level_of(v) == 0)
DEVICE = FieldRule("a device", lambda v, c: type(v) is int and c.receiver.fleet.is_device(v))
OWN = FieldRule("a node of the sender's", lambda v, c: is_address(v) and host_of(v) == c.origin)
MINE = FieldRule("a node of the receiver's", lambda v, c: is_address(v) and host_of(v) == c.receiver.fleet.me)
SENDER = FieldRule("the sender", lambda v, c: type(v) is int and v == c.origin)
HEAD = FieldRule("an aggregator of the sender's, which may lead", lambda v, c: _leads(v, c) and host_of(v) == c.origin)
LEADER = FieldRule("an aggregator of a device that may lead", _leads)

# -- plain things --------------------------------------------------------------------------------------------

TRUTH = FieldRule("true or false", lambda v, _: type(v) is bool)
NAME = FieldRule("name ≤ 64", lambda v, _: type(v) is str and _NAME.fullmatch(v) is not None)
EMPTY = FieldRule("nothing", lambda v, _: type(v) in (dict, list, tuple) and not v)
TIME = real()
MODEL = FieldRule("a model of the run's shape", lambda v, _: type(v) is Ref)
PLAIN = FieldRule("plain data (its reader checks it)", lambda v, _: True)
NAMED = FieldRule(
    "plain data by name (its reader checks it)",
    lambda v, _: type(v) is dict and all(type(k) is str for k in v),
)
#: as the record's float32 can hold it, or NaN where there was nothing to score
SCORE = FieldRule("a number ≤ 1e+38", lambda v, _: type(v) in (int, float) and (v != v or abs(v) <= 1e38))
MEMBER = FieldRule(
    "a member", lambda v, _: type(v) in (list, tuple) and len(v) == len(Member.__slots__) and is_address(v[0])
)


def _work(value: Any, statement: Statement) -> bool:
    here = statement.receiver
    # an aggregator's updates are rounds, of which some methods order as many as there will be
    server = not here.fleet.is_device(here.fleet.me)
    most = COUNT if server else max(UPDATES, UPDATES_TIMES * here.experiment.training.updates)
    return type(value) is int and 0 <= value <= most


def _clock(value: Any, statement: Statement) -> bool:
    rounds = statement.receiver.experiment.stop.rounds
    most = COUNT if rounds is None else CLOCK_TIMES * rounds + CLOCK_MORE
    return type(value) is int and 0 <= value <= most


WORK = FieldRule(f"0 … {UPDATES}, or {UPDATES_TIMES} times the experiment's (to a device)", _work)
CLOCK = FieldRule(f"0 … {CLOCK_TIMES} times the run's rounds + {CLOCK_MORE}", _clock)


def _may_lead(statement: Statement) -> bool:
    """Tell whether a sender may run an aggregator, and so has children to tell of."""
    here = statement.receiver
    return not here.fleet.is_device(statement.origin) or here.plan.root.structure.peers


def _tells_noise(data: dict[Any, Any], statement: Statement) -> bool:
    """Tell whether an aggregator's note of a private merge is one: what the run has spent is computed from them."""
    rows = (("children", listed(COUNT, NODE)), ("reports", whole(COUNT)), ("noise", real()))
    whole_note = all(name in data and rule.holds(data[name], statement) for name, rule in rows)
    return _may_lead(statement) and ("cut" in data or whole_note)


def _event(value: Any, statement: Statement) -> bool:
    """Tell whether a row of the record is about its sender, small, and of a kind that is not the coordinator's."""
    if type(value) not in (list, tuple) or len(value) != 4:
        return False
    time, kind, node, data = value
    if not (TIME.holds(time, statement) and NAME.holds(kind, statement) and kind not in COORDINATORS_EVENTS):
        return False
    if type(data) is not dict or not (node is None or SENDER.holds(node, statement)):
        return False
    member = statement.receiver.fleet.members.get(statement.origin)
    if "by" in data and member is not None and data["by"] != member.name:
        return False
    if "child" in data and data["child"] != statement.origin and not _may_lead(statement):
        return False
    if kind == NOISED and not _tells_noise(data, statement):
        return False
    try:
        return len(plain_json(data)) <= NOTE_BYTES
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False


EVENT = FieldRule(
    f"time; kind; the sender or none; data ≤ {NOTE_BYTES} bytes that name no other as its author, and no child of a "
    "device's but itself",
    _event,
)
