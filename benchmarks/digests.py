"""Freeze what runs do: a digest of all rows and models of every method in four worlds, under two seeds.

python benchmarks/digests.py                    compare with benchmarks/digests.json; list what differs
python benchmarks/digests.py --write            renew the file (say in the commit why a digest changed)
python benchmarks/digests.py --only csahfl,easf --jobs 1

Moving and renaming code must not change one of them. Every library is held to what any x86-64 processor has
(:data:`PLAIN`), so that sums are added in the same order everywhere; versions of PyTorch, NumPy and the compiler are
those of constraints.txt and of the machine that wrote them. Where all digests differ, that is why: write them there
with the old code first.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

#: what the libraries must be told before they are loaded; the processes that run inherit it
PLAIN = {
    "ESPALIER_NATIVE": "baseline",
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "Prescott",
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
    "OMP_NUM_THREADS": "1",
}
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
FILE = Path(__file__).with_suffix(".json")
TABLES = ("metrics", "arrays", "traffic", "spans", "moves", "events", "devices")

SETTING: dict[str, Any] = {
    "task": {"dataset": "digits", "model": "mlp", "model_options": {"hidden": [16]}},
    "partition": {"kind": "two_level", "fraction": 0.4, "val_fraction": 0.1},
    "fleet": {"devices": 12, "edges": 3, "fraction": 0.75},
    "training": {"batch_size": 10, "updates": 2, "lr": 0.1},
    "stop": {"rounds": 12},
}
RATE = {"kind": "rate", "low": 1.0, "high": 8.0}
ODDS = {"loss": 0.05, "duplicate": 0.05, "reorder": 0.05, "corrupt": 0.02}
SERVERS = [(8.0, "edge:1", "die"), (60.0, "edge:1", "restart"), (15.0, "cloud", "die"), (40.0, "cloud", "join")]
WORLDS: dict[str, dict[str, Any]] = {
    "calm": {"compute": RATE, "links": {"kind": "uniform", "latency": 0.05}},
    "moving": {
        "compute": {"kind": "noise", "of": RATE, "sigma": 0.3},
        "links": {"kind": "uniform", "latency": 0.5},
        "mobility": {"kind": "markov", "stay": 0.7},
        "churn": {"kind": "two_state", "working": 0.8, "mean_stay": 60},
    },
    "faulty": {
        "compute": {"kind": "noise", "of": {"kind": "rate", "low": 0.5, "high": 8.0}, "sigma": 1.0},
        "links": {"kind": "uniform", "latency": 0.2},
        "mobility": {"kind": "markov", "stay": 0.5, "when": "mid_round"},
        "churn": {"kind": "scheduled", "events": [{"time": t, "host": h, "event": e} for t, h, e in SERVERS]},
        "faults": {"kind": "random", "dev_edge": ODDS, "edge_cloud": ODDS, "dev_dev": ODDS},
    },
    "hostile": {
        "compute": {"kind": "noise", "of": RATE, "sigma": 0.3},
        "links": {"kind": "graph"},
        "drift": {"kind": "permute_labels", "at_round": 4, "fraction": 0.5},
        "attackers": {"kind": "sign_flip", "fraction": 0.2},
    },
}
#: beyond the registered methods: parts that a configuration can put into any of them
MORE: dict[str, dict[str, Any]] = {
    "hierfavg+median": {"name": "hierfavg", "edge": {"merge": {"kind": "median"}}},
    "hierfavg+krum": {"name": "hierfavg", "edge": {"merge": {"kind": "krum"}}},
    "hierfavg+secure": {"name": "hierfavg", "edge": {"merge": {"kind": "secure"}}},
    "hierfavg+private": {"name": "hierfavg", "local": {"kind": "private", "clip": 1.0, "noise": 0.5}},
    "csahfl+quantised": {"name": "csahfl", "local": {"kind": "q8"}},
    "fedavg+guard": {"name": "fedavg", "root": {"guard": {"kind": "median"}}},
}


def digest(entry: str | dict[str, Any], world: str, seed: int) -> str:
    """Run once; return a digest of all rows and models."""
    import espalier
    from espalier.core.errors import EspalierError

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        try:
            espalier.simulate(entry, {**SETTING, "world": WORLDS[world]}, seed=seed, directory=path)
        except EspalierError as error:
            return f"refused: {error}"
        found = hashlib.blake2b(digest_size=12)
        with sqlite3.connect(path / "run.sqlite") as database:
            for table in TABLES:
                # steps were first counted after these digests were frozen; they follow from the jobs
                which = "WHERE name != 'steps'" if table == "metrics" else ""
                for row in database.execute(f"SELECT * FROM {table} {which} ORDER BY rowid"):
                    found.update(repr(row).encode())
        # devices' own models were first kept after these digests were frozen
        for file in sorted(f for f in (path / "models").glob("*") if f.stem != "devices"):
            found.update(file.name.encode())
            found.update(file.read_bytes())
        return found.hexdigest()


def _one(job: tuple[str, str | dict[str, Any], str, int]) -> tuple[str, str, float]:
    name, entry, world, seed = job
    begun = time.monotonic()
    return f"{name} {world} {seed}", digest(entry, world, seed), time.monotonic() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description="Freeze what runs do.")
    parser.add_argument("--write", action="store_true", help="renew the file")
    parser.add_argument("--only", default="", help="comma-separated methods (default: all)")
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    os.environ.update(PLAIN)
    import espalier

    entries: dict[str, Any] = {m: m for m in espalier.available()} | MORE
    chosen = [m for m in options.only.split(",") if m] or list(entries)
    worlds, seeds = options.worlds.split(","), [int(s) for s in options.seeds.split(",")]
    jobs = [(m, entries[m], w, s) for m in chosen for w in worlds for s in seeds]
    frozen: dict[str, str] = json.loads(FILE.read_text()) if FILE.exists() else {}
    found: dict[str, str] = {}
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for key, value, seconds in pool.imap_unordered(_one, jobs):
            found[key] = value
            if not options.write and frozen.get(key) != value:
                print(f"{key}: {frozen.get(key, 'not frozen')} -> {value} ({seconds:.1f} s)", flush=True)
    if options.write:
        FILE.write_text(json.dumps(dict(sorted((frozen | found).items())), indent=0) + "\n")
        print(f"{len(found)} digests written")
        return 0
    unlike = sum(frozen.get(key) != value for key, value in found.items())
    print(f"{len(found)} runs, {unlike} differ")
    return 1 if unlike else 0


if __name__ == "__main__":
    sys.exit(main())
