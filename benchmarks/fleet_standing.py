"""A standing fleet of 12 devices and 3 edges takes three runs in a row, while it is looked after. Nothing may be lost.

    python benchmarks/fleet_standing.py [--rounds 30] [--json FILE]

All nodes speak the version of the protocol before the present one, and write as it does. Before the second run an edge
is killed and started again. Before the third the authority is rotated (`certs rotate`, `renew`, `retire`: after each
step every node is started again) and an edge and a device are upgraded to the present version; in its middle the cloud
is upgraded, and another device to one that knows the version after the present one, too. Every device adds one to a
number of its own in each round: the model that the submitter fetches tells whose updates are in it and how often, and
the merges' own notes tell the same.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from espalier.experiment import Experiment
from espalier.fleet import certs
from espalier.fleet.links.wire import VERSIONS, WireVersions
from espalier.fleet.local import LocalFleet
from espalier.fleet.operator import Operator, Unreachable
from espalier.record.run import Run
from tests.fleet import counting

DEVICES, EDGES = 12, 3
#: seconds that a node that is started again is waited for
PATIENCE_SECONDS = 60.0
OLDER, NEWER = (WireVersions(VERSIONS.oldest, VERSIONS.newest + by) for by in (-1, 1))


def restart(fleet: LocalFleet, name: str, number: int = signal.SIGHUP) -> None:
    """End a node and start it again."""
    fleet.kill(name, number)
    fleet.launch(name, versions=OLDER)


def rotate(fleet: LocalFleet) -> None:
    """Put a new authority in the old one's place, in three steps."""
    authority = fleet.directory / "ca"
    steps: tuple[Callable[[], object], ...] = (
        lambda: certs.rotate(authority),
        lambda: [certs.renew(authority, name) for name in (*fleet.members, "operator")],
        lambda: certs.retire(authority),
    )
    for step in steps:
        step()
        for name in fleet.members:
            restart(fleet, name)


def upgrade(fleet: LocalFleet, *names: str, to: WireVersions = VERSIONS) -> None:
    """Start nodes again as newer software would."""
    for name in names:
        fleet.kill(name, signal.SIGHUP)
        fleet.launch(name, versions=to)


def during(fleet: LocalFleet, operator: Operator, run: str, rounds: int) -> None:
    """Upgrade the cloud and a device in the middle of a run."""
    for part, act in ((3, lambda: upgrade(fleet, "cloud")), (2, lambda: upgrade(fleet, "device-7", to=NEWER))):
        reached = -1
        while reached < rounds // part:
            time.sleep(0.1)
            with contextlib.suppress(Unreachable):
                reached = next(row["round"] for row in operator.runs() if row["run"] == run)
        act()


def found(run: str, what: str, folder: Path, made: Experiment, seconds: float) -> dict[str, Any]:
    """Return what became of a run."""
    rounds = made.stop.rounds or 0
    times = counting.merged(Run(folder))
    wanted, merged = rounds * DEVICES, len(times)
    off = (counting.counts(folder, DEVICES, counting.weights_of(made)) - rounds / DEVICES).abs().max()
    twice = sum(times.values()) - merged
    counted = {"wanted": wanted, "merged": merged, "lost": wanted - merged, "twice": twice, "off": float(off)}
    return {"run": run, "what": what, **counted, "seconds": seconds}


def main() -> None:
    """Take the three runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    made = counting.experiment(DEVICES, EDGES, given.rounds)
    folder = Path(tempfile.mkdtemp(prefix="espalier-standing-"))
    scenes: tuple[tuple[str, str, Callable[[LocalFleet], None]], ...] = (
        ("first", "–", lambda fleet: None),
        ("second", "an edge killed before it", lambda fleet: restart(fleet, "edge-1", signal.SIGKILL)),
        (
            "third",
            "before it: authority rotated, an edge and a device upgraded; in its middle: the cloud and a device "
            "upgraded",
            lambda fleet: (rotate(fleet), upgrade(fleet, "edge-0", "device-3"))[0],
        ),
    )
    try:
        with counting.fleet(made, folder / "fleet", standing=True) as fleet:
            for name in fleet.members:
                fleet.launch(name, versions=OLDER)
            fleet.operator().close()
            for name, what, act in scenes:
                act(fleet)
                with fleet.operator() as operator:
                    begun = time.monotonic()
                    operator.submit(made, name=name, patience=PATIENCE_SECONDS)
                    if name == "third":
                        during(fleet, operator, name, made.stop.rounds or 0)
                    state = operator.wait(name, 600)
                    operator.fetch(name, folder / name)
                    seconds = time.monotonic() - begun
                    rows.append(found(f"{name}: {state}", what, folder / name, made, seconds))
                    print(rows[-1], flush=True)
                    if given.json:
                        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(1 if any(row["lost"] or row["twice"] for row in rows) else 0)


if __name__ == "__main__":
    main()
