"""The check of every letter that a host opens: one place that asks the table of rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from espalier.core.address import Address, host_of, level_of
from espalier.core.aggregator import Aggregator
from espalier.core.aggregator_state import AggregatorState
from espalier.core.errors import ProtocolError
from espalier.core.messages import ALL, Message, Order, Report, Word
from espalier.core.method import Listener
from espalier.fleet.authority.fields import LEVELS, Receiver, Statement, is_address
from espalier.fleet.authority.rules import (
    AUXILIARY,
    AWAKE,
    CONTROLS,
    HANDOVER,
    IN_USE,
    ORDER,
    REPORT,
    REQUESTS,
    SCOPES,
    SERVED,
    SERVES,
    SUM,
    SURVEY,
    USES,
    WORD,
    Rule,
    Scope,
    Sender,
)
from espalier.fleet.links.limits import TokenBucket

#: rounds by which one letter `closed` may be ahead of all before it
ROUNDS_AHEAD = 8
#: rows of notes that a member may write: so many at once, and so many per second; a server as often for each below it
ROWS_AT_ONCE, ROWS_PER_SECOND = 5000, 200.0


class Outdated(Exception):
    """An honest host may have sent this, but it is of no use any more: it is passed over without a word."""


class Authority:
    """Checks what comes to one host. Keeps what the check needs to know of the past."""

    def __init__(self, receiver: Receiver, saved: Mapping[str, Any] | None = None) -> None:
        """Go on from what :meth:`to_plain` said."""
        self._here = receiver
        known = saved or {}
        #: whom each node of this host has ordered to work: they may answer although they report elsewhere by then
        self._ordered: dict[Address, set[Address]] = known.get("ordered", {})
        #: whom each aggregator of this host has asked for the newest model, and how often; each may answer as often
        self._asked: dict[Address, list[Address]] = known.get("asked", {})
        #: who has given orders to each node of this host
        self._obeyed: dict[Address, set[Address]] = known.get("obeyed", {})
        #: the farthest round that was told
        self._progress: int = known.get("progress", 0)
        self._rows: dict[int, TokenBucket] = {}
        self._scopes = {scope: holds(receiver.plan) for scope, holds in SCOPES.items()}

    def to_plain(self) -> dict[str, Any]:
        """Return all that must outlive the process."""
        return {"ordered": self._ordered, "asked": self._asked, "obeyed": self._obeyed, "progress": self._progress}

    def sends(self, message: Message) -> None:
        """A node of this host orders or asks another: it may answer."""
        match message:
            case Order():
                self._ordered.setdefault(message.sender, set()).add(message.to)
            case Word(data={"head": head}) if is_address(head) and host_of(head) == self._here.fleet.me:
                self._asked.setdefault(head, []).append(message.to)

    # -- messages between nodes ------------------------------------------------------------------------------

    def check(self, origin: int, message: Message) -> None:
        """Refuse a message that its sender may not send.

        Raises:
            ProtocolError: It breaks the rules.
            Outdated: It is too late to be of use.
        """
        self._between(origin, message)
        rule = self._rule(message)
        what = f"A message ({rule.kind}) of node {message.sender} to {message.to}"
        self._in_scope(rule, what)
        _check_fields(rule, {name: getattr(message, name) for name in rule.fields}, Statement(origin, self._here), what)
        self._sent_by(rule, message, what)
        self._of_groups(message, what)
        if isinstance(message, Order):
            if message.ask is None and not message.models and self._here.fleet.is_device(message.to):
                raise ProtocolError(f"{what} has no model to begin with.")
            self._obeyed.setdefault(message.to, set()).add(message.sender)

    def _between(self, origin: int, message: Message) -> None:
        """Check that a message is from a node of its sender's to one that may live here."""
        fleet = self._here.fleet
        for node in (message.sender, message.to):
            if not is_address(node):
                raise ProtocolError(f"A letter of host {origin} names {_shown(node)}, which is no node.")
        if host_of(message.sender) != origin or host_of(message.to) != fleet.me:
            raise ProtocolError(
                f"A letter of host {origin} to {fleet.me} holds a message of {message.sender} to "
                f"{message.to}: nobody speaks for another."
            )
        leads = self._here.plan.root.structure.peers
        for node in (message.sender, message.to):
            if level_of(node) and not (leads and fleet.is_device(host_of(node)) and level_of(node) <= LEVELS):
                raise ProtocolError(f"A letter of host {origin} names node {node}; no host runs such a one here.")

    def _rule(self, message: Message) -> Rule:
        match message:
            case Order():
                return SURVEY if message.back or message.ask is not None else ORDER
            case Report(order=0) if self._scopes[Scope.ELECTING]:
                return HANDOVER
            case Report():
                return REPORT
            case Word(kind="awake"):
                return AWAKE
            case Word(kind=kind):
                return {SERVED: SERVES, IN_USE: USES}.get(kind, WORD)

    def _sent_by(self, rule: Rule, message: Message, what: str) -> None:
        sender, to, fleet = message.sender, message.to, self._here.fleet
        allowed = True
        match rule.by:
            case Sender.PARENT:
                allowed = fleet.parent(to) == sender
                server, elects = not fleet.is_device(host_of(sender)), self._scopes[Scope.ELECTING]
                if not allowed and (sender in self._obeyed.get(to, ()) or server or elects):
                    raise Outdated  # its parent before it moved, or one that does not know yet that it did
            case Sender.CHILD:
                allowed = not fleet.is_device(to) and self._answers(message)
            case Sender.PREDECESSOR:
                allowed = self._was_asked(sender, to) or sender == fleet.tree.root
            case Sender.COORDINATOR:
                allowed = sender == fleet.cloud and fleet.is_device(to)
            case Sender.SERVER:
                allowed = fleet.is_device(to) and sender in (fleet.cloud, fleet.parent(to))
            case Sender.ROOT:
                if fleet.me != fleet.cloud or not fleet.may_aggregate(host_of(sender)):
                    allowed = False
                elif sender != fleet.tree.root:
                    raise Outdated  # of two trees that meet, each has a root for a moment
            case Sender.LISTED:
                allowed = self._listed(message)
        if not allowed:
            raise ProtocolError(f"{what}: only {rule.by.value} may send it.")

    def _of_groups(self, message: Message, what: str) -> None:
        """Check that models which come up are of groups that the run has: a merge keeps every group for good."""
        node = self._here.nodes.get(message.to)
        own = node.state if isinstance(node, Aggregator) else AggregatorState()
        models, auxiliary = own.models.keys(), own.auxiliary.keys()
        match message:
            case Report():
                groups, beside = message.models.keys(), {*message.auxiliary, *auxiliary}
            case Word(kind=kind) if kind == SERVED:
                groups, beside = message.data.get("models", {}).keys(), set(auxiliary)
            case _:
                return
        unknown = groups - models - {ALL, *self._here.fleet.tree.group_names}
        if unknown or len(beside) > AUXILIARY:
            more = _shown(min(unknown)) if unknown else f"{len(beside)} auxiliary vectors"
            raise ProtocolError(f"{what} has models of groups that this run does not have: {more}.")

    def _was_asked(self, sender: Address, head: Address) -> bool:
        """Tell whether an aggregator has asked somebody for the newest model; this is the answer."""
        asked = self._asked.get(head, [])
        found = sender in asked
        if found:
            asked.remove(sender)
        return found

    def _answers(self, message: Message) -> bool:
        """Tell whether a message's sender is a child of the node that it is to, or was ordered by it."""
        sender, to = message.sender, message.to
        node, parent = self._here.nodes.get(to), self._here.fleet.parent(sender)
        out = node.state.tickets if isinstance(node, Aggregator) else ()
        if parent == to or sender in out or sender in self._ordered.get(to, ()):
            return True
        if level_of(to) and parent is None and isinstance(message, Report) and message.dispatcher != to:
            raise Outdated  # another head's order; the sender heard of its new place before this head did
        return False

    def _listed(self, message: Message) -> bool:
        assert isinstance(message, Word)
        fleet = self._here.fleet
        if level_of(message.to) and message.to not in self._here.nodes:
            raise Outdated  # an aggregator that this device does not run (any more)
        node = self._here.node(message.to)
        if not isinstance(node, Listener):
            return False
        match node.hears.get(message.kind):
            case "coordinator":
                return message.sender == fleet.cloud
            case "device":
                return fleet.is_device(host_of(message.sender))
        return False

    # -- control letters between hosts -----------------------------------------------------------------------

    def check_control(self, origin: int, kind: str, data: Mapping[str, Any]) -> None:
        """Refuse a control letter that its sender may not send.

        Raises:
            ProtocolError: It breaks the rules.
            Outdated: It is too late to be of use.
        """
        fleet, rule = self._here.fleet, CONTROLS.get(kind) if type(kind) is str else None
        what = f"{_shown(kind)} of host {origin}"
        if rule is None or type(data) is not dict:
            raise ProtocolError(f"{what}: this version does not know it.")
        self._in_scope(rule, what)
        allowed = {
            Sender.COORDINATOR: origin == fleet.cloud,
            Sender.DEVICE: fleet.is_device(origin),
        }.get(rule.by, True)
        if not allowed:
            raise ProtocolError(f"{what}: only {rule.by.value} may send it; it is not its to say.")
        coordinates = fleet.me == fleet.cloud
        if rule.to in ("the coordinator", "a member") and (rule.to == "the coordinator") != coordinates:
            raise ProtocolError(f"{what}: it is said to {rule.to}, which this host is not.")
        _check_fields(rule, data, Statement(origin, self._here), what)
        if kind == "closed":
            self._counts(data["node"], data["progress"], what)
        elif kind == "notes":
            self._notes(origin, len(data["events"]) + len(data["spans"]), what)
        elif kind == "overdue" and origin not in (fleet.cloud, host_of(fleet.parent(data["node"]) or data["node"])):
            raise Outdated  # this node reports elsewhere by now
        elif kind == SUM and data["step"] == "begin" and fleet.parent(data["child"]) != data.get("node"):
            raise Outdated  # this node went elsewhere meanwhile, and will not report there

    def _counts(self, node: Address, progress: int, what: str) -> None:
        """Check that a node's rounds are the run's, and that they did not leap."""
        fleet, clock = self._here.fleet, self._here.plan.clock
        if clock == "root" and node != fleet.tree.root:
            if self._scopes[Scope.ELECTING]:
                raise Outdated  # of two trees that meet, each has a root for a moment
            raise ProtocolError(f"{what}: node {node} is not the root, whose rounds are the run's.")
        if clock != "root" and (clock == "device") != fleet.is_device(node):
            raise ProtocolError(f"{what}: the run's rounds are those of every {clock}, which node {node} is not.")
        if progress > self._progress + ROUNDS_AHEAD:
            raise ProtocolError(f"{what}: round {progress} cannot be over; {self._progress} were told.")
        self._progress = max(self._progress, progress)

    def _notes(self, origin: int, rows: int, what: str) -> None:
        """Check that a member does not write more into the record than it can have to say."""
        meter = self._rows.setdefault(origin, TokenBucket(ROWS_PER_SECOND, ROWS_AT_ONCE))
        below = max(1, sum(m.via == origin for m in self._here.fleet.members.values()))
        if not meter.take(rows / below):
            raise ProtocolError(f"{what}: more than {ROWS_PER_SECOND:g} rows per second.")

    # -- both --------------------------------------------------------------------------------------------------

    def _in_scope(self, rule: Rule, what: str) -> None:
        if not self._scopes[rule.scope]:
            raise ProtocolError(f"{what}: this run's method has no such thing; it is not its to say.")
        if self._here.over() and not rule.after:
            raise Outdated


