"""An aggregator's part in secure aggregation: it passes keys and sealed shares on, and gets one sum of masked models.

    the aggregator orders   begin ─>   <─ keys      (the children train meanwhile)
                             keys ─>   <─ shares
                            boxes ─>   <─ reports, masked
    its round closes        there ─>   <─ help
    the sum is there: the aggregator is told, and its merge gets it

The children's part is `espalier.fleet.secure.child`. All that is known here is written down with every transaction, so
an aggregator that is killed goes on. Children that leave, or are silent for too long, are left out; with fewer than the
threshold there is no sum, and the merge is told why.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from espalier.core.address import Address, host_of
from espalier.core.codec import register
from espalier.core.errors import ConfigError, ProtocolError
from espalier.core.messages import Action, Alarm, Deadline, Order, Report, Send
from espalier.core.store import Ref
from espalier.fleet.authority.rules import SUM
from espalier.fleet.node.outbox import Outbox
from espalier.fleet.node.state import HostState
from espalier.fleet.secure.child import shares_of
from espalier.policies.secure_sum import SecureMerge, Total
from espalier.secure import shamir
from espalier.secure.client import BOX, Keys, Unmasking
from espalier.secure.masks import Words, decode
from espalier.secure.server import Server

#: what a reminder of this file is called: a stage follows
SILENT = "@silent "
#: seconds that a child may be silent, at least
SILENCE_SECONDS = 10.0


@register
@dataclass(slots=True)
class Gathering:
    """What an aggregator knows of one secure sum: plain data, written down with every transaction.

    Attributes:
        id: Its number.
        node: The aggregator.
        orders: Who was ordered to work, and the orders' numbers.
        threshold: How many of them must be there.
        stage: ``keys`` and ``shares`` are collected, ``numbers`` come, ``help`` is asked for, it is ``over``; or
            ``void``: too few have shared their keys.
        keys: Public keys.
        boxes: Sealed shares by sender and receiver, until they are passed on.
        shared: Who has sealed shares.
        reports: What came masked, and the samples it stands for.
        there: Whose numbers are summed.
        answers: What takes the masks off: shares of the keys of those who are lost, of the seeds of the others.
        out: Who has left, was silent, or was refused.
        why: Why there is no sum, at the end.
    """

    id: int
    node: Address
    orders: dict[Address, int]
    threshold: int
    stage: str = "keys"
    keys: dict[Address, tuple[bytes, bytes]] = field(default_factory=dict)
    boxes: dict[Address, dict[Address, bytes]] = field(default_factory=dict)
    shared: set[Address] = field(default_factory=set)
    reports: dict[Address, tuple[Ref, int]] = field(default_factory=dict)
    there: set[Address] = field(default_factory=set)
    answers: dict[Address, tuple[dict[Address, bytes], dict[Address, bytes]]] = field(default_factory=dict)
    out: set[Address] = field(default_factory=set)
    why: str = ""

    def silent(self) -> set[Address]:
        """Return whose message of this stage is missing."""
        match self.stage:
            case "keys":
                return self.orders.keys() - self.keys.keys() - self.out
            case "shares":
                return self.keys.keys() - self.boxes.keys() - self.out
            case "help":
                return self.there - self.answers.keys() - self.out
        return set()


class Sums:
    """The sums of one host's aggregators. All is called in the engine's thread."""

    def __init__(self, state: HostState, outbox: Outbox) -> None:
        """Go on with what an earlier incarnation had begun."""
        self._state, self._outbox = state, outbox
        self._gatherings: dict[int, Gathering] = state.journal.get("sums") or {}
        #: sums that were taken, until their merges have them
        self._taken: dict[int, NDArray[np.float64]] = {}

    def concerns(self, node: Address) -> bool:
        """Tell whether a node gets its children's models masked."""
        state = self._state
        return not state.directory.is_device(node) and isinstance(state.rules(node).merge, SecureMerge)

    # -- a round opens -------------------------------------------------------------------------------------

    def opened(self, node: Address, actions: Sequence[Action]) -> None:
        """Begin the sums of a round, one per group, right before its orders go out."""
        if not self.concerns(node):
            return
        merge = self._state.rules(node).merge
        assert isinstance(merge, SecureMerge)
        groups: dict[str, dict[Address, int]] = {}
        for action in actions:
            order = action.message if isinstance(action, Send) else None
            if not isinstance(order, Order) or order.ask is not None or order.back:
                continue
            if len(order.models) != 1:
                raise ConfigError(
                    f"merge.kind = 'secure' at node {node}: node {order.to} gets the models of {len(order.models)} "
                    "groups at once; one can be hidden. Use another merge at this tier, or a method with one model."
                )
            groups.setdefault(next(iter(order.models)), {})[order.to] = order.id
        for orders in groups.values():
            for old in [g for g in self._gatherings.values() if g.node == node and g.orders.keys() & orders.keys()]:
                self._enter(old, "over")
                del self._gatherings[old.id]
                self._taken.pop(old.id, None)
            found = Gathering(secrets.randbits(62), node, orders, merge.needed(len(orders)))
            self._gatherings[found.id] = found
            for child, number in orders.items():
                self._say(found, child, "begin", node=node, order=number, members=len(orders))
            self._enter(found, "keys")

    # -- what children say ---------------------------------------------------------------------------------

    def control(self, origin: int, data: dict[str, Any]) -> None:
        """Hear what a child says about a sum.

        Raises:
            ProtocolError: It makes no sense; the child is left out.
        """
        step, child = str(data["step"]), int(data["child"])
        found = self._gatherings.get(int(data["sum"]))
        if host_of(child) != origin:
            raise ProtocolError(f"Host {origin} speaks of a sum for node {child}: nobody speaks for another.")
        if found is None or child in found.out or child not in found.silent():
            return  # of a sum that is over, or goes on without it
        try:
            match step, found.stage:
                case "keys", "keys":
                    self._keys(found, child, data)
                case "shares", "shares":
                    boxes = shares_of(data["boxes"], found.keys.keys(), BOX)
                    if boxes.keys() != found.keys.keys():
                        raise ProtocolError(f"shares for {len(boxes)} of {len(found.keys)} clients")
                    found.boxes[child] = boxes
                case "help", "help":
                    lost = shares_of(data["lost"], found.shared - found.there, shamir.SHARE)
                    found.answers[child] = (lost, shares_of(data["there"], found.there, shamir.SHARE))
                case _:
                    raise ProtocolError(f"{step!r} while {found.stage} are collected")
        except (ProtocolError, KeyError, ValueError, TypeError, AttributeError) as error:
            self.strike(found.node, child)
            raise ProtocolError(f"Node {child} sent to a secure sum what makes no sense: {error}.") from error
        self._advance(found)

    def _keys(self, found: Gathering, child: Address, data: dict[str, Any]) -> None:
        keys = Keys(data["shares"], data["masks"])
        keys.check()
        known = {key for pair in found.keys.values() for key in pair}
        if keys.shares in known or keys.masks in known or keys.shares == keys.masks:
            raise ProtocolError("a key that another client has")
        found.keys[child] = (keys.shares, keys.masks)

    def arrived(self, report: Report) -> None:
        """A masked report came."""
        for found in self._gatherings.values():
            if found.node == report.to and found.orders.get(report.sender) == report.order and report.models:
                found.reports[report.sender] = (next(iter(report.models.values())), sum(report.samples.values()))

    # -- children that leave or are silent -----------------------------------------------------------------

    def strike(self, node: Address, child: Address) -> None:
        """Count an offence of a child, and go on without it for now."""
        self._state.offended(node, child)
        self._state.gave_up(child)
        self.left(node, child)

    def left(self, node: Address, child: Address) -> None:
        """A child left, or its round is over for it."""
        for found in [g for g in self._gatherings.values() if g.node == node and child in g.orders]:
            if child not in found.out:
                found.out.add(child)
                self._advance(found)

    def due(self, alarm: Alarm) -> None:
        """Children that are still silent are left out."""
        found = self._gatherings.get(alarm.number)
        if found is None or alarm.key != SILENT + found.stage:
            return
        for child in sorted(found.silent()):
            data = {"node": found.node, "child": child, "why": f"silent in a secure sum ({found.stage})"}
            self._state.conduct.record(found.node, "dropped", data)
            self._state.gave_up(child)
            self.left(found.node, child)

    # -- from stage to stage -------------------------------------------------------------------------------

    def _advance(self, found: Gathering) -> None:
        if found.stage == "help":
            self._try(found)
        if found.silent():
            return
        if found.stage == "keys":
            found.keys = {c: k for c, k in found.keys.items() if c not in found.out}
            if self._enough(found, len(found.keys)):
                self._enter(found, "shares")
                for child in found.keys:
                    self._say(found, child, "keys", keys=found.keys)
        elif found.stage == "shares":
            sent = {c: b for c, b in found.boxes.items() if c not in found.out}
            found.boxes = {}
            if self._enough(found, len(sent)):
                found.shared = set(sent)
                self._enter(found, "numbers")
                for child in sent:
                    self._say(found, child, "boxes", boxes={c: b[child] for c, b in sent.items()})

    def _enough(self, found: Gathering, count: int) -> bool:
        if count >= found.threshold:
            return True
        found.why = f"{count} of {len(found.orders)} shared their keys"
        self._enter(found, "void")
        for child in found.orders.keys() - found.out:
            self._say(found, child, "void")
        return False

    # -- the sum -------------------------------------------------------------------------------------------

    def ask(self, models: Mapping[Address, Ref]) -> bool:
        """Begin to take the masks off a sum; tell whether children must help first."""
        found = self._of(models)
        if found is not None and found.stage == "numbers":
            words = {c: self._state.store.words(ref) for c, ref in models.items() if c in found.shared}
            found.there = {c for c, w in words.items() if len(w)}
            self._enter(found, "help" if len(found.there) >= found.threshold else "over")
            for child in sorted(found.there) if found.stage == "help" else ():
                self._say(found, child, "there", there=found.there)
        return found is not None and found.stage == "help"

    def _of(self, models: Mapping[Address, Ref]) -> Gathering | None:
        wanted = {int(ref) for ref in models.values()}
        several = self._gatherings.values()
        return next((g for g in several if any(int(ref) in wanted for ref, _ in g.reports.values())), None)

    def total(self, models: Mapping[Address, Ref]) -> Total:
        """Return a sum that was asked for and needs no more help."""
        found = self._of(models)
        if found is None:
            return Total(len(models), 0, 0, None, self._rest(None), "no sum of these reports was begun")
        counts = (len(found.orders), len(found.there), found.threshold)
        if found.why or len(found.there) < found.threshold:
            return Total(*counts, None, self._rest(None), found.why)
        first = self._state.store.words(found.reports[min(found.there)][0])
        if found.id not in self._taken:
            self._taken[found.id] = self._server(found).sum(self._answers(found))
        return Total(*counts, self._taken[found.id], self._rest(first))

    def _rest(self, words: Words | None) -> torch.Tensor:
        """Return the integer buffers that follow the masked words, in the models' type."""
        dtype = getattr(torch, self._state.manifest.experiment.training.precision)
        tail = slice(self._state.store.spec.n_float + 1, None)
        return torch.from_numpy(decode(words[tail])).to(dtype) if words is not None else torch.empty(0, dtype=dtype)

    def _server(self, found: Gathering) -> Server:
        server, store = Server(found.threshold), self._state.store
        server.keys = {c: Keys(*pair) for c, pair in found.keys.items()}
        server.shared = set(found.shared)
        server.collect({c: store.words(found.reports[c][0])[: store.spec.n_float + 1] for c in found.there})
        return server

    def _answers(self, found: Gathering) -> dict[Address, Unmasking]:
        return {c: Unmasking(*answer) for c, answer in found.answers.items()}

    def _try(self, found: Gathering) -> None:
        """Sum up if enough have helped; give up if no more can."""
        answers, last = self._answers(found), not found.silent()
        if len(answers) < found.threshold:
            if last:
                self._over(found, f"{len(answers)} helped to take the masks off")
            return
        server = self._server(found)
        short = server.short(answers)
        if short and not last:
            return
        if short:
            why = f"the shares that nodes {sorted(short)} dealt out cannot be opened"
            for child in sorted(short):
                self._state.effects.refused.append((host_of(child), f"In a secure sum, {why}."))
                self._state.offended(found.node, child)
            self._over(found, why)
            return
        try:
            numbers = server.sum(answers)
        except ProtocolError as error:
            if last:
                self._over(found, str(error))
            return
        claimed = sum(found.reports[c][1] for c in found.there)
        # the weights are known: masks that were not taken off properly show
        if abs(numbers[-1] - claimed) <= 1e-3:
            self._taken[found.id] = numbers
            self._over(found, "")
        elif last:
            self._over(found, f"the weights sum up to {numbers[-1]:.6g}, {claimed} samples were reported")

    def _over(self, found: Gathering, why: str) -> None:
        found.why = why
        self._enter(found, "over")
        if not any(g.node == found.node and g.stage == "help" for g in self._gatherings.values()):
            self._state.release(found.node)

    # -- helpers -------------------------------------------------------------------------------------------

    def _say(self, found: Gathering, child: Address, step: str, **data: Any) -> None:
        self._outbox.say(host_of(child), SUM, step=step, sum=found.id, child=child, **data)

    def _enter(self, found: Gathering, stage: str) -> None:
        """Begin a stage; who is silent in it for too long is left out."""
        self._state.timers.cancel(Alarm(SILENT + found.stage, found.id))
        found.stage = stage
        if stage in ("keys", "shares", "help"):
            seconds = max(SILENCE_SECONDS, self._state.manifest.patience)
            self._state.timers.set(found.node, seconds, Deadline(Alarm(SILENT + stage, found.id)))

    def save(self) -> None:
        """Bring the journal up to date (it is not committed here)."""
        self._state.journal.put("sums", self._gatherings)
