"""Central nodes exchange members until each cluster's mean accuracy is as near to everybody's as it gets.

Each tells those nearby how large its cluster is. Who has more than they have on average offers nodes (Algorithm 1);
who is offered some asks for the one that helps it most and for no other until it is answered; who is asked lets the
node go if its own cluster allows. Changed sizes start another sweep, up to a limit.
"""

from __future__ import annotations

from espalier.core.messages import Word
from espalier.methods.easf.dsf import assembly, membership
from espalier.methods.easf.dsf.agent import Agent, on_timer, on_word
from espalier.methods.easf.dsf.balance import Tally, far_too_small, nearby_size, releases, transferable, wished
from espalier.methods.easf.dsf.state import NONE


def begin(agent: Agent) -> None:
    """Tell the central nodes nearby; without balance, or without any, hold the vote at once."""
    state = agent.state
    court, trades = state.courts[0], state.trades
    reach = 2 * agent.bounds.hops
    found = {c: hops for c, (hops, _) in state.heard.items()}
    for member in court.members.values():
        for centre, hops in member.near.items():
            found[centre] = min(found.get(centre, reach + 1), member.hops + hops)
    trades.near = {c: h for c, h in found.items() if h <= reach and c != agent.me and not agent.gone(c)}
    if not agent.bounds.balance or not trades.near:
        _finish(agent)
        return
    state.phase = "adjust"
    trades.changed = True
    _spread(agent)
    agent.timer("sweep", 1)


def _spread(agent: Agent) -> None:
    tally = agent.state.courts[0].tally
    for centre in sorted(agent.state.trades.near):
        agent.send("size", centre, size=tally.size, total=tally.total)


@on_word("size")
def _size(agent: Agent, word: Word) -> None:
    trades = agent.state.trades
    trades.sizes[word.sender] = [word.data["size"], word.data["total"]]
    trades.changed = True


def _usual(agent: Agent) -> float | None:
    """Return the mean size of the clusters nearby."""
    return nearby_size({c: int(size) for c, (size, _) in agent.state.trades.sizes.items()})


def _target(agent: Agent) -> float:
    """Return the mean accuracy of all devices that this central node knows of."""
    own = agent.state.courts[0].tally
    others = agent.state.trades.sizes.values()
    return (own.total + sum(t for _, t in others)) / max(1.0, own.size + sum(s for s, _ in others))


@on_timer("sweep")
def _sweep(agent: Agent, _: int) -> None:
    state = agent.state
    if state.phase != "adjust":
        return
    trades = state.trades
    trades.sweep += 1
    if trades.sweep > agent.bounds.sweeps or not trades.changed:
        _finish(agent)
        return
    trades.changed, trades.pending = False, NONE
    state.mean = _target(agent)
    usual, members = _usual(agent), state.courts[0].members
    if usual is not None and len(members) > usual:
        accuracies = {m: member.total for m, member in members.items()}
        hops = {m: member.hops for m, member in members.items()}
        trades.listed, trades.forced = transferable(accuracies, hops, agent.me, state.mean, usual, agent.bounds.excess)
        for centre in sorted(trades.sizes) if trades.listed else ():
            agent.send("offer", centre, nodes={m: accuracies[m] for m in trades.listed})
    agent.timer("sweep", 1)


@on_word("offer")
def _offer(agent: Agent, word: Word) -> None:
    state, trades = agent.state, agent.state.trades
    usual = _usual(agent)
    if state.phase != "adjust" or trades.pending != NONE or usual is None:
        return
    own: Tally = state.courts[0].tally
    offered = {n: (accuracy, agent.hops(n)) for n, accuracy in word.data["nodes"].items()}
    small = far_too_small(own.size, usual, agent.bounds.excess)
    node = wished(offered, own, _target(agent), agent.bounds.hops, small)
    if node is not None:
        trades.pending = word.sender
        agent.send("want", word.sender, node=node)


@on_word("want")
def _want(agent: Agent, word: Word) -> None:
    state, trades, node = agent.state, agent.state.trades, word.data["node"]
    if not _gives(agent, node, word.sender):
        agent.send("answer", word.sender, node=node, member=None)
        return
    court = state.courts[0]
    member = court.members.pop(node)
    trades.listed.remove(node)
    trades.changed = True
    agent.send("answer", word.sender, node=node, member=membership.describe(member))
    agent.send("transfer", node, centre=word.sender)
    _spread(agent)


def _gives(agent: Agent, node: int, receiver: int) -> bool:
    state, trades, usual = agent.state, agent.state.trades, _usual(agent)
    if state.phase != "adjust" or usual is None or receiver not in trades.sizes or node not in trades.listed:
        return False
    own, member = state.courts[0].tally, state.courts[0].members.get(node)
    other = int(trades.sizes[receiver][0])
    return member is not None and releases(
        own, member.total, _target(agent), node in trades.forced, usual, agent.bounds.excess, other
    )


@on_word("answer")
def _answer(agent: Agent, word: Word) -> None:
    state, trades, node = agent.state, agent.state.trades, word.data["node"]
    trades.pending = NONE
    if word.data["member"] is None:
        return
    if 0 not in state.courts:
        # The vote is over: whoever leads now takes the node in.
        agent.send("follow", node, level=0, centre=membership.leader(agent, 0))
        return
    membership.admit(agent, 0, node, word.data["member"])
    trades.changed = True
    if state.phase == "adjust":
        _spread(agent)


@on_word("transfer")
def _transfer(agent: Agent, word: Word) -> None:
    """The central node has given this device to another."""
    state, centre = agent.state, word.data["centre"]
    if state.wooing.get(0) == word.sender and not agent.gone(centre):
        state.wooing[0] = centre


def _finish(agent: Agent) -> None:
    state = agent.state
    state.phase = "assemble"
    court = state.courts[0]
    assembly.convene(agent, 0, court.cluster, 1, dict(court.members))
