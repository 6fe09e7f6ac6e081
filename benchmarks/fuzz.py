"""Fuzz everything a user can give: 10,000 cases of bad configuration, partitions, messages, files and directories.

python benchmarks/fuzz.py [--cases 10000] [--targets trace,checkpoint] [--seed 0]
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.reliability.fuzzing import run
from tests.reliability.test_fuzz import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz everything a user can give.")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--targets", default="", help="comma-separated (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chosen = [t for t in options.targets.split(",") if t] or list(TARGETS)
    whole = sum(TARGETS[t].share for t in chosen)
    total, failed = 0, []
    for name in chosen:
        target = TARGETS[name]
        begun = time.monotonic()
        try:
            count, accepted = run(target, -(-options.cases * target.share // whole), options.seed)
        except Exception:
            traceback.print_exc()
            failed.append(name)
            continue
        total += count
        print(f"{name:20} {count:6,} cases, {accepted:6,} accepted  {time.monotonic() - begun:6.1f} s", flush=True)
    print(f"{total:,} cases; " + (f"failed: {', '.join(failed)}" if failed else "every one was accepted or refused"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
