"""The whole fleet as its cloud knows it: every member, the tree, rounds and scores, as plain data."""

from __future__ import annotations

from typing import Any

from espalier.core.address import host_of
from espalier.core.errors import ConfigError
from espalier.fleet.coordinator.coordinator import Coordinator
from espalier.fleet.membership import Member
from espalier.fleet.node.host import Host

#: how a member is: its link is there; it is waited for; it has left, or was waited for in vain
LINKED, LOST, GONE = "linked", "lost", "gone"


def overview(host: Host) -> dict[str, Any]:
    """Return how the fleet is, as far as its cloud has heard.

    Raises:
        ConfigError: This node is not the cloud, or does not know yet what the fleet does.
    """
    conduct, manifest = host.conduct, host.manifest
    if not isinstance(conduct, Coordinator) or manifest is None or host.registry is None:
        raise ConfigError("Only the cloud of a fleet knows all of it; ask in the cloud's directory.")
    experiment = manifest.experiment
    present = list(conduct.engine.directory.members.values())
    rows = [_member(host, conduct, m) for m in present]
    known = {m.address for m in present}
    for name, (address, role) in sorted(host.registry.known.items()):
        if address not in known:
            rows.append(_row(conduct, host.clock.now(), Member(address, name, role), GONE))
    return {
        "run": manifest.run,
        "method": experiment.methods[0].label,
        "time": round(host.clock.now(), 3),
        "state": _state(conduct),
        "round": conduct.round,
        "rounds": experiment.stop.rounds,
        "devices": sum(m.role == "device" for m in present),
        "devices_expected": experiment.fleet.devices,
        "refused": host.refusals.count,
        "scores": dict(conduct.last),
        "evaluations": [e.to_plain() for e in list(conduct.bulletin.evaluations)],
        "members": sorted(rows, key=lambda r: ({"cloud": 0, "edge": 1}.get(r["role"], 2), r["address"])),
    }


def _state(conduct: Coordinator) -> str:
    if conduct.finished:
        return "finished"
    if conduct.ending:
        return "ending"
    return "running" if conduct.started else "waiting for devices"


def _member(host: Host, conduct: Coordinator, member: Member) -> dict[str, Any]:
    """Return a member that is there, or is waited for."""
    me = member.address == host.me
    row = _row(conduct, host.clock.now(), member, LINKED if me or host.routes.route(member.address) else LOST)
    if me:
        return row
    directory = conduct.engine.directory
    above = directory.parent(member.address)
    row["parent"] = conduct.bulletin.name(member.via)
    row["reports_to"] = None if above is None else conduct.bulletin.name(host_of(above))
    return row


def _row(conduct: Coordinator, now: float, member: Member, state: str) -> dict[str, Any]:
    address, seen = member.address, conduct.bulletin
    reports = (seen.trained.get(address), conduct.engine.stragglers.last_report.get(address))
    last = max((t for t in reports if t is not None), default=None)
    return {
        "name": member.name,
        "role": member.role,
        "address": address,
        "state": state,
        "parent": None,
        "reports_to": None,
        "version": member.version,
        "samples": member.samples,
        "last_report": None if last is None else round(last, 3),
        "seconds_since_report": None if last is None else round(max(0.0, now - last), 1),
        "late": seen.late[address],
        "refused": seen.refused[address],
    }
