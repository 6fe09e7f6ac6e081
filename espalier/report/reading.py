"""One run as it stands at a moment: its curve, its configuration, its state. Every part of a report starts here."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from espalier.core.address import Address, host_of, level_of
from espalier.core.errors import ConfigError, RunError
from espalier.record.database import GROWING, connect
from espalier.record.measures import main_score
from espalier.record.run import Run

try:
    import fcntl
except ImportError:  # not a POSIX system: the process number has to do
    fcntl = None  # type: ignore[assignment]

#: a dead run's process has ended without finishing it
State = Literal["running", "finished", "dead"]
#: a class that so many samples have is told of: always answering it scores that much
COMMON_SHARE = 0.6


@dataclass(frozen=True, eq=False)
class Reading:
    """One run as it was read.

    Attributes:
        key: Names the run in a page (from its path; the same every time).
        directory: Where it is kept; None for a run in memory.
        label: The method's label.
        seed: The seed.
        reconstruction: What of the method is reconstructed; empty if nothing is.
        experiment: The resolved configuration.
        state: Whether it goes on, has finished, or is dead.
        stamp: Changes when the record does.
        frame: One row per evaluation (:meth:`espalier.record.run.Run.frame`); empty before the first.
        privacy: What it has spent of its devices' privacy (``meta.privacy``); None if nothing in it is private.
        stalled: Why it ended before it had reached its limits, if it has.
        memory: The run itself, if it is kept in memory only.
        deployed: Whether it ran on a real fleet: its seconds are the clock's on the wall.
        with_prior: Whether its devices answered with their label priors.
        planned: The labels of all methods that it is one of, in the comparison's order; those to come, too.
        constant: The class that most samples have, and what always answering it scores per device; None if none has.
    """

    key: str
    directory: Path | None
    label: str
    seed: int
    reconstruction: str
    experiment: dict[str, Any]
    state: State
    stamp: str
    frame: pd.DataFrame = field(repr=False)
    privacy: dict[str, Any] | None = None
    stalled: str = ""
    memory: Run | None = field(default=None, repr=False)
    deployed: bool = False
    with_prior: bool = False
    planned: tuple[str, ...] = ()
    constant: tuple[str, float] | None = None

    @cached_property
    def columns(self) -> dict[str, NDArray[np.float64]]:
        """The frame's columns as plain arrays, which are quicker to look things up in."""
        return {str(name): self.frame[name].to_numpy(float) for name in self.frame}

    @property
    def title(self) -> str:
        """The run's name for people."""
        return f"{self.label}, seed {self.seed}"

    @property
    def rounds(self) -> int:
        """Rounds evaluated so far."""
        return int(self.frame["round"].iloc[-1]) if len(self.frame) else 0

    @property
    def time(self) -> float:
        """Virtual seconds evaluated so far."""
        return float(self.frame["time"].iloc[-1]) if len(self.frame) else 0.0

    @property
    def progress(self) -> float:
        """How far the run is, 0 … 1: the larger share of its rounds or of its seconds."""
        if self.state == "finished":
            return 1.0
        stop = self.experiment.get("stop", {})
        # as `RunLimits.done`, whose module takes seconds to import
        rounds, seconds = stop.get("rounds") or math.inf, stop.get("seconds") or math.inf
        return min(1.0, max(self.rounds / rounds, self.time / seconds))

    @property
    def score(self) -> str:
        """The main score's name, such as ``acc``."""
        return main_score(self.frame.columns)


def read(run: Run, before: Reading | None = None) -> Reading | None:
    """Read a run; None if it has not been described yet (it is just being made).

    ``before`` is an earlier reading of it; if nothing was written since, its curve is taken over.
    """
    if run.meta("label") is None or run.meta("seed") is None or run.meta("experiment") is None:
        return None
    status = run.status.get("state", "unknown")
    state = state_of(run.directory, status)
    counts = "-".join(str(run.query(f"SELECT coalesce(max(rowid), 0) FROM {t}")[0][0]) for t in GROWING)
    stamp = f"{state}-{counts}"
    if before is not None and before.stamp == stamp:
        return before
    evaluated = run.query("SELECT 1 FROM metrics LIMIT 1")
    frame = run.frame() if evaluated else pd.DataFrame({"time": [], "round": []})
    return Reading(
        key_of(run), run.directory, run.label, run.seed, run.meta("reconstruction") or "", run.experiment,
        state, stamp, frame, run.meta("privacy"), run.status.get("stalled", ""),
        run if run.directory is None else None, bool(run.meta("deployed")),
        run.meta("prior") not in (None, "none"), tuple(run.meta("planned") or ()),
        before.constant if before is not None else _constant(run),
    )  # fmt: skip


