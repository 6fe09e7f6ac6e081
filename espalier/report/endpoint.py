"""Where a live page is served: an address of this machine, the token that others need, a process of its own."""

from __future__ import annotations

import contextlib
import ipaddress
import multiprocessing
import secrets
import signal
import socket
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType

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


class LivePageProcess:
    """Serves a live page while the ``with`` block lasts; at its end viewers still get what was written last.

    In a process of its own, beside the runs that it shows: watching takes no time from training.
    """

    def __init__(self, root: Path, host: str = "127.0.0.1", port: int | None = None) -> None:
        """Start to serve the runs at or below ``root``, which need not be there yet."""
        endpoint = listen(host, port)
        self.url = endpoint.url
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (root, endpoint.socket, endpoint.url, endpoint.token, theirs)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        endpoint.socket.close()

    def __enter__(self) -> LivePageProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._pipe.send("the runs have ended")
        except OSError:
            return  # it has died; there is nobody to tell
        self._process.join(15.0)
        if self._process.is_alive():
            self._process.terminate()


def _serve(root: Path, listening: socket.socket, url: str, token: str | None, pipe: Connection) -> None:
    """Serve until the command says that its runs have ended, or is gone itself."""
    # Ctrl-C reaches the whole group; the runs are saved first, and the page shows it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from espalier.report.server import LivePage

    page = LivePage([root], Endpoint(listening, url, token))
    try:
        pipe.recv()
    except EOFError:
        page.close()
    else:
        page.close(show_the_end=True)
