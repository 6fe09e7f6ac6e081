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
from collections import Counter
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
from espalier.fleet.secure import forms
from espalier.policies.secure_sum import SecureMerge, Total
from espalier.secure import Server, ring
from espalier.secure.identity import Context, Credentials
from espalier.secure.masks import Words, decode

#: what a reminder of this file is called: a stage follows
SILENT = "@silent "
#: seconds that a child may be silent, at least
SILENCE_SECONDS = 10.0


@register
@dataclass(slots=True)
class Gathering:
    """What an aggregator knows of one secure sum, but for what children said: plain data, written down when it changes.

    Attributes:
        id: Its number.
        node: The aggregator.
        round: Its round.
        orders: Who was ordered to work, and the orders' numbers.
        threshold: How many of them must report.
        shares: How many shares give a child's secret.
        stage: ``keys`` and ``shares`` are collected, ``numbers`` come, ``help`` is asked for, it is ``over``; or
            ``void``: too few have shared their keys.
        introduced: Who has told its keys, and was told its neighbours'.
        shared: Who has sealed shares, and so takes part.
        reports: What came masked, and the samples it stands for.
        there: Whose numbers are summed.
        out: Who has left, was silent, or was refused.
        lies: What was proven against children.
        why: Why there is no sum, at the end.
    """

    id: int
    node: Address
    round: int
    orders: dict[Address, int]
    threshold: int
    shares: int
    stage: str = "keys"
    introduced: set[Address] = field(default_factory=set)
    shared: set[Address] = field(default_factory=set)
    reports: dict[Address, tuple[Ref, int]] = field(default_factory=dict)
    there: set[Address] = field(default_factory=set)
    out: set[Address] = field(default_factory=set)
    lies: dict[Address, str] = field(default_factory=dict)
    why: str = ""

    def silent(self, server: Server) -> set[Address]:
        """Return whose message of this stage is missing."""
        match self.stage:
            case "keys":
                return self.orders.keys() - server.advertised.keys() - self.out
            case "shares":
                return server.advertised.keys() - server.dealt.keys() - self.out
            case "help":
                return self.there - server.helped.keys() - self.out
        return set()


