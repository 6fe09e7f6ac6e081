"""A hostile member of a fleet: so many letters, any of them, against cloud, edges and devices.

``python benchmarks/hostile.py --letters 10000`` plays the state machine of `tests/fleet/hostile.py` until so many
letters were said, and prints what became of them, by method: refused at the door (by the table of who may say what),
refused behind it, passed over (an honest device may say it, too late), or taken. It fails with the sequence of letters
that breaks an invariant (with ``--shrink`` with the shortest one, which may take many minutes to find): no host ends,
nobody else's place, model or data changes beyond the member's office, nobody else is blamed, and the run's result is
that without the member up to its own answers to orders.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import InMemoryExampleDatabase
from hypothesis.stateful import run_state_machine_as_test

sys.path.insert(0, str(Path(__file__).parents[1]))

import tables
from tables import FATES

from tests.fleet.hostile import HostileMember

#: letters and other steps of one run at most
STEPS = 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--letters", type=int, default=10_000)
    parser.add_argument("--shrink", action="store_true", help="Look for the shortest sequence that fails.")
    parser.add_argument("--json", type=Path, help="Write the figures there, too.")
    options = parser.parse_args()
    wanted = options.letters
    phases = [Phase.generate, *([Phase.shrink] if options.shrink else [])]
    fates: dict[str, Counter[str]] = {}

    class Counted(HostileMember):
        def teardown(self) -> None:
            fates.setdefault(self.method, Counter()).update(self.fates)
            super().teardown()

    def said() -> int:
        return sum(count.total() for count in fates.values())

    begun = time.monotonic()
    while said() < wanted:
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            Counted,
            settings=settings(
                max_examples=max(5, min(100, (wanted - said()) // 10)), stateful_step_count=STEPS, deadline=None,
                suppress_health_check=list(HealthCheck), database=InMemoryExampleDatabase(), phases=phases,
            ),
        )  # fmt: skip
        print(f"{said():,} letters, {time.monotonic() - begun:.0f} s", flush=True)
    rows = [{"method": method, **{kind: count[kind] for kind in FATES}} for method, count in sorted(fates.items())]
    print("\n" + "\n".join(tables.hostile(rows)) + "\nno invariant was broken")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
