"""What an agent does when a host that matters to it is gone."""

from __future__ import annotations

from espalier.policies.dsf import ascent, assembly, founding
from espalier.policies.dsf.agent import Agent, on_loss
from espalier.policies.dsf.state import NONE


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
        assembly.strike(agent, level, host)
    for level, seat in sorted(state.seats.items()):
        if host in seat.roster:
            seat.roster.remove(host)
        organiser = state.polled.get(level, (NONE, 0))[0] == host
        if organiser:
            del state.polled[level]
        if seat.centre == host or (organiser and seat.vacant):
            assembly.succeed(agent, level)
    for level, wooed in sorted(state.wooing.items()):
        if wooed == host and level in state.wooing:
            ascent.unseat(agent, level)
    if state.phase == "greet":
        founding.greeted(agent)
