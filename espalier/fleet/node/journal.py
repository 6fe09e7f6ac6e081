"""A host's own state on disk: SQLite, one transaction for everything that belongs together.

What a node was told is acknowledged only after the transaction that holds its consequences; so whatever kills the
process, a restart goes on from a state in which each message was taken once or not at all.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from espalier.core.codec import pack, unpack
from espalier.core.errors import RunError

FORMAT = 8

_SCHEMA = """
CREATE TABLE state (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE models (name INTEGER PRIMARY KEY, dtype TEXT NOT NULL, data BLOB NOT NULL);
CREATE TABLE outbox (dest INTEGER NOT NULL, number INTEGER NOT NULL, content BLOB NOT NULL, parts BLOB NOT NULL,
                     PRIMARY KEY (dest, number));
"""
#: how vectors are written; whole numbers are models that their senders have masked
_DTYPES = {"float32": "<f4", "float64": "<f8", "int64": "<i8"}


class Journal:
    """Keys and plain data, models, and letters that are not acknowledged yet."""

    def __init__(self, directory: Path | None) -> None:
        """Open or make the journal in a directory; None keeps it in memory.

        Raises:
            RunError: Another process has it, or it is damaged.
        """
        self._lock: int | None = None
        self._written: dict[str, bytes] = {}
        path = ":memory:"
        if directory is not None:
            # models, and the secrets of secure aggregation: nobody else's to read
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _claim(directory / "node.lock")
            path = str(directory / "node.sqlite")
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            os.chmod(path, 0o600)
        self._db = sqlite3.connect(path, timeout=5, check_same_thread=False, isolation_level=None)
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            # every commit is on the disk before anybody is told of it, also when the power fails
            self._db.execute("PRAGMA synchronous=FULL")
            if not self._db.execute("SELECT name FROM sqlite_master WHERE name = 'state'").fetchone():
                self._db.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
                self.put("format", FORMAT)
                self.commit()
            found = self.get("format")
        except sqlite3.DatabaseError as error:
            raise RunError(f"{path} cannot be used: {error}.") from error
        if found != FORMAT:
            raise RunError(f"{path} has format {found!r}; this version of espalier reads {FORMAT}.")

    def get(self, key: str) -> Any:
        """Return what is kept under a key (None: nothing)."""
        row = self._db.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
        return None if row is None else unpack(row[0])

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with a prefix."""
        rows = self._db.execute("SELECT key FROM state WHERE key >= ? AND key < ?", (prefix, prefix + "\x7f"))
        return [r[0] for r in rows]

    def put(self, key: str, value: Any) -> None:
        """Keep plain data under a key; nothing is written if it is what was written last."""
        data = pack(value)
        if self._written.get(key) == data:
            return
        self._begin()
        self._db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (key, data))
        self._written[key] = data

    def drop(self, prefix: str) -> None:
        """Keep nothing more under the keys that begin with a prefix."""
        self._begin()
        self._db.execute("DELETE FROM state WHERE key >= ? AND key < ?", (prefix, prefix + "\x7f"))
        for key in [key for key in self._written if key.startswith(prefix)]:
            del self._written[key]

    # -- models --------------------------------------------------------------------------------------------

    def models(self) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """Return all models by name, and optimisers' states by their model's name."""
        values: dict[int, Tensor] = {}
        memories: dict[int, Tensor] = {}
        for name, dtype, data in self._db.execute("SELECT name, dtype, data FROM models"):
            array = np.frombuffer(data, dtype=_DTYPES[dtype]).copy()
            (values if name > 0 else memories)[abs(name)] = torch.from_numpy(array)
        return values, memories

    def keep(self, name: int, vector: Tensor) -> None:
        """Keep a model (or, under minus its name, an optimiser's state)."""
        dtype = str(vector.dtype).removeprefix("torch.")
        if dtype not in _DTYPES:
            raise RunError(f"A model of {dtype} cannot be kept; {', '.join(_DTYPES)} can.")
        self._begin()
        data = vector.detach().contiguous().numpy().data
        self._db.execute("INSERT OR REPLACE INTO models VALUES (?, ?, ?)", (name, dtype, data))

    def forget(self, names: Iterable[int]) -> None:
        """Keep some models no longer."""
        found = [(n,) for n in names]
        if found:
            self._begin()
            self._db.executemany("DELETE FROM models WHERE name = ?", found)

    # -- letters -------------------------------------------------------------------------------------------

    def letters(self) -> list[tuple[int, int, bytes, Any]]:
        """Return all letters that are not acknowledged: destination, number, content, parts; in order."""
        rows = self._db.execute("SELECT dest, number, content, parts FROM outbox ORDER BY dest, number")
        return [(d, n, c, unpack(p)) for d, n, c, p in rows]

    def post(self, dest: int, number: int, content: bytes, parts: Any) -> None:
        """Keep a letter until it is acknowledged."""
        self._begin()
        self._db.execute("INSERT INTO outbox VALUES (?, ?, ?, ?)", (dest, number, content, pack(parts)))

    def acknowledged(self, dest: int, number: int) -> None:
        """Keep the letters to a destination up to a number no longer."""
        self._begin()
        self._db.execute("DELETE FROM outbox WHERE dest = ? AND number <= ?", (dest, number))

    # -- transactions ---------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self._db.in_transaction:
            self._db.execute("BEGIN")

    def commit(self) -> None:
        """Make everything since the last commit last.

        Raises:
            RunError: The disk is full or gone; nothing of it was kept.
        """
        if not self._db.in_transaction:
            return
        try:
            self._db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise RunError(f"The node's state cannot be written: {error}. Free the disk and start it again.") from error

    def close(self) -> None:
        """Commit and close."""
        self.commit()
        self._db.close()
        if self._lock is not None:
            os.close(self._lock)


def _claim(path: Path) -> int:
    """Hold a lock that ends with this process, however it ends."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(handle, 32).decode(errors="replace").strip() or "another process"
        os.close(handle)
        raise RunError(f"{path.parent} is in use by process {holder}; a directory belongs to one node.") from None
    os.ftruncate(handle, 0)
    os.write(handle, str(os.getpid()).encode())
    return handle
