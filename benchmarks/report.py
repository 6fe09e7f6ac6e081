"""How long the report of 20 runs × 200 devices × 150 rounds takes, how much memory, and how large the file is.

    python benchmarks/report.py [--runs 20] [--devices 200] [--rounds 150] [--methods 5]

Runs are made up and written through the recorder first; that is not counted. The report is written by a fresh process,
so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.report.made import Made, write_run

LIMITS = {"seconds": 20.0, "megabytes of memory": 1000.0, "megabytes of file": 8.0}


def write(root: Path, output: Path, answers: Any) -> None:
    start = time.perf_counter()
    from espalier.report.page import write_report

    write_report([root], output)
    seconds = time.perf_counter() - start
    answers.put((seconds, time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3))


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("runs", 20), ("devices", 200), ("rounds", 150), ("methods", 5), ("edges", 10)):
        options.add_argument(f"--{name}", type=int, default=default)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        start = time.perf_counter()
        for number in range(chosen.runs):
            method, seed = number % chosen.methods, number // chosen.methods
            write_run(
                root / f"method-{method}" / f"seed-{seed}",
                Made(label=f"method {method}", seed=seed, devices=chosen.devices, edges=chosen.edges,
                     rounds=chosen.rounds, skill=0.5 + 0.3 * method / chosen.methods, churn=method == 0,
                     clusters=4 * (method == 1), notes=True, similarity=method == 1),
            )  # fmt: skip
        print(f"made {chosen.runs} runs in {time.perf_counter() - start:.1f} s (not counted)")
        context = multiprocessing.get_context("spawn")
        answers = context.Queue()
        output = Path(folder) / "report.html"
        process = context.Process(target=write, args=(root, output, answers))
        process.start()
        seconds, busy, memory = answers.get()
        process.join()
        found = {"seconds": seconds, "megabytes of memory": memory, "megabytes of file": output.stat().st_size / 1e6}
    print(f"{busy:8.1f} seconds of one processor, imports included")
    worst = 0
    for name, value in found.items():
        good = value < LIMITS[name]
        worst |= not good
        print(f"{value:8.1f} {name} (limit {LIMITS[name]:g}){'' if good else '  TOO MUCH'}")
    return int(worst)


if __name__ == "__main__":
    sys.exit(main())
