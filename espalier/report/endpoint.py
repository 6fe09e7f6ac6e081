"""Where a live page is served: an address of this machine, and the token that others need."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from espalier.core.errors import RunError

#: where a live page is found unless another port is asked for
PORT = 8642


@dataclass(frozen=True)
class Endpoint:
    """A listening socket, the page's address for people, and the token in it (None: on loopback none is needed)."""

    socket: socket.socket
    url: str
    token: str | None


def listen(host: str = "127.0.0.1", port: int | None = None, token: str | None = None) -> Endpoint:
    """Listen at an address of this machine; without a port at :data:`PORT`, or at any free one if that is taken.

    Who asks before the page is served waits for it. A given token is needed on loopback too.
    """
    found = _bound(host, port)
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
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
            return found
        except OSError as error:
            found.close()
            problem = error
    raise RunError(
        f"The live page cannot be served at {host}:{PORT if port is None else port}: {problem}. "
        "Choose another --port, or a --host of this machine."
    ) from problem


def kept_token(path: Path) -> str:
    """Return the token in a file that only its owner may read; a new one is made if there is none."""
    if not path.exists():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(24))
    found = path.read_text().strip()
    if len(found) < 16:
        raise RunError(f"{path} holds no token of 16 letters or more; remove it, and a new one is made.")
    return found


def is_loopback(host: str) -> bool:
    """Tell whether a host name or address can only be this machine."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return False