class Sums:
    """The sums of one host's aggregators. All is called in the engine's thread."""

    def __init__(self, state: HostState, outbox: Outbox, credentials: Credentials | None) -> None:
        """Go on with what an earlier incarnation had begun."""
        self._state, self._outbox, self._credentials = state, outbox, credentials
        self._gatherings: dict[int, Gathering] = {}
        self._servers: dict[int, Server] = {}
        #: sums that were taken, until their merges have them
        self._taken: dict[int, NDArray[np.float64]] = {}
        for key in state.journal.keys("sum/"):
            if key.count("/") == 1:
                self._recall(state.journal.get(key))

    def _recall(self, found: Gathering) -> None:
        """Go on with a sum: what children said is written down row by row, and once."""
        journal = self._state.journal
        server = self._server(found, journal.get(f"sum/{found.id}/graph"))
        for key in journal.keys(f"sum/{found.id}/keys/"):
            server.advertised[int(key.split("/")[-1])] = journal.get(key)
        for key in journal.keys(f"sum/{found.id}/shares/"):
            server.dealt[int(key.split("/")[-1])] = journal.get(key)
        if found.stage != "keys":
            server.introduce(server.advertised.keys() - found.introduced)
        if found.shared:
            server.route(server.dealt.keys() - found.shared)
        server.there, server.lies = set(found.there), dict(found.lies)
        for key in journal.keys(f"sum/{found.id}/help/"):
            server.recall(int(key.split("/")[-1]), journal.get(key))

    def _server(self, found: Gathering, graph: Mapping[Address, set[Address]]) -> Server:
        context = Context(self._state.manifest.run, found.node, found.id, found.round)
        server = self._servers[found.id] = Server(graph, found.shares, context, self._credentials)
        self._gatherings[found.id] = found
        return server

    def concerns(self, node: Address) -> bool:
        """Tell whether a node gets its children's models masked."""
        state = self._state
        return not state.directory.is_device(node) and isinstance(state.runtime.rules(node).merge, SecureMerge)

    # -- a round opens -------------------------------------------------------------------------------------

    def opened(self, node: Address, actions: Sequence[Action]) -> None:
        """Begin the sums of a round, one per group, right before its orders go out."""
        if not self.concerns(node):
            return
        merge = self._state.runtime.rules(node).merge
        assert isinstance(merge, SecureMerge)
        groups: dict[str, dict[Address, Order]] = {}
        for action in actions:
            order = action.message if isinstance(action, Send) else None
            if not isinstance(order, Order) or order.ask is not None or order.back:
                continue
            if len(order.models) != 1:
                raise ConfigError(
                    f"merge.kind = 'secure' at node {node}: node {order.to} gets the models of {len(order.models)} "
                    "groups at once; one can be hidden. Use another merge at this tier, or a method with one model."
                )
            groups.setdefault(next(iter(order.models)), {})[order.to] = order
        for orders in groups.values():
            self._begin(node, merge, orders)

    def _begin(self, node: Address, merge: SecureMerge, orders: Mapping[Address, Order]) -> None:
        for old in [g for g in self._gatherings.values() if g.node == node and g.orders.keys() & orders.keys()]:
            self._enter(old, "over")
            del self._gatherings[old.id], self._servers[old.id]
            self._taken.pop(old.id, None)
            self._state.journal.drop(f"sum/{old.id}")
        members, numbers = len(orders), {c: o.id for c, o in orders.items()}
        neighbours, shares = merge.degree(members)
        at = max(o.round for o in orders.values())
        found = Gathering(secrets.randbits(62), node, at, numbers, merge.needed(members), shares)
        graph = self._server(found, ring(orders, neighbours)).graph
        self._state.journal.put(f"sum/{found.id}/graph", graph)
        for child, number in numbers.items():
            begin = {"node": node, "order": number, "round": at, "members": members, "neighbours": graph[child]}
            self._say(found, child, "begin", **begin)
        if self._enough(found, members, members):
            self._enter(found, "keys")

    # -- what children say ---------------------------------------------------------------------------------

    def control(self, data: dict[str, Any]) -> None:
        """Hear what a child says about a sum.

        Raises:
            ProtocolError: It makes no sense; the child is left out.
        """
        step, child = data["step"], data["child"]
        found = self._gatherings.get(data["sum"])
        if found is None or child in found.out or child not in found.silent(self._servers[found.id]):
            return  # of a sum that is over, or goes on without it
        try:
            if step != found.stage:
                raise ProtocolError(f"{step!r} while {found.stage} are collected")
            self._hear(found, child, data)
        except (ProtocolError, KeyError) as error:
            self.strike(found.node, child)
            raise ProtocolError(f"Node {child} sent to a secure sum what makes no sense: {error}.") from error
        self._advance(found)

    def _hear(self, found: Gathering, child: Address, data: dict[str, Any]) -> None:
        """Take what a child says, and write it down."""
        server, kept = self._servers[found.id], f"sum/{found.id}/{found.stage}/{child}"
        match found.stage:
            case "keys":
                said = forms.advertisement(data)
                author, member = server.advertise(child, said), self._state.directory.members.get(host_of(child))
                if self._credentials is not None and (member is None or author != (member.name, member.role)):
                    del server.advertised[child]
                    raise ProtocolError("keys that another has signed")
                self._state.journal.put(kept, said)
            case "shares":
                server.deal(child, forms.dealt(data))
                self._state.journal.put(kept, server.dealt[child])
            case "help":
                server.help(child, forms.unmasking(data))
                self._state.journal.put(kept, server.helped[child])
        self._blame(found)

    def _blame(self, found: Gathering) -> None:
        """Whoever was proven to lie is recorded, counted, and left out where the sum can still do without it."""
        for child, what in self._servers[found.id].lies.items():
            if child in found.lies:
                continue
            found.lies[child] = what
            self._state.effects.refused.append((host_of(child), f"In a secure sum, node {child} {what}."))
            if found.stage == "shares":
                self.strike(found.node, child)
            else:
                self._state.offended(found.node, child)

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
        for child in sorted(found.silent(self._servers[found.id])):
            data = {"node": found.node, "child": child, "why": f"silent in a secure sum ({found.stage})"}
            self._state.conduct.record(found.node, "dropped", data)
            self._state.gave_up(child)
            self.left(found.node, child)

    # -- from stage to stage -------------------------------------------------------------------------------

    def _advance(self, found: Gathering) -> None:
        server = self._servers[found.id]
        if found.stage == "help":
            self._try(found)
        if found.silent(server):
            return
        if found.stage == "keys":
            told = server.advertised.keys() - found.out
            found.introduced = server.introduce(found.out)
            if self._enough(found, len(found.introduced), len(told)):
                self._enter(found, "shares")
                self._leave_out(found, found.introduced)
                for child in found.introduced:
                    self._say(found, child, "keys", keys=forms.introduced(server.introductions(child)))
        elif found.stage == "shares":
            told = server.dealt.keys() - found.out
            found.shared = server.route(found.out)
            if self._enough(found, len(found.shared), len(told)):
                self._enter(found, "numbers")
                self._leave_out(found, found.shared)
                for child in found.shared:
                    self._say(found, child, "boxes", boxes=server.parcels(child))

    def _leave_out(self, found: Gathering, who: set[Address]) -> None:
        """Go on without those of whose neighbours too few are left."""
        for child in found.orders.keys() - who - found.out:
            found.out.add(child)
            self._say(found, child, "void")

    def _enough(self, found: Gathering, tied: int, told: int) -> bool:
        """Tell whether enough go on; if not, there is no sum."""
        if tied >= found.threshold:
            return True
        found.why = f"{told} of {len(found.orders)} shared their keys"
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
            lengths = Counter(len(w) for w in words.values() if len(w))
            # who hides other vectors than most cannot be in the sum
            usual = max(lengths, key=lambda n: (lengths[n], n), default=0)
            found.there = {c for c, w in words.items() if len(w) == usual > 0}
            server = self._servers[found.id]
            server.there = set(found.there)
            self._enter(found, "help" if len(found.there) >= found.threshold else "over")
            for child in sorted(found.there) if found.stage == "help" else ():
                self._say(found, child, "there", there=server.present(child))
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
            self._taken[found.id] = self._servers[found.id].sum(self._masked(found))
        return Total(*counts, self._taken[found.id], self._rest(first))

    def _rest(self, words: Words | None) -> torch.Tensor:
        """Return the integer buffers that follow the masked words, in the models' type."""
        dtype = self._state.manifest.experiment.training.dtype
        if words is None:
            return torch.empty(0, dtype=dtype)
        return torch.from_numpy(decode(words[len(words) - self._counters() :])).to(dtype)

    def _counters(self) -> int:
        return self._state.store.spec.size - self._state.store.spec.n_float

    def _masked(self, found: Gathering) -> dict[Address, Words]:
        words = {c: self._state.store.words(found.reports[c][0]) for c in found.there}
        return {c: w[: len(w) - self._counters()] for c, w in words.items()}

    def _try(self, found: Gathering) -> None:
        """Sum up if enough have helped; give up if no more can."""
        server = self._servers[found.id]
        if short := server.short():
            if not found.silent(server):
                lied = "".join(f"; node {c} {what}" for c, what in sorted(found.lies.items()))
                few = f"too few good shares of the secrets of nodes {sorted(short)} are there" if lied else ""
                self._over(found, (few or f"{len(server.helped)} helped to take the masks off") + lied)
            return
        try:
            numbers = server.sum(self._masked(found))
        except ProtocolError as error:
            self._blame(found)
            self._over(found, str(error))
            return
        claimed = sum(found.reports[c][1] for c in found.there)
        # the weights are known: numbers that were not hidden as they were reported show
        if abs(numbers[-1] - claimed) <= 1e-3:
            self._taken[found.id] = numbers
            self._over(found, "")
        else:
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
        for found in self._gatherings.values():
            self._state.journal.put(f"sum/{found.id}", found)
