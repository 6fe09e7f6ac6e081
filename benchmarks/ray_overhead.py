"""What Ray costs on one machine: two Ray workers against the local backend with two workers.

    python benchmarks/ray_overhead.py [--rounds 15] [--json FILE] [--only lenet/10]
    python benchmarks/ray_overhead.py --facts
    python benchmarks/ray_overhead.py --bytes
    python benchmarks/ray_overhead.py --places

Both run the same experiment (HierFAVG, 4 edges, 40 devices with 120 samples each of random MNIST-shaped data, two
local epochs a round) round by round in turn, within one process; a round is everything: events, training, merging,
evaluation, recording. The first rounds are left out. Printed: median seconds per round, the median of the rounds'
ratios, the same ratio of CPU seconds (all processes but Ray's own daemons; steadier on a busy machine), the share of
models that stayed with the workers, what came back per round, the machine's load (2 is this benchmark's own: with
more, seconds say little), and whether all rows of the two records are equal.
Starting Ray and its workers takes some seconds once and is printed apart. Exit code 1 says that a ratio is above
1.10 or a row differs.

`--facts` measures what docs/scale.md reasons from: one job, one merge, one transfer of a ResNet-18. `--bytes` counts
what four workers send to the driver in a round, with sums joined there and on workers (the MLP, HierFAVG), and of an
evaluation. `--places` counts what goes to four nodes (raylets on the loopback interface) and into the driver: with
batches given to whoever is free, sums joined by the driver and the whole dataset on every node, and as it is done now.
Links are simulated: the seconds that a link of a given speed would need for these bytes are arithmetic.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from espalier.core.messages import Train
from espalier.core.params import ParamSpec
from espalier.core.seeds import key
from espalier.core.store import Ref
from espalier.data.dataset import ArrayPool, Dataset
from espalier.experiment import Experiment
from espalier.scale import computer as ray_computer
from espalier.scale.batches import cut, size_for
from espalier.scale.cluster import connect, ray
from espalier.scale.computer import Nearest, Ray
from espalier.simulator import portions
from espalier.simulator.jobs import Job as Ordered
from espalier.simulator.jobs import Outcome, Sum
from espalier.simulator.ledger import RECIPE_BYTES, Ledger
from espalier.simulator.reduction import FAN, RunningMerge, TreeSum
from espalier.simulator.runner import Runner
from espalier.training.evaluate import Evaluator
from espalier.training.models import build
from espalier.training.trainer import Trainer
from espalier.training.work import Optimizer, TrainerJob

LIMIT = 1.10
CASES = [("mlp", 10), ("mlp", 32), ("lenet", 10), ("lenet", 32)]
WARM = 2


@dataclass(frozen=True)
class Row:
    model: str
    batch: int
    local_seconds: float
    ray_seconds: float
    ratio: float
    cpu_ratio: float
    start_seconds: float
    models_kept_away: float
    kilobytes_back: float
    equal: bool
    load: float


def data() -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.random((4900, 1, 28, 28), dtype=np.float32)
    y = rng.integers(0, 10, 4900)
    return Dataset.from_arrays(x[:4800], y[:4800], x[4800:], y[4800:], name="random", n_classes=10)


def experiment(model: str, batch: int, rounds: int) -> Experiment:
    table: dict[str, Any] = {
        "methods": ["hierfavg"],
        "task": {"model": model},
        "fleet": {"devices": 40, "edges": 4},
        "training": {"batch_size": batch, "updates": 2, "lr": 0.01},
        "stop": {"rounds": rounds},
    }
    return Experiment.build(table)


def one_round(runner: Runner) -> float:
    """Run until the next round is over and measured; return the seconds."""
    sim, began = runner.simulation, time.perf_counter()
    before = sim.round
    while sim.step() and sim.round == before:
        pass
    return time.perf_counter() - began


def rows(runner: Runner) -> list[list[tuple[Any, ...]]]:
    runner.recorder.commit()
    tables = ("metrics", "arrays", "traffic", "spans", "moves", "events")
    connection = runner.recorder.connection
    return [connection.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall() for table in tables]


def compare(model: str, batch: int, rounds: int) -> Row:
    dataset = data()
    local = Runner(experiment(model, batch, rounds + 1), None, dataset=dataset, workers=2)
    began = time.perf_counter()
    remote = Runner(experiment(model, batch, rounds + 1), None, dataset=dataset, backend=Ray(workers=2))
    for runner in (local, remote):
        runner.simulation.start()
    computer: Any = remote.task.computers[0]
    computer.open().complete()
    start = time.perf_counter() - began
    for runner in (local, remote):
        one_round(runner)
    times: list[tuple[float, float]] = []
    used: list[float] = []
    handed, received, jobs = computer.handed, computer.received, remote.simulation.ledger.computed
    for number in range(rounds - 1):
        order = (local, remote) if number % 2 else (remote, local)
        seconds, cpu = {}, {}
        for runner in order:
            before = cpu_seconds(computer)
            seconds[id(runner)] = one_round(runner)
            cpu[id(runner)] = cpu_seconds(computer) - before
        times.append((seconds[id(local)], seconds[id(remote)]))
        used.append(cpu[id(remote)] / cpu[id(local)])
    kept = (computer.handed - handed) / (remote.simulation.ledger.computed - jobs)
    back = (computer.received - received) / len(times) / 1024
    equal = rows(local) == rows(remote)
    local.close()
    remote.close()
    times = times[WARM:]
    ratio = statistics.median(r / x for x, r in times)
    mine, theirs = (statistics.median(t[i] for t in times) for i in (0, 1))
    return Row(
        model, batch, mine, theirs, ratio, statistics.median(used[WARM:]), start, kept, back, equal, os.getloadavg()[0]
    )


def bytes_back() -> list[dict[str, Any]]:
    """Print and return what comes into the driver in a round, with sums joined there and on workers."""
    found = []
    for devices, edges in ((40, 4), (60, 3), (100, 2), (100, 1)):
        received = []
        for fewest in (1 << 60, ray_computer.FEWEST_BYTES):
            with patch.object(ray_computer, "FEWEST_BYTES", fewest), patch.object(portions, "WORTH_SENDING", 0):
                table = experiment("mlp", 10, 1).to_plain() | {"fleet": {"devices": devices, "edges": edges}}
                remote = Runner(Experiment.build(table), None, dataset=data(), backend=Ray(workers=4))
                remote.run()
                computer: Any = remote.task.computers[0]
                received.append(computer.received / remote.task.spec.model_bytes)
                rounds = remote.simulation.ledger.computed // devices
                evaluations = remote.simulation.round + 1  # and one at the beginning
                remote.close()
        row = {"devices": devices, "edges": edges, "workers": 4, "driver": received[0] / rounds / edges,
               "joined": received[1] / rounds / edges,
               "answered": computer.answered / evaluations}  # fmt: skip
        found.append(row)
        print(row, flush=True)
    return found


def places() -> list[dict[str, Any]]:
    """Print and return to how many nodes an edge's model goes in a round, with batches given in turn and nearby."""
    from ray.cluster_utils import Cluster

    nodes, found = Cluster(), []
    try:
        for number in range(4):
            nodes.add_node(
                num_cpus=1, object_store_memory=200 << 20, **({} if number else {"include_dashboard": False})
            )
        connect(nodes.address, None)
        for devices, edges in ((400, 4), (800, 4), (800, 2)):
            table = experiment("mlp", 10, 2).to_plain() | {"fleet": {"devices": devices, "edges": edges}}
            table |= {"methods": [{"name": "hierfavg", "kappa2": 3}], "training": {"batch_size": 6, "updates": 1}}
            trips, batches, moved = [], [], []
            for nearest in (False, True):
                remote = Runner(Experiment.build(table), None, dataset=data(), backend=Ray(nodes.address))
                computer: Any = remote.task.computers[0]
                computer.open().complete()
                distance = Nearest.distance if nearest else lambda *_: 0
                fewest = ray_computer.FEWEST_BYTES if nearest else 1 << 60
                with patch.object(Nearest, "distance", distance), patch.object(ray_computer, "FEWEST_BYTES", fewest):
                    remote.run()
                rounds = remote.simulation.ledger.computed // devices
                # after a cloud round all edges have one model, which goes to every node; between them each has its own
                trips.append((computer.store.trips - 4 * 2) / (rounds - 2) / edges)
                batches.append(computer.batches / rounds / edges)
                samples = remote.task.dataset
                whole = 4 * sum(t.nbytes for t in (samples.x_train, samples.y_train))
                moved.append(
                    {
                        "into the driver": (computer.received + computer.answered) / rounds,
                        "models": computer.store.sent["models"] / rounds,
                        "samples": computer.store.sent["samples"] if nearest else whole,
                    }
                )
                remote.close()
            row = {"devices": devices, "edges": edges, "nodes": 4, "batches": batches[1], "turn": trips[0],
                   "nearest": trips[1], "before": moved[0], "after": moved[1]}  # fmt: skip
            found.append(row)
            print(row, flush=True)
    finally:
        ray().shutdown()
        nodes.shutdown()
    return found


