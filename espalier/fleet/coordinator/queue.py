"""The cloud's queue: which runs were submitted, in which order, and what became of them.

It is on the disk (``queue.sqlite`` in the cloud's directory) before a submitter is told, and each run has a run
directory below it (``runs/NAME``): a cloud that was killed goes on with the run that it was in, and then with the next.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from espalier.core.errors import ConfigError, RunError
from espalier.fleet.coordinator.manifest import Manifest

#: what may be in a run's place of the queue
RunState = Literal["queued", "running", "finished", "stopped", "failed"]
#: runs that may wait at one time
MOST_QUEUED = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (number INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, manifest BLOB NOT NULL,
    start_with INTEGER NOT NULL, submitter TEXT NOT NULL, submitted REAL NOT NULL, state TEXT NOT NULL,
    why TEXT NOT NULL, summary TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS numbers (name TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class QueuedRun:
    """A run of the queue.

    Attributes:
        name: As its submitter calls it.
        told: Its manifest, as nodes get it.
        start_with: It begins when so many devices are there.
        directory: Its run directory at the cloud.
        submitter: The name in the certificate of whoever submitted it.
        submitted: When, in seconds since 1970.
        state: Where it is.
        why: Why it failed, was stopped, or ended early.
        summary: What it is and how far it came, for lists.
    """

    name: str
    told: bytes
    start_with: int
    directory: Path
    submitter: str
    submitted: float
    state: RunState
    why: str
    summary: dict[str, Any]

    @property
    def manifest(self) -> Manifest:
        """What every node is told of it."""
        return Manifest.of_bytes(self.told)


class RunQueue:
    """The runs of one cloud, the oldest first."""

    def __init__(self, directory: Path) -> None:
        """Open or make the queue in a cloud's directory.

        Raises:
            RunError: It is damaged, or cannot be written.
        """
        self._directory = directory
        path = directory / "queue.sqlite"
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._db = sqlite3.connect(path, timeout=5, check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise RunError(f"{path} cannot be used: {error}. Free the disk, or restore the file.") from error

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    # -- submitting --------------------------------------------------------------------------------------------

    def free_name(self, wanted: str, *, exactly: bool) -> str:
        """Return a name that no run has: the wanted one, or (unless ``exactly`` that) one with a number.

        Raises:
            ConfigError: The name is taken, or is none.
        """
        if not exactly:
            wanted = re.sub(r"[^A-Za-z0-9._-]+", "-", wanted).strip("-.")[:50] or "run"
        if _NAME.fullmatch(wanted) is None:
            raise ConfigError(f"--name {wanted[:80]}: must be letters, digits and ._- (at most 64).")
        taken = {name for (name,) in self._db.execute("SELECT name FROM runs")}
        if wanted in taken and exactly:
            raise ConfigError(f"--name {wanted}: this fleet has a run of that name already; choose another.")
        count, name = 1, wanted
        while name in taken:
            count += 1
            name = f"{wanted}-{count}"
        return name

    def add(self, name: str, manifest: Manifest, start_with: int, submitter: str) -> QueuedRun:
        """Put a run at the queue's end; it is on the disk when this returns.

        Raises:
            ConfigError: Too many wait already.
        """
        waiting = self._db.execute("SELECT count(*) FROM runs WHERE state = 'queued'").fetchone()[0]
        if waiting >= MOST_QUEUED:
            raise ConfigError(f"{waiting} runs wait already; stop some, or wait until one is over.")
        experiment = manifest.experiment
        summary = {
            "method": experiment.methods[0].label, "devices": experiment.fleet.devices, "round": 0,
            "rounds": experiment.stop.rounds, "scores": {},
        }  # fmt: skip
        values = (name, manifest.to_bytes(), start_with, submitter, time.time(), "queued", "", json.dumps(summary))
        self._db.execute("INSERT INTO runs VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)", values)
        return self.find(name)

    # -- looking -----------------------------------------------------------------------------------------------

    def all(self) -> list[QueuedRun]:
        """Return every run, the oldest first."""
        rows = self._db.execute(
            "SELECT name, manifest, start_with, submitter, submitted, state, why, summary FROM runs ORDER BY number"
        )
        return [
            QueuedRun(name, told, start, self.directory_of(name), who, when, state, why, json.loads(summary))
            for name, told, start, who, when, state, why, summary in rows
        ]

    def directory_of(self, name: str) -> Path:
        """Return the run directory of a name."""
        return self._directory / "runs" / name

    def find(self, name: str) -> QueuedRun:
        """Return a run.

        Raises:
            ConfigError: There is none of that name.
        """
        found = [run for run in self.all() if run.name == name]
        if not found:
            known = ", ".join(run.name for run in self.all()[-5:]) or "none"
            raise ConfigError(f"This fleet has no run {name[:80]!r}; its latest: {known}.")
        return found[0]

    # -- one after another -------------------------------------------------------------------------------------

    def begin_next(self) -> QueuedRun | None:
        """Return the run that goes on, or begin the oldest that waits; None if there is none."""
        for state in ("running", "queued"):
            row = self._db.execute("SELECT name FROM runs WHERE state = ? ORDER BY number LIMIT 1", (state,)).fetchone()
            if row is not None:
                self._db.execute("UPDATE runs SET state = 'running' WHERE name = ?", row)
                return self.find(row[0])
        return None

    def ended(self, run: QueuedRun, state: RunState, why: str = "", **reached: Any) -> None:
        """Write down how a run ended, and what of its summary is another by now."""
        summary = json.dumps(run.summary | reached)
        self._db.execute(
            "UPDATE runs SET state = ?, why = ?, summary = ? WHERE name = ?", (state, why, summary, run.name)
        )

    # -- numbers -----------------------------------------------------------------------------------------------

    def numbers(self) -> dict[str, int]:
        """Return the numbers that nodes had in the latest run of each."""
        return dict(self._db.execute("SELECT name, number FROM numbers").fetchall())

    def remember(self, numbers: Mapping[str, int]) -> None:
        """Remember nodes' numbers for runs to come."""
        self._db.executemany("INSERT OR REPLACE INTO numbers VALUES (?, ?)", sorted(numbers.items()))


def run_token(name: str) -> str:
    """Return what nodes know a run by: its name, and letters that no other run of that name has."""
    return f"{name}-{secrets.token_hex(4)}"
