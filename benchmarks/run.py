"""Our time per round against each peer's on the same work, interleaved, as ratios of medians (part of `make bench`).

    python benchmarks/run.py [--models mlp lenet fedavg_cnn …] [--batches 10 32] [--clients 20 100] [--json FILE]

Peers live in environments of their own under benchmarks/.envs, made on first use: the naive per-client loop (plain
torch), `torch.func.vmap` over clients, the loop of HierFL (a tree of two tiers), JAX (jit, vmap and scan) and FedJAX,
Flower's simulation engine, Apple's pfl, FedLab, FLGo. Every peer trains the same clients on the same data for the same
steps. Rounds are timed after one to warm up, which for JAX is the one that compiles: its time is told below the table.
Our arithmetic per second is also given as a fraction of what torch's matrix product reaches here. Exit code 1 says that
a floor was missed or a peer failed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import venv
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from espalier.training.native import kernels

HERE = Path(__file__).parent
ROOT = HERE.parent
#: name -> (script, packages of its own environment, those to install without what they ask for; None: this one)
PEERS: dict[str, tuple[str, list[str] | None, list[str]]] = {
    "espalier": ("ours.py", None, []),
    "naive loop": ("naive.py", None, []),
    "torch.func.vmap": ("vmap.py", None, []),
    "HierFL's loop": ("hierfl.py", None, []),
    "jax": ("jax_loop.py", ["jax==0.10.2", "numpy"], []),
    # FedJAX uses what later releases of JAX have removed (jax.tree_map).
    "fedjax": (
        "fedjax_loop.py",
        [
            "fedjax==0.0.17",
            "jax==0.4.25",
            "jaxlib==0.4.25",
            "dm-haiku==0.0.12",
            "optax==0.2.1",
            "numpy<2",
            "scipy<1.13",
        ],
        [],
    ),
    "flwr": ("flower.py", ["flwr[simulation]==1.41.0"], []),
    "pfl": ("pfl_loop.py", ["pfl[pytorch]==0.6.0"], []),
    # FedLab asks for torchvision, which its simulation does not use.
    "fedlab": (
        "fedlab_loop.py",
        ["numpy", "munch", "pynvml", "tqdm", "pandas", "scikit-learn", "pillow"],
        ["fedlab==1.3.0"],
    ),
    # FLGo too.
    "flgo": (
        "flgo_loop.py",
        ["tqdm", "scipy", "matplotlib", "prettytable", "ujson", "pynvml", "pyyaml", "networkx", "requests", "toolz"],
        ["flgo==0.4.4"],
    ),
}
#: times faster than the naive loop, by model and batch: without the native kernels, with them (`renew.py --floors`)
FLOORS: dict[str, tuple[float | None, float]] = json.loads((HERE / "floors.json").read_text(encoding="utf-8"))


def python(name: str) -> str:
    """Return the interpreter of a peer's environment, making the environment if need be."""
    _, packages, bare = PEERS[name]
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
        if bare:
            subprocess.run([interpreter, "-m", "pip", "install", "-q", "--no-deps", *bare], check=True)
        ready.touch()
    return interpreter


@dataclass
class Timing:
    """What a peer's turns gave: seconds per round, those of rounds that compile, and whether a turn failed."""

    seconds: list[float] = field(default_factory=list)
    compiling: list[float] = field(default_factory=list)
    failed: bool = False

    def take(self, name: str, model: str, batch: int, clients: int, rounds: int) -> None:
        """Let a peer take a turn; if it fails its error is printed."""
        try:
            interpreter = python(name)
        except subprocess.CalledProcessError as error:
            print(f"{name} failed: its environment could not be made ({error})", file=sys.stderr)
            self.failed = True
            return
        command = [interpreter, str(HERE / "peers" / PEERS[name][0]), model, str(batch), str(clients), str(rounds)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=HERE / "peers", timeout=3600)
        lines = done.stdout.splitlines()
        if done.returncode == 0 and "unsupported" in lines:
            return
        rounds_told = [line for line in lines if line.startswith("[")]
        if done.returncode or not rounds_told:
            print(f"{name} failed: {done.stderr.strip()[-2000:]}", file=sys.stderr)
            self.failed = True
            return
        self.seconds += json.loads(rounds_told[-1])
        self.compiling += [float(line.split()[1]) for line in lines if line.startswith("first ")]


