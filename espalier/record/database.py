"""The run's database: SQLite in WAL mode, the truth about a run, readable while it is written.

Tables:
    meta        key, value (JSON)
    metrics     time, round, name, value                 one number per evaluation
    arrays      time, round, name, data (float32)        one number per device or edge
    traffic     time, round, tier, direction, kind, bytes    cumulative
    spans       node, kind, start, stop, other           who trained, sent, and to whom
    moves       time, node, parent, grp                  every change of the tree or of a group
    events      time, kind, node, data (JSON)            anything else worth knowing
    devices     node, edge, samples, histogram (int32)   the fleet

Rows are appended in transactions. A checkpoint notes the last row of every table; a resumed run drops what
came after it, and so writes the same rows again.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espalier.core.errors import RunError

FORMAT = 1

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE metrics (time REAL NOT NULL, round INTEGER NOT NULL, name TEXT NOT NULL, value REAL);
CREATE TABLE arrays (time REAL NOT NULL, round INTEGER NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL);
CREATE TABLE traffic (time REAL NOT NULL, round INTEGER NOT NULL, tier TEXT NOT NULL,
                      direction TEXT NOT NULL, kind TEXT NOT NULL, bytes INTEGER NOT NULL);
CREATE TABLE spans (node INTEGER NOT NULL, kind TEXT NOT NULL, start REAL NOT NULL, stop REAL NOT NULL,
                    other INTEGER);
CREATE TABLE moves (time REAL NOT NULL, node INTEGER NOT NULL, parent INTEGER, grp TEXT NOT NULL);
CREATE TABLE events (time REAL NOT NULL, kind TEXT NOT NULL, node INTEGER, data TEXT NOT NULL);
CREATE TABLE devices (node INTEGER PRIMARY KEY, edge INTEGER NOT NULL, samples INTEGER NOT NULL,
                      histogram BLOB NOT NULL);
"""

#: tables that grow while a run goes on, with the number of their columns
GROWING = {"metrics": 4, "arrays": 4, "traffic": 6, "spans": 5, "moves": 4, "events": 4}


def connect(path: Path, *, readonly: bool = False) -> sqlite3.Connection:
    """Open a run's database."""
    if readonly:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)
    else:
        connection = sqlite3.connect(path, timeout=30)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
    return connection


def plain_json(value: Any) -> str:
    """Write plain data as JSON; arrays become lists, NaN becomes null."""

    def default(item: Any) -> Any:
        if isinstance(item, np.ndarray):
            return item.tolist()
        if isinstance(item, np.generic):
            return item.item()
        if isinstance(item, set | frozenset):
            return sorted(item)
        raise TypeError(f"{type(item).__name__} is not plain data")

    return json.dumps(value, default=default, sort_keys=True)


class Recorder:
    """Buffers rows and writes them in transactions."""

    def __init__(self, path: Path | None) -> None:
        """Open or create the database; ``None`` keeps it in memory."""
        fresh = path is None or not path.exists()
        self.path = path
        self.connection = sqlite3.connect(":memory:") if path is None else connect(path)
        if fresh:
            self.connection.executescript(_SCHEMA)
            self.meta("format", FORMAT)
        else:
            found = self.read_meta("format")
            if found != FORMAT:
                raise RunError(
                    f"{path} was written in format {found!r}; this version reads format {FORMAT}. "
                    "Use the version of espalier that wrote it (see run.toml)."
                )
        self._rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in GROWING}

    def metric(self, time: float, round: int, name: str, value: float | None) -> None:
        """Write one number of an evaluation (NaN is written as NULL)."""
        self._rows["metrics"].append((time, round, name, None if value is None or value != value else float(value)))

    def array(self, time: float, round: int, name: str, values: NDArray[Any]) -> None:
        """Write one number per device or edge."""
        self._rows["arrays"].append((time, round, name, np.asarray(values, dtype="<f4").tobytes()))

    def traffic(self, time: float, round: int, tier: str, direction: str, kind: str, nbytes: int) -> None:
        """Write how many bytes a tier has carried so far."""
        self._rows["traffic"].append((time, round, tier, direction, kind, nbytes))

    def span(self, node: int, kind: str, start: float, stop: float, other: int | None = None) -> None:
        """Write that a node was doing something for a while."""
        self._rows["spans"].append((node, kind, start, stop, other))

    def move(self, time: float, node: int, parent: int | None, group: str) -> None:
        """Write that a node reports to another parent, or belongs to another group."""
        self._rows["moves"].append((time, node, parent, group))

    def event(self, time: float, kind: str, node: int | None, data: Any) -> None:
        """Write anything else worth knowing."""
        self._rows["events"].append((time, kind, node, plain_json(data)))

    def devices(self, rows: Iterable[tuple[int, int, int, bytes]]) -> None:
        """Write the fleet."""
        with self.connection:
            self.connection.executemany("INSERT OR REPLACE INTO devices VALUES (?, ?, ?, ?)", rows)

    def meta(self, key: str, value: Any) -> None:
        """Write a fact about the run."""
        with self.connection:
            self.connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, plain_json(value)))

    def read_meta(self, key: str) -> Any:
        """Read a fact about the run (None if there is none)."""
        try:
            row = self.connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        except sqlite3.DatabaseError as error:
            raise RunError(f"{self.path} is not a run's database: {error}.") from error
        return None if row is None else json.loads(row[0])

    @property
    def buffered(self) -> int:
        """Rows not written yet."""
        return sum(map(len, self._rows.values()))

    def commit(self) -> None:
        """Write all buffered rows in one transaction."""
        try:
            with self.connection:
                for table, rows in self._rows.items():
                    if rows:
                        marks = ", ".join("?" * GROWING[table])
                        self.connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        except sqlite3.OperationalError as error:
            raise RunError(
                f"{self.path} cannot be written: {error}. The rows up to the last commit are safe."
            ) from error
        for rows in self._rows.values():
            rows.clear()

    def watermarks(self) -> dict[str, int]:
        """Return the last row of every growing table (commit first)."""
        return {
            table: self.connection.execute(f"SELECT coalesce(max(rowid), 0) FROM {table}").fetchone()[0]
            for table in GROWING
        }

    def rewind(self, marks: dict[str, int]) -> None:
        """Drop every row written after the given marks."""
        with self.connection:
            for table, last in marks.items():
                self.connection.execute(f"DELETE FROM {table} WHERE rowid > ?", (last,))

    def close(self) -> None:
        """Write what is buffered and close."""
        self.commit()
        self.connection.close()
