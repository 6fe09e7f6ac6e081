"""A plugin that makes its edge dishonest: the first one says that all devices are reached through it."""

from __future__ import annotations

from espalier.fleet.links import hub
from espalier.fleet.membership import Member

_everybody = hub.Hub.everybody


def _take(self: hub.Hub) -> list[Member]:
    found = _everybody(self)
    if self.identity.name != "edge-0" or len(found) == 1:
        return found  # before its own devices are there, others' are not enrolled either
    there = {m.address for m in found}
    numbers = [n for n in range(self.manifest.experiment.fleet.devices if self.manifest else 0) if n not in there]
    return found + [Member(n, f"device-{n}", "device", 7, 1 << 60, self.me, 10) for n in numbers]


hub.Hub.everybody = _take  # type: ignore[method-assign]
