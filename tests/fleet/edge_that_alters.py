"""A plugin that makes its edge dishonest: it tells its devices that the run merges models in the clear."""

from __future__ import annotations

from espalier.fleet.links import hub
from espalier.fleet.links.protocol import espalier_pb2 as pb

_welcome = hub.Hub.welcome


def _alter(self: hub.Hub, address: int, version: int) -> pb.Welcome:
    found = _welcome(self, address, version)
    assert b'"secure"' in found.manifest
    found.manifest = found.manifest.replace(b'"secure"', b'"average"')
    return found


hub.Hub.welcome = _alter  # type: ignore[method-assign]
