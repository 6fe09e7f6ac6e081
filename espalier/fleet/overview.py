"""The whole fleet as its cloud knows it: every member, the tree, rounds and scores, as plain data."""

from __future__ import annotations

from typing import Any

from espalier._version import __version__
from espalier.core.address import host_of
from espalier.core.errors import ConfigError
from espalier.fleet.coordinator.coordinator import Coordinator
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.membership import Member
from espalier.fleet.node.host import Host
from espalier.fleet.node.service import Service

#: how a member is: its link is there; it is waited for; it has left, or was waited for in vain
LINKED, LOST, GONE = "linked", "lost", "gone"
#: it is linked and has no run; what the fleet does if there is none at all
WAITING, IDLE = "waiting", "waiting for a run"


def overview(service: Service) -> dict[str, Any]:
    """Return how the fleet is, as far as its cloud has heard.

    Raises:
        ConfigError: This node is not the cloud, or does not know yet what the fleet does.
    """
    host, queue = service.host, service.queue
    conduct, manifest = host.conduct, host.manifest
    waiting = [_waiter(w) for w in host.door.room.everybody()]
    queued = [] if queue is None else [run.name for run in queue.all() if run.state == "queued"]
    common = {"time": round(host.clock.now(), 3), "refused": host.refusals.count, "queued": queued}
    if queue is not None and (conduct is None or manifest is None):
        nothing: dict[str, Any] = {"round": 0, "rounds": None, "devices_expected": 0, "scores": {}, "evaluations": []}
        devices = sum(row["role"] == "device" for row in waiting)
        return common | nothing | {
            "run": "", "method": "", "state": IDLE, "devices": devices, "members": _below(host.identity.name, waiting),
        }  # fmt: skip
    if not isinstance(conduct, Coordinator) or manifest is None or host.registry is None:
        raise ConfigError("Only the cloud of a fleet knows all of it; ask in the cloud's directory.")
    experiment = manifest.experiment
    present = list(conduct.engine.directory.members.values())
    rows = [_member(host, conduct, m) for m in present]
    known, elsewhere = {m.address for m in present}, {row["name"] for row in waiting}
    for name, (address, role) in sorted(host.registry.known.items()):
        if address not in known and name not in elsewhere:
            rows.append(_row(conduct, host.clock.now(), Member(address, name, role), GONE))
    return common | {
        "run": manifest.run if service.current is None else service.current.name,
        "method": experiment.methods[0].label,
        "state": _state(conduct),
        "round": conduct.round,
        "rounds": experiment.stop.rounds,
        "devices": sum(m.role == "device" for m in present),
        "devices_expected": experiment.fleet.devices,
        "scores": dict(conduct.last),
        "evaluations": [e.to_plain() for e in list(conduct.bulletin.evaluations)],
        "members": [*sorted(rows, key=_rank), *waiting],
    }


def _rank(row: dict[str, Any]) -> tuple[int, int]:
    return ({"cloud": 0, "edge": 1}.get(row["role"], 2), row["address"])


def _waiter(waiter: pb.Waiter) -> dict[str, Any]:
    """Return somebody who waits for a run."""
    return {
        "name": waiter.name, "role": waiter.role, "address": None, "state": WAITING, "parent": waiter.parent,
        "reports_to": None, "why": waiter.why, "version": waiter.version, "samples": 0, "last_report": None,
        "seconds_since_report": None, "late": 0, "refused": 0,
    }  # fmt: skip


def _below(cloud: str, waiting: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cloud, and below it those who wait."""
    me = _waiter(pb.Waiter(name=cloud, role="cloud", version=__version__)) | {"parent": None, "state": LINKED}
    return [me, *sorted(waiting, key=lambda row: (row["role"] != "edge", row["name"]))]


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
        "why": "",
        "parent": None,
        "reports_to": None,
        "version": member.version,
        "samples": member.samples,
        "last_report": None if last is None else round(last, 3),
        "seconds_since_report": None if last is None else round(max(0.0, now - last), 1),
        "late": seen.late[address],
        "refused": seen.refused[address],
    }
