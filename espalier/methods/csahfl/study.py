"""CSAHFL's Tables 1 to 3 and Figures 3 and 4, and what its semi-asynchrony does at which alpha.

Li, Du, Liu, Shao, Zhao, Ye. CSAHFL: Clustered Semi-Asynchronous Hierarchical Federated Learning for Dual-layer
Non-IID in Heterogeneous Edge Computing Networks. IJCAI 2025.

The cells of table1, table2 and fig3 are the same runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from espalier.methods.csahfl.world import paper_world
from espalier.record.run import Run
from espalier.study.base import (
    Cell,
    Metric,
    Scale,
    Study,
    best,
    final_time,
    last,
    notes,
    published,
    reached,
    register,
    tail,
)
from espalier.study.results import Results

DATASETS = ("Fashion-MNIST", "CIFAR10", "SVHN")
FASHION = DATASETS[0]
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
    "small": Size(100, 0.25, 300, 50, (0, 1, 2)),
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
NOTES = notes(__package__)


def column(dataset: str, eniid: str, stay: float) -> str:
    """Name a column."""
    return f"{dataset} {eniid} p_s={stay:g}"


def cell(
    scale: Scale, row: str, dataset: str, eniid: str, stay: float, method: Mapping[str, Any], *,
    asynchronous: bool = False, where: str = "", momentum: float = 0.0, **world: Any,
) -> Cell:  # fmt: skip
    """Return a method's runs in a setting, whose name is the column's unless ``where`` is."""
    size = SIZES[scale]
    smoke = scale == "smoke"
    partition: dict[str, Any] = {"kind": "two_level", "edge_fraction": SHARES[eniid], "device_fraction": 0.2}
    if size.samples is not None:
        partition["samples_per_device"] = size.samples
    # a round of a method without edges is an edge round of the others
    per = EDGE_ROUNDS if method["name"] == "fedavg" else 1
    setting = {
        "name": f"csahfl {scale}",
        "seeds": list(size.seeds),
        "task": {
            "dataset": "digits" if smoke else dataset.lower(),
            "model": "mlp" if smoke else "lenet",
            "model_options": {"hidden": [32]} if smoke else {},
        },
        "partition": partition,
        "fleet": {"devices": size.devices, "edges": EDGES, "fraction": size.fraction},
        "training": {"batch_size": 10, "updates": 10, "lr": 0.1 if smoke else 0.01, "momentum": momentum},
        "world": paper_world(stay, **world),
        "stop": {"rounds": size.rounds * per},
        "evaluate": {"every": per},
        "record": {"spans": scale != "full"},
    }
    where = where or column(dataset, eniid, stay)
    return Cell.of(row, where, setting, method, ("HierFedAVG", where) if asynchronous else None)


def comparison(scale: Scale, datasets: tuple[str, ...]) -> list[Cell]:
    """Return the cells of the eight methods under all settings."""
    return [
        cell(scale, row, dataset, eniid, stay, method, asynchronous=asynchronous)
        for stay in (1.0, 0.5)
        for dataset in datasets
        for eniid in SHARES
        for row, (method, asynchronous) in METHODS.items()
        if stay == 1.0 or row not in FLAT
    ]


# -- what is read off the runs --------------------------------------------------------------------------------

#: Table 2: the two targets in percent for each ENIID setting
TARGETS: Mapping[str, tuple[float, float]] = {"EIID": (60, 85), "ENIID50%": (60, 82), "ENIID30%": (60, 80)}
#: what a smaller fleet can reach in its few rounds stands in for the paper's two targets, in percent
EASIER: Mapping[str, tuple[float, float]] = {"smoke": (25, 35), "small": (60, 72)}


def accuracy(run: Run) -> float:
    """Return the devices' mean accuracy at the end, in percent."""
    return 100 * last(run, "acc_device")


def swing(run: Run) -> float:
    """Return by how much the accuracy changes from one evaluation to the next, mean of the last eight, in points."""
    curve = run.frame()["acc_device"].dropna().to_numpy()[-9:]
    return 100 * float(np.abs(np.diff(curve)).mean())


def targets(run: Run) -> tuple[float, float]:
    """Return a run's two target accuracies in percent."""
    scale = run.experiment["name"].split()[-1]
    share = run.experiment["partition"]["edge_fraction"]
    eniid = next(name for name, value in SHARES.items() if value == share)
    return EASIER.get(scale, TARGETS[eniid])


