"""How long Espalier takes to start: importing it, the commands that only tell something, a run's first training.

    python benchmarks/start.py

Every measurement is a process of its own, the best of five; seconds of the wall and of the processor, the interpreter's
own start included. The first training is that of `espalier run` with one method on digits.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

COMMAND = "from espalier.cli.main import main; main()"
#: a run that ends as soon as the trainer has handed back its first chunk
FIRST = """
import os, sys
from espalier.training.trainer import Trainer
train = Trainer._train
def first(self, jobs):
    train(self, jobs)
    os._exit(0)
Trainer._train = first
from espalier.cli.main import main
main()
"""
#: what is measured: the goal in seconds, the code, its arguments
CASES: dict[str, tuple[float | None, str, list[str]]] = {
    "python": (None, "", []),
    "import espalier": (0.05, "import espalier", []),
    "espalier --version": (0.3, COMMAND, ["--version"]),
    "espalier methods": (0.3, COMMAND, ["methods"]),
    "espalier describe hierfavg": (0.3, COMMAND, ["describe", "hierfavg"]),
    "espalier run, until its first training": (2.5, FIRST, ["run", "setting.toml"]),
}
SETTING = 'methods = ["hierfavg"]\nseeds = [0]\n[stop]\nrounds = 2\n'


def once(code: str, arguments: list[str], folder: str) -> tuple[float, float]:
    """Run a process; return its seconds of the wall and of the processor."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begun
    assert process.stderr is not None
    if status:
        raise SystemExit(process.stderr.read().decode())
    process.stderr.close()
    process.returncode = status
    return wall, used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name, (goal, code, arguments) in CASES.items():
        times = []
        for _ in range(5):
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "setting.toml").write_text(SETTING, encoding="utf-8")
                times.append(once(code, arguments, folder))
        wall, used = (min(column) for column in zip(*times, strict=True))
        rows.append({"what": name, "goal_s": goal, "wall_s": wall, "cpu_s": used})
        print(f"{name}: {wall:.2f} s, CPU {used:.2f} s, goal {goal}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