def work_of(model: str) -> float:
    """Return the floating-point operations of one sample's step: forward and backward, products alone."""
    sys.path.insert(0, str(HERE / "peers"))
    import work

    module, (x, y) = work.model(model), work.data(1, 1, model)
    with FlopCounterMode(display=False) as counter:
        nn.functional.cross_entropy(module(x[0]), y[0]).backward()
    return float(counter.get_total_flops()) / x.shape[1]


def peak(threads: int = 2) -> float:
    """Return this machine's matrix product in operations per second (float32, 2048 x 2048)."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    a, b, best = torch.rand(2048, 2048), torch.rand(2048, 2048), 0.0
    for _ in range(8):
        start = time.perf_counter()
        a @ b
        best = max(best, 2 * 2048**3 / (time.perf_counter() - start))
    torch.set_num_threads(before)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["mlp", "lenet", "fedavg_cnn"])
    parser.add_argument("--batches", nargs="+", type=int, default=[10, 32])
    parser.add_argument("--clients", nargs="+", type=int, default=[20])
    parser.add_argument("--steps", type=int, default=30, help="batches per client and round")
    parser.add_argument("--rounds", type=int, default=3, help="rounds per process, after one to warm up")
    parser.add_argument("--repeats", type=int, default=2, help="how often the peers take turns")
    parser.add_argument("--peers", nargs="+", default=list(PEERS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ["BENCH_STEPS"] = str(args.steps)  # for the peers' processes
    results = []
    most, faster = peak(), int(kernels() is not None)
    print(f"Matrix products reach {most / 1e9:.0f} GF/s here; native kernels: {'yes' if faster else 'no'}.\n")
    print(f"| model | batch | clients | {' | '.join(args.peers)} | of a matrix product | floor (naive) |")
    print("| --- " * (len(args.peers) + 5) + "|")
    missed, failed, compiled = False, set[str](), list[str]()
    for model in args.models:
        for batch in args.batches:
            for clients in args.clients:
                timings = {p: Timing() for p in args.peers}
                for _ in range(args.repeats):
                    for peer, timing in timings.items():
                        timing.take(peer, model, batch, clients, args.rounds)
                failed |= {p for p, timing in timings.items() if timing.failed}
                for p, timing in timings.items():
                    if timing.compiling:
                        median = statistics.median(timing.compiling)
                        compiled.append(f"{p}, {model}, batch {batch}, {clients} clients: {median:.2f} s")
                medians = {p: statistics.median(timing.seconds) for p, timing in timings.items() if timing.seconds}
                ours = medians["espalier"]
                cells = [
                    ("failed" if timings[p].failed else "–") if p not in medians
                    else f"{medians[p]:.3f} s" + ("" if p == "espalier" else f" ({medians[p] / ours:.1f}×)")
                    for p in args.peers
                ]  # fmt: skip
                rate = work_of(model) * clients * args.steps * batch / ours
                floor = FLOORS.get(f"{model}/{batch}", (None, None))[faster] if clients == 20 else None
                reached = floor is None or "naive loop" not in medians or medians["naive loop"] / ours >= floor
                missed |= not reached
                note = "–" if floor is None else f"{floor:.2f}×{'' if reached else ' MISSED'}"
                print(
                    f"| {model} | {batch} | {clients} | {' | '.join(cells)} | {rate / most:.0%} | {note} |", flush=True
                )
                results.append(
                    {"model": model, "batch": batch, "clients": clients, "steps": args.steps,
                     "timings": {p: asdict(timing) for p, timing in timings.items()},
                     "floor": floor, "gflops": rate / 1e9, "peak_gflops": most / 1e9}
                )  # fmt: skip
                if args.json:  # at once: who is given up has what was measured
                    args.json.write_text(json.dumps(results, indent=1))
    print("\nSeconds per round (medians); in brackets how many times longer a peer takes than espalier.")
    if compiled:
        print("With compilation, which comes once per model, batch size and number of steps:", *compiled, sep="\n- ")
    if failed:
        sys.exit(f"failed: {', '.join(sorted(failed))}")
    if missed:
        sys.exit("a floor was missed")


if __name__ == "__main__":
    main()
