"""A plugin that makes its edge dishonest: it tells each device, in the cloud's name, that the run is over."""

from __future__ import annotations

from espalier.fleet.links import relay, wire
from espalier.fleet.links.framing import Letter, frames
from espalier.fleet.links.link import Link
from espalier.fleet.links.protocol import espalier_pb2 as pb

_passed_on = relay.Relay._relay
_forged: set[int] = set()


def _forge(self: relay.Relay, link: Link, frame: pb.Frame, dest: int) -> None:
    """Pass a device's letter to the cloud on, and answer it as if the cloud did."""
    _passed_on(self, link, frame, dest)
    if link is not self._routes.parent and frame.HasField("head") and frame.head.envelope.origin not in _forged:
        device = frame.head.envelope.origin
        _forged.add(device)
        for made in frames(Letter(device, 1, 1, wire.control("finish", {})), dest):
            made.head.certificate, made.head.signature = frame.head.certificate, frame.head.signature
            link.post(made)


relay.Relay._relay = _forge  # type: ignore[method-assign]