def check_request(role: str, what: str, data: Any) -> None:
    """Refuse what somebody of a role may not ask of the cloud.

    Raises:
        ProtocolError: It breaks the rules.
    """
    rule, shown = REQUESTS.get(what), f"The request {_shown(what)}"
    if rule is None or type(data) is not dict:
        raise ProtocolError(f"{shown}: this version does not know it.")
    if role != "operator":
        raise ProtocolError(f"{shown}: only {rule.by.value} may send it; this one says {role}.")
    # none of these fields asks who hears it
    _check_fields(rule, data, Statement(-1, cast(Receiver, None)), shown)


def _check_fields(rule: Rule, data: Mapping[str, Any], statement: Statement, what: str) -> None:
    unknown = [name for name in data if name not in rule.fields]
    if unknown:
        raise ProtocolError(f"{what} is malformed: it has a field {str(unknown[0])[:64]!r}.")
    for name, field in rule.fields.items():
        if name not in data:
            if name not in rule.optional:
                raise ProtocolError(f"{what} is malformed: {name} is missing.")
        elif not field.holds(data[name], statement):
            raise ProtocolError(f"{what} is malformed: {name} is {_shown(data[name])}; accepted is {field.says}.")


def _shown(value: Any) -> str:
    """Return a value as a message may show it."""
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:80]}…"
