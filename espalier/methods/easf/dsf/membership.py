"""What a central node knows of its cluster, and how it tells: members come and go.

A cluster's description goes to all members whenever it changes: who leads, the roster in the order of succession, the
central node's own central node, and the rosters of higher clusters that it leads. So every member knows what to do
when the central node is gone.
"""

from __future__ import annotations

from typing import Any

from espalier.core.messages import Word
from espalier.methods.easf.dsf import assembly, trees
from espalier.methods.easf.dsf.agent import Agent, on_timer, on_word
from espalier.methods.easf.dsf.state import NONE, Court, Member, Seat

# -- what is told of members -------------------------------------------------------------------------------


def describe(member: Member) -> dict[str, Any]:
    """Return what a message says of a member."""
    return {"size": member.size, "total": member.total, "able": member.able, "near": dict(member.near)}


def about_me(agent: Agent, level: int) -> dict[str, Any]:
    """Return what this device tells of itself as a member at a level."""
    state = agent.state
    if level == 0:
        near = {c: hops for c, (hops, _) in state.heard.items()}
        return describe(Member(1, agent.accuracy, agent.able, near=near))
    below = state.courts.get(level - 1)
    tally = below.tally if below is not None else Court(NONE).tally
    return describe(Member(tally.size, tally.total, True, near=dict.fromkeys(state.borders.values(), 1.0)))


def myself(agent: Agent, level: int) -> Member:
    """Return this device as a member at a level."""
    return member_of(agent, agent.me, about_me(agent, level))


def member_of(agent: Agent, host: int, data: dict[str, Any]) -> Member:
    """Return the member that a message describes, at its distance from this device."""
    return Member(data["size"], data["total"], data["able"], agent.hops(host), dict(data["near"]))


def leader(agent: Agent, level: int) -> int:
    """Return who leads (or is about to lead) this device's cluster of a level, as far as it knows."""
    state = agent.state
    if level in state.courts or level in state.ballots:
        return agent.me
    seat = state.seats.get(level)
    if seat is None:
        host = state.wooing.get(level, NONE)
        return NONE if agent.gone(host) else host
    if not seat.vacant:
        return seat.centre
    return next((h for h in seat.roster if not agent.gone(h)), NONE)


# -- members come and go -----------------------------------------------------------------------------------


def admit(agent: Agent, level: int, host: int, data: dict[str, Any]) -> None:
    """Take a member in; a formed cluster's members learn it."""
    state, member = agent.state, member_of(agent, host, data)
    if level in state.ballots:
        state.ballots[level].members[host] = member
    court = state.courts.get(level)
    if court is not None:
        court.members[host] = member
        if court.formed:
            announce(agent, level)
            agent.send("circle", host, **description(agent, level, refresh(agent, level)))


def enrol(agent: Agent, level: int, host: int, data: dict[str, Any]) -> bool:
    """Take in a host that takes this device for its central node, or for the next in line; False if it is neither."""
    state = agent.state
    led, seat = state.courts.get(level) or state.ballots.get(level), state.seats.get(level)
    if led is not None:
        if host not in led.members:
            admit(agent, level, host, data)
    elif seat is not None and seat.vacant:
        state.pending.setdefault(level, {})[host] = member_of(agent, host, data)
    else:
        return host in state.pending.get(level, {})
    return True


@on_word("join")
def _join(agent: Agent, word: Word) -> None:
    state, level, host = agent.state, word.data["level"], word.sender
    if not agent.answers(host):
        return
    court, seat = state.courts.get(level), state.seats.get(level)
    if state.wooing.get(level) == host and agent.me < host:
        # Each has asked the other: one of them must stop.
        del state.wooing[level]
        agent.stop("join", level)
    if court is not None or level in state.ballots:
        if court is None or not court.formed:
            agent.send("welcome", host, level=level)
        admit(agent, level, host, word.data["member"])
    elif leader(agent, level) == agent.me or (seat is None and trees.coordinates(agent, level)):
        # The vote is still to come: either this device is next in line, or nobody leads the tree yet.
        state.pending.setdefault(level, {})[host] = member_of(agent, host, word.data["member"])
        agent.send("welcome", host, level=level)
        if seat is None:
            agent.timer("climb", 3)
    else:
        agent.send("moved", host, level=level, centre=leader(agent, level))


@on_word("quit")
def _quit(agent: Agent, word: Word) -> None:
    """A node that was thought a member belongs elsewhere."""
    strike(agent, word.data["level"], word.sender)


def strike(agent: Agent, level: int, host: int) -> None:
    """Take a member out; a formed cluster's others learn it."""
    state = agent.state
    if level in state.ballots:
        state.ballots[level].members.pop(host, None)
        assembly.counted(agent, level)
    state.pending.get(level, {}).pop(host, None)
    court = state.courts.get(level)
    if court is not None and court.members.pop(host, None) is not None and court.formed:
        announce(agent, level)


def announce(agent: Agent, level: int) -> None:
    """Tell all members soon how the cluster stands; those of lower clusters learn of the higher ones' rosters."""
    for below, court in sorted(agent.state.courts.items()):
        if below <= level and court.formed:
            agent.timer("announce", 0.5, below)


@on_timer("announce")
def _announce(agent: Agent, level: int) -> None:
    court = agent.state.courts.get(level)
    if court is not None and court.formed:
        tree = agent.state.seats[level].tree
        seat = refresh(agent, level)
        for host in seat.roster[1:]:
            agent.send("circle", host, **description(agent, level, seat))
        if level == 0 and seat.tree != tree:
            trees.show_tree(agent)


def refresh(agent: Agent, level: int) -> Seat:
    """Bring the description of a cluster that this device leads up to date."""
    state = agent.state
    seat, above = state.seats[level], state.seats.get(level + 1)
    others = (m for m in state.courts[level].members if m != agent.me)
    seat.version += 1
    seat.roster = [agent.me, *sorted(others, key=lambda m: (agent.delay(m), m))]
    seat.up = NONE if above is None else above.centre
    seat.tree = seat.tree if above is None else above.tree
    seat.will = {at: list(state.seats[at].roster) for at in sorted(state.courts) if at > level and at in state.seats}
    return seat


def description(agent: Agent, level: int, seat: Seat) -> dict[str, Any]:
    """Return what a message says of a cluster."""
    return {
        "level": level, "cluster": seat.cluster, "term": seat.term, "organiser": seat.organiser,
        "version": seat.version, "centre": seat.centre, "roster": list(seat.roster), "up": seat.up,
        "will": {at: list(roster) for at, roster in seat.will.items()}, "top": seat.top, "tree": seat.tree,
        "mean": agent.state.mean,
    }  # fmt: skip
