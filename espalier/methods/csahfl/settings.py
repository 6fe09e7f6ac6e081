"""CSAHFL's experiments: section 4.1's fleet, data and world, and the eight methods under it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from espalier.experiment import Experiment
from espalier.methods.csahfl.world import paper_world
from espalier.study.base import Cell, Scale

#: share of all labels that an edge knows
SHARES: Mapping[str, float] = {"EIID": 1.0, "ENIID50%": 0.5, "ENIID30%": 0.3}


@dataclass(frozen=True)
class Size:
    """How big a scale is: devices, their share per round, samples of each (None: all data), cloud rounds, seeds."""

    devices: int
    fraction: float
    samples: int | None
    rounds: int
    seeds: tuple[int, ...]


SIZES: Mapping[Scale, Size] = {
    "smoke": Size(25, 0.4, None, 2, (0,)),
    "small": Size(25, 0.4, 300, 16, (0,)),
    "full": Size(200, 0.25, None, 50, (0, 1, 2)),
}
EDGES, EDGE_ROUNDS = 5, 3

#: Table 1's methods, by the paper's names; those marked True are asynchronous and stop when HierFedAVG does
METHODS: Mapping[str, tuple[Mapping[str, Any], bool]] = {
    "FedAVG": ({"name": "fedavg"}, False),
    "FedProx": ({"name": "hierfavg", "kappa2": EDGE_ROUNDS, "mu": 0.01}, False),
    "HierFedAVG": ({"name": "hierfavg", "kappa2": EDGE_ROUNDS}, False),
    "FedAT": ({"name": "fedat"}, True),
    "MACFL": ({"name": "macfl", "kappa2": EDGE_ROUNDS}, False),
    "HiFlash": ({"name": "hiflash", "kappa2": EDGE_ROUNDS}, True),
    "FedUC": ({"name": "feduc", "kappa2": EDGE_ROUNDS}, True),
    "CSAHFL": ({"name": "csahfl", "edge_rounds": EDGE_ROUNDS}, False),
}
#: without edges, so that mobility changes nothing: the paper does not repeat them
FLAT = ("FedAVG", "FedAT")
ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    "CSAHFL": {"name": "csahfl", "edge_rounds": EDGE_ROUNDS},
    "w/o C": {"name": "csahfl", "edge_rounds": EDGE_ROUNDS, "clustering": False},
    "w/o SA": {"name": "csahfl", "edge_rounds": EDGE_ROUNDS, "semi_async": False},
    "w/o D": {"name": "csahfl", "edge_rounds": EDGE_ROUNDS, "weighting": "uniform"},
    "served by clusters": {"name": "csahfl", "edge_rounds": EDGE_ROUNDS, "serve": "cluster"},
}
NOTES = (
    "full: 200 devices at 5 edges, 10 of 40 per edge and round, 50 cloud rounds of 3 edge rounds, 10 epochs of batches "
    "of 10, SGD 0.01, 3 seeds. The paper names no model; the LeNet is our choice.",
    "small: Fashion-MNIST only, 25 devices of 300 samples (as in the full fleet), 2 of 5 per edge and round, 16 "
    "cloud rounds, 1 seed.",
    "smoke: digits, a small MLP, 25 devices, 2 cloud rounds: shows that it runs, nothing more.",
    "Synchronous methods run r_e · r_c edge rounds (FedAVG as many cloud rounds); FedAT, HiFlash and FedUC stop at the "
    "virtual time that HierFedAVG of the same seed needs.",
    "Delays cover all 10 epochs of a training and vary by a log-normal factor (sigma 0.3) from round to round: without "
    "it nobody would ever be late at the paper's alpha (see csahfl/semi_async).",
    "Accuracy is that of the global model on each device's own label mix, averaged over devices.",
    "MACFL, HiFlash and FedUC are reconstructions: see `espalier describe`.",
)


def column(dataset: str, eniid: str, stay: float) -> str:
    """Name a column."""
    return f"{dataset} {eniid} p_s={stay:g}"


def experiment(
    scale: Scale, dataset: str, eniid: str, stay: float, method: Mapping[str, Any], label: str, **world: Any
) -> Experiment:
    """Return the runs of one cell."""
    size = SIZES[scale]
    smoke = scale == "smoke"
    partition: dict[str, Any] = {"kind": "two_level", "edge_fraction": SHARES[eniid], "device_fraction": 0.2}
    if size.samples is not None:
        partition["samples_per_device"] = size.samples
    # a round of a method without edges is an edge round of the others
    per = EDGE_ROUNDS if method["name"] == "fedavg" else 1
    return Experiment.build(
        {
            "name": f"csahfl {scale}",
            "methods": [{**method, "label": label}],
            "seeds": list(size.seeds),
            "task": {
                "dataset": "digits" if smoke else dataset.lower(),
                "model": "mlp" if smoke else "lenet",
                "model_options": {"hidden": [32]} if smoke else {},
            },
            "partition": partition,
            "fleet": {"devices": size.devices, "edges": EDGES, "fraction": size.fraction},
            "training": {"batch_size": 10, "updates": 10, "lr": 0.1 if smoke else 0.01},
            "world": paper_world(stay, **world),
            "stop": {"rounds": size.rounds * per},
            "evaluate": {"every": per},
            "record": {"spans": scale != "full"},
        }
    )


def comparison(scale: Scale, datasets: tuple[str, ...]) -> list[Cell]:
    """Return the cells of the eight methods under all settings."""
    cells = []
    for stay in (1.0, 0.5):
        for dataset in datasets:
            for eniid in SHARES:
                where = column(dataset, eniid, stay)
                for row, (method, asynchronous) in METHODS.items():
                    if stay == 1.0 or row not in FLAT:
                        runs = experiment(scale, dataset, eniid, stay, method, row)
                        cells.append(Cell(row, where, runs, ("HierFedAVG", where) if asynchronous else None))
    return cells
