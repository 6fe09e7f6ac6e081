"""TLS handshakes that fail: gRPC refuses them before any code of ours runs, and says so on standard error only.

Whoever comes with another authority's certificate, or with none, must show in the node's log and in the run's record as
well. So standard error is read through a pipe: every line goes on to where it went before, and lines about failed
handshakes are told.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

_SIGN = b"Handshake failed"


class Handshakes:
    """Watches standard error until it is closed."""

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
            os.write(self._before, data)
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[-4096:]
            for line in lines:
                if _SIGN in line:
                    self._told(line[line.index(_SIGN) :].decode(errors="replace")[:300])
        os.close(source)

    def close(self) -> None:
        """Put standard error back."""
        sys.stderr.flush()
        os.dup2(self._before, 2)  # the last writing end of the pipe goes with it: the reader ends
        self._reader.join(1.0)
        os.close(self._before)
