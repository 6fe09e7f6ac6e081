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
came after it, and so writes the same rows again. A transaction survives the death of the process; those that
a checkpoint counts on are synced first (:meth:`Recorder.durable`), so they survive a power cut too.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, repeat
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
#: moves that wait for the next commit: in Python they take more memory than in the database
MOST_MOVES_BUFFERED = 1 << 16
#: SQLite may be built for no more than 999 values in a statement, and a row has up to 6
ROWS_PER_STATEMENT = 100


def connect(path: Path, *, readonly: bool = False) -> sqlite3.Connection:
    """Open a run's database."""
    if readonly:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)
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

    try:
        return json.dumps(value, default=default, sort_keys=True, allow_nan=False)
    except ValueError:
        # Not a number is not JSON either: only then is it worth walking through everything.
        return json.dumps(_finite(json.loads(json.dumps(value, default=default))), sort_keys=True)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def require_whole(connection: sqlite3.Connection) -> None:
    """Look at every page of a database.

    Raises:
        sqlite3.DatabaseError: One is damaged; a query that does not touch it would not notice.
    """
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise sqlite3.DatabaseError(str(found))


class Recorder:
    """Buffers rows and writes them in transactions."""

    def __init__(self, path: Path | None, facts: Mapping[str, Any] | None = None) -> None:
        """Open or create the database; ``None`` keeps it in memory, ``facts`` become meta of a new one."""
        self.path = path
        #: values of rows that are not written yet, one row after another: a tuple for each would keep the garbage
        #: collector busy where a fleet moves by the million
        self._values: dict[str, list[Any]] = {name: [] for name in GROWING}
        with self._trouble():
            self.connection = sqlite3.connect(":memory:") if path is None else connect(path)
        try:
            self._begin(facts or {})
        except BaseException:
            self.connection.close()
            raise

    def _begin(self, facts: Mapping[str, Any]) -> None:
        with self._trouble(), self.connection:
            found = self.connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if found:
                require_whole(self.connection)
            else:
                # One transaction: a process killed here leaves an empty database, not half a schema.
                self.connection.execute("BEGIN")
                for statement in _SCHEMA.split(";")[:-1]:
                    self.connection.execute(statement)
                rows = [(key, plain_json(value)) for key, value in {"format": FORMAT, **facts}.items()]
                self.connection.executemany("INSERT INTO meta VALUES (?, ?)", rows)
        form = self.read_meta("format")
        if form != FORMAT:
            raise RunError(
                f"{self.path} was written in format {form!r}; this version reads format {FORMAT}. "
                "Use the version of espalier that wrote it (see run.toml)."
            )

    @contextlib.contextmanager
    def _trouble(self) -> Iterator[None]:
        """Turn what the database complains about into an error for the user."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise RunError(
                f"{self.path} cannot be written: {error}. What was saved up to now is safe: make room on the disk "
                "(or let yourself write there) and resume."
            ) from error
        except (sqlite3.DatabaseError, json.JSONDecodeError) as error:
            raise RunError(
                f"{self.path} is not a run's database, or it is damaged: {error}. Restore it from a copy, or run "
                "again in another directory."
            ) from error

    def metric(self, time: float, round: int, name: str, value: float | None) -> None:
        """Write one number of an evaluation (NaN is written as NULL)."""
        self._values["metrics"] += (time, round, name, None if value is None or value != value else float(value))

    def array(self, time: float, round: int, name: str, values: NDArray[Any]) -> None:
        """Write one number per device or edge."""
        self._values["arrays"] += (time, round, name, np.asarray(values, dtype="<f4").tobytes())

    def traffic(self, time: float, round: int, tier: str, direction: str, kind: str, nbytes: int) -> None:
        """Write how many bytes a tier has carried so far."""
        self._values["traffic"] += (time, round, tier, direction, kind, nbytes)

    def span(self, node: int, kind: str, start: float, stop: float, other: int | None = None) -> None:
        """Write that a node was doing something for a while."""
        self._values["spans"] += (node, kind, start, stop, other)

    def move(self, time: float, node: int, parent: int | None, group: str) -> None:
        """Write that a node reports to another parent, or belongs to another group."""
        self._values["moves"] += (time, node, parent, group)

    def moves(self, time: float, nodes: Sequence[int], parents: Sequence[int], groups: Sequence[str]) -> None:
        """Write that nodes report to other parents."""
        self._values["moves"] += chain.from_iterable(zip(repeat(time), nodes, parents, groups, strict=False))
        if len(self._values["moves"]) >= GROWING["moves"] * MOST_MOVES_BUFFERED:
            self.commit()

    def event(self, time: float, kind: str, node: int | None, data: Any) -> None:
        """Write anything else worth knowing."""
        self._values["events"] += (time, kind, node, plain_json(data))

    def devices(self, rows: Iterable[tuple[int, int, int, bytes]]) -> None:
        """Write the fleet."""
        with self._trouble(), self.connection:
            self._insert("INSERT OR REPLACE INTO devices", 4, chain.from_iterable(rows))

    def meta(self, key: str, value: Any) -> None:
        """Write a fact about the run."""
        with self._trouble(), self.connection:
            self.connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, plain_json(value)))

    def read_meta(self, key: str) -> Any:
        """Read a fact about the run (None if there is none)."""
        with self._trouble():
            row = self.connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
            return None if row is None else json.loads(row[0])

    @property
    def buffered(self) -> int:
        """Rows not written yet."""
        return sum(len(values) // GROWING[table] for table, values in self._values.items())

    def commit(self) -> None:
        """Write all buffered rows in one transaction."""
        if not self.buffered:
            return
        with self._trouble(), self.connection:
            for table, values in self._values.items():
                self._insert(f"INSERT INTO {table}", GROWING[table], values)
        for values in self._values.values():
            values.clear()

    def _insert(self, into: str, columns: int, values: Iterable[Any]) -> None:
        """Insert rows, many with each statement: a fleet moves by the million, and this takes half the time."""
        marks, waiting = f"({', '.join('?' * columns)})", iter(values)
        while block := list(islice(waiting, columns * ROWS_PER_STATEMENT)):
            self.connection.execute(f"{into} VALUES {', '.join([marks] * (len(block) // columns))}", block)

    def durable(self, what: Any) -> dict[str, int]:
        """Write all buffered rows so that they survive a power cut; return the last row of every table.

        Args:
            what: Noted as ``meta.saved``: how far the run is.
        """
        self.commit()
        with self._trouble():
            # In WAL mode a full commit syncs the whole log, earlier transactions included.
            self.connection.execute("PRAGMA synchronous=FULL")
            try:
                self.meta("saved", what)
            finally:
                self.connection.execute("PRAGMA synchronous=NORMAL")
        return self.watermarks()

    def watermarks(self) -> dict[str, int]:
        """Return the last row of every growing table (commit first)."""
        with self._trouble():
            return {
                table: self.connection.execute(f"SELECT coalesce(max(rowid), 0) FROM {table}").fetchone()[0]
                for table in GROWING
            }

    def rewind(self, marks: dict[str, int]) -> None:
        """Drop every row written after the given marks, and those that are buffered."""
        with self._trouble(), self.connection:
            for table, last in marks.items():
                self.connection.execute(f"DELETE FROM {table} WHERE rowid > ?", (last,))
        for values in self._values.values():
            values.clear()

    def seal(self) -> None:
        """Leave the finished database as one file that can be read from a read-only place as well."""
        # A reader may hold it open: then it stays in WAL mode, which is as good on an ordinary disk.
        with contextlib.suppress(sqlite3.OperationalError):
            self.connection.execute("PRAGMA busy_timeout=0")
            self.connection.execute("PRAGMA journal_mode=DELETE")

    def close(self) -> None:
        """Write what is buffered and close, also if it cannot be written."""
        try:
            self.commit()
        finally:
            self.connection.close()
