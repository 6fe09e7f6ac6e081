"""What many small runs side by side cost beyond themselves: processor time of two warm processes over the runs' own.

    python benchmarks/many_runs.py [--runs 20 100] [--json FILE]

FedAvg and HierFAVG as in the demo, 15 rounds, one seed after another. The goal is 1.3 times the runs' own time for 100.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
from pathlib import Path
from typing import Any

from espalier.cli.pool import run_all, run_requests
from espalier.experiment import Experiment, read
from espalier.record.run import Run


def used() -> float:
    """Return the processor time of all ended processes that this one has started."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def measure(runs: int, jobs: int = 2) -> dict[str, Any]:
    """Do so many runs; return seconds of the processor."""
    table = read("demo").to_plain() | {
        "methods": ["fedavg", {"name": "hierfavg", "kappa2": 3}], "seeds": list(range(runs // 2)),
        "stop": {"rounds": 15},
    }  # fmt: skip
    before = used()
    with tempfile.TemporaryDirectory() as folder:
        todo = run_requests(Experiment.build(table), Path(folder), None, 1)
        ends = run_all(todo, jobs, lambda status: None)
        if any(end.state != "finished" for end in ends):
            raise SystemExit("\n".join(end.text for end in ends if end.state != "finished"))
        own = sum(float(Run(request.directory).meta("cpu_seconds")) for request in todo)
    return {"runs": len(todo), "jobs": jobs, "cpu_s": used() - before, "own_s": own}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", type=int, default=[20, 100])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    print("| runs | processes | CPU seconds | of the runs themselves | ratio |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    rows = []
    for runs in args.runs:
        rows.append(row := measure(runs))
        ratio = row["cpu_s"] / row["own_s"]
        print(f"| {runs} | {row['jobs']} | {row['cpu_s']:.1f} | {row['own_s']:.1f} | {ratio:.2f} |", flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
