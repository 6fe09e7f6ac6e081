"""Accuracy under attack: share of attackers × attack × merge, at the edge tier, at the cloud tier, and without edges.

python benchmarks/robustness.py [--quick] [--datasets digits,fashion_mnist] [--seeds 3] [--out FILE.md]

Every figure is the cloud model's accuracy on the whole test set at the end, the mean over seeds. Finished figures are
kept in a JSON-lines file, so that a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from espalier.api import simulate
from espalier.data import registry
from espalier.data.dataset import Dataset
from espalier.experiment import Experiment

#: "samples" is the plain mean, "guarded" the mean of what the guard by median lengths lets through
MERGES = ("samples", "guarded", "median", "trimmed_mean", "krum", "multi_krum", "clipped", "geometric_median")
ATTACKS: dict[str, dict[str, Any]] = {
    "sign flip": {"kind": "sign_flip", "scale": 3.0},
    "noise": {"kind": "noise", "scale": 10.0},
    "label flip": {"kind": "label_flip"},
    "a little": {"kind": "little"},
}
SHARES = (0.0, 0.1, 0.2, 0.3)
#: where the robust merge is put; elsewhere it is the mean weighted by samples
PLACES = ("edge", "cloud", "both", "flat")

FLEET = {"devices": 50, "edges": 5}
#: images that are used of a dataset's training part
IMAGES = 12_000
TASKS: dict[str, dict[str, Any]] = {
    "digits": {
        "task": {"dataset": "digits", "model": "mlp", "model_options": {"hidden": [32]}},
        "training": {"batch_size": 10, "updates": 2, "lr": 0.1},
        "stop": {"rounds": 20},
    },
    "fashion_mnist": {
        "task": {"dataset": "fashion_mnist", "model": "mlp", "model_options": {"hidden": [64]}},
        "training": {"batch_size": 16, "updates": 1, "lr": 0.1},
        "stop": {"rounds": 20},
    },
}


@dataclass(frozen=True)
class Case:
    """One figure of the table."""

    dataset: str
    place: str
    merge: str
    attack: str
    share: float
    seed: int

    @property
    def key(self) -> str:
        return "|".join(map(str, (self.dataset, self.place, self.merge, self.attack, self.share, self.seed)))


def same_elsewhere(place: str, merge: str) -> bool:
    """Tell whether a row repeats another: the plain mean is the same wherever it stands among edges."""
    return merge == "samples" and place in ("cloud", "both")


def cases(datasets: list[str], seeds: int, quick: bool) -> Iterator[Case]:
    places = PLACES[:2] if quick else PLACES
    merges = MERGES[:4] if quick else MERGES
    attacks = list(ATTACKS)[:1] if quick else list(ATTACKS)
    shares = (0.0, 0.2) if quick else SHARES
    for dataset in datasets:
        for seed in range(seeds):
            for place in places:
                for merge in merges:
                    if same_elsewhere(place, merge):
                        continue
                    yield Case(dataset, place, merge, "none", 0.0, seed)
                    for attack in attacks:
                        for share in shares[1:]:
                            yield Case(dataset, place, merge, attack, share, seed)


def loaded(name: str) -> Dataset:
    """Return a dataset, cut to its first training images: there are a thousand runs."""
    data = registry.load(name)
    return Dataset.from_arrays(
        data.x_train[:IMAGES], data.y_train[:IMAGES], data.x_test, data.y_test, n_classes=data.n_classes, name=name
    )


def accuracy(case: Case, data: Dataset, rounds: int | None) -> float:
    # The defender is told an upper bound, as it would be in practice: up to 30 % of the reports may be hostile.
    sharing = case.merge in ("trimmed_mean", "krum", "multi_krum")
    rule: dict[str, Any] = {"merge": {"kind": case.merge, **({"share": 0.3} if sharing else {})}}
    if case.merge == "guarded":
        rule = {"guard": {"kind": "median"}}
    tiers = {
        "edge": {"edge": rule},
        "cloud": {"root": rule},
        "both": {"edge": rule, "root": rule},
        "flat": {"root": rule},
    }
    table = {
        **TASKS[case.dataset],
        "fleet": FLEET,
        "partition": {"kind": "dirichlet", "alpha": 1.0},
        "world": {"attackers": {**ATTACKS[case.attack], "fraction": case.share}} if case.share else {},
    }
    if rounds is not None:
        table["stop"] = {"rounds": rounds}
    table["evaluate"] = {"every": table["stop"]["rounds"]}
    method = {"name": "fedavg" if case.place == "flat" else "hierfavg", **tiers[case.place]}
    run = simulate(method, Experiment.build(table), seed=case.seed, dataset=data)
    return float(run.frame()["acc_global"].iloc[-1])


def table(found: dict[str, float], datasets: list[str], seeds: int) -> str:
    lines = [
        "# Robustness: what hostile devices do to the global model",
        "",
        "`python benchmarks/robustness.py` made these tables. 50 devices at 5 edges, Dirichlet(1) labels, 20 rounds,",
        f"an MLP; of Fashion-MNIST the first {IMAGES:,} training images;",
        "accuracy of the cloud's model on the whole test set at the end, mean ± standard deviation over the seeds.",
        "Attackers are drawn at random from all devices, so an edge may have more of them than the share says.",
        "The robust merge stands at the edges (which merge devices), at the cloud (which merges edges), at both, or",
        "at the cloud of a flat fleet (FedAvg); trimmed mean and Krum are told that up to 30 % may be hostile.",
        '`samples` is the plain mean, `guarded` the mean with `guard = { kind = "median" }`, which refuses changes',
        "that are much longer than usual.",
        "",
    ]
    for dataset in datasets:
        there = {s for s in range(seeds) if Case(dataset, "edge", "median", "a little", 0.3, s).key in found}
        lines += [f"## {dataset}, {len(there)} seed(s)", ""]
        for attack in ATTACKS:
            body = []
            for place in PLACES:
                for merge in MERGES:
                    if same_elsewhere(place, merge):
                        continue
                    cells = []
                    for share in SHARES:
                        name = "none" if share == 0 else attack
                        keys = [Case(dataset, place, merge, name, share, s).key for s in range(seeds)]
                        values = [found[k] for k in keys if k in found]
                        spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
                        cells.append(f"{mean(values):.3f}{spread}" if values else "–")
                    if any(c != "–" for c in cells[1:]):
                        body.append(f"| {place} | {merge} | " + " | ".join(cells) + " |")
            if body:
                heads = " | ".join(f"{share:.0%}" for share in SHARES)
                lines += [
                    f"### {attack}",
                    "",
                    f"| robust merge at | merge | {heads} |",
                    "| --- | --- |" + " ---: |" * 4,
                ]
                lines += [*body, ""]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Accuracy under attack.")
    parser.add_argument("--datasets", default="digits,fashion_mnist")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--quick", action="store_true", help="a few cells only, to see that it works")
    parser.add_argument("--keep", type=Path, default=Path("runs/robustness.jsonl"), help="finished figures")
    parser.add_argument("--out", type=Path, default=None, help="write the page here [default: print it]")
    options = parser.parse_args()
    datasets = [d for d in options.datasets.split(",") if d]
    found: dict[str, float] = {}
    if options.keep.exists():
        found = {r["key"]: r["accuracy"] for r in map(json.loads, options.keep.read_text().splitlines())}
    options.keep.parent.mkdir(parents=True, exist_ok=True)
    todo = [c for c in cases(datasets, options.seeds, options.quick) if c.key not in found]
    data = {d: loaded(d) for d in datasets}
    begun = time.monotonic()
    with options.keep.open("a") as file:
        for number, case in enumerate(todo):
            found[case.key] = accuracy(case, data[case.dataset], options.rounds)
            file.write(json.dumps({"key": case.key, "accuracy": found[case.key]}) + "\n")
            file.flush()
            if number % 20 == 0:
                left = (time.monotonic() - begun) / (number + 1) * (len(todo) - number - 1)
                print(
                    f"{number + 1}/{len(todo)}  {case.key}  {found[case.key]:.3f}  {left / 60:.0f} min left",
                    file=sys.stderr,
                )
    page = table(found, datasets, options.seeds)
    if options.out is None:
        print(page)
    else:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
