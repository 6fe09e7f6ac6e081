"""The gate: who may open a link here. Decided from the certificate alone, and again when the lists change."""

from __future__ import annotations

from collections import OrderedDict

from espalier.core.errors import ConfigError
from espalier.fleet.certs import Bundle, Identity, newer, revoked
from espalier.fleet.links.limits import Limits, Meter


class Gate:
    """Revoked certificates and the rate of greetings."""

    def __init__(self, bundle: Bundle, limits: Limits) -> None:
        self._ca = bundle.ca
        self.crl = b""
        self._revoked: frozenset[int] = frozenset()
        self.limits = limits
        self._greetings: OrderedDict[str, Meter] = OrderedDict()
        self.update(bundle.crl)

    def update(self, crl: bytes) -> bool:
        """Take a list of revoked certificates if it is genuine and newer; return whether it was taken.

        Raises:
            ConfigError: It is not genuine.
        """
        serials = revoked(crl, self._ca)
        best = newer(self.crl, crl)
        if best == self.crl:
            return False
        self.crl, self._revoked = best, serials
        return True

    def refuses(self, peer: Identity | None) -> str | None:
        """Say why a certificate is not let in; None if it is."""
        if peer is None:
            return "the certificate's subject is not one of this software's"
        if peer.serial in self._revoked:
            return f"the certificate of {peer.name} is revoked"
        return None

    def hurries(self, peer: Identity) -> bool:
        """Whether a name opens links faster than it may."""
        rate = self.limits.greetings_per_minute
        meter = self._greetings.pop(peer.name, None) or Meter(rate / 60, max(10.0, rate / 4))
        self._greetings[peer.name] = meter
        if len(self._greetings) > 10_000:
            self._greetings.popitem(last=False)
        return not meter.take()


def parse_parent(text: str) -> tuple[str | None, str]:
    """Read ``name@host:port`` or ``host:port``.

    With a name, the parent's certificate must have that name, wherever it listens; without one, the certificate must be
    valid for the host.
    """
    name, sign, target = text.rpartition("@")
    host, colon, port = target.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise ConfigError(f"--parent {text}: must be host:port or name@host:port.")
    return (name if sign else None), target
