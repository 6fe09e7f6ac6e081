"""Where the time of a run goes: training, evaluation, merging, recording, nodes, the world, the events themselves.

    python benchmarks/parts.py                      # HierFAVG, CSAHFL, EASF x LeNet, FedAvg CNN, MLP x batch 10, 32
    python benchmarks/parts.py --demo               # the methods of `make demo`, as the demo runs them
    python benchmarks/parts.py --personal           # LeNet: devices' own models, evaluate.rows and evaluate.share
    python benchmarks/parts.py --judged             # what judging devices' own models on few rows does to their figures

Every second is counted once: a part's clock stands still while a part inside it runs. One training thread, and seconds
of the processor (`scale.py`, whose runs train in threads, takes those of the wall), so that shares add up.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

PARTS = (
    "training", "evaluation", "ledger and merging", "recording", "nodes and policies", "world and links", "events",
)  # fmt: skip
METHODS = ("hierfavg", "csahfl", "easf")
#: methods, and what bounds the judging of devices' own models
PERSONAL: tuple[tuple[str, dict[str, Any]], ...] = (
    ("hierfavg", {}), ("cfl", {}), ("standalone", {}), ("standalone", {"rows": 40}), ("standalone", {"share": 0.15}),
    ("ditto", {}), ("ditto", {"rows": 40}), ("fedrep", {}), ("fedrep", {"rows": 40}),
)  # fmt: skip
MODELS = {"LeNet": "lenet", "FedAvg CNN": "fedavg_cnn", "MLP": "mlp"}


class Clock:
    """Seconds by part; the last part is everything that is not inside another."""

    def __init__(self, seconds: Callable[[], float] = time.perf_counter) -> None:
        self.spent = dict.fromkeys(PARTS, 0.0)
        self._seconds = seconds
        self._inside = [PARTS[-1]]
        self._watched: list[tuple[Any, str, Any]] = []
        self._since = seconds()

    def enter(self, part: str) -> None:
        """Go into a part."""
        self._count()
        self._inside.append(part)

    def leave(self) -> None:
        """Go back to where the part was entered from; who leaves the last one ends the clock."""
        self._count()
        self._inside.pop()
        if not self._inside:
            for owner, name, inner in reversed(self._watched):
                setattr(owner, name, inner)

    def _count(self) -> None:
        now = self._seconds()
        self.spent[self._inside[-1]] += now - self._since
        self._since = now

    def watch(self, owner: Any, names: str, part: str) -> None:
        """Count the time inside methods, which may return an iterator."""
        for name in names.split():
            inner = getattr(owner, name)

            def timed(*args: Any, _inner: Any = inner, **kwargs: Any) -> Any:
                self.enter(part)
                try:
                    found = _inner(*args, **kwargs)
                finally:
                    self.leave()
                return self._drawn(found, part) if hasattr(found, "__next__") else found

            self._watched.append((owner, name, inner))
            setattr(owner, name, timed)

    def _drawn(self, items: Iterator[Any], part: str) -> Iterator[Any]:
        while True:
            self.enter(part)
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self.leave()
            yield item


def watched(runner: Any, seconds: Callable[[], float] = time.perf_counter) -> Clock:
    """Return a clock that runs along with a run that is about to start."""
    clock = Clock(seconds)
    clock.watch(runner.task.trainer, "run", "training")
    clock.watch(runner.task.evaluator, "run mean_loss logits", "evaluation")
    clock.watch(runner.simulation.meter, "measure", "evaluation")
    clock.watch(runner.simulation.ledger, "flush vector vectors combine", "ledger and merging")
    clock.watch(runner.recorder, "commit metric array traffic event span move moves devices", "recording")
    clock.watch(runner.simulation.transport, "send", "world and links")
    clock.watch(runner.simulation.process, "begin change new_round round_closed trained", "world and links")
    make, known = runner.simulation.runtime._make, set()

    def made(address: Any) -> Any:
        node = make(address)
        if type(node) not in known:
            known.add(type(node))
            clock.watch(type(node), "on", "nodes and policies")
        return node

    runner.simulation.runtime._make = made
    return clock


def one(experiment: Any, dataset: Any) -> dict[str, float]:
    """Run one method; return its seconds by part."""
    from espalier.simulator.runner import Runner

    runner = Runner(experiment, None, dataset=dataset, workers=1)
    clock = watched(runner, time.process_time)
    runner.run()
    clock.leave()
    return clock.spent


def setting(model: str, batch: int, evaluate: dict[str, Any]) -> dict[str, Any]:
    """Return the default fleet with 200 samples per device."""
    return {
        "task": {"model": model, "model_options": {"hidden": [200, 200]} if model == "mlp" else {}},
        "partition": {"kind": "iid", "samples_per_device": 200},
        "training": {"batch_size": batch, "lr": 0.01},
        "world": {"compute": {"kind": "rate", "low": 4.0, "high": 12.0}},
        "stop": {"rounds": 2 if model == "fedavg_cnn" else 20},
        "evaluate": evaluate,
    }


def judged() -> list[dict[str, Any]]:
    """Return the figures of well-trained models of 60 devices' own, on digits, judged on all test rows and on fewer."""
    import espalier

    base = {"stop": {"rounds": 20}, "training": {"lr": 0.1, "updates": 5, "batch_size": 10}}
    found = []
    for partition in ({"kind": "iid"}, {"kind": "dirichlet", "alpha": 0.3}):
        for rows in (None, 100, 40):
            setting = {**base, "partition": partition, "evaluate": {} if rows is None else {"rows": rows}}
            last = espalier.simulate("standalone", setting, seed=0).frame().iloc[-1]
            figures = [float(last[f"acc_device{name}"]) for name in ("", "_std", "_worst")]
            found.append({"partition": partition["kind"], "rows": rows, "figures": figures})
            print(found[-1], flush=True)
    return found


