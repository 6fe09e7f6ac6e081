"""The table of who may say what: every message between nodes and every control letter between hosts.

`docs/deployment.md` shows this table (:func:`as_markdown`), and a test keeps the two equal. Who a sender is, is what
the certificate of its link says; an edge that passes a letter on grants it nothing. A field that is not in the table
may not be in a letter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from espalier.core.device import Device
from espalier.core.method import Plan
from espalier.fleet.authority.fields import (
    CLOCK,
    COUNT,
    DEVICE,
    EMPTY,
    EVENT,
    EVENTS,
    HEAD,
    HOST,
    LEADER,
    LEVELS,
    LONG_COUNT,
    MEMBER,
    MINE,
    MODEL,
    NAME,
    NAMED,
    NODE,
    OWN,
    PLAIN,
    SCORE,
    SECONDS,
    SENDER,
    SPANS,
    TIME,
    TRUTH,
    WORK,
    FieldRule,
    listed,
    maybe,
    one_of,
    real,
    row,
    table,
    text,
    whole,
)
from espalier.policies.secure_sum import SecureMerge
from espalier.privacy import is_private

#: the word with which a root that lives on a device hands its models to the coordinator
SERVED = "@served"
#: the word with which a device is handed, at the end, the model that it would use
IN_USE = "@in_use"
#: the two control letters of secure aggregation: of an aggregator, and of one of its children
SUM, SUMMAND = "sum", "summand"


class Sender(Enum):
    """Who may send something, in words."""

    PARENT = "the parent of the node that it is to"
    CHILD = "a child of the node that it is to, or one that this node has ordered to work"
    COORDINATOR = "the coordinator"
    ROOT = "the root that the coordinator knows"
    PREDECESSOR = "the root that the receiver was told of, or a device that it has asked for the newest model"
    DEVICE = "a device"
    MEMBER = "any member"
    SERVER = "the coordinator, or the parent of the node that it is to"
    OPERATOR = "an operator: its certificate says so"
    LISTED = "whom the node lists for this word (`hears`): devices, or the coordinator"


class Scope(Enum):
    """The methods that have something."""

    ANY = "all"
    ELECTING = "devices make the tree"
    SECURE = "secure sums"
    PRIVATE = "private"


#: tells whether a plan is of a scope
SCOPES: Mapping[Scope, Callable[[Plan], bool]] = {
    Scope.ANY: lambda plan: True,
    Scope.ELECTING: lambda plan: not plan.root.structure.places_newcomers(),
    Scope.SECURE: lambda plan: any(isinstance(r.merge, SecureMerge) for r in (plan.root, plan.middle, plan.edge)),
    Scope.PRIVATE: is_private,
}


def devices_confer(plan: Plan) -> bool:
    """Tell whether devices may have something to say to each other, past the servers."""
    return plan.root.structure.peers or plan.node is not None or plan.device is not Device


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table.

    Attributes:
        kind: What is said.
        to: Who hears it.
        by: Who may say it.
        fields: What it holds.
        optional: Fields that need not be there.
        scope: The methods that have it.
        after: Whether it still counts when the run is over; else it is passed over then.
    """

    kind: str
    to: str
    by: Sender
    fields: Mapping[str, FieldRule] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    scope: Scope = Scope.ANY
    after: bool = False


_MODELS = table(256, text(64), MODEL)
#: vectors beside the models of one node
AUXILIARY = 16
_AUXILIARY = table(AUXILIARY, text(64), MODEL)
_ORDER = {
    "id": whole(LONG_COUNT), "models": _MODELS, "updates": WORK, "round": whole(COUNT), "clock": CLOCK, "sent": TIME,
    "budget": maybe(real()), "anchor": maybe(MODEL), "ask": maybe(NAME), "args": NAMED, "back": TRUTH,
    "auxiliary": _AUXILIARY,
}  # fmt: skip
_REPORT = {
    "order": whole(LONG_COUNT), "dispatcher": NODE, "models": _MODELS,
    "samples": table(256, text(64), whole(LONG_COUNT)), "updates": whole(COUNT), "round": whole(COUNT),
    "sent": TIME, "download": real(least=-SECONDS), "compute": real(), "stats": NAMED,
    "auxiliary": _AUXILIARY, "loss": maybe(real(least=-SECONDS)),
}  # fmt: skip

#: messages between nodes
ORDER = Rule("order", "a node", Sender.PARENT, _ORDER)
SURVEY = Rule("order with `ask` or `back`: a survey", "a device", Sender.COORDINATOR, _ORDER)
REPORT = Rule("report", "an aggregator", Sender.CHILD, _REPORT)
HANDOVER = Rule(
    "report of order 0: a root hands over", "an aggregator", Sender.PREDECESSOR, {**_REPORT, "order": whole(0)},
    scope=Scope.ELECTING,
)  # fmt: skip
AWAKE = Rule("word `awake`", "an aggregator", Sender.CHILD, {"sent": TIME, "data": EMPTY})
SERVES = Rule(
    f"word `{SERVED}`", "the coordinator", Sender.ROOT,
    {"sent": TIME, "data": table(1, one_of("models"), table(256, text(64), MODEL))}, scope=Scope.ELECTING,
)  # fmt: skip
USES = Rule(
    f"word `{IN_USE}`",
    "a device",
    Sender.SERVER,
    {"sent": TIME, "data": table(1, one_of("model"), maybe(MODEL))},
    after=True,
)
WORD = Rule("any other word", "a node", Sender.LISTED, {"kind": NAME, "sent": TIME, "data": NAMED})

