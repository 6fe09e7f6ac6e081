"""Whose report it was: a report that came long before may be what a node stumbles over when its round closes.

What a policy reads of a report (statistics above all) is checked by its reader, who may find it unreadable only then,
when somebody else's report or a deadline closes the round. The node is put back and takes the same event again without
each of its reports in turn: the one without which it goes on is refused, and its sender named.
"""

from __future__ import annotations

from collections.abc import Callable

from espalier.core.address import Address
from espalier.core.aggregator import Aggregator
from espalier.core.codec import pack, unpack
from espalier.core.messages import Action, Event
from espalier.fleet.node.state import HostState


def without_culprit(
    state: HostState, address: Address, event: Event, ask: Callable[[Address, Event], list[Action]]
) -> tuple[set[Address], list[Action]] | None:
    """Let a node that has just been put back take an event without the report that it stumbles over.

    Returns:
        Who is to blame, and what the node says then. Nobody, if no single one is: it goes on without all that it has.
        None if it cannot take the event without them either.
    """
    node = state.nodes.get(address)
    if not isinstance(node, Aggregator):
        return None
    senders = {a.report.sender for c in node.state.cohorts.values() for a in c.arrived}
    before = pack(node.state)
    for left_out in [*({s} for s in sorted(senders)), senders]:
        if not left_out:
            continue
        state.runtime.nodes.pop(address)
        state.runtime.node(address).state = found = unpack(before)
        for cohort in found.cohorts.values():
            cohort.arrived = [a for a in cohort.arrived if a.report.sender not in left_out]
        state.touch(address)
        try:
            actions = ask(address, event)
        except Exception:
            continue
        return (left_out if len(left_out) == 1 else set()), actions
    state.runtime.nodes.pop(address)
    state.runtime.node(address).state = unpack(before)
    state.touch(address)
    return None