def time_to(run: Run, which: int) -> float:
    """Return the virtual seconds until a target was reached (NaN: never)."""
    return reached(run, targets(run)[which] / 100, "acc_device")


def late_share(run: Run) -> float:
    """Return how many of the devices' trainings were merged late, in percent."""
    return 100 * len(run.events("late")) / max(1.0, last(run, "jobs_ordered"))


def clusters(run: Run) -> float:
    """Return the number of clusters (NaN without clustering)."""
    found = [e["clusters"] for e in run.events("arranged") if "clusters" in e]
    return float(found[0]) if found else float("nan")


ACCURACY = Metric("accuracy (%)", accuracy)
#: what a global model that swings from round to round is worth does not depend on where the run happens to end
LATE = Metric("mean accuracy of the last five rounds (%)", lambda run: 100 * tail(run, "acc_device"))
#: smaller scales have a second target of their own, so that only ``full`` says something of the paper's
TO_FIRST = Metric(
    "to the first target (s)", lambda run: time_to(run, 0), True, 0, never="seconds", scales=("small", "full")
)
TO_SECOND = Metric("to the second target (s)", lambda run: time_to(run, 1), True, 0, never="seconds", scales=("full",))


def table3_cells(scale: Scale) -> list[Cell]:
    """Return CSAHFL, its ablations, and CSAHFL judged by the clusters' own models."""
    return [
        cell(scale, row, FASHION, eniid, stay, method)
        for stay in (1.0, 0.5)
        for eniid in SHARES
        for row, method in ABLATIONS.items()
    ]


def _varied(scale: Scale, row: str, where: str, options: Mapping[str, Any], **world: Any) -> Cell:
    return cell(scale, row, FASHION, "ENIID50%", 1.0, {**ABLATIONS["CSAHFL"], **options}, where=where, **world)


def fig4_cells(scale: Scale) -> list[Cell]:
    """Return (a) alpha × E_max and (b) sweeps of beta, with the cut as asked for, and of the number of clusters."""
    some = scale == "smoke"
    cells = [
        _varied(scale, f"alpha={alpha:g}", f"E_max={epochs}", {"alpha": alpha, "max_epochs": epochs})
        for alpha in ((0.5, 1.5) if some else (0.5, 1.0, 1.5, 2.0))
        for epochs in ((5, 10) if some else (5, 10, 20, 30))
    ]
    betas = (5.0, 20.0) if some else (1.0, 2.0, 3.0, 5.0, 8.0, 10.0, 15.0, 20.0, 30.0)
    counts = (2, 5) if some else (1, 2, 5, 9, 20)
    return [
        *cells,
        *(_varied(scale, f"beta={b:g}", "beta", {"beta": b, "rescue": False}) for b in betas),
        *(_varied(scale, f"K={k}", "clusters", {"clusters": k}) for k in counts),
    ]


def options_cells(scale: Scale) -> list[Cell]:
    """Return what the paper leaves open, tried once: clusters by number, interval, edges to choose, momentum."""
    plain, hier = ABLATIONS["CSAHFL"], {"name": "hierfavg", "kappa2": EDGE_ROUNDS}
    rows = {
        "HierFedAVG": (hier, 0.0),
        "CSAHFL": (plain, 0.0),
        "CSAHFL, K=9": ({**plain, "clusters": 9}, 0.0),
        "CSAHFL, alpha=0.37": ({**plain, "alpha": 0.37}, 0.0),
        "HiFlash, every edge in reach": ({**METHODS["HiFlash"][0], "reach": "all"}, 0.0),
        "FedUC, every edge in reach": ({**METHODS["FedUC"][0], "reach": "all"}, 0.0),
        "HierFedAVG, momentum 0.5": (hier, 0.5),
        "CSAHFL, momentum 0.5": (plain, 0.5),
    }
    return [
        cell(
            scale, row, FASHION, eniid, 1.0, method,
            asynchronous=method["name"] in ("hiflash", "feduc"), momentum=momentum,
        )
        for eniid in ("EIID", "ENIID30%")
        for row, (method, momentum) in rows.items()
    ]  # fmt: skip


