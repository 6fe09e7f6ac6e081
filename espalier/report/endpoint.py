"""Where a live page is served: an address of this machine, and the token that others need."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket
from dataclasses import dataclass

from espalier.core.errors import RunError

#: where a live page is found unless another port is asked for
PORT = 8642


@dataclass(frozen=True)
class Endpoint:
    """A listening socket, the page's address for people, and the token in it (None: on loopback none is needed)."""

    socket: socket.socket
    url: str
    token: str | None


def listen(host: str = "127.0.0.1", port: int | None = None) -> Endpoint:
    """Listen at an address of this machine; without a port at :data:`PORT`, or at any free one if that is taken.

    Who asks before the page is served waits for it.
    """
    found = _bound(host, port)
    token = None if is_loopback(host) else secrets.token_urlsafe(24)
    shown = f"[{host}]" if ":" in host else host
    query = "" if token is None else f"?token={token}"
    return Endpoint(found, f"http://{shown}:{found.getsockname()[1]}/{query}", token)


def _bound(host: str, port: int | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    problem: Exception | None = None
    for number in (PORT, 0) if port is None else (port,):
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, number))
            found.listen(128)
        except OSError as error:
            found.close()
            problem = error
            continue
        return found
    raise RunError(
        f"The live page cannot be served at {host}:{PORT if port is None else port}: {problem}. "
        "Choose another --port, or a --host of this machine."
    )


def is_loopback(host: str) -> bool:
    """Tell whether a host name or address can only be this machine."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return False
