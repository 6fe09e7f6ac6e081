"""CFLHKD's Tables 1 to 8 and Figures 4 to 7: nine methods, standing still and under drift, and CFLHKD's own parts.

Ahmad, Kanatbekova, Brandić, Aral. Clustered Federated Learning with Hierarchical Knowledge Distillation.

Tables 2 and 3 of the paper are parts of its Tables 7 and 8: ``cflhkd/table2`` and ``cflhkd/table7`` are one study under
two names, as are ``table3`` and ``table8``. Table 1 and Figure 4 share runs if they share a directory (``--out``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from espalier.methods.cflhkd import measures
from espalier.methods.cflhkd.settings import DATA, NOTES, Data, ablations, cell, methods, readings
from espalier.study.base import Cell, Figures, Metric, Scale, Study, last, published, register
from espalier.study.results import Results

#: what a column of the second protocol is called after its dataset
EXCHANGED = ", exchange"
ACCURACY = Metric("accuracy (%)", measures.accuracy)
GLOBAL = Metric("global model (%)", measures.common)
COMM = Metric("edge–cloud (GB)", measures.sent, lower=True, digits=3)
TIME = Metric("time to convergence (min)", measures.minutes, lower=True, digits=1)
CLUSTERS = Metric("clusters", lambda run: last(run, "groups"), digits=1, ranked=False)
#: how often the limit decided, clusters were split, and the first ones were cut from a dendrogram
CLUSTERING = {"clustering": measures.decided}
DECIDED = {"clustering": "what decided the clusters (means per clustering)"}
OVERALL: Mapping[str, Metric] = {"accuracy": ACCURACY, "global": GLOBAL, "comm": COMM, "time": TIME}
UNDER_DRIFT: Mapping[str, Metric] = {
    "drop": Metric("fall (points)", measures.fall, lower=True),
    "recovery": Metric("recovery (rounds)", measures.recovery, lower=True, digits=1),
    "left": Metric("end against before (points)", measures.left),
}


def grid(scale: Scale, rows: Mapping[str, Mapping[str, Any]]) -> list[Cell]:
    """Return every row under every dataset of a scale."""
    return [
        cell(scale, row, column, data, method) for column, data in DATA[scale].items() for row, method in rows.items()
    ]


def under_drift(scale: Scale) -> list[Cell]:
    """Return every method under every dataset and protocol of drift."""
    return [
        cell(scale, row, column + protocol, data, method, drift)
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
        cell(scale, f"{v:g}", name, data, {"name": "cflhkd", option: v, "label": f"{option} = {v:g}"})
        for name, data in table.items()
        for v in values
    ]


def lead(results: Results) -> list[str]:
    """Say where CFLHKD stands against the best of the others (of the paper's own rows)."""
    out = []
    for column in results.columns:
        rows = [r for r in results.study.published if (r, column) in results.cells and r != "CFLHKD"]
        others = {r: results.mean(r, column, "accuracy") for r in rows}
        if not others or ("CFLHKD", column) not in results.cells:
            continue
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
            cells.append(cell(scale, row, f"{name}, {count} clusters", fleet, rows[row]))
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
        cells += [cell(scale, row, f"{name}, {count} per cluster", fleet, method) for row, method in rows.items()]
    return cells


def few(scale: Scale, *rows: str) -> list[Cell]:
    """Return some methods on HAM10000 (or what a scale has in its place)."""
    name, data = stand_in(scale, "HAM10000")
    return [cell(scale, row, name, data, methods(scale)[row]) for row in rows]


register(
    Study(
        "cflhkd/table1", "nine methods, data that stand still", lambda scale: grid(scale, methods(scale)), OVERALL,
        published(__package__, "table1"), NOTES, lead, facts=CLUSTERING, shown_facts=DECIDED,
    )
)  # fmt: skip
for _name in ("cflhkd/table2", "cflhkd/table7"):
    register(
        Study(
            _name, "nine methods when labels drift", under_drift, UNDER_DRIFT, published_drift(), NOTES, never,
            facts={"recovered": measures.recovered}, runs_of="" if _name == "cflhkd/table2" else "cflhkd/table2",
        )
    )  # fmt: skip
for _name in ("cflhkd/table3", "cflhkd/table8"):
    register(
        Study(
            _name, "what CFLHKD's parts contribute", lambda scale: grid(scale, ablations()), OVERALL,
            published(__package__, "table8"), NOTES, parts,
            facts=CLUSTERING, shown_facts=DECIDED, runs_of="" if _name == "cflhkd/table3" else "cflhkd/table3",
        )
    )  # fmt: skip
register(
    Study(
        "cflhkd/table4", "the pull towards the common model (lambda)",
        lambda scale: sweep(scale, "lam0", (0.0, 0.1, 0.5), "Cityscapes", "MNIST"), {"accuracy": ACCURACY},
        published(__package__, "table4"), NOTES,
    ),
    Study(
        "cflhkd/table5", "data against models in affinities (gamma)",
        lambda scale: sweep(scale, "gamma", (0.0, 0.5, 1.0), "Cityscapes", "MNIST"), {"accuracy": ACCURACY},
        published(__package__, "table5"), NOTES,
    ),
    Study(
        "cflhkd/table6", "the clustering threshold (the paper's phi, our delta)",
        lambda scale: sweep(scale, "delta", (0.3, 0.7, 0.9), "CIFAR-10"),
        {
            "accuracy": ACCURACY,
            "first": Metric("clusters at first", measures.first_clusters, digits=1, ranked=False),
            "final": replace(CLUSTERS, title="clusters at last"),
        },
        published(__package__, "table6"), NOTES, facts=CLUSTERING, shown_facts=DECIDED,
    ),
    Study(
        "cflhkd/readings", "what else the paper's text may mean",
        lambda scale: [
            cell(scale, row, name, data, method)
            for name, data in (stand_in(scale, "MNIST"),)
            for row, method in readings(scale).items()
        ],
        {**OVERALL, "clusters": CLUSTERS}, {}, NOTES, facts=CLUSTERING, shown_facts=DECIDED,
    ),
    Study(
        "cflhkd/fig4", "accuracy over time, and how far clusters are apart",
        lambda scale: few(scale, "CFLHKD", "IFCA", "FL+HC", "HierFAVG", "FedAvg"),
        {"accuracy": ACCURACY, "gap": Metric("best less worst cluster (points)", measures.gap, lower=True)},
        {
            r: {"HAM10000": {"accuracy": published(__package__, "table1")[r]["HAM10000"]["accuracy"]}}
            for r in ("CFLHKD", "IFCA", "FL+HC")
        },
        NOTES, curves=("acc_device", "acc_global"),
    ),
    Study(
        "cflhkd/fig5", "how alike the clusters' models are", lambda scale: few(scale, "CFLHKD", "CFL"),
        {
            "likeness": Metric("mean cosine between clusters' models", measures.likeness, digits=3, ranked=False),
            "clusters": CLUSTERS,
            "accuracy": ACCURACY,
        },
        {}, (*NOTES, "The paper shows a picture and no figure. NaN: CFL has not split."),
    ),
    Study(
        "cflhkd/fig6", "more clusters on one fleet", figure6, {"accuracy": ACCURACY, "global": GLOBAL},
        published(__package__, "fig6"),
        (*NOTES, "The paper does not name the dataset; its text gives two figures, which are HierFAVG's."),
    ),
    Study(
        "cflhkd/fig7", "more devices per cluster", figure7, {"accuracy": ACCURACY},
        published(__package__, "fig7"),
        (*NOTES, "Every device has the same number of samples at most, so that a denser cluster has more data."),
    ),
)  # fmt: skip