def semi_async_cells(scale: Scale) -> list[Cell]:
    """Return CSAHFL at several alpha, with and without run-time noise, and without semi-asynchrony."""
    cells = []
    for noise in (0.0, 0.3):
        where = f"noise {noise:g}"
        for alpha in (0.0, 0.37, 1.0, 1.5):
            cells.append(_varied(scale, f"alpha={alpha:g}", where, {"alpha": alpha}, noise=noise))
        cells.append(_varied(scale, "w/o SA", where, {"semi_async": False}, noise=noise))
    return cells


def idleness(results: Results) -> list[str]:
    """Say what the interval does at the paper's alpha."""
    out = []
    for where in results.columns:
        late = results.mean("alpha=1.5", where, "late")
        ours, sync = (results.mean(row, where, "duration") for row in ("alpha=1.5", "w/o SA"))
        out.append(
            f"{where}: at the paper's alpha = 1.5, {late:.1f} % of trainings are merged late, and the run takes "
            f"{ours / sync:.2f} times as long as without semi-asynchrony (the paper: about a quarter)."
        )
    return out


register(
    Study(
        name="csahfl/table1",
        title="accuracy of eight methods, static and mobile, at three degrees of skew between edges",
        cells=lambda scale: comparison(scale, DATASETS if scale == "full" else DATASETS[:1]),
        measures={"accuracy": ACCURACY, "late": LATE},
        published=published(__package__, "table1"),
        notes=NOTES,
    ),
    Study(
        name="csahfl/table2",
        title="virtual time until two target accuracies on Fashion-MNIST",
        cells=lambda scale: comparison(scale, (FASHION,)),
        measures={"first": TO_FIRST, "second": TO_SECOND},
        published=published(__package__, "table2"),
        notes=(
            *NOTES,
            "Targets in percent: "
            + "; ".join(f"{where} {a:g} and {b:g}" for where, (a, b) in {**TARGETS, **EASIER}.items())
            + ". At small and smoke the second is not the paper's: no published time stands beside it.",
        ),
        runs_of="csahfl/table1",
    ),
    Study(
        name="csahfl/table3",
        title="CSAHFL without clustering, semi-asynchrony, distribution-aware merging",
        cells=table3_cells,
        measures={"accuracy": ACCURACY, "late": LATE, "time": TO_SECOND},
        published=published(__package__, "table3"),
        notes=(
            *NOTES,
            "w/o C: the devices of an edge are its cluster (the paper assigns devices to edges at random; here they "
            "stay at the edge that has their labels). w/o D: clusters weigh the same. 'served by clusters' is "
            "not in the paper: devices use their cluster's model at their edge instead of the global one.",
        ),
    ),
    Study(
        name="csahfl/fig3",
        title="accuracy over time of the eight methods on Fashion-MNIST",
        cells=lambda scale: comparison(scale, (FASHION,)),
        measures={
            "highest": Metric("highest accuracy (%)", lambda run: 100 * best(run, "acc_device")),
            "swing": Metric("mean change from round to round, of the last eight (points)", swing, lower=True),
        },
        notes=NOTES,
        curves=("acc_device", "acc_global"),
        runs_of="csahfl/table1",
    ),
    Study(
        name="csahfl/fig4",
        title="alpha × E_max, beta, and the number of clusters, on Fashion-MNIST with ENIID50%",
        cells=fig4_cells,
        measures={
            "time": TO_SECOND,
            "accuracy": ACCURACY,
            "clusters": Metric("clusters", clusters, digits=0, ranked=False),
        },
        notes=(*NOTES, "The paper finds alpha = 1.5 with E_max = 10, and beta near 20, best; it prints no figures."),
    ),
    Study(
        name="csahfl/semi_async",
        title="what the interval does at which alpha, with and without run-time noise (not in the paper)",
        cells=semi_async_cells,
        measures={
            "late": Metric("merged late (%)", late_share, lower=True, digits=1),
            "duration": Metric("virtual time of the run (s)", final_time, lower=True, digits=0),
            "accuracy": ACCURACY,
        },
        notes=(*NOTES, f"All with r_e = {EDGE_ROUNDS}, Fashion-MNIST, ENIID50%, nobody moves."),
        comment=idleness,
    ),
    Study(
        name="csahfl/options",
        title="what the paper leaves open: clusters by number, a shorter interval, edges to choose from, momentum",
        cells=options_cells,
        measures={
            "accuracy": ACCURACY,
            "late": LATE,
            "clusters": Metric("clusters", clusters, digits=0, ranked=False),
            "duration": Metric("virtual time of the run (s)", final_time, lower=True, digits=0),
        },
        notes=NOTES,
    ),
)
