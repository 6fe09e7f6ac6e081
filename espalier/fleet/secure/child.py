"""A child's part in secure aggregation: it hides its models before they leave, and helps to unmask their sum.

The aggregator's part is `espalier.fleet.secure.aggregator`. A child has one client (`espalier.secure.Client`) for one
order. It is written down with every transaction: a child that is killed goes on with the same masks, knows whether it
has hidden something with them, and sends nothing that was not written down before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from espalier.core.address import Address, host_of
from espalier.core.codec import refs_in, register
from espalier.core.errors import ProtocolError
from espalier.core.messages import Message, Report
from espalier.fleet.authority.rules import SUMMAND
from espalier.fleet.node.outbox import Outbox
from espalier.fleet.node.state import HostState
from espalier.fleet.secure import forms
from espalier.policies.secure_sum import SecureMerge, to_hide
from espalier.secure.client import Client, TooFew
from espalier.secure.identity import Context, Credentials
from espalier.secure.masks import encode


@register
@dataclass(slots=True)
class MaskingState:
    """What a child hides one order's models with.

    Attributes:
        sum: The sum that it is for.
        server: The aggregator.
        order: The aggregator's order.
        client: The protocol's client as plain data; None if there can be no sum.
        ready: Whether its neighbours' shares are there.
        void: Whether there will be no sum: too few have shared their keys.
        report: What waits for one of the two.
    """

    sum: int
    server: Address
    order: int
    client: dict[str, Any] | None
    ready: bool = False
    void: bool = False
    report: Report | None = None


class Masking:
    """Hides what the nodes of one host report. All is called in the engine's thread."""

    def __init__(self, state: HostState, outbox: Outbox, credentials: Credentials | None) -> None:
        """Go on with what an earlier incarnation had begun."""
        self._state, self._outbox, self._credentials = state, outbox, credentials
        self._masking: dict[Address, MaskingState] = state.journal.get("masks") or {}
        plan = state.plan
        over_devices = plan.root if plan.root.structure.flat else plan.edge
        self._shy = isinstance(over_devices.merge, SecureMerge)

    # -- what leaves this host -----------------------------------------------------------------------------

    def lets_out(self, message: Message) -> bool:
        """Tell whether a message may go out; a device's model may not, where the devices' models are to be hidden."""
        found: set[int] = set()
        refs_in(message, found)
        if not (self._shy and found and self._state.directory.is_device(message.sender)):
            return True
        self._refuse(message, f"node {message.to} wants to see a single model of device {message.sender}")
        return False

    def _refuse(self, message: Message, why: str) -> None:
        """Do not answer what was asked for wrongly; whoever asked is told not to wait, and is named in the record."""
        whose = message.dispatcher if isinstance(message, Report) else message.to
        self._state.effects.refused.append(
            (host_of(whose), f"merge.kind = 'secure': {why}. Use a method that only merges them, or another merge.")
        )
        self._outbox.say(host_of(message.to), "gave_up", node=message.sender)

    def send(self, report: Report) -> None:
        """Send a report with its models hidden, now or when it is known with whom."""
        found: set[int] = set()
        refs_in(report.stats, found)
        if found or len(report.models) != 1:
            what = f"{len(report.models)} groups' models and {len(found)} among statistics"
            self._refuse(report, f"node {report.sender} is to report {what}; one can be hidden")
            return
        masking = self._masking.get(report.sender)
        answers = masking is not None and (masking.server, masking.order) == (report.dispatcher, report.order)
        if masking is None or not answers or report.to != report.dispatcher:
            why = "it cannot be hidden: it answers another aggregator's order, or an earlier one"
            data = {"node": report.to, "child": report.sender, "why": why, "round": report.round}
            self._state.conduct.record(report.sender, "dropped", data)
            return
        masking.report = report
        self._go_on(masking)

    def _go_on(self, masking: MaskingState) -> None:
        if masking.report is not None and (masking.ready or masking.void):
            report, masking.report = masking.report, None
            (model,), words = report.models.values(), self._hidden(masking, report)
            # all vectors are in the same words
            self._outbox.send_masked(replace(report, auxiliary=dict.fromkeys(report.auxiliary, model)), words)

    def _hidden(self, masking: MaskingState, report: Report) -> bytes:
        """Return a report's numbers as masked words, and its counters as words; nothing if it must stay out."""
        store = self._state.store
        ((group, ref),) = report.models.items()
        vector, floats = store.vector(ref), store.spec.n_float
        beside = [store.vector(report.auxiliary[name]) for name in sorted(report.auxiliary)]
        numbers = to_hide([vector, *beside], floats, float(report.samples.get(group, 0)))
        if masking.void or masking.client is None or numbers is None:
            return b""
        client = Client.of_plain(masking.client)
        try:
            words = client.hide(numbers)
            rest = encode(vector[floats:].double().numpy())
        except ProtocolError as error:
            self._state.conduct.record(report.sender, "rejected", {"why": str(error)})
            return b""
        masking.client = client.to_plain()
        return words.astype("<u8").tobytes() + rest.astype("<u8").tobytes()

    # -- what the aggregator says --------------------------------------------------------------------------

    def control(self, origin: int, data: dict[str, Any]) -> None:
        """Hear what an aggregator says about a sum.

        Raises:
            ProtocolError: It makes no sense, or is not what the protocol says: this node's model stays at home.
        """
        step, node = data["step"], data["child"]
        if step == "begin":
            self._begin(origin, node, data)
            return
        masking = self._masking.get(node)
        if masking is None or masking.sum != data["sum"] or host_of(masking.server) != origin:
            return  # of a sum that is over
        try:
            self._hear(masking, node, step, data)
        except TooFew as error:
            self._state.conduct.record(node, "rejected", {"why": str(error)})
            masking.void = True
        except (ProtocolError, KeyError) as error:
            masking.void = True
            raise ProtocolError(
                f"Host {origin} says {step!r} of a secure sum, which makes no sense: {error}"
            ) from error
        finally:
            self._go_on(masking)

    def _hear(self, masking: MaskingState, node: Address, step: str, data: dict[str, Any]) -> None:
        if step == "void" or masking.client is None or masking.void:
            masking.void = True
            return
        client = Client.of_plain(masking.client, self._credentials)
        match step:
            case "keys":
                dealt = client.share(forms.introductions(data["keys"]))
                self._say(
                    masking, node, "shares", boxes=dealt.boxes, commitments=dealt.commitments, seed=dealt.seed,
                    accused=list(dealt.accused),
                )  # fmt: skip
            case "boxes":
                client.receive(forms.parcels(data["boxes"]))
                masking.ready = True
            case "there":
                help = client.unmask(forms.numbers(data["there"]))
                self._say(masking, node, "help", lost=help.lost, there=help.there, accused=help.accused)
                del self._masking[node]
        masking.client = client.to_plain()

    def _begin(self, origin: int, node: Address, data: dict[str, Any]) -> None:
        server = int(data["node"])
        if self._state.directory.parent(node) != server:
            return  # this node went elsewhere meanwhile, and will not report there
        merge = self._state.runtime.rules(server).merge
        if host_of(server) != origin or not isinstance(merge, SecureMerge):
            raise ProtocolError(f"Host {origin} begins a sum for node {server}, which does not sum, or is not its own.")
        number, members, neighbours = int(data["sum"]), int(data["members"]), forms.numbers(data["neighbours"])
        wanted, threshold = merge.degree(members)
        if len(neighbours) != wanted:
            raise ProtocolError(f"Host {origin} gives node {node} {len(neighbours)} neighbours in a sum of {members}.")
        masking = self._masking[node] = MaskingState(number, server, int(data["order"]), None)
        if members < merge.needed(members):
            masking.void = True  # a sum of one hides nothing
            return
        context = Context(self._state.manifest.run, server, number, int(data["round"]))
        client = Client(node, neighbours, threshold, context, self._credentials)
        masking.client = client.to_plain()
        self._say(masking, node, "keys", **forms.advertised(client.advertise()))

    def _say(self, masking: MaskingState, node: Address, step: str, **data: Any) -> None:
        self._outbox.say(host_of(masking.server), SUMMAND, step=step, sum=masking.sum, child=node, **data)

    # -- saving --------------------------------------------------------------------------------------------

    def held(self, found: set[int]) -> None:
        """Add the models that wait to be hidden."""
        refs_in([v.report for v in self._masking.values()], found)

    def save(self) -> None:
        """Bring the journal up to date (it is not committed here)."""
        self._state.journal.put("masks", self._masking)
