"""What an agent does when a host that matters to it is gone.

A member is struck off. If it was the central node, the first in the line of succession holds a vote; the others see to
it, each after a while of its own, that somebody does.
"""

from __future__ import annotations

from espalier.policies.dsf import ascent, assembly, founding, membership
from espalier.policies.dsf.agent import Agent, on_loss, on_timer
from espalier.policies.dsf.state import NONE, Member


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
    line = [h for h in seat.roster if not agent.gone(h)]
    rank = line.index(agent.me) if agent.me in line else len(line)
    if rank == 0 and level == 0:
        _hold_vote(agent, level)
    else:
        # Above level 0 the gone node's own cluster sends its successor first, to be voted on too.
        agent.timer("guard", 4 * rank + (2 if level else 0), level)


@on_timer("guard")
def _guard(agent: Agent, level: int) -> None:
    state, seat = agent.state, agent.state.seats.get(level)
    if seat is None or level in state.ballots or not seat.vacant:
        return
    if state.polled.pop(level, None) is not None:
        agent.timer("guard", 4, level)
        return
    _hold_vote(agent, level)


def _hold_vote(agent: Agent, level: int) -> None:
    state = agent.state
    seat = state.seats[level]
    members = {h: Member(0) for h in [*seat.roster, agent.me] if not agent.gone(h)}
    members.update(state.pending.pop(level, {}))
    assembly.convene(agent, level, seat.cluster, seat.term + 1, members, seat.top, seat.tree)