def cpu_seconds(computer: Any) -> float:
    """CPU seconds of this process and of all workers so far."""
    asked = [pooled.actor.__ray_call__.remote(lambda _: time.process_time()) for pooled in computer.pool.actors]
    return time.process_time() + sum(ray().get(asked))


def facts() -> dict[str, float]:
    """Print and return what one ResNet-18 costs here, by itself: bytes and seconds."""
    torch.set_num_threads(1)
    module = build("resnet18", input_shape=(3, 32, 32), n_classes=10)
    pool = ArrayPool(torch.rand(80, 3, 32, 32), torch.randint(10, (80,)))
    trainer = Trainer(module, "cross_entropy")
    spec, start = trainer.spec, trainer.initial(0)
    own = np.arange(80).reshape(8, 10)
    optimizer = Optimizer(lr=0.1)
    jobs = [
        TrainerJob(start=start, pool=pool, rows=rows, batch_size=10, optimizer=optimizer, seed=key(0, "facts", i))
        for i, rows in enumerate(own)
    ]

    found: dict[str, float] = {"parameters": spec.n_params, "model_bytes": spec.model_bytes}

    def each(name: str, times: int, act: Callable[[], object], clock: Callable[[], float] = time.process_time) -> None:
        act()
        began = clock()
        for _ in range(times):
            act()
        found[name] = (clock() - began) / times
        print(f"{name:20} {found[name] * 1000:9.2f} ms", flush=True)

    print(f"ResNet-18: {spec.n_params:,} parameters, {spec.model_bytes / 1e6:.1f} MB")
    each("eight jobs", 1, lambda: list(trainer.run(jobs)))
    evaluator, cells = Evaluator(module, "classification", 10), np.zeros(64, dtype=np.int64)
    each("64 rows evaluated", 2, lambda: evaluator.run([start], pool, np.arange(64), cells))
    merge, part = RunningMerge(spec, 1 << 20), torch.ones(spec.n_float, dtype=torch.float64)
    each("add a model", 7, lambda: merge.add([0.1], [start]))
    addition = TreeSum()
    each("add a partial sum", 6, lambda: addition.add_node(FAN, part))
    found |= bookkeeping(spec)
    connect(None, 1)
    kept = [ray().put(start.numpy())]
    each("put a model", 8, lambda: kept.append(ray().put(start.numpy())), time.perf_counter)
    each("get a model", 8, lambda: ray().get(kept[-1]), time.perf_counter)
    actor = ray().remote(num_cpus=1)(Echo).remote()
    each("empty call", 200, lambda: ray().get(actor.nothing.remote()), time.perf_counter)
    ray().shutdown()
    return found


