"""A cluster picks its central node (Eq. 1): at first, and again whenever its central node is gone.

Somebody holds the vote: at first the node that gathered the cluster, later the first in the line of succession that
is still there. It polls the members, each answers with its delays to the others, the smallest sum wins among those
that may aggregate. The winner and all members get the cluster's description and from then on the winner leads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from espalier.core.messages import Word
from espalier.methods.easf.dsf import ascent, membership, seats
from espalier.methods.easf.dsf.agent import Agent, on_timer, on_word
from espalier.methods.easf.dsf.central import central, levels
from espalier.methods.easf.dsf.state import NONE, Ballot, Court, Member, Seat

#: a delay for hosts that cannot be reached, in seconds
FAR = 1e9


# -- the vote ----------------------------------------------------------------------------------------------


def convene(
    agent: Agent, level: int, cluster: int, term: int, members: dict[int, Member], top: bool = False, tree: int = NONE
) -> None:
    """Hold a vote: ask every member for its delays to the others."""
    state = agent.state
    roster = sorted(members)
    ballot = state.ballots[level] = Ballot(cluster, term, top, tree, members, roster)
    for host in roster:
        if host != agent.me:
            agent.send("poll", host, level=level, cluster=cluster, term=term, roster=roster)
    ballot.delays[agent.me] = _delays(agent, roster)
    ballot.clocks[agent.me] = state.clock
    members[agent.me] = membership.myself(agent, level)
    agent.timer("poll", 4, level)
    counted(agent, level)


def _delays(agent: Agent, roster: list[int]) -> dict[int, float]:
    return {host: min(agent.delay(host), FAR) for host in roster}


@on_word("poll")
def _poll(agent: Agent, word: Word) -> None:
    state, level, organiser = agent.state, word.data["level"], word.sender
    cluster, term = word.data["cluster"], word.data["term"]
    seat, ballot = state.seats.get(level), state.ballots.get(level)
    if seat is not None and seat.cluster == cluster and term <= seat.term:
        if organiser != seat.organiser:
            seats.correct(agent, level, organiser)  # it does not know that the vote is over
        return
    elsewhere = seat.cluster != cluster if seat is not None else state.wooing.get(level, organiser) != organiser
    if elsewhere:
        agent.send("quit", organiser, level=level)
        return
    if ballot is not None:
        if (ballot.term, -agent.me) > (term, -organiser):
            if organiser not in ballot.members:
                ballot.members[organiser] = Member(0)
                ballot.roster = [*ballot.roster, organiser]
                agent.send("poll", organiser, level=level, cluster=cluster, term=ballot.term, roster=ballot.roster)
            return  # this device's own vote comes first, and the other hears of it
        del state.ballots[level]
    state.polled[level] = (organiser, term)
    agent.send(
        "delays", organiser, level=level, term=term, delays=_delays(agent, word.data["roster"]),
        member=membership.about_me(agent, level), clock=state.clock,
    )  # fmt: skip
    agent.timer("guard", 8, level)


@on_word("delays")
def _vote(agent: Agent, word: Word) -> None:
    level = word.data["level"]
    ballot = agent.state.ballots.get(level)
    if ballot is None or ballot.term != word.data["term"] or word.sender not in ballot.members:
        return
    ballot.members[word.sender] = membership.member_of(agent, word.sender, word.data["member"])
    ballot.delays[word.sender] = word.data["delays"]
    ballot.clocks[word.sender] = word.data["clock"]
    counted(agent, level)


def counted(agent: Agent, level: int) -> None:
    """Decide once every member that was asked has answered or is gone."""
    ballot = agent.state.ballots[level]
    if all(m in ballot.delays for m in ballot.members if m in ballot.roster):
        _decide(agent, level)


@on_timer("poll")
def _decide(agent: Agent, level: int) -> None:
    """Pick the central node among those that answered; who did not stays a member."""
    state = agent.state
    ballot = state.ballots.pop(level, None)
    if ballot is None:
        return
    agent.stop("poll", level)
    voters = sorted(m for m in ballot.members if m in ballot.delays)
    # An answer may be to an earlier vote of this device on the same term, with other members.
    delays = np.array([[ballot.delays[m].get(other, FAR) for other in voters] for m in voters])
    if ballot.top and len(voters) > agent.bounds.width:
        _stack(agent, ballot, voters, delays)
        return
    winner = central(voters, delays, [ballot.members[m].able for m in voters])
    if winner is None:
        for host in sorted(ballot.members):
            if host != agent.me:
                agent.send("follow", host, level=level, centre=NONE)
        ascent.unseat(agent, level)
        return
    row = voters.index(winner)
    near = sorted(voters, key=lambda m: (m != winner, delays[row, voters.index(m)], m))
    roster = [*near, *sorted(m for m in ballot.members if m not in ballot.delays)]
    seat = state.seats.get(level)
    up = seat.up if seat is not None else NONE
    _crown(agent, level, ballot, winner, roster, up)


def _stack(agent: Agent, ballot: Ballot, voters: list[int], delays: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    """Many central nodes: cluster them, and their central nodes again, until few enough are left for one root."""
    near = {m: set(ballot.members[m].near) for m in voters}
    found = levels(voters, delays, near, agent.bounds.width)
    of = [{m: centre for centre, cluster in level.items() for m in cluster} for level in found]
    below = [ballot.members]
    for level in found:
        below.append({c: _sum(below[-1][m] for m in cluster) for c, cluster in level.items()})
    # From the root down: whoever leads a cluster has its own place above it by then.
    for number, level in reversed(list(enumerate(found))):
        last, members = number == len(found) - 1, below[number]
        for centre, cluster in level.items():
            part = Ballot(
                ballot.tree if last else agent.name() - agent.me + centre, ballot.term, last, ballot.tree,
                {m: members[m] for m in cluster}, cluster, clocks=ballot.clocks,
            )  # fmt: skip
            row = voters.index(centre)
            roster = sorted(cluster, key=lambda m: (m != centre, delays[row, voters.index(m)], m))
            _crown(agent, number + 1, part, centre, roster, NONE if last else of[number + 1][centre])


def _sum(members: Any) -> Member:
    total = Member(0, 0.0)
    for member in members:
        total.size, total.total = total.size + member.size, total.total + member.total
    return total


def _crown(agent: Agent, level: int, ballot: Ballot, winner: int, roster: list[int], up: int) -> None:
    state = agent.state
    if level > 0 and ballot.top:
        tally = Court(NONE, ballot.members).tally
        state.mean = tally.mean
    seat = Seat(ballot.cluster, ballot.term, agent.me, 1, winner, roster, up, {}, ballot.top, ballot.tree)
    data = membership.description(agent, level, seat)
    extra = {
        "members": {m: membership.describe(member) for m, member in ballot.members.items()},
        "fresh": max(((clock, -m) for m, clock in ballot.clocks.items() if m in ballot.members), default=(-1, 0)),
    }
    for host in roster:
        if host != agent.me:
            agent.send("circle", host, **data, **(extra if host == winner else {}))
    if agent.me in roster:
        seats.take_seat(agent, agent.me, {**data, **(extra if agent.me == winner else {})})