def main() -> None:
    """Print shares of the processor's time."""
    from espalier.data.dataset import Dataset
    from espalier.experiment import Experiment, read

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", action="store_true")
    parser.add_argument("--personal", action="store_true")
    parser.add_argument("--judged", action="store_true")
    parser.add_argument("--batches", nargs="+", type=int, default=[10, 32])
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    print("| run | seconds | " + " | ".join(PARTS) + " |\n| --- | ---: " + "| ---: " * len(PARTS) + "|")

    def show(title: str, experiment: Experiment, dataset: Dataset | None) -> None:
        spent = one(experiment, dataset)
        total = sum(spent.values())
        shares = " | ".join(f"{spent[p] / total:.1%}" for p in PARTS)
        print(f"| {title} | {total:.1f} | {shares} |", flush=True)
        rows.append({"run": title, "seconds": total, **spent})

    if args.judged:
        rows += judged()
    elif args.demo:
        demo = read("demo")
        for entry in demo.methods:
            show(entry.label, demo.only(entry, demo.seeds[0]), None)
    else:
        draw = torch.Generator().manual_seed(0)
        x, y = torch.rand(14_000, 1, 28, 28, generator=draw), torch.randint(0, 10, (14_000,), generator=draw)
        data = Dataset.from_arrays(x[:12_000], y[:12_000], x[12_000:], y[12_000:], n_classes=10)
        if args.personal:
            for method, bound in PERSONAL:
                title = method + "".join(f", `evaluate.{name} = {value}`" for name, value in bound.items())
                show(title, Experiment.build(setting("lenet", 10, bound)).only(method, 0), data)
        else:
            for method in METHODS:
                for title, model in MODELS.items():
                    for batch in args.batches:
                        experiment = Experiment.build(setting(model, batch, {})).only(method, 0)
                        show(f"{method}, {title}, batch {batch}", experiment, data)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
