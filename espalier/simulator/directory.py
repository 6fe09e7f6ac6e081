"""A run's directory: one writer at a time, described before anything is recorded, whole or not there.

run.toml         the resolved configuration, versions, command
run.sqlite       the record
checkpoints/     the newest states
models/          the final models, safetensors
run.lock         held by the process that writes
run.pid          its number
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import tomllib
from pathlib import Path
from typing import Any

import tomli_w
import torch
from filelock import FileLock, Timeout

from espalier._version import __version__
from espalier.core.errors import ConfigError, RunError
from espalier.core.spec import without_none
from espalier.experiment import Experiment
from espalier.simulator.checkpoint import atomic_write

#: of ``run.toml`` and ``experiment.toml``; another one is refused
FORMAT = 1

_OWN = ("run.toml", "run.sqlite", "run.sqlite-wal", "run.sqlite-shm", "run.pid", "run.lock")


class DirectoryLock:
    """The right to write into a run directory, held until it is released."""

    def __init__(self, directory: Path, *, shared: bool = False) -> None:
        """Make the directory if need be and lock it; ``shared`` ones may hold other files (a node's log and state).

        Raises:
            RunError: Another process holds it (its number is named), or it cannot be written.
        """
        self.directory = directory
        self._made = _missing(directory)
        self.fresh = not any(os.path.exists(directory / name) for name in ("run.toml", "run.sqlite"))
        self._lock = FileLock(str(directory / "run.lock"))
        if self.fresh and not shared and (others := _others(directory)):
            raise RunError(
                f"{directory} is not empty and holds no run (but {others[0]}, for one). Choose a directory of its own."
            )
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0.5)  # a reader that looks whether the run lives holds it for a moment
            (directory / "run.pid").write_text(str(os.getpid()))
        except Timeout:
            raise RunError(
                f"{directory} is in use by process {holder(directory)}. Wait until it ends, or choose another "
                "directory."
            ) from None
        except (OSError, NotImplementedError) as error:
            self.release(undo=True)
            reason = getattr(error, "strerror", None) or error
            raise RunError(
                f"{directory} cannot be written: {reason}. Choose another directory, or make room there and let "
                "yourself write."
            ) from error

    def release(self, *, undo: bool = False) -> None:
        """Give the directory free; ``undo`` leaves it as it was found, if no run was there."""
        with contextlib.suppress(OSError):
            (self.directory / "run.pid").unlink(missing_ok=True)
        if undo and self.fresh:
            for name in _OWN:
                with contextlib.suppress(OSError):
                    (self.directory / name).unlink(missing_ok=True)
        self._lock.release()
        if undo:
            for made in self._made:
                with contextlib.suppress(OSError):
                    made.rmdir()


def _others(directory: Path) -> list[str]:
    """Return the names of what lies in a directory and is no part of a run."""
    try:
        return sorted(p.name for p in directory.iterdir() if p.name not in (*_OWN, "checkpoints", "models"))
    except OSError:
        return []


def _missing(directory: Path) -> list[Path]:
    """Return the directories that must be made for one, deepest first (those that may not be looked at, too)."""
    return [p for p in (directory, *directory.parents) if not os.path.exists(p)]


def holder(directory: Path) -> str:
    """Return the number of the process that holds a directory, as far as it is known."""
    try:
        return (directory / "run.pid").read_text().strip() or "unknown"
    except OSError:
        return "unknown"


def versions() -> dict[str, str]:
    """Return the versions that a run's numbers may depend on."""
    return {"espalier": __version__, "torch": torch.__version__, "python": platform.python_version()}


def describe(path: Path, experiment: Experiment, data_dir: Path | None) -> None:
    """Write an experiment, and what else its numbers depend on, as TOML."""
    about: dict[str, Any] = {"format": FORMAT, "versions": versions(), "command": " ".join(sys.argv)}
    if data_dir is not None:
        about["data_dir"] = str(data_dir.absolute())
    text = tomli_w.dumps(without_none({**experiment.to_plain(), "about": about}))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, text.encode())
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}.") from error


def read_description(path: Path) -> tuple[Experiment, dict[str, Any]]:
    """Read what :func:`describe` wrote: the experiment, and what is told about it.

    Raises:
        RunError: There is none, it is damaged, or another version wrote it.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path.parent} is not a run directory: it has no {path.name}.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RunError(f"{path} cannot be read: {error}.") from error
    about = table.pop("about", {})
    about = about if isinstance(about, dict) else {}
    wrote = about.get("versions", {}).get("espalier", "unknown")
    if about.get("format") != FORMAT:
        raise RunError(
            f"{path} has format {about.get('format')!r}, written by espalier {wrote}; this is espalier "
            f"{__version__}, which reads format {FORMAT}. Go on with the version that wrote it."
        )
    try:
        return Experiment.build(table), about
    except ConfigError as error:
        raise RunError(f"{path}, written by espalier {wrote}, cannot be used here: {error}") from error


def load_experiment(directory: Path) -> Experiment:
    """Read the experiment of a run directory."""
    return read_description(directory / "run.toml")[0]


def differences(one: Experiment, other: Experiment) -> list[str]:
    """Return the settings that decide numbers and differ between two experiments, by their full names."""
    found: list[str] = []
    _compare(without_none(one.to_plain()), without_none(other.to_plain()), "", found)
    # How often a run is saved and what is told of it changes none of its numbers.
    quiet = ("record.checkpoint", "record.log", "name", "evaluate.by_source", "evaluate.prior")
    return [n for n in found if not n.startswith(quiet)]


def _compare(one: Any, other: Any, where: str, found: list[str]) -> None:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            _compare(one.get(key), other.get(key), f"{where}.{key}".lstrip("."), found)
    elif one != other:
        found.append(where)
