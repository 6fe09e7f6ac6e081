"""CFLHKD's Tables 1 to 8 and Figures 4 to 7: nine methods, standing still and under drift, and CFLHKD's own parts.

Ahmad, Kanatbekova, Brandić, Aral. Clustered Federated Learning with Hierarchical Knowledge Distillation.

Tables 2 and 3 of the paper are parts of its Tables 7 and 8: ``cflhkd/table2`` and ``cflhkd/table7`` are one study under
two names, as are ``table3`` and ``table8``. Table 1 and Figure 4 share runs if they share a directory (``--out``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from espalier.experiment import Experiment
from espalier.methods.cflhkd.measures import (
    accuracy,
    common,
    decided,
    fall,
    first_clusters,
    gap,
    left,
    likeness,
    minutes,
    recovered,
    recovery,
    sent,
)
from espalier.methods.cflhkd.world import paper_world
from espalier.study.base import Cell, Figures, Metric, Scale, Study, last, published, register
from espalier.study.results import Results

NOTES = (
    "full: 100 devices (HAM10000 80 at its 4 clinics, where the paper speaks of 5; Cityscapes 216 at its 18 training "
    "cities, the paper says 50), 30 % per round, 5 epochs, SGD 0.01 with momentum 0.9, 120 rounds (the paper gives no "
    "number), 3 seeds. FEMNIST is EMNIST-Balanced. Distillation has data of its own at the cloud: samples that no "
    "device holds, a twentieth as many as the devices have.",
    "small: MNIST (a fifth, LeNet, 100 devices, 3 epochs), CIFAR-10 (two fifths of what there is) and HAM10000 (both a "
    "GroupNorm ResNet-8 of 8 channels whose stem halves the image, 40 devices, 5 epochs), 60 rounds, 3 seeds. No "
    "Cityscapes: it cannot be downloaded freely. Digits (Dirichlet 1, 40 devices, a small MLP, 2 epochs) are not the "
    "paper's, but a run takes seconds: they show how methods stand to each other, and no claim is judged by them.",
    "smoke: digits, a small MLP, 12 devices, 9 rounds, intervals a tenth: shows that it runs, nothing more.",
    "Accuracy is the mean over devices of the model each would use on its own test distribution, after the last round. "
    "Models are evaluated every fifth round (under drift every round) and right after a merge: HierFAVG's when the "
    "cloud's model has come to the edges, CFLHKD's when the edges have pulled theirs to it.",
    "CFLHKD does everything in every round, as its Algorithm 1; cflhkd/readings has the intervals of A.1.1, models "
    "shared and devices clustered every 30 rounds. HierFAVG's cloud merges every 20 rounds (A.1.2); every round, it "
    "would be FedAvg.",
    "Standalone trains every device in every round, the others 30 % of them.",
    "Clusters: CFLHKD's distances are over the members' affinities (whole rows open a cluster per device, so that the "
    "limit of 8 decides). Every run keeps how many devices the limit put where they are (crowded), how many clusters "
    "were split by their variance, and whether the first ones were cut from a dendrogram.",
    "Communication is what was really sent between edges and cloud. The paper's figures are exact multiples of "
    "FedAvg's (0.9, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2; only CFLHKD's on FEMNIST is not) and so were computed, not "
    "measured; their unit is not given. The two can be compared in their order only.",
    "Time is virtual: until the mean of two evaluations is within one point of the run's best. The speeds of devices "
    "and links are ours.",
    "Drift, as the text has it: labels 0–4, then 5–9 (FEMNIST: the first and the second half of the classes). Nobody "
    "has seen the new ones: whatever the method, its models fall to next to nothing. HAM10000's labels are permuted "
    "instead: one clinic has little but nevi. Cityscapes grows darker. Test and training data drift together.",
    "Drift, exchange: labels c and c + 5 change places in everybody's mix (FEMNIST c + 23), so that devices exchange "
    "what they hold and the fleet as a whole has all labels before and after, as 'clients switch labels' may mean. The "
    "published figures stand beside both.",
    "Recovery counts rounds of training until the accuracy before the drift is back; a run that never is counts with "
    "all rounds it had left, a lower bound.",
    "CFL's thresholds are relative to the updates: the authors' absolute ones are for another model. ICFL is a "
    "reconstruction.",
)

SKEWED: Mapping[str, Any] = {"kind": "dirichlet", "alpha": 0.5}
CLINICS: Mapping[str, Any] = {"kind": "owner", "level": "edge"}
SWITCH: Mapping[str, Any] = {"kind": "label_switch"}
HALVES: Mapping[str, Any] = {"kind": "label_switch", "before": list(range(23)), "after": list(range(23, 47))}
#: one clinic has little but nevi: there are no two halves of labels that every device has samples of
PERMUTED: Mapping[str, Any] = {"kind": "permute_labels"}
#: the second protocol of drift: labels change places, and with them devices what they hold
EXCHANGE: Mapping[str, Any] = {"kind": "exchange_labels"}
DARKER: Mapping[str, Any] = {"kind": "gradual", "feature": "brightness", "amount": -0.5}


@dataclass(frozen=True)
class Data:
    """One dataset at one scale: where it comes from, who holds what, which model learns it.

    ``drift`` is what happens to the data under drift, without its moment; ``exchange`` the same in a second protocol,
    where there is one.
    """

    dataset: str
    model: str
    partition: Mapping[str, Any]
    devices: int = 100
    edges: int = 8
    rounds: int = 120
    updates: int = 5
    batch_size: int = 32
    lr: float = 0.01
    dataset_options: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    drift: Mapping[str, Any] = field(default_factory=lambda: SWITCH)
    exchange: Mapping[str, Any] | None = field(default_factory=lambda: EXCHANGE)


DATA: Mapping[Scale, Mapping[str, Data]] = {
    "smoke": {
        "digits": Data(
            "digits", "mlp", {"kind": "dirichlet", "alpha": 5.0, "min_samples": 20, "fraction": 0.8}, devices=12,
            edges=5, rounds=9, updates=2, batch_size=10, lr=0.05, model_options={"hidden": [16]},
        ),
    },
    "small": {
        "digits": Data(
            "digits", "mlp", {**SKEWED, "alpha": 1.0, "min_samples": 10, "fraction": 0.95}, devices=40, rounds=60,
            updates=2, batch_size=10, lr=0.05, model_options={"hidden": [32]},
        ),
        "MNIST": Data("mnist", "lenet", {**SKEWED, "fraction": 0.2}, rounds=60, updates=3),
        "CIFAR-10": Data(
            "cifar10", "resnet_small", {**SKEWED, "fraction": 0.4}, devices=40, rounds=60,
            model_options={"width": 8, "stride": 2},
        ),
        "HAM10000": Data(
            "ham10000", "resnet_small", {**CLINICS, "fraction": 0.8}, devices=40, edges=4, rounds=60,
            model_options={"width": 8, "stride": 2}, drift=PERMUTED, exchange=None,
        ),
    },
    "full": {
        "MNIST": Data("mnist", "fedavg_cnn", {**SKEWED, "fraction": 0.95}),
        "CIFAR-10": Data("cifar10", "resnet18", {**SKEWED, "fraction": 0.95}),
        "FEMNIST": Data(
            "emnist", "fedavg_cnn", {**SKEWED, "fraction": 0.95}, drift=HALVES, exchange={**EXCHANGE, "turn": 23}
        ),
        "HAM10000": Data(
            "ham10000", "resnet18", {**CLINICS, "fraction": 0.95}, devices=80, edges=4, drift=PERMUTED, exchange=None
        ),
        "Cityscapes": Data(
            "cityscapes", "unet", {**CLINICS, "fraction": 0.95}, devices=216, edges=18, batch_size=16, drift=DARKER,
            exchange=None,
        ),
    },
}  # fmt: skip
SEEDS: Mapping[Scale, tuple[int, ...]] = {"smoke": (0,), "small": (0, 1, 2), "full": (0, 1, 2)}
#: rounds between evaluations, where a run is not watched round by round
EVALUATED = 5
#: the round of an abrupt drift, and the rounds that a run under drift has
DRIFT: Mapping[Scale, tuple[int, int]] = {"smoke": (4, 9), "small": (25, 60), "full": (50, 100)}

#: by how much a scale shortens the paper's intervals of 10, 15, 20 and 30 rounds
FASTER: Mapping[Scale, int] = {"smoke": 10, "small": 1, "full": 1}


def methods(scale: Scale) -> dict[str, dict[str, Any]]:
    """Return Table 1's methods with the intervals of appendix A.1.2."""

    def rounds(number: int) -> int:
        return max(1, number // FASTER[scale])

    return {
        "Standalone": {"name": "standalone"},
        "FedAvg": {"name": "fedavg"},
        "FedProx": {"name": "fedprox", "mu": 0.01},
        "HierFAVG": {"name": "hierfavg", "kappa2": rounds(20), "clock": "edge"},
        "FL+HC": {"name": "flhc", "after": rounds(15), "every": rounds(15)},
        "CFL": {"name": "cfl", "every": rounds(10), "after": rounds(20), "relative": True},
        "ICFL": {"name": "icfl", "every": rounds(10)},
        "IFCA": {"name": "ifca", "every": rounds(10)},
        "CFLHKD": {"name": "cflhkd"},
    }


def readings(scale: Scale) -> dict[str, dict[str, Any]]:
    """Return CFLHKD as we read it beside what else its text may mean."""
    appendix = {"share_every": 30, "tell_every": 10, "cluster_every": 30}
    ways: dict[str, dict[str, Any]] = {
        "CFLHKD": {},
        "intervals of the appendix": {k: max(1, v // FASTER[scale]) for k, v in appendix.items()},
        "clusters every 10 rounds": {"cluster_every": max(1, 10 // FASTER[scale])},
        "distances between whole rows": {"distance": "rows"},
        "devices pull, not edges": {"refine": "client"},
    }
    return {row: {"name": "cflhkd", **options} for row, options in ways.items()}


def ablations() -> dict[str, dict[str, Any]]:
    """Return Table 8's rows, and what a real distillation adds."""
    parts: dict[str, dict[str, Any]] = {
        "CFLHKD": {},
        "w/o bi-level aggregation": {"bilevel": False},
        "w/o global fine-tuning": {"refine": "none"},
        "w/o dynamic clustering": {"clustering": "initial"},
        "with distillation (ours)": {"distil": 1},
    }
    return {row: {"name": "cflhkd", **options} for row, options in parts.items()}


def experiment(
    scale: Scale, data: Data, method: Mapping[str, Any], label: str, drift: Mapping[str, Any] | None = None
) -> Experiment:
    """Return the runs of one cell."""
    at, until = DRIFT[scale]
    world = paper_world().to_plain()
    if drift:
        when = {"start": at, "end": 2 * at} if drift["kind"] == "gradual" else {"at_round": at}
        world["drift"] = {**drift, **when}
    # HierFAVG's devices see the cloud's rounds, kappa2 of its edges': its learning rate decays by these
    decay = max(1, 20 // method["kappa2"]) if method["name"] == "hierfavg" else 20
    training = {
        "batch_size": data.batch_size, "updates": data.updates, "lr": data.lr, "momentum": 0.9, "weight_decay": 1e-4,
        "lr_decay": 0.99, "lr_decay_every": decay,
    }  # fmt: skip
    return Experiment.build(
        {
            "name": f"cflhkd {scale}",
            "methods": [{**method, "label": label}],
            "seeds": list(SEEDS[scale]),
            "task": {
                "dataset": data.dataset,
                "model": data.model,
                "dataset_options": dict(data.dataset_options),
                "model_options": dict(data.model_options),
            },
            "partition": {**data.partition, "val_fraction": 0.1},
            "fleet": {"devices": data.devices, "edges": data.edges, "fraction": 0.3},
            "training": training,
            "world": world,
            "stop": {"rounds": until if drift else data.rounds},
            "evaluate": {"every": 1 if drift or scale == "smoke" else EVALUATED},
            "record": {"spans": False},
        }
    )


#: what a column of the second protocol is called after its dataset
EXCHANGED = ", exchange"
ACCURACY = Metric("accuracy (%)", accuracy)
GLOBAL = Metric("global model (%)", common)
COMM = Metric("edge–cloud (GB)", sent, lower=True, digits=3)
TIME = Metric("time to convergence (min)", minutes, lower=True, digits=1)
CLUSTERS = Metric("clusters", lambda run: last(run, "groups"), digits=1, ranked=False)
#: how often the limit decided, clusters were split, and the first ones were cut from a dendrogram
CLUSTERING = {"clustering": decided}
DECIDED = {"clustering": "what decided the clusters (means per clustering)"}
OVERALL: Mapping[str, Metric] = {"accuracy": ACCURACY, "global": GLOBAL, "comm": COMM, "time": TIME}
UNDER_DRIFT: Mapping[str, Metric] = {
    "drop": Metric("fall (points)", fall, lower=True),
    "recovery": Metric("recovery (rounds)", recovery, lower=True, digits=1),
    "left": Metric("end against before (points)", left),
}


def grid(scale: Scale, rows: Mapping[str, Mapping[str, Any]]) -> list[Cell]:
    """Return every row under every dataset of a scale."""
    return [
        Cell(row, column, experiment(scale, data, method, row))
        for column, data in DATA[scale].items()
        for row, method in rows.items()
    ]


def under_drift(scale: Scale) -> list[Cell]:
    """Return every method under every dataset and protocol of drift."""
    return [
        Cell(row, column + protocol, experiment(scale, data, method, row, drift))
        for column, data in DATA[scale].items()
        for protocol, drift in (("", data.drift), (EXCHANGED, data.exchange))
        if drift
        for row, method in methods(scale).items()
    ]


def published_drift() -> Figures:
    """Return Table 7's figures, beside both protocols."""
    columns = {name + EXCHANGED: name for name, data in DATA["full"].items() if data.exchange}
    table = published(__package__, "table7")
    return {row: {**cells, **{c: cells[name] for c, name in columns.items()}} for row, cells in table.items()}


def stand_in(scale: Scale, *wanted: str) -> tuple[str, Data]:
    """Return the first of the wanted datasets that a scale has, or its first."""
    table = DATA[scale]
    name = next((w for w in wanted if w in table), next(iter(table)))
    return name, table[name]


def sweep(scale: Scale, option: str, values: Sequence[float], *wanted: str) -> list[Cell]:
    """Return CFLHKD with several values of one option, on one dataset (and digits, where a scale has both)."""
    table = dict([stand_in(scale, *wanted), *((n, d) for n, d in DATA[scale].items() if n == "digits")])
    return [
        Cell(f"{v:g}", name, experiment(scale, data, {"name": "cflhkd", option: v}, f"{option} = {v:g}"))
        for name, data in table.items()
        for v in values
    ]


def lead(results: Results) -> list[str]:
    """Say where CFLHKD stands against the best of the others."""
    out = []
    for column in results.columns:
        others = {r: results.mean(r, column, "accuracy") for r in results.rows if r != "CFLHKD"}
        best = max(others, key=lambda r: others[r])
        apart = results.mean("CFLHKD", column, "accuracy") - others[best]
        noise = max(results.std("CFLHKD", column, "accuracy"), results.std(best, column, "accuracy"))
        sure = "" if abs(apart) > noise else " (within one standard deviation of the seeds)"
        out.append(f"{column}: CFLHKD is {apart:+.2f} points from the best other, {best}{sure}.")
    return out


def never(results: Results) -> list[str]:
    """Say which methods did not recover under how many seeds."""
    out = []
    for (row, column), runs in results.cells.items():
        lost = sum(not run.facts["recovered"] for run in runs.values())
        if lost:
            out.append(f"{column}: {row} did not regain its accuracy under {lost} of {len(runs)} seed(s).")
    return out


def parts(results: Results) -> list[str]:
    """Say what each part of CFLHKD contributes."""
    out = []
    for row in (r for r in results.rows if r != "CFLHKD"):
        for column in results.columns:
            whole, other = (results.mean(r, column, "accuracy") for r in ("CFLHKD", row))
            cost = results.mean(row, column, "comm") / results.mean("CFLHKD", column, "comm")
            theirs = results.published(row, column, "accuracy") - results.published("CFLHKD", column, "accuracy")
            said = "" if theirs != theirs else f" (published {theirs:+.1f})"
            out.append(f"{column}, {row}: {other - whole:+.2f} points{said} at {cost:.2f} times the edge–cloud bytes.")
    return out


def figure6(scale: Scale) -> list[Cell]:
    """Return three methods over ever more clusters on a fixed fleet."""
    name, data = stand_in(scale, "CIFAR-10")
    cells = []
    for count in (2, 4) if scale == "smoke" else (4, 6, 8, 10):
        fleet = replace(data, edges=count)
        rows = methods(scale)
        rows["CFLHKD"] = {"name": "cflhkd", "initial_clusters": count, "most": count}
        for row in ("CFLHKD", "HierFAVG", "CFL"):
            cells.append(Cell(row, f"{name}, {count} clusters", experiment(scale, fleet, rows[row], row)))
    return cells


def figure7(scale: Scale) -> list[Cell]:
    """Return CFLHKD and CFL over ever more devices per cluster, each with as many samples."""
    name, data = stand_in(scale, "CIFAR-10")
    counts = (2, 3) if scale == "smoke" else (10, 20, 30, 40, 50)
    cap = {"smoke": 60, "small": 40, "full": 200}[scale]
    cells = []
    for count in counts:
        partition = {"kind": "dirichlet", "alpha": 0.5, "samples_per_device": cap, "min_samples": 10}
        fleet = replace(data, devices=4 * count, edges=4, partition=partition)
        rows = {"CFLHKD": {"name": "cflhkd", "most": 4}, "CFL": methods(scale)["CFL"]}
        cells += [Cell(r, f"{name}, {count} per cluster", experiment(scale, fleet, m, r)) for r, m in rows.items()]
    return cells


def few(scale: Scale, *rows: str) -> list[Cell]:
    """Return some methods on HAM10000 (or what a scale has in its place)."""
    name, data = stand_in(scale, "HAM10000")
    return [Cell(r, name, experiment(scale, data, methods(scale)[r], r)) for r in rows]


register(
    Study(
        "cflhkd/table1", "nine methods, data that stand still", lambda scale: grid(scale, methods(scale)), OVERALL,
        published(__package__, "table1"), NOTES, lead, facts=CLUSTERING, told=DECIDED,
    )
)  # fmt: skip
for _name in ("cflhkd/table2", "cflhkd/table7"):
    register(
        Study(
            _name, "nine methods when labels drift", under_drift, UNDER_DRIFT, published_drift(), NOTES, never,
            facts={"recovered": recovered}, runs_of="" if _name == "cflhkd/table2" else "cflhkd/table2",
        )
    )  # fmt: skip
for _name in ("cflhkd/table3", "cflhkd/table8"):
    register(
        Study(
            _name, "what CFLHKD's parts contribute", lambda scale: grid(scale, ablations()), OVERALL,
            published(__package__, "table8"), NOTES, parts,
            facts=CLUSTERING, told=DECIDED, runs_of="" if _name == "cflhkd/table3" else "cflhkd/table3",
        )
    )  # fmt: skip
register(
    Study(
        "cflhkd/table4", "the pull towards the common model (lambda)",
        lambda scale: sweep(scale, "lam0", (0.0, 0.1, 0.5), "Cityscapes", "MNIST"), {"accuracy": ACCURACY},
        published(__package__, "table4"), NOTES,
    )
)  # fmt: skip
register(
    Study(
        "cflhkd/table5", "data against models in affinities (gamma)",
        lambda scale: sweep(scale, "gamma", (0.0, 0.5, 1.0), "Cityscapes", "MNIST"), {"accuracy": ACCURACY},
        published(__package__, "table5"), NOTES,
    )
)  # fmt: skip
register(
    Study(
        "cflhkd/table6", "the clustering threshold (the paper's phi, our delta)",
        lambda scale: sweep(scale, "delta", (0.3, 0.7, 0.9), "CIFAR-10"),
        {
            "accuracy": ACCURACY,
            "first": Metric("clusters at first", first_clusters, digits=1, ranked=False),
            "final": replace(CLUSTERS, title="clusters at last"),
        },
        published(__package__, "table6"), NOTES, facts=CLUSTERING, told=DECIDED,
    )
)  # fmt: skip
register(
    Study(
        "cflhkd/readings", "what else the paper's text may mean",
        lambda scale: [
            Cell(row, name, experiment(scale, data, method, row))
            for name, data in (stand_in(scale, "MNIST"),)
            for row, method in readings(scale).items()
        ],
        {**OVERALL, "clusters": CLUSTERS}, {}, NOTES, facts=CLUSTERING, told=DECIDED,
    )
)  # fmt: skip
register(
    Study(
        "cflhkd/fig4", "accuracy over time, and how far clusters are apart",
        lambda scale: few(scale, "CFLHKD", "IFCA", "FL+HC", "HierFAVG", "FedAvg"),
        {"accuracy": ACCURACY, "gap": Metric("best less worst cluster (points)", gap, lower=True)},
        {
            r: {"HAM10000": {"accuracy": published(__package__, "table1")[r]["HAM10000"]["accuracy"]}}
            for r in ("CFLHKD", "IFCA", "FL+HC")
        },
        NOTES, curves=("acc_device", "acc_global"),
    )
)  # fmt: skip
register(
    Study(
        "cflhkd/fig5", "how alike the clusters' models are", lambda scale: few(scale, "CFLHKD", "CFL"),
        {
            "likeness": Metric("mean cosine between clusters' models", likeness, digits=3, ranked=False),
            "clusters": CLUSTERS,
            "accuracy": ACCURACY,
        },
        {}, (*NOTES, "The paper shows a picture and no figure. NaN: CFL has not split."),
    )
)  # fmt: skip
register(
    Study(
        "cflhkd/fig6", "more clusters on one fleet", figure6, {"accuracy": ACCURACY, "global": GLOBAL},
        published(__package__, "fig6"),
        (*NOTES, "The paper does not name the dataset; its text gives two figures, which are HierFAVG's."),
    )
)  # fmt: skip
register(
    Study(
        "cflhkd/fig7", "more devices per cluster", figure7, {"accuracy": ACCURACY},
        published(__package__, "fig7"),
        (*NOTES, "Every device has the same number of samples at most, so that a denser cluster has more data."),
    )
)  # fmt: skip
