"""A slow pulse that finds what went wrong unnoticed, whatever it was.

Messages may be late by far more than an agent's patience, and several hosts may go at once. So every so often a
device shows one of its neighbours its badge (two trees that do not know of each other do have neighbours somewhere),
reports to its central nodes (a central node may have struck off a member that is there), and a central node without
a parent looks for one again.
"""

from __future__ import annotations

from espalier.core.messages import Word
from espalier.methods.easf.dsf import ascent, membership, trees
from espalier.methods.easf.dsf.agent import Agent, on_timer, on_word

#: waits between two pulses
EVERY = 50


def begin(agent: Agent) -> None:
    """Start the pulse."""
    agent.timer("pulse", EVERY)


@on_timer("pulse")
def _beat(agent: Agent, _: int) -> None:
    state = agent.state
    if 0 not in state.seats:
        return
    begin(agent)
    state.beat += 1
    neighbours = agent.neighbours()
    if neighbours:
        trees.greet_neighbour(agent, neighbours[state.beat % len(neighbours)])
    for level, seat in sorted(state.seats.items()):
        if seat.centre != agent.me and not seat.vacant:
            agent.send("present", seat.centre, level=level, member=membership.about_me(agent, level))
    for level, host in sorted(state.wooing.items()):
        agent.send("present", host, level=level, member=membership.about_me(agent, level))
    ascent.headless(agent)


@on_word("present")
def _present(agent: Agent, word: Word) -> None:
    """Somebody takes this device for its central node."""
    level, host = word.data["level"], word.sender
    if not membership.enrol(agent, level, host, word.data["member"]):
        agent.send("follow", host, level=level, centre=membership.leader(agent, level))
