"""What an agent does when a host that matters to it is gone.

A member is struck off. If it was the central node, the first in the line of succession holds a vote; the others see to
it, each after a while of its own, that somebody does. They let that first one know of them: it may not have heard of
the latest members, or it may have been away and no longer know the cluster; then it is passed over.
"""

from __future__ import annotations

from espalier.core.messages import Word
from espalier.methods.easf.dsf import ascent, assembly, founding, membership, seats
from espalier.methods.easf.dsf.agent import Agent, on_loss, on_timer, on_word
from espalier.methods.easf.dsf.state import NONE, Member


@on_loss
def lost(agent: Agent, host: int) -> None:
    """Strike a host off everywhere; where it led, see to its succession; where it was asked for a place, ask on."""
    state = agent.state
    if host in state.lost:
        return
    state.lost[host] = agent.now
    for table in (state.degrees, state.here, state.rivals, state.heard, state.asked, state.badges, state.badged):
        table.pop(host, None)
    state.borders = {cluster: centre for cluster, centre in state.borders.items() if centre != host}
    trades = state.trades
    trades.near.pop(host, None)
    trades.sizes.pop(host, None)
    trades.changed = True
    if trades.pending == host:
        trades.pending = NONE
    for level in sorted({*state.courts, *state.ballots, *state.pending}):
        membership.strike(agent, level, host)
    for level, seat in sorted(state.seats.items()):
        if host in seat.roster:
            seat.roster.remove(host)
        organiser = state.polled.get(level, (NONE, 0))[0] == host
        if organiser:
            del state.polled[level]
        if seat.centre == host or (organiser and seat.vacant):
            succeed(agent, level)
    for level, wooed in sorted(state.wooing.items()):
        if wooed == host and level in state.wooing:
            ascent.unseat(agent, level)
            if state.phase == "greet" and state.attempt:
                founding.greet(agent, 0)  # the others who would have joined it may have nobody else either: elect anew
    if state.phase == "greet":
        founding.greeted(agent)


# -- succession --------------------------------------------------------------------------------------------


def succeed(agent: Agent, level: int) -> None:
    """The central node is gone: hold a vote if this device is next in line, else see to it that somebody does."""
    seat = agent.state.seats[level]
    seat.vacant = True
    if level in agent.state.ballots:
        return
    line = [h for h in seat.roster if agent.answers(h)]
    rank = line.index(agent.me) if agent.me in line else len(line)
    if rank == 0 and level == 0:
        _hold_vote(agent, level)
    else:
        if rank and line:
            # It may have come so late that the next in line has not heard of it; or the next in line has been away.
            about = membership.about_me(agent, level)
            agent.send("heir", line[0], level=level, cluster=seat.cluster, member=about)
        # Above level 0 the gone node's own cluster sends its successor first, to be voted on too.
        agent.timer("guard", 4 * rank + (2 if level else 0), level)


@on_word("heir")
def _heir(agent: Agent, word: Word) -> None:
    """A member of a cluster whose central node is gone takes this device for the next in line."""
    level, host = word.data["level"], word.sender
    seat = agent.state.seats.get(level)
    if seat is None or seat.cluster != word.data["cluster"]:
        agent.send("stranger", host, level=level)
        return
    if not seat.vacant and not agent.answers(seat.centre):
        lost(agent, seat.centre)
    if not membership.enrol(agent, level, host, word.data["member"]) and level in agent.state.seats:
        seats.correct(agent, level, host)


@on_word("stranger")
def _stranger(agent: Agent, word: Word) -> None:
    """The next in line is of this cluster no more (it was away, and has forgotten it): pass it over."""
    level = word.data["level"]
    seat = agent.state.seats.get(level)
    if seat is not None and seat.vacant and word.sender in seat.roster:
        seat.roster.remove(word.sender)
        if level not in agent.state.polled:
            succeed(agent, level)


@on_timer("guard")
def _guard(agent: Agent, level: int) -> None:
    state, seat = agent.state, agent.state.seats.get(level)
    if seat is None or level in state.ballots or not seat.vacant:
        return
    if state.polled.pop(level, None) is not None:
        succeed(agent, level)  # whoever held the vote may be gone unnoticed
        return
    _hold_vote(agent, level)


def _hold_vote(agent: Agent, level: int) -> None:
    state = agent.state
    seat = state.seats[level]
    members = {h: Member(0) for h in [*seat.roster, agent.me] if not agent.gone(h)}
    members.update(state.pending.pop(level, {}))
    assembly.convene(agent, level, seat.cluster, seat.term + 1, members, seat.top, seat.tree)
