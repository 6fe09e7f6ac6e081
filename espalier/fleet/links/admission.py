"""Admission: who may open a link here, how refusals are told, and who has offended too often to stay.

Who is let in is decided from the certificate alone, and again when the list of revoked ones changes. Refusals are
recorded with a limit: whoever sends rubbish must not fill the log and the run's record with it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from espalier.core.errors import ConfigError
from espalier.fleet.certs import Bundle, Identity, newer, revoked
from espalier.fleet.links.limits import Limits, TokenBucket

T = TypeVar("T")

#: names and hosts that are remembered at one time
NAMES_KEPT = 10_000
#: refusals of one sender that are told one by one: so many at once, and so many per minute
REFUSALS_AT_ONCE, REFUSALS_PER_MINUTE = 20, 6.0
#: the same for all senders together
ALL_REFUSALS_AT_ONCE, ALL_REFUSALS_PER_MINUTE = 500, 60.0
#: letters against the rules after which a sender's link is closed: so many at once, and so many per minute
OFFENCES_AT_ONCE, OFFENCES_PER_MINUTE = 10, 10.0
#: seconds that such a sender may not come back
BAN_SECONDS = 60.0


class Admission:
    """Revoked and banned names, and the rate of greetings."""

    def __init__(self, bundle: Bundle, limits: Limits) -> None:
        self._ca = bundle.ca
        self.crl = b""
        self._revoked: frozenset[int] = frozenset()
        self.limits = limits
        self._greetings: OrderedDict[str, TokenBucket] = OrderedDict()
        #: names that have offended too often -> until when (monotonic)
        self._banned: OrderedDict[str, float] = OrderedDict()
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

    def is_revoked(self, serial: int) -> bool:
        """Tell whether a certificate is on the newest list of revoked ones."""
        return serial in self._revoked

    def refuses(self, peer: Identity | None) -> str | None:
        """Say why a certificate is not let in; None if it is."""
        if peer is None:
            return "the certificate's subject is not one of this software's"
        if self.is_revoked(peer.serial):
            return f"the certificate of {peer.name} is revoked"
        if self._banned.get(peer.name, 0.0) > time.monotonic():
            return f"{peer.name} has sent too many letters that it may not send"
        return None

    def ban(self, name: str) -> None:
        """Let a name in again only after a while."""
        self._banned[name] = time.monotonic() + BAN_SECONDS
        _forget_oldest(self._banned)

    def hurries(self, peer: Identity) -> bool:
        """Whether a name opens links faster than it may."""
        rate = self.limits.greetings_per_minute
        return not _meter(self._greetings, peer.name, rate / 60, max(10.0, rate / 4)).take()


class Refusals:
    """Counts refusals, says which of them are told, and who has offended too often."""

    def __init__(self) -> None:
        #: all refusals so far
        self.count = 0
        self._told: OrderedDict[str, TokenBucket] = OrderedDict()
        self._all = TokenBucket(ALL_REFUSALS_PER_MINUTE / 60, ALL_REFUSALS_AT_ONCE)
        self._untold: OrderedDict[str, int] = OrderedDict()
        self._offences: OrderedDict[str, TokenBucket] = OrderedDict()

    def told(self, who: str) -> int | None:
        """Count a refusal; return how many of the sender's were not told before this one, None if this is not told."""
        self.count += 1
        mine = _meter(self._told, who, REFUSALS_PER_MINUTE / 60, REFUSALS_AT_ONCE).take()
        if mine and self._all.take():
            return self._untold.pop(who, 0)
        self._untold[who] = self._untold.get(who, 0) + 1
        _forget_oldest(self._untold)
        return None

    def offends(self, who: str) -> bool:
        """Count a letter against the rules; tell whether its sender's link should be closed."""
        return not _meter(self._offences, who, OFFENCES_PER_MINUTE / 60, OFFENCES_AT_ONCE).take()


def _meter(meters: OrderedDict[str, TokenBucket], name: str, rate: float, burst: float) -> TokenBucket:
    """Return a name's meter, the oldest ones being forgotten."""
    meter = meters.pop(name, None) or TokenBucket(rate, burst)
    meters[name] = meter
    _forget_oldest(meters)
    return meter


def _forget_oldest(table: OrderedDict[str, T]) -> None:
    if len(table) > NAMES_KEPT:
        table.popitem(last=False)


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


class HandshakeWatch:
    """Watches standard error for TLS handshakes that failed, until it is closed.

    gRPC refuses them before any code of ours runs, and says so on standard error only. Whoever comes with another
    authority's certificate, or with none, must show in the node's log and in the run's record as well. So standard
    error is read through a pipe: lines about failed handshakes are told, every other line goes where it went before.
    """

    SIGN = b"Handshake failed"

    def __init__(self, told: Callable[[str], None]) -> None:
        """Begin to watch; ``told`` is called from a thread of its own with what gRPC said."""
        self._told = told
        sys.stderr.flush()
        self._before = os.dup(2)
        out, into = os.pipe()
        os.dup2(into, 2)
        os.close(into)
        self._reader = threading.Thread(target=self._read, args=(out,), name="espalier-stderr", daemon=True)
        self._reader.start()

    def _read(self, source: int) -> None:
        rest = b""
        while True:
            data = os.read(source, 65536)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if self.SIGN in line:
                    self._told(line[line.index(self.SIGN) :].decode(errors="replace")[:300])
                else:
                    os.write(self._before, line + b"\n")
            if len(rest) > 4096:  # somebody writes without ending a line: it goes on as it is
                os.write(self._before, rest)
                rest = b""
        os.write(self._before, rest)
        os.close(source)

    def close(self) -> None:
        """Put standard error back."""
        sys.stderr.flush()
        os.dup2(self._before, 2)  # the last writing end of the pipe goes with it: the reader ends
        self._reader.join(1.0)
        os.close(self._before)
