"""A live page in a process of its own, beside the runs that it shows: watching takes no time from training."""

from __future__ import annotations

import multiprocessing
import signal
import socket
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType

from espalier.report.endpoint import Endpoint, listen


class LivePageProcess:
    """Serves a live page while the ``with`` block lasts; at its end viewers still get what was written last."""

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