def _constant(run: Run) -> tuple[str, float] | None:
    """Return the commonest class and its mean share over devices, who are tested on their own mix of labels."""
    rows, task = run.query("SELECT histogram FROM devices ORDER BY node"), run.meta("task") or {}
    if task.get("kind") != "classification" or not rows:
        return None
    counts = np.stack([np.frombuffer(row[0], dtype="<i4") for row in rows]).astype(float)
    counts = counts[counts.sum(1) > 0]
    commonest = int(counts.sum(0).argmax())
    if counts[:, commonest].sum() < COMMON_SHARE * counts.sum() or not len(counts):
        return None
    name = repr(task["classes"][commonest]) if "classes" in task else f"class {commonest}"
    return name, float((counts[:, commonest] / counts.sum(1)).mean())


def key_of(run: Run) -> str:
    """Return a short name for a run that is fit for addresses: from its path, or from the run in memory itself."""
    where = str(id(run)) if run.directory is None else str(run.directory.absolute())
    return hashlib.sha256(where.encode()).hexdigest()[:12]


def readings_of(runs: Iterable[Run]) -> list[Reading]:
    """Read runs that are at hand; those that have not been described yet are left out."""
    return [reading for reading in map(read, runs) if reading is not None]


@contextmanager
def run_of(reading: Reading) -> Iterator[Run]:
    """Open the run that was read, wherever it is kept."""
    if reading.memory is not None:
        yield reading.memory
    else:
        assert reading.directory is not None
        with opened(reading.directory) as run:
            yield run


@contextmanager
def opened(directory: Path) -> Iterator[Run]:
    """Open a run directory and close it again."""
    with closing(connect(directory / "run.sqlite", readonly=True)) as connection:
        yield Run(directory, connection=connection)


def directories_of(roots: Sequence[Path]) -> list[Path]:
    """Return every run directory at or below the given ones, each once, by path."""
    found: dict[Path, Path] = {}
    for root in roots:
        for path in sorted(root.rglob("run.sqlite")):
            found.setdefault(path.parent.resolve(), path.parent)
    return list(found.values())


def read_all(roots: Sequence[Path]) -> list[Reading]:
    """Read every run at or below the given directories; refuse a directory that has none."""
    found: list[Reading] = []
    for root in roots:
        if not directories_of([root]):
            raise RunError(f"There is no run at or below {root}. Runs are made with `espalier run`.")
    for directory in directories_of(roots):
        with opened(directory) as run:
            reading = read(run)
        if reading is not None:
            found.append(reading)
    if not any(len(r.frame) for r in found):
        raise RunError(f"No run below {', '.join(map(str, roots))} has been evaluated yet: there is nothing to show.")
    return found


def only(readings: Sequence[Reading], methods: Collection[str], seeds: Collection[int]) -> list[Reading]:
    """Return the runs of some methods and seeds (none named: of all); refuse what no run has."""
    for what, wanted, there in (
        ("method", methods, {r.label for r in readings}), ("seed", seeds, {r.seed for r in readings}),
    ):  # fmt: skip
        for name in wanted:
            if name not in there:
                known = ", ".join(map(str, sorted(there, key=str)))
                raise ConfigError(f"--{what} {name}: no run has it; there are {known}.")
    return [r for r in readings if (not methods or r.label in methods) and (not seeds or r.seed in seeds)]


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


@dataclass(frozen=True)
class Names:
    """The fleet's numbering: devices ``0 … N-1``, edges from ``N``, the cloud, servers of other tiers after it."""

    devices: int
    edges: int
    cloud: int
    device_names: tuple[str, ...] = ()
    edge_names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    @staticmethod
    def of(run: Run) -> Names:
        """Return what a run's nodes and labels are called; the data's own names are escaped for pages and figures."""
        fleet, given, task = run.meta("fleet"), run.meta("names") or {}, run.meta("task") or {}
        told = (given.get("devices"), given.get("edges"), task.get("classes"))
        names = (tuple(escape(str(name)) for name in some or ()) for some in told)
        return Names(int(fleet["devices"]), int(fleet["edges"]), int(fleet["cloud"]), *names)

    def device(self, number: int) -> str:
        """Return a device's name: its owner's, where the data have names for owners."""
        if number >= len(self.device_names):
            return f"device {number}"
        name = self.device_names[number]
        return f"owner {name}" if name.isdigit() else name

    def edge(self, number: int) -> str:
        """Return an edge's name: the data's own, where they have one."""
        return f"edge {self.edge_names[number] if number < len(self.edge_names) else number}"

    def label(self, number: int) -> str:
        """Return a class's name: the data's own, where labels were text."""
        return self.classes[number] if number < len(self.classes) else f"label {number}"

    def name(self, address: Address) -> str:
        """Return a node's name; a role that a host plays besides its own names the host."""
        host, level = host_of(address), level_of(address)
        if host < self.devices:
            own = self.device(host)
        elif host < self.devices + self.edges:
            own = self.edge(host - self.devices)
        elif host == self.cloud:
            own = "cloud"
        else:
            own = f"server {host - self.cloud - 1}"
        return own if level == 0 else f"{own} as aggregator, level {level}"

    def is_device(self, address: Address) -> bool:
        """Tell whether an address is a leaf device's own."""
        return address < self.devices
