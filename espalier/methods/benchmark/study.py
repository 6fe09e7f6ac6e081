"""All methods side by side: four datasets, a star and a tree, equal local work.

In the star devices report to the cloud. In the tree there are edges between, which merge twice for every merge of the
cloud where the method can say so. Who is compared with whom is a claim (`claims.toml`): known results of the field, by
which a reader may judge the implementations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from espalier.record.run import Run
from espalier.study.base import Cell, Metric, Scale, Study, last, notes, register

STAR, TREE = "star", "tree"
#: edge rounds per cloud round in the tree
EDGE_ROUNDS = 2
#: share of the devices in each round
FRACTION = 0.5


@dataclass(frozen=True)
class Row:
    """A method's row: how it is run in the star and in the tree (None: it is not made for one).

    Attributes:
        star: Its table in the star.
        tree: Its table in the tree.
        rounds: How many of the star's rounds one of the tree's stands for.
        timed: Asynchronous: it ends when FedAvg does.
    """

    star: Mapping[str, Any] | None = None
    tree: Mapping[str, Any] | None = None
    rounds: int = EDGE_ROUNDS
    timed: bool = False


@dataclass(frozen=True)
class Problem:
    """A dataset, and what was chosen for it under seed 100 on held-out training data.

    Attributes:
        task: Data and model.
        partition: Who has which samples.
        lr: Every method's learning rate: the smallest of a few within a point of FedAvg's best.
        share: Of the training data, at small.
        large: What is different about data and model at full.
        alpha: FedDyn's, of the published three.
        rate: FedAdam's and FedYogi's, of 0.01 and 0.1.
        adagrad: FedAdagrad's, of 0.03, 0.1 and 1.
    """

    task: Mapping[str, Any]
    partition: Mapping[str, Any]
    lr: float
    share: float
    large: Mapping[str, Any] = field(default_factory=dict)
    alpha: float = 0.1
    rate: float = 0.1
    adagrad: float = 0.1


SKEWED = {"kind": "dirichlet", "alpha": 0.1, "min_samples": 20}
CLINICS = Problem(
    {"dataset": "ham10000", "model": "mlp", "model_options": {"hidden": [32]},
     "dataset_options": {"mean": [0.5], "std": [0.25]}},
    {"kind": "owner", "level": "edge"},
    lr=0.02, share=0.25, large={"model": "lenet", "model_options": {}},
)  # fmt: skip
TASKS: Mapping[str, Problem] = {
    "Fashion-MNIST Dir(0.1)": Problem(
        {"dataset": "fashion-mnist", "model": "mlp", "model_options": {"hidden": [32]}},
        SKEWED,
        lr=0.05, share=0.03, large={"model": "lenet", "model_options": {}}, rate=0.01,
    ),
    "HAR by person": Problem(
        {"dataset": "har", "model": "mlp", "model_options": {"hidden": [32]}},
        {"kind": "owner"},
        lr=0.1, share=0.3, large={"model_options": {"hidden": [200]}},
    ),
    "HAM10000 by clinic": CLINICS,
    "HAM10000 Dir(0.1)": replace(CLINICS, partition=SKEWED),
    "20 newsgroups Dir(0.1)": Problem(
        {"dataset": "newsgroups20", "model": "bag_of_words", "model_options": {"embedding": 16},
         "dataset_options": {"topics": 10, "max_len": 100, "vocab": 2000}},
        SKEWED,
        lr=2.0, share=0.3, large={"model_options": {}, "dataset_options": {"topics": 20}},
        alpha=0.001, adagrad=1.0,
    ),
}  # fmt: skip
SMOKE = Problem({"dataset": "digits", "model": "logistic"}, {"kind": "dirichlet", "alpha": 0.5}, lr=0.05, share=0.3)


@dataclass(frozen=True)
class FleetSize:
    """How big a scale is: devices, edges, rounds of the star, local epochs of a round, seeds."""

    devices: int
    edges: int
    rounds: int
    epochs: int
    seeds: tuple[int, ...]


SIZES: Mapping[Scale, FleetSize] = {
    "smoke": FleetSize(8, 2, 2, 1, (0,)),
    "small": FleetSize(20, 4, 20, 5, (0, 1, 2)),
    "full": FleetSize(20, 4, 100, 5, (0, 1, 2, 3, 4)),
}


def _everywhere(name: str, **options: Any) -> Row:
    """Return a method that averages over any tree; in the star the cloud does what edges do elsewhere."""
    return Row({"name": name, "flat": True, **options}, {"name": name, "kappa2": EDGE_ROUNDS, **options})


def _at_the_cloud(name: str, merge: str, **options: Any) -> Row:
    """Return an optimiser of the cloud: over devices in the star, over edges in the tree."""
    tree = {"name": "hierfavg", "kappa2": EDGE_ROUNDS, "root": {"merge": {"kind": merge, **options}}}
    return Row({"name": name, **{("server_lr" if k == "lr" else k): v for k, v in options.items()}}, tree)


def _selective(name: str) -> Row:
    """Return a method that chooses devices: at the cloud, or at every edge."""
    return Row({"name": name}, {"name": name, "at": "edges", "kappa2": EDGE_ROUNDS})


def pfedme(task: Problem) -> dict[str, Any]:
    """Return pFedMe with the two rates that were chosen on Fashion-MNIST, where lr is 0.05, lambda 15 and eta 0.03.

    They are lr lambda, how far an inner step goes towards the shared model, and eta lambda, how far an outer one.
    """
    return {"name": "pfedme", "lam": round(0.75 / task.lr, 6), "eta": round(0.6 * task.lr, 6), "rounds": 5}


def methods(task: Problem) -> dict[str, Row]:
    """Return every row, with the strengths and rates that were chosen for a dataset."""
    dyn = {"name": "feddyn", "alpha": task.alpha}
    return {
        "FedAvg": Row({"name": "fedavg"}, {"name": "hierfavg", "kappa2": EDGE_ROUNDS}),
        "FedProx": Row({"name": "fedprox", "mu": 0.01}, {"name": "hierfavg", "kappa2": EDGE_ROUNDS, "mu": 0.01}),
        "FedAvgM": _at_the_cloud("fedavgm", "momentum", beta=0.9),
        "FedAdagrad": _at_the_cloud("fedadagrad", "adagrad", lr=task.adagrad),
        "FedAdam": _at_the_cloud("fedadam", "adam", lr=task.rate),
        "FedYogi": _at_the_cloud("fedyogi", "yogi", lr=task.rate),
        "FedLC": _everywhere("fedlc", tau=1.0),
        "FedRS": _everywhere("fedrs", alpha=0.5),
        "MOON": _everywhere("moon"),
        "SCAFFOLD": _everywhere("scaffold"),
        "FedNova": _everywhere("fednova"),
        "FedDyn": Row({**dyn, "flat": True}, dyn, rounds=1),
        "q-FedAvg": Row({"name": "qfedavg", "flat": True, "q": 0.1}, {"name": "qfedavg", "q": 0.1}, rounds=1),
        "Power-of-Choice": _selective("power_of_choice"),
        "Oort": _selective("oort"),
        "TiFL": _selective("tifl"),
        "FedAsync": Row({"name": "fedasync"}, {"name": "fedasync", "at": "edges", "kappa2": EDGE_ROUNDS}, timed=True),
        "FedBuff": Row({"name": "fedbuff", "buffer": 5}, {"name": "fedbuff", "buffer": 2, "at": "edges"}, timed=True),
        "FedAT": Row({"name": "fedat"}, timed=True),
        "HiFlash": Row(None, {"name": "hiflash", "kappa2": EDGE_ROUNDS}, timed=True),
        "FedUC": Row(None, {"name": "feduc", "kappa2": EDGE_ROUNDS}, timed=True),
        "Async-HFL": Row(None, {"name": "async_hfl"}, timed=True),
        "MACFL": Row(None, {"name": "macfl", "kappa2": EDGE_ROUNDS}),
        "CSAHFL": Row(None, {"name": "csahfl", "edge_rounds": EDGE_ROUNDS}),
        "Trellis": Row(None, {"name": "trellis", "kappa2": EDGE_ROUNDS}),
        "OnlyEdge": Row(None, {"name": "only_edge"}, rounds=1),
        "CFLHKD": Row(None, {"name": "cflhkd"}, rounds=1),
        "CFL": Row({"name": "cfl"}),
        "FL+HC": Row({"name": "flhc"}),
        "ICFL": Row({"name": "icfl"}),
        "IFCA": Row({"name": "ifca"}),
        "Standalone": Row({"name": "standalone"}),
        "Ditto": _everywhere("ditto"),
        "APFL": _everywhere("apfl"),
        "FedProto": _everywhere("fedproto"),
        "FedPer": _everywhere("fedper"),
        "FedRep": _everywhere("fedrep"),
        "LG-FedAvg": _everywhere("lg_fedavg"),
        # its rounds share the local epochs
        "pFedMe": Row({**pfedme(task), "flat": True, "epochs": 1}, {**pfedme(task), "epochs": 1}, rounds=1),
    }


NOTES = notes(__package__)


def column(task: str, shape: str) -> str:
    """Name a column."""
    return f"{task}, {shape}"


def cell(row: str, task_name: str, task: Problem, shape: str, scale: Scale) -> Cell | None:
    """Return the runs of a method on a dataset in the star or in the tree (None: it is not made for it)."""
    entry, size = methods(task)[row], SIZES[scale]
    table = dict((entry.star if shape == STAR else entry.tree) or {})
    if not table:
        return None
    epochs, flat = table.pop("epochs", None), table.pop("flat", False)
    pace = {"kind": "barrier", "updates": epochs or size.epochs}
    if flat:
        selection = {"kind": "uniform", "fraction": FRACTION}
        table["root"] = {"structure": {"kind": "given", "flat": True}, "pace": pace, "selection": selection}
    elif epochs is not None:
        table["edge"] = {"pace": pace}
    rounds = size.rounds if shape == STAR else size.rounds // entry.rounds
    large = task.large if scale == "full" else {}
    share = {} if scale == "full" else {"fraction": task.share}
    setting = {
        "name": f"benchmark {column(task_name, shape)}",
        "seeds": list(size.seeds),
        "task": {**task.task, **large},
        "partition": {**task.partition, **share},
        "fleet": {"devices": size.devices, "edges": size.edges, "fraction": FRACTION},
        "training": {"batch_size": 10, "updates": size.epochs, "lr": task.lr},
        "stop": {"rounds": rounds},
        "evaluate": {"every": rounds},
        "record": {"spans": False, "models": []},
    }
    where = column(task_name, shape)
    return Cell.of(row, where, setting, table, until=("FedAvg", where) if entry.timed else None)


def cells(scale: Scale) -> list[Cell]:
    """Return every method on every dataset, in the star and in the tree."""
    tasks = {"digits": SMOKE} if scale == "smoke" else TASKS
    found = [cell(row, n, t, shape, scale) for n, t in tasks.items() for shape in (STAR, TREE) for row in methods(t)]
    return [one for one in found if one is not None]


def megabytes(run: Run) -> float:
    """Return what all links together have carried, in MB (0 where devices are alone)."""
    frame = run.frame()
    return float(frame["bytes"].iloc[-1]) / 1e6 if "bytes" in frame else 0.0


def percent(metric: str) -> Callable[[Run], float]:
    """Return what reads a metric at the end of a run, in percent."""
    return lambda run: 100 * last(run, metric)


register(
    Study(
        name="benchmark/methods",
        title="all methods on four datasets, in a star and in a tree, with equal local work",
        cells=cells,
        measures={
            "global": Metric("accuracy of the global model on the whole test set (%)", percent("acc_global"), digits=1),
            "device": Metric(
                "accuracy of the model that a device uses, by its own label mix (%)", percent("acc_device"), digits=1
            ),
            "worst": Metric("the same of the worst tenth of the devices (%)", percent("acc_device_worst"), digits=1),
            "megabytes": Metric("sent over all links (MB)", megabytes, lower=True, digits=0),
        },
        notes=NOTES,
        sources=False,
    )
)
