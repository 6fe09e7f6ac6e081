"""A real fleet under faults: cut links, frozen and killed nodes, moves. Nothing may be lost, nothing counted twice.

    sudo .venv/bin/python benchmarks/fleet_faults.py [--repeats 3] [--moves 200] [--json FILE]

Cuts need network namespaces, hence root. Every device adds one to a number of its own in each round, so the final model
tells whose updates are in it and how often; the merges' own notes tell the same. ``noticed`` is the time from the fault
until the parent has given the link up, ``back`` from its end until the node has joined again (median, longest).
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from espalier.experiment import Experiment
from espalier.fleet.links.limits import Limits
from espalier.fleet.local import LocalFleet
from espalier.record.run import Run
from tests.fleet import counting
from tests.fleet.spaces import Space, SpacedFleet

DEVICES, EDGES = 6, 2
#: a model of 220 kB takes 0.3 s
RATE = "6mbit"


@dataclass
class Outcome:
    """What a scenario has come to; times in seconds."""

    name: str
    faults: int = 0
    merged: int = 0
    wanted: int = 0
    doubled: int = 0
    dropped: int = 0
    deviation: float = 0.0
    noticed: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)


def happened(folder: Path, node: str, event: str, after: float, child: str | None = None) -> float | None:
    """When a node first logged an event after a moment."""
    for line in (folder / node / "node.log").read_text().splitlines():
        entry = json.loads(line)
        if entry["event"] == event and entry["time"] > after and (child is None or entry.get("child") == child):
            return float(entry["time"])
    return None


def awaited(folder: Path, node: str, event: str, after: float, child: str | None = None) -> float:
    """When a node logged an event after a moment; waits for it."""
    for _ in range(3000):
        found = happened(folder, node, event, after, child)
        if found is not None:
            return found
        time.sleep(0.02)
    raise SystemExit(f"{node} did not log {event!r} within a minute; look at {folder}/*/node.log.")


@contextmanager
def counted(outcome: Outcome, folder: Path, rounds: int, fleet_of: Callable[..., LocalFleet]) -> Iterator[LocalFleet]:
    """A counting fleet of so many rounds, whose counts are checked at the end."""
    made = counting.experiment(DEVICES, EDGES, rounds, task={"dataset": "digits", "model": "mlp"})
    with fleet_of(made, folder, patience=120.0) as fleet:
        fleet.start()
        fleet.until("cloud", lambda s: s.get("round", 0) >= 1, 60)
        yield fleet
        fleet.wait(300)
    found = counting.counts(folder / "cloud", DEVICES, counting.weights_of(made))
    outcome.deviation = max(outcome.deviation, float((found - torch.tensor(rounds / DEVICES)).abs().max()))
    times = counting.merged(Run(folder / "cloud"))
    outcome.wanted += rounds * DEVICES
    outcome.merged += len(times)
    outcome.doubled += sum(n - 1 for n in times.values())


def cuts(folder: Path, seconds: float, repeats: int) -> Outcome:
    """Cut the cable of an edge's devices while one of them sends its model."""
    outcome = Outcome(f"link cut for {seconds:g} s during uploads")
    with Space(rate=RATE) as space:
        members = {f"device-{i}": space for i in range(DEVICES) if i < DEVICES // EDGES}

        def fleet_of(*args: object, **options: object) -> LocalFleet:
            listen = {0: f"{space.host}:0"}
            return counting.fleet(*args, kind=SpacedFleet, spaces=members, listen=listen, **options)  # type: ignore[arg-type]

        with counted(outcome, folder, 3 + 2 * repeats, fleet_of) as fleet:
            for _ in range(repeats):
                at = fleet.status("cloud")["round"]
                fleet.until("cloud", lambda s, at=at: s["round"] > at, 120)  # type: ignore[misc]
                fleet.until("device-0", lambda s: s["letters"] > 0)
                cut = space.cut()
                time.sleep(seconds)
                mended = space.mend()
                outcome.faults += 1
                seen = happened(folder, "edge-0", "link lost", cut, "device-0")
                if seen is not None and seen < mended:
                    outcome.noticed.append(seen - cut)
                    outcome.back.append(awaited(folder, "edge-0", "joined", mended, "device-0") - mended)
    return outcome


def frozen(folder: Path, repeats: int) -> Outcome:
    """Stop a device's process for five seconds."""
    outcome = Outcome("device frozen for 5 s")
    with counted(outcome, folder, 3 + 2 * repeats, counting.fleet) as fleet:
        for _ in range(repeats):
            at = fleet.status("cloud")["round"]
            fleet.kill("device-0", signal.SIGSTOP)
            stopped = time.time()
            time.sleep(5)
            seen = happened(folder, "edge-0", "link lost", stopped, "device-0")
            fleet.kill("device-0", signal.SIGCONT)
            thawed = time.time()
            outcome.faults += 1
            if seen is not None:
                outcome.noticed.append(seen - stopped)
                outcome.back.append(awaited(folder, "edge-0", "joined", thawed, "device-0") - thawed)
            fleet.until("cloud", lambda s, at=at: s["round"] > at, 120)  # type: ignore[misc]
    return outcome


def killed(folder: Path, name: str, repeats: int) -> Outcome:
    """Kill a node with ``kill -9`` and start it again at once."""
    parent = {"device-0": "edge-0", "edge-0": "cloud"}.get(name)
    outcome = Outcome(f"{name.partition('-')[0]} killed and started again")
    rng = random.Random(1)
    with counted(outcome, folder, 3 + 2 * repeats, counting.fleet) as fleet:
        for _ in range(repeats):
            at = fleet.until("cloud", lambda s: "round" in s)["round"]
            time.sleep(rng.uniform(0, 0.3))
            before = time.time()
            fleet.kill(name)
            fleet.launch(name)
            outcome.faults += 1
            if parent is not None:
                outcome.noticed.append(awaited(folder, parent, "link lost", before, name) - before)
                outcome.back.append(awaited(folder, parent, "joined", before, name) - before)
            else:
                outcome.noticed.append(awaited(folder, "edge-0", "link to parent lost", before) - before)
                outcome.back.append(awaited(folder, "edge-0", "linked", before) - before)
            fleet.until("cloud", lambda s, at=at: s.get("round", 0) > at, 120)  # type: ignore[misc]
    return outcome


def moves(folder: Path, count: int) -> Outcome:
    """Let a device go from edge to edge while it works.

    What it trained for the edge that it left is late there: dropped by this method, and told. When the run's time is
    over, one report of each device may be in a round that is still open: it counts neither as merged nor as lost.
    """
    outcome = Outcome("device moved to the other edge")
    made = counting.experiment(DEVICES, EDGES, 1, task={"dataset": "digits", "model": "mlp"})
    made = Experiment.build({**made.to_plain(), "stop": {"seconds": 10 + 0.75 * count}})
    rng = random.Random(2)
    with counting.fleet(made, folder, limits=Limits(greetings_per_minute=60_000)) as fleet:
        fleet.start()
        fleet.until("cloud", lambda s: s.get("round", 0) >= 1)
        for i in range(count):
            target = f"edge-{(i + 1) % EDGES}"
            begun = time.time()
            fleet.move("device-0", target)
            outcome.back.append(awaited(folder, target, "joined", begun, "device-0") - begun)
            outcome.faults += 1
            time.sleep(rng.uniform(0, 0.2))
        fleet.wait(600)
    run = Run(folder / "cloud")
    times = counting.merged(run)
    outcome.merged, outcome.doubled = len(times), sum(n - 1 for n in times.values())
    outcome.dropped = len(run.events("dropped"))
    trained = int(run.query("SELECT count(*) FROM spans WHERE kind = 'train'")[0][0])
    outcome.wanted = outcome.merged + max(0, trained - outcome.merged - outcome.dropped - DEVICES)
    return outcome


def main() -> None:
    """Run every scenario and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="faults of each kind")
    parser.add_argument("--moves", type=int, default=200, help="moves")
    parser.add_argument("--only", help="only scenarios whose name contains this")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    scenarios: dict[str, Callable[[Path], Outcome]] = {
        "cut-1": lambda f: cuts(f, 1, given.repeats),
        "cut-4": lambda f: cuts(f, 4, given.repeats),
        "cut-10": lambda f: cuts(f, 10, given.repeats),
        "frozen": lambda f: frozen(f, given.repeats),
        "killed-device": lambda f: killed(f, "device-0", given.repeats),
        "killed-edge": lambda f: killed(f, "edge-0", given.repeats),
        "killed-cloud": lambda f: killed(f, "cloud", given.repeats),
        "moves": lambda f: moves(f, given.moves),
    }
    bad, rows = False, []
    for name, scenario in scenarios.items():
        if given.only is not None and given.only not in name:
            continue
        folder = Path(tempfile.mkdtemp(prefix=f"espalier-{name}-"))
        outcome = scenario(folder)
        rows.append(asdict(outcome))
        print(rows[-1], flush=True)
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1) + "\n")
        wrong = outcome.doubled > 0 or outcome.deviation > 1e-4 or outcome.wanted != outcome.merged
        bad = bad or wrong
        if not wrong:
            shutil.rmtree(folder)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
