"""PHE-FL's Table V and Figures 3 and 4: three ways to use a cloud, from one label per edge to all labels everywhere.

Lee et al., Personalizing Federated Learning for Hierarchical Edge Networks with Non-IID Data, arXiv 2504.08872, 2025.
A curve is the accuracy in percent after rounds 1, 2, …, averaged over the edges, each on its own test set; Acc_N and
Drop_M are the paper's two measures of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from espalier.record.run import Run
from espalier.study.base import Cell, Metric, Scale, Study, last, notes, published, register
from espalier.study.results import Results

WINDOW_ROUNDS = 10
"""Rounds in which a drop is looked for."""


def acc_n(curve: ArrayLike, rounds: int) -> float:
    """Acc_N: the highest accuracy of rounds 1 … N (of the mean over edges, not the mean of edges' highest)."""
    values = np.asarray(curve, dtype=np.float64)[:rounds]
    return float(values.max()) if len(values) else float("nan")


def drop_m(curve: ArrayLike, threshold: float) -> float | None:
    """Drop_M: the largest max - min inside a window of rounds, from the first round at M % on.

    Every window that starts at or after that round counts; the last ones are shorter. As the paper words it, a
    rise counts as well as a fall. None if the curve never reaches M.
    """
    values = np.asarray(curve, dtype=np.float64)
    reached = np.flatnonzero(values >= threshold)
    if not len(reached):
        return None
    first = int(reached[0])
    # Windows that are cut short lie inside the last whole one, unless there is none.
    starts = range(first, max(first + 1, len(values) - WINDOW_ROUNDS + 1))
    return float(max(np.ptp(values[s : s + WINDOW_ROUNDS]) for s in starts))


def curve(run: Run) -> NDArray[np.float64]:
    """Return a run's accuracy in percent after each round, the initial model left out."""
    rows = run.query("SELECT round, value FROM metrics WHERE name = 'acc_edge' AND round > 0 ORDER BY rowid")
    by_round = {int(r): float("nan") if v is None else 100.0 * float(v) for r, v in rows}
    return np.array([by_round[r] for r in sorted(by_round)])


def alphas(run: Run, what: str = "alpha") -> pd.DataFrame:
    """Return what each edge chose: one row per round, one column per edge.

    ``what`` is ``alpha`` (of the body, where the head has its own: ``head``), or the score of the ``own`` or the
    ``others``' model that it follows from.
    """
    fleet = run.meta("fleet")
    rows: dict[int, dict[int, float]] = {}
    for event in run.events("alpha"):
        edge = int(event["node"]) - int(fleet["devices"])
        if what in event["values"] and edge < int(fleet["edges"]):  # servers above the edges choose too
            rows.setdefault(int(event["round"]), {})[edge] = event["values"][what]
    frame = pd.DataFrame.from_dict(rows, orient="index").sort_index().rename_axis("round")
    return frame[sorted(frame.columns)]


METHODS: Mapping[str, Mapping[str, Any]] = {
    "EdgeCloud": {"name": "edge_cloud"},
    "OnlyEdge": {"name": "only_edge"},
    "PHE-FL": {"name": "phefl"},
}
#: (layout, test set) in the order of the table's columns
SPLITS = (
    ("D1", "imbalanced"),
    ("D2", "imbalanced"),
    ("D3", "imbalanced"),
    ("D3", "balanced"),
    ("D4", "imbalanced"),
)
#: N of Acc_N and M of Drop_M, per dataset and column
MARKS: Mapping[str, Sequence[tuple[int, float]]] = {
    "mnist": ((50, 0), (150, 90), (200, 90), (200, 90), (200, 90)),
    "fashion-mnist": ((12, 0), (180, 75), (200, 70), (200, 70), (150, 75)),
    "cifar10": ((12, 0), (180, 30), (200, 20), (200, 20), (130, 0)),
}
NOTES = notes(__package__)


def column(dataset: str, layout: str, test: str) -> str:
    """Name a column."""
    return f"{dataset} {layout} {test}"


def setting(scale: Scale, dataset: str, layout: str, test: str, **training: Any) -> dict[str, Any]:
    """Return the experiment of one column."""
    data = "digits" if scale == "smoke" else dataset
    model = {"smoke": "mlp", "small": "lenet", "full": "fedavg_cnn"}[scale]
    partition: dict[str, Any] = {"kind": "phefl", "layout": layout, "test": test}
    if scale == "small":
        partition["fraction"] = 0.2
    return {
        "name": f"phefl {column(data, layout, test)}",
        "seeds": [0] if scale == "smoke" else [0, 1, 2],
        "task": {"dataset": data, "model": model, "score": "acc_edge"},
        "partition": partition,
        "fleet": {"devices": 100, "edges": 10},
        "training": {"batch_size": 32, "updates": 1 if scale == "smoke" else 5, "lr": 0.1, **training},
        "stop": {"rounds": {"smoke": 6, "small": 60, "full": 200}[scale]},
        "record": {"spans": False},
    }


def cells(scale: Scale) -> list[Cell]:
    """Return every method under every column."""
    return [
        Cell.of(label, column(dataset, layout, test), setting(scale, dataset, layout, test), method)
        for dataset in (("mnist",) if scale == "smoke" else MARKS)
        for layout, test in SPLITS
        for label, method in METHODS.items()
    ]


def _marks(run: Run) -> tuple[int, float]:
    """Return N and M for a run's dataset and split."""
    dataset = run.experiment["task"]["dataset"]
    split = run.experiment["partition"]
    place = SPLITS.index((split["layout"], split.get("test", "imbalanced")))
    return MARKS.get(dataset, MARKS["mnist"])[place]


def read_drop(run: Run) -> float:
    """Drop_M of a run, in percentage points; NaN if M was never reached."""
    found = drop_m(curve(run), _marks(run)[1])
    return float("nan") if found is None else found


def read_late(run: Run) -> float:
    """The mean accuracy of a run's last fifth, in percent: what is left of its swings."""
    found = curve(run)
    return float(found[-max(1, len(found) // 5) :].mean())


def read_alphas(run: Run) -> list[tuple[int, float]]:
    """How much of their own model edges kept, mean over edges, at the beginning, the middle and the end."""
    kept = alphas(run).mean(axis=1)
    rounds = list(kept.index)
    shown = (rounds[0], rounds[len(rounds) // 2], rounds[-1]) if rounds else ()
    return [(int(r), round(float(kept[r]), 4)) for r in shown]


def said_alphas(results: Results) -> list[str]:
    """Say how much of their own model edges kept under PHE-FL, at three times of the (first) run."""
    out = []
    for (row, name), runs in results.cells.items():
        if row != "PHE-FL":
            continue
        first = next(iter(runs.values()))
        said = ", ".join(f"{alpha:.2f} in round {r}" for r, alpha in first.facts["alphas"])
        if said:
            out.append(f"{name}: alpha, mean over edges: {said}.")
    return out


TABLE5 = Study(
    name="phefl/table5",
    title="accuracy and stability from one label per edge (D1) to all labels everywhere (D4)",
    cells=cells,
    measures={
        "acc": Metric("Acc_N (%)", lambda run: acc_n(curve(run), _marks(run)[0])),
        "drop": Metric("Drop_M (points)", read_drop, lower=True),
        # its largest change within ten rounds from the first on, so that learning counts in it
        "fall": Metric(
            "Drop_0, learning included (points)", lambda run: drop_m(curve(run), 0) or 0.0, True, ranked=False
        ),
    },
    published=published(__package__, "table5"),
    notes=NOTES,
    comment=said_alphas,
    facts={"alphas": read_alphas},
)


#: columns of Table V that are also run long
LONG = tuple(column("mnist", layout, "imbalanced") for layout in ("D2", "D3", "D4"))


def cells_long(scale: Scale) -> list[Cell]:
    """Return Table V's columns of MNIST with several labels per edge, long enough that curves reach M."""
    found = []
    for layout in ("D2", "D3", "D4"):
        table = setting(scale, "mnist", layout, "imbalanced")
        if scale == "small":
            table["partition"].pop("fraction")
            table |= {"stop": {"rounds": 200}, "seeds": [0]}
        found += [Cell.of(label, column("mnist", layout, "imbalanced"), table, m) for label, m in METHODS.items()]
    return found


register(
    TABLE5,
    replace(
        TABLE5,
        name="phefl/long",
        title="accuracy and stability on MNIST with all data and 200 rounds",
        cells=cells_long,
        measures={name: TABLE5.measures[name] for name in ("acc", "drop")},
        published={row: {c: figures[c] for c in LONG} for row, figures in TABLE5.published.items()},
        notes=(*NOTES, "phefl/long: at small a LeNet, all training data, 200 rounds of 5 epochs, 1 seed."),
    ),
    TABLE5.reread(
        "fig3",
        "accuracy over rounds of the three methods",
        measures={"last": Metric("accuracy after the last round (%)", lambda run: 100 * last(run, "acc_edge"))},
        published={},
        notes=(*NOTES, "The paper's figure has no numbers; the curves are in curves.csv and in the report."),
        curves=("acc_edge",),
    ),
)


BEST_AND_LATE = {
    "best": Metric("best accuracy (%)", lambda run: float(curve(run).max())),
    "late": Metric("mean accuracy of the last fifth of the rounds (%)", read_late),
}


def cells_fig4(scale: Scale) -> list[Cell]:
    """Return Figure 4's variants of one column of Table V: fewer devices, smaller batches, rarer averages."""

    def varied(
        row: str, name: str, method: Mapping[str, Any], devices: int = 100, each: int = 1, **training: Any
    ) -> Cell:
        table = setting(scale, "mnist", "D2", "imbalanced", **training)
        table["fleet"] = {"devices": devices, "edges": 10}
        table["stop"] = {"rounds": max(2, table["stop"]["rounds"] // each)}
        return Cell.of(row, name, table, method)

    found = [varied(label, column("mnist", "D2", "imbalanced"), method) for label, method in METHODS.items()]
    found += [varied(label, "5 devices per edge", method, devices=50) for label, method in METHODS.items()]
    found.append(varied("PHE-FL", "batch 10", METHODS["PHE-FL"], batch_size=10))
    for name, option in (("edge averages every 5", "edge_every"), ("personal models every 5", "cloud_every")):
        found.append(varied("PHE-FL", name, {**METHODS["PHE-FL"], option: 5}, each=5))
    return found


register(
    Study(
        name="phefl/fig4",
        title="PHE-FL with fewer devices, smaller batches and rarer edge averages (MNIST, D2)",
        cells=cells_fig4,
        measures=BEST_AND_LATE,
        notes=(
            *NOTES,
            "The paper's figure has no numbers; it says that none of the three makes a notable difference.",
            "Edge averages every 5 rounds are the paper's words, personal models every 5 edge averages what the "
            "authors' code does; a round is then five of the others', and there are a fifth as many, so that curves "
            "which have not levelled off say nothing of the claim: at small (12 rounds) it is not tested.",
            "The first column is Table V's: its runs are reused if the two studies share a directory (--out).",
        ),
        curves=("acc_edge",),
    )
)


def cells_options(scale: Scale) -> list[Cell]:
    """Return PHE-FL beside its own options: alpha by loss, by body and head, and servers that choose too."""
    ways: Mapping[str, Mapping[str, Any]] = {
        "PHE-FL": METHODS["PHE-FL"],
        "alpha by loss": {"name": "phefl", "by": "loss"},
        "alpha for body and head": {"name": "phefl", "layers": "head_body"},
    }
    found = []
    for layout in ("D2",) if scale == "smoke" else ("D1", "D2", "D3", "D4"):
        table, where = setting(scale, "mnist", layout, "imbalanced"), column("mnist", layout, "imbalanced")
        found += [Cell.of(row, where, table, method) for row, method in ways.items()]
    for row, who in (("PHE-FL", "edge"), ("servers choose too", "all")):
        table = setting(scale, "mnist", "D2", "imbalanced")
        table["fleet"] = {**table["fleet"], "tiers": [4, 2]}
        found.append(Cell.of(row, "D2 with two tiers of servers", table, {"name": "phefl", "tiers": who}))
    return found


register(
    Study(
        name="phefl/options",
        title="PHE-FL beside its options beyond the paper (MNIST)",
        cells=cells_options,
        measures=BEST_AND_LATE,
        notes=(*NOTES[:3], "PHE-FL's own runs are Table V's, reused if the two studies share a directory (--out)."),
        curves=("acc_edge",),
    )
)
