"""`make bench`: our time per round against each peer's on the same work, interleaved, as ratios of medians.

Peers live in environments of their own under benchmarks/.envs, made on first use: the naive per-client loop (plain
torch), Flower's simulation engine, Apple's pfl. Every peer trains the same clients on the same data for the same steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
#: name -> (script, packages of its own environment; None: this one)
PEERS: dict[str, tuple[str, list[str] | None]] = {
    "espalier": ("ours.py", None),
    "naive loop": ("naive.py", None),
    "flwr": ("flower.py", ["flwr[simulation]==1.41.0"]),
    "pfl": ("pfl_loop.py", ["pfl[pytorch]==0.6.0"]),
}
#: what notes on the trainer demand of the pure-torch engine against the naive loop
FLOORS = {
    ("mlp", 10): 4.0, ("mlp", 32): 3.0, ("lenet", 10): 2.0, ("lenet", 32): 1.6, ("fedavg_cnn", 10): 1.35,
}  # fmt: skip


def python(name: str) -> str:
    """Return the interpreter of a peer's environment, making the environment if need be."""
    packages = PEERS[name][1]
    if packages is None:
        return sys.executable
    folder = HERE / ".envs" / name
    ready = folder / ".installed"
    interpreter = str(folder / "bin" / "python")
    if not ready.exists():
        print(f"making the environment of {name} …", file=sys.stderr)
        venv.create(folder, with_pip=True)
        subprocess.run(
            [interpreter, "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), "torch", *packages],
            check=True,
        )
        ready.touch()
    return interpreter


def measure(name: str, model: str, batch: int, clients: int, rounds: int) -> list[float] | None:
    """Return seconds per round of one peer, or None if it fails (its error is printed)."""
    command = [python(name), str(HERE / "peers" / PEERS[name][0]), model, str(batch), str(clients), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE / "peers", timeout=3600)
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    if done.returncode or not lines:
        print(f"{name} failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    found: list[float] = json.loads(lines[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["mlp", "lenet", "fedavg_cnn"])
    parser.add_argument("--batches", nargs="+", type=int, default=[10, 32])
    parser.add_argument("--clients", nargs="+", type=int, default=[20])
    parser.add_argument("--rounds", type=int, default=3, help="rounds per process, after one to warm up")
    parser.add_argument("--repeats", type=int, default=2, help="how often the peers take turns")
    parser.add_argument("--peers", nargs="+", default=list(PEERS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = []
    print(f"| model | batch | clients | {' | '.join(args.peers)} | floor (naive) |")
    print("| --- " * (len(args.peers) + 4) + "|")
    missed = False
    for model in args.models:
        for batch in args.batches:
            for clients in args.clients:
                seconds: dict[str, list[float]] = {p: [] for p in args.peers}
                for _ in range(args.repeats):
                    for peer in args.peers:
                        seconds[peer] += measure(peer, model, batch, clients, args.rounds) or []
                medians = {p: statistics.median(s) for p, s in seconds.items() if s}
                ours = medians["espalier"]
                cells = [
                    "failed" if p not in medians
                    else f"{medians[p]:.3f} s" + ("" if p == "espalier" else f" ({medians[p] / ours:.1f}×)")
                    for p in args.peers
                ]  # fmt: skip
                floor = FLOORS.get((model, batch))
                reached = floor is None or "naive loop" not in medians or medians["naive loop"] / ours >= floor
                missed |= not reached
                note = "–" if floor is None else f"{floor:.2f}×{'' if reached else ' MISSED'}"
                print(f"| {model} | {batch} | {clients} | {' | '.join(cells)} | {note} |", flush=True)
                results.append({"model": model, "batch": batch, "clients": clients, "seconds": seconds, "floor": floor})
    print("\nSeconds per round (medians); in brackets how many times longer a peer takes than espalier.")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    if missed:
        sys.exit("a floor was missed")


if __name__ == "__main__":
    main()