def bookkeeping(spec: ParamSpec) -> dict[str, float]:
    """Return what jobs cost the ledger, and as how many partial sums a wave comes back; edges have 1,000 jobs each."""
    found: dict[str, float] = {}
    tiny, none, count = ParamSpec.of(torch.nn.Linear(2, 1, bias=False)), torch.zeros(2), 100_000
    roots: list[Ref] = []
    ledger = Ledger(
        tiny, lambda jobs, *_: (Outcome(none, 0.0, None) for _ in jobs), lambda _: none, lambda s: s.update(roots),
        pending_bytes=2 * count * RECIPE_BYTES,
    )  # fmt: skip
    start = ledger.initial()
    tracemalloc.start()
    refs = [ledger.submit(Ordered(device, 0, Train(start=start))) for device in range(count)]
    found["recipe_bytes"] = tracemalloc.get_traced_memory()[0] / count
    tracemalloc.stop()
    roots += [ledger.combine([(0.001, r) for r in refs[k : k + 1000]]) for k in range(0, count, 1000)]
    ledger.young.clear()
    began = time.process_time()
    ledger.flush(roots)
    found["job computed"] = (time.process_time() - began) / count
    jobs, workers = 1_000_000, 2048
    merges = {jobs + k: Sum(tuple((0.001, Ref(k * 1000 + i)) for i in range(1000))) for k in range(jobs // 1000)}
    began = time.process_time()
    batches = cut(dict.fromkeys(range(jobs), 1.0), merges, set(range(jobs)), workers, size_for(spec, jobs, workers))
    found["job cut"] = (time.process_time() - began) / jobs
    found |= {"batches": len(batches), "parts": sum(len(batch.nodes) for batch in batches)}
    print({name: round(value, 7) for name, value in found.items()}, flush=True)
    return found


class Echo:
    """An actor with next to nothing to do."""

    def nothing(self) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", help="one case, such as lenet/10")
    parser.add_argument("--facts", action="store_true", help="measure what docs/scale.md reasons from")
    parser.add_argument("--bytes", action="store_true", help="count what comes into the driver")
    parser.add_argument("--places", action="store_true", help="count the nodes that models go to")
    args = parser.parse_args()
    if args.facts or args.bytes or args.places:
        rows_found: list[Any] = [facts()] if args.facts else bytes_back() if args.bytes else places()
        if args.json:
            args.json.write_text(json.dumps(rows_found, indent=1) + "\n")
        return None
    found = []
    heads = f"{'local s':>8} {'Ray s':>8} {'ratio':>6} {'CPU':>6} {'start s':>8} {'kept away':>9} {'KB back':>8}"
    print(f"{'':10} {heads} {'load':>5}  rows")
    for model, batch in CASES:
        if args.only not in (None, f"{model}/{batch}"):
            continue
        row = compare(model, batch, args.rounds)
        found.append(row)
        print(
            f"{model + '/' + str(batch):10} {row.local_seconds:8.3f} {row.ray_seconds:8.3f} {row.ratio:6.2f} "
            f"{row.cpu_ratio:6.2f} {row.start_seconds:8.1f} {row.models_kept_away:9.0%} {row.kilobytes_back:8.0f} "
            f"{row.load:5.1f}  {'equal' if row.equal else 'DIFFER'}",
            flush=True,
        )
    if args.json:
        args.json.write_text(json.dumps([asdict(r) for r in found], indent=2) + "\n")
    sys.exit(any(r.ratio > LIMIT or not r.equal for r in found))


if __name__ == "__main__":
    main()
