"""Kill a run again and again, go on with it each time, and compare its end with an undisturbed run's.

    python -m tests.reliability.kills --kills 200

A run is done in a child process that is ended with SIGKILL: after a random time, or exactly when it syncs a
file (which is cut short first), renames one, or writes a row or a transaction of its database. In the end
every row of the database and every byte of the models must be those of a run that nobody killed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from espalier.core.errors import RunError
from espalier.core.method import available
from espalier.core.seeds import stream
from espalier.data import registry
from espalier.data.dataset import Dataset
from espalier.experiment import Experiment
from espalier.record import database
from espalier.simulator.runner import Runner
from espalier.testing.conformance import BASE

#: everything that may happen does: speeds vary, devices come, go and move, data drift
WORLD = {
    "compute": {"kind": "noise", "of": {"kind": "rate", "low": 1.0, "high": 8.0}, "sigma": 0.3},
    "mobility": {"kind": "markov", "stay": 0.7},
    "churn": {"kind": "two_state", "working": 0.8, "mean_stay": 60},
}

#: where a process may die: at a time in seconds, or at the n-th such call
POINTS = ("time", "fsync", "replace", "INSERT", "COMMIT")


@dataclass
class KillTally:
    """What was done: kills by where they struck, runs that ended as they should, and what went wrong."""

    kills: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """All kills."""
        return sum(self.kills.values())


def contents(directory: Path) -> dict[str, Any]:
    """Return all that a finished run leaves: its database's rows with their numbers, its models' bytes.

    Not the processor time that it took: that is the host's.
    """
    connection = database.connect(directory / "run.sqlite", readonly=True)
    tables = [r[0] for r in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    found: dict[str, Any] = {}
    for table in tables:
        order = "key" if table == "meta" else "rowid"
        columns = "*" if table == "meta" else "rowid, *"
        of = "meta WHERE key != 'cpu_seconds'" if table == "meta" else table
        found[table] = connection.execute(f"SELECT {columns} FROM {of} ORDER BY {order}").fetchall()
    connection.close()
    for path in sorted((directory / "models").glob("*")):
        found[path.name] = path.read_bytes()
    return found


def kill_runs(
    methods: Sequence[str], kills: int, seed: int, folder: Path, say: Callable[[str], None] = lambda text: None
) -> KillTally:
    """Kill runs of the methods in turn until there were so many kills, and compare every end."""
    dataset = registry.load("digits")
    rng = stream(seed, "kills")
    tally = KillTally()
    whole: dict[tuple[str, bool], tuple[dict[str, Any], float]] = {}
    number = 0
    while tally.total < kills:
        method, every_event = methods[number % len(methods)], number // len(methods) % 2 == 0
        experiment = _experiment(method, every_event)
        directory = folder / f"run-{number}"
        number += 1
        if (method, every_event) not in whole:
            begun, where = time.monotonic(), folder / f"{method}-{number}"
            _live(experiment, where, dataset, None)
            whole[method, every_event] = (contents(where), time.monotonic() - begun)
        undisturbed, seconds = whole[method, every_event]
        for _ in range(min(int(rng.integers(1, 7)), kills - tally.total)):
            point = str(rng.choice(POINTS))
            often = 0.03 if every_event else 0.2
            at = rng.uniform(0.0, 1.5 * seconds) if point == "time" else float(rng.geometric(often))
            if not _live(experiment, directory, dataset, (point, at)):
                break
            tally.kills[point] += 1
        _live(experiment, directory, dataset, None)
        found = contents(directory)
        unlike = [k for k in {*undisturbed, *found} if undisturbed.get(k) != found.get(k)]
        if unlike:
            tally.wrong.append(f"{method}, run {number - 1}: differs in {', '.join(sorted(unlike))}")
        tally.runs[method] += 1
        shutil.rmtree(directory)
        say(f"{tally.total}/{kills} kills, {sum(tally.runs.values())} runs, {len(tally.wrong)} wrong")
    return tally


def _experiment(method: str, every_event: bool) -> Experiment:
    saving = {"checkpoint_seconds": 0.0} if every_event else {"checkpoint_rounds": 1}
    return Experiment.build({**BASE, "methods": [method], "world": WORLD, "record": saving})


def _live(experiment: Experiment, directory: Path, dataset: Dataset, death: tuple[str, float] | None) -> bool:
    """Do one life of a run in a child process; return whether it was killed."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _child(experiment, directory, dataset, death)
    if death is not None and death[0] == "time":
        time.sleep(death[1])
        os.kill(pid, signal.SIGKILL)  # a child that has ended is still ours until it is waited for
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    if os.waitstatus_to_exitcode(status) != 0:
        raise RunError(f"A run in {directory} ended with {os.waitstatus_to_exitcode(status)}; see its traceback above.")
    return False


def _child(experiment: Experiment, directory: Path, dataset: Dataset, death: tuple[str, float] | None) -> NoReturn:
    code = 1
    try:
        if death is not None and death[0] != "time":
            _doom(death[0], int(death[1]))
        Runner(experiment, directory, dataset=dataset).run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _doom(point: str, at: int) -> None:
    """Make this process kill itself at the ``at``-th call of a kind."""
    count = 0

    def strike() -> bool:
        nonlocal count
        count += 1
        return count == at

    sync, rename, open_database = os.fsync, os.replace, database.connect

    def fsync(handle: Any) -> None:
        if strike():
            size = os.fstat(handle).st_size
            if not os.path.isdir(f"/proc/self/fd/{handle}"):
                os.ftruncate(handle, int(np.random.default_rng(at).integers(0, size + 1)))
            os.kill(os.getpid(), signal.SIGKILL)
        sync(handle)

    def replaced(source: Any, target: Any) -> None:
        before = at % 2 == 0
        struck = strike()
        if not (struck and before):
            rename(source, target)
        if struck:
            os.kill(os.getpid(), signal.SIGKILL)

    def connect(path: Path, *, readonly: bool = False) -> sqlite3.Connection:
        connection = open_database(path, readonly=readonly)

        def traced(statement: str) -> None:
            if statement.lstrip().startswith(point) and strike():
                os.kill(os.getpid(), signal.SIGKILL)

        connection.set_trace_callback(traced)
        return connection

    if point == "fsync":
        os.fsync = fsync  # type: ignore[assignment]
    elif point == "replace":
        os.replace = replaced  # type: ignore[assignment]
    else:
        database.connect = connect


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill runs of every registered method; print the count. Return 0 if all ended as they should."""
    parser = argparse.ArgumentParser(description="Kill runs, go on with them, compare their ends.")
    parser.add_argument("--kills", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--methods", default="", help="comma-separated (default: all of espalier's)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the tally as JSON")
    options = parser.parse_args(arguments)
    own = [name for name, cls in available().items() if cls.__module__.startswith("espalier.")]
    methods = [name for name in options.methods.split(",") if name] or own

    def say(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r{text}", end="", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="espalier-kills-") as folder:
        tally = kill_runs(methods, options.kills, options.seed, Path(folder), say)
    if options.json:
        print(json.dumps({"kills": tally.kills, "runs": tally.runs, "wrong": tally.wrong}))
    else:
        where = ", ".join(f"{n} at {p}" for p, n in sorted(tally.kills.items()))
        print(f"\n{tally.total} kills ({where}) over {sum(tally.runs.values())} runs of {len(tally.runs)} methods")
        print("\n".join(tally.wrong) or "every run ended with the rows and models of one that was never killed")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