_COORDINATOR, _MEMBER = "the coordinator", "a member"
#: control letters between hosts
CONTROLS = {rule.kind: rule for rule in (
    Rule("closed", _COORDINATOR, Sender.MEMBER, {"node": OWN, "progress": whole(COUNT)}),
    Rule("gave_up", "anybody", Sender.MEMBER, {"node": OWN}, after=True),
    Rule("arrange", _COORDINATOR, Sender.DEVICE, {
        "parents": table(LEVELS, OWN, maybe(LEADER)), "groups": EMPTY, "root": maybe(HEAD)}, scope=Scope.ELECTING),
    Rule("spent", _COORDINATOR, Sender.DEVICE, {
        "incarnation": whole(1 << 64), "jobs": whole(COUNT), "revealed": whole(COUNT)},
        scope=Scope.PRIVATE, after=True),
    Rule("notes", _COORDINATOR, Sender.MEMBER, {
        "events": listed(EVENTS, EVENT),
        "spans": listed(SPANS, row(SENDER, one_of("train", "measure"), TIME, TIME)),
        "scores": table(64, NAME, SCORE),
        "traffic": listed(64, row(one_of("dev-edge", "edge-cloud", "dev-dev"), one_of("up", "down", "peer"),
                                  one_of("model", "ctrl"), whole(LONG_COUNT))),
        "final": TRUTH}, after=True),
    Rule("groups", _MEMBER, Sender.COORDINATOR, {"groups": table(COUNT, DEVICE, text(64))}),
    Rule("place", _MEMBER, Sender.COORDINATOR, {
        "node": MINE, "parent": maybe(NODE), "endpoint": text(300), "name": text(64), "relink": TRUTH},
        optional=frozenset({"endpoint", "name", "relink"})),
    Rule("adopt", _MEMBER, Sender.COORDINATOR, {
        "child": NODE, "parent": MINE, "samples": whole(LONG_COUNT), "name": text(64)}),
    Rule("release", _MEMBER, Sender.COORDINATOR, {"child": NODE}),
    Rule("roster", _MEMBER, Sender.COORDINATOR, {"joined": listed(COUNT, MEMBER), "gone": listed(COUNT, HOST)}),
    Rule("new_incarnation", _MEMBER, Sender.COORDINATOR, {"host": HOST}),
    Rule("root", _MEMBER, Sender.COORDINATOR, {"root": NODE}),
    Rule("overdue", _MEMBER, Sender.SERVER, {"node": MINE, "round": whole(COUNT)}),
    Rule("expel", _MEMBER, Sender.COORDINATOR, {"host": HOST}),
    Rule("start", _MEMBER, Sender.COORDINATOR, {"at": TIME}),
    Rule("round", _MEMBER, Sender.COORDINATOR, {"round": whole(COUNT)}),
    Rule("account", _MEMBER, Sender.COORDINATOR, after=True),
    Rule("evaluate", _MEMBER, Sender.COORDINATOR, after=True),
    Rule("finish", _MEMBER, Sender.COORDINATOR, after=True),
    Rule(SUM, _MEMBER, Sender.PARENT, {
        "step": one_of("begin", "keys", "boxes", "void", "there"), "sum": whole(LONG_COUNT), "child": MINE,
        "node": NODE, "order": whole(LONG_COUNT), "round": whole(COUNT), "members": whole(COUNT),
        "neighbours": listed(COUNT, NODE), "keys": PLAIN, "boxes": PLAIN, "there": listed(COUNT, NODE)},
        optional=frozenset({"node", "order", "round", "members", "neighbours", "keys", "boxes", "there"}),
        scope=Scope.SECURE),
    Rule(SUMMAND, "an aggregator", Sender.CHILD, {
        "step": one_of("keys", "shares", "help"), "sum": whole(LONG_COUNT), "child": OWN, "masks": PLAIN,
        "seals": PLAIN, "opens": PLAIN, "certificate": PLAIN, "boxes": PLAIN, "commitments": PLAIN, "seed": PLAIN,
        "accused": PLAIN, "lost": PLAIN, "there": PLAIN},
        optional=frozenset({"masks", "seals", "opens", "certificate", "boxes", "commitments", "seed", "accused",
                            "lost", "there"}), scope=Scope.SECURE),
)}  # fmt: skip

#: what an operator may ask of the cloud, over a link of its own
REQUESTS = {rule.kind: rule for rule in (
    Rule("submit", "the cloud", Sender.OPERATOR, {
        "experiment": NAMED, "name": text(64), "start_with": maybe(whole(COUNT)), "patience": real(),
        "compress": maybe(one_of("none", "zstd", "q8")), "round_deadline": real()},
        optional=frozenset({"name", "start_with", "patience", "compress", "round_deadline"}), after=True),
    Rule("runs", "the cloud", Sender.OPERATOR, after=True),
    Rule("status", "the cloud", Sender.OPERATOR, after=True),
    Rule("stop", "the cloud", Sender.OPERATOR, {"run": text(64)}, after=True),
    Rule("fetch", "the cloud", Sender.OPERATOR, {"run": text(64)}, after=True),
)}  # fmt: skip

RULES = (ORDER, SURVEY, REPORT, HANDOVER, AWAKE, SERVES, USES, WORD, *CONTROLS.values(), *REQUESTS.values())


def as_markdown() -> str:
    """Return the table as the documentation shows it."""
    lines = [
        "| what | to | who may send it | methods | after the end | fields |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for rule in RULES:
        fields = "; ".join(f"`{name}`: {f.says}" for name, f in rule.fields.items()) or "none"
        kind = f"`{rule.kind}`" if CONTROLS.get(rule.kind) is rule else rule.kind
        kind = f"request `{rule.kind}`" if REQUESTS.get(rule.kind) is rule else kind
        after = "counts" if rule.after else "passed over"
        lines.append(f"| {kind} | {rule.to} | {rule.by.value} | {rule.scope.value} | {after} | {fields} |")
    return "\n".join(lines)
