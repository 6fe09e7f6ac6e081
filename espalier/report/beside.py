"""A live page in a process of its own, beside the runs that it shows: watching takes no time from training."""

from __future__ import annotations

import multiprocessing
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType

from espalier.core.errors import EspalierError, RunError


class Beside:
    """Serves a live page while the ``with`` block lasts; at its end viewers still get what was written last."""

    def __init__(self, root: Path, host: str = "127.0.0.1", port: int | None = None) -> None:
        """Start to serve the runs at or below ``root``, which need not be there yet."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(root, host, port, theirs), daemon=True)
        self._process.start()
        theirs.close()
        try:
            kind, text = self._pipe.recv()
        except EOFError:
            kind, text = "error", "The live page's process ended before it served anything."
        if kind == "error":
            self._process.join()
            raise RunError(text)
        self.url: str = text

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._pipe.send("the runs have ended")
        except OSError:
            return  # it has died; there is nobody to tell
        self._process.join(15.0)
        if self._process.is_alive():
            self._process.terminate()


def _serve(root: Path, host: str, port: int | None, pipe: Connection) -> None:
    """Serve until the command says that its runs have ended, or is gone itself."""
    from espalier.report.server import LivePage

    # Ctrl-C reaches the whole group; the runs are saved first, and the page shows it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        page = LivePage([root], host, port)
    except EspalierError as error:
        pipe.send(("error", str(error)))
        return
    pipe.send(("url", page.url))
    try:
        pipe.recv()
    except EOFError:
        page.close()
    else:
        page.close(show_the_end=True)
