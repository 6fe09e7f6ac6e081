"""Whether a run goes on, has finished, or is dead: its process has ended without finishing it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

try:
    import fcntl
except ImportError:  # not a POSIX system: the process number has to do
    fcntl = None  # type: ignore[assignment]

State = Literal["running", "finished", "dead"]


def state_of(directory: Path | None, recorded: str) -> State:
    """Return a run's state from what its record says and from who holds its directory.

    Args:
        directory: The run's directory; None for a run in memory, which no other process writes.
        recorded: ``state`` of the record's status: the writing process leaves it at ``running`` until it finishes,
            so a killed run still says so.
    """
    if recorded == "finished":
        return "finished"
    return "running" if directory is None or held(directory) else "dead"


def held(directory: Path) -> bool:
    """Tell whether a process writes into a run directory.

    The writer holds ``run.lock``; the system lets it go however the process ends, also when nobody has collected
    the dead process yet and when its number has been given to another one.
    """
    if fcntl is None:
        return _process_lives(directory)
    try:
        handle = os.open(directory / "run.lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def _process_lives(directory: Path) -> bool:
    try:
        os.kill(int((directory / "run.pid").read_text()), 0)
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return True
