"""A child's part in secure aggregation: it hides its models before they leave, and helps to unmask their sum.

The aggregator's part is `espalier.fleet.secure.aggregator`. A child has one client (`espalier.secure.Client`) for one
order. It is written down with every transaction: a child that is killed goes on with the same masks, knows whether it
has hidden something with them, and sends nothing that was not written down before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from espalier.core.address import Address, host_of
from espalier.core.codec import refs_in, register
from espalier.core.errors import ConfigError, ProtocolError
from espalier.core.messages import Message, Report
from espalier.fleet.authority.rules import SUMMAND
from espalier.fleet.node.outbox import Outbox
from espalier.fleet.node.state import HostState
from espalier.policies.secure_sum import SecureMerge, to_hide
from espalier.secure.client import BOX, Client, Keys
from espalier.secure.masks import encode


@register
@dataclass(slots=True)
class MaskingState:
    """What a child hides one order's models with.

    Attributes:
        sum: The sum that it is for.
        server: The aggregator.
        order: The aggregator's order.
        client: The protocol's client as plain data.
        boxes: The other clients' sealed shares, by sender, until something is hidden.
        ready: Whether they are there.
        void: Whether there will be no sum: too few have shared their keys.
        report: What waits for one of the two.
    """

    sum: int
    server: Address
    order: int
    client: dict[str, Any]
    boxes: dict[int, bytes] = field(default_factory=dict)
    ready: bool = False
    void: bool = False
    report: Report | None = None


def shares_of(value: Mapping[Any, Any], known: Collection[int], size: int) -> dict[int, bytes]:
    """Return byte strings of one length by client, as they came over the network.

    Raises:
        ProtocolError: There is another client's, or one of another length.
    """
    found = {int(client): share for client, share in value.items()}
    if not found.keys() <= set(known) or not all(isinstance(s, bytes) and len(s) == size for s in found.values()):
        raise ProtocolError(f"{len(found)} shares, some for clients that are not known, or of another length")
    return found


class Masking:
    """Hides what the nodes of one host report. All is called in the engine's thread."""

    def __init__(self, state: HostState, outbox: Outbox) -> None:
        """Go on with what an earlier incarnation had begun."""
        self._state, self._outbox = state, outbox
        self._masking: dict[Address, MaskingState] = state.journal.get("masking") or {}
        plan = state.plan
        over_devices = plan.root if plan.root.structure.flat else plan.edge
        self._shy = isinstance(over_devices.merge, SecureMerge)

    # -- what leaves this host -----------------------------------------------------------------------------

    def inspect(self, message: Message) -> None:
        """Refuse to let a device's model out as it is, where the devices' models are to be hidden."""
        found: set[int] = set()
        refs_in(message, found)
        if self._shy and found and self._state.directory.is_device(message.sender):
            raise ConfigError(
                f"merge.kind = 'secure': the method wants node {message.to} to see a single model of device "
                f"{message.sender} (in a {type(message).__name__.lower()}). Use a method that only merges them, or "
                "another merge."
            )

    def send(self, report: Report) -> None:
        """Send a report with its models hidden, now or when it is known with whom."""
        found: set[int] = set()
        refs_in([report.stats, report.auxiliary], found)
        if found or len(report.models) != 1:
            raise ConfigError(
                f"merge.kind = 'secure': node {report.sender} reports {len(report.models)} groups' models and "
                f"{len(found)} vectors beside them; one can be hidden. Use another method, or another merge there."
            )
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
            self._outbox.send_masked(report, self._hidden(masking, report))

    def _hidden(self, masking: MaskingState, report: Report) -> bytes:
        """Return a report's numbers as masked words, and its counters as words; nothing if it must stay out."""
        store = self._state.store
        ((group, ref),) = report.models.items()
        vector, floats = store.vector(ref), store.spec.n_float
        numbers = to_hide(vector, floats, float(report.samples.get(group, 0)))
        if masking.void or numbers is None:
            return b""
        client, boxes = Client.of_plain(masking.client), masking.boxes
        try:
            words = client.hide(numbers, boxes)
            rest = encode(vector[floats:].double().numpy())
        except ProtocolError as error:
            self._state.conduct.record(report.sender, "rejected", {"why": str(error)})
            return b""
        masking.client, masking.boxes = client.to_plain(), {}
        return words.astype("<u8").tobytes() + rest.astype("<u8").tobytes()

    # -- what the aggregator says --------------------------------------------------------------------------

    def control(self, origin: int, data: dict[str, Any]) -> None:
        """Hear what an aggregator says about a sum."""
        step, node = str(data["step"]), int(data["child"])
        if host_of(node) != self._state.me:
            raise ProtocolError(f"Host {origin} speaks of a sum to node {node}, which does not live here.")
        if step == "begin":
            self._begin(origin, node, data)
            return
        masking = self._masking.get(node)
        if masking is None or masking.sum != int(data["sum"]) or host_of(masking.server) != origin:
            return  # of a sum that is over
        match step:
            case "keys":
                client = Client.of_plain(masking.client)
                boxes = client.share({int(c): Keys(*pair) for c, pair in data["keys"].items()})
                masking.client = client.to_plain()
                self._say(masking, node, "shares", boxes=boxes)
            case "boxes":
                masking.boxes, masking.ready = shares_of(data["boxes"], masking.client["keys"], BOX), True
                self._go_on(masking)
            case "void":
                masking.void = True
                self._go_on(masking)
            case "there":
                client = Client.of_plain(masking.client)
                help = client.unmask({int(c) for c in data["there"]})
                self._say(masking, node, "help", lost=help.lost, there=help.there)
                del self._masking[node]
            case _:
                raise ProtocolError(f"Host {origin} says {step!r} about a sum, which this version does not know.")

    def _begin(self, origin: int, node: Address, data: dict[str, Any]) -> None:
        server = int(data["node"])
        if self._state.directory.parent(node) != server:
            return  # this node went elsewhere meanwhile, and will not report there
        merge = self._state.rules(server).merge
        if host_of(server) != origin or not isinstance(merge, SecureMerge):
            raise ProtocolError(f"Host {origin} begins a sum for node {server}, which does not sum, or is not its own.")
        client = Client(node, merge.needed(int(data["members"])))
        masking = self._masking[node] = MaskingState(int(data["sum"]), server, int(data["order"]), client.to_plain())
        keys = client.advertise()
        self._say(masking, node, "keys", shares=keys.shares, masks=keys.masks)

    def _say(self, masking: MaskingState, node: Address, step: str, **data: Any) -> None:
        self._outbox.say(host_of(masking.server), SUMMAND, step=step, sum=masking.sum, child=node, **data)

    # -- saving --------------------------------------------------------------------------------------------

    def held(self, found: set[int]) -> None:
        """Add the models that wait to be hidden."""
        refs_in([v.report for v in self._masking.values()], found)

    def save(self) -> None:
        """Bring the journal up to date (it is not committed here)."""
        self._state.journal.put("masking", self._masking)
