"""A member's directory: a folder for each run that it takes part in, and which one that is now.

::

    runs/RUN/node.sqlite   its state in a run, until it has taken part in some more
    runs/RUN/models/       what it has written at the run's end
    current                the run that it goes on with when it is started again
    newest                 the newest run that the cloud has told of, and when it was signed
"""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

from espalier.core.errors import ProtocolError
from espalier.simulator.checkpoint import atomic_write

#: what a run may be called: it is the name of a folder
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
#: runs whose state is kept besides the present one: who comes back from another run finds its own again
KEPT_RUNS = 2


class RunFolders:
    """The folders of one node; a node without a directory remembers nothing."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def of(self, run: str) -> Path | None:
        """Return a run's folder.

        Raises:
            ProtocolError: A name that is none.
        """
        if RUN_NAME.fullmatch(run) is None:
            raise ProtocolError(f"The fleet's run is called {run[:100]!r}; letters, digits and ._- are accepted.")
        return None if self._directory is None else self._directory / "runs" / run

    @property
    def current(self) -> str | None:
        """The run that this node takes part in."""
        if self._directory is None:
            return None
        with contextlib.suppress(OSError):
            found = (self._directory / "current").read_text(encoding="utf-8")
            return found if RUN_NAME.fullmatch(found) else None
        return None

    def enter(self, run: str) -> None:
        """Take part in a run from now on; the states of runs long past are forgotten."""
        if self._directory is None:
            return
        folder = self.of(run)
        assert folder is not None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_write(self._directory / "current", run.encode())
        others = [p for p in folder.parent.iterdir() if p != folder and (p / "node.sqlite").exists()]
        for old in sorted(others, key=lambda p: (p / "node.sqlite").stat().st_mtime)[:-KEPT_RUNS]:
            if (old / "models").exists():
                for path in old.glob("node.*"):
                    path.unlink(missing_ok=True)
            else:
                shutil.rmtree(old, ignore_errors=True)

    def believe(self, run: str, signed: float) -> None:
        """Remember what the cloud has signed last."""
        if self._directory is not None and signed >= self._newest()[1]:
            atomic_write(self._directory / "newest", f"{signed!r} {run}".encode())

    def may_follow(self, run: str, signed: float) -> bool:
        """Tell whether a signed run is the one of now, or newer: an old one's manifest may be played again."""
        newest, at = self._newest()
        return run == newest or signed > at

    def _newest(self) -> tuple[str, float]:
        if self._directory is None:
            return "", 0.0
        with contextlib.suppress(OSError, ValueError):
            signed, _, run = (self._directory / "newest").read_text(encoding="utf-8").partition(" ")
            return run, float(signed)
        return "", 0.0

    def leave(self) -> None:
        """Take part in no run."""
        if self._directory is not None:
            (self._directory / "current").unlink(missing_ok=True)
