"""EASF's Tables I to VI and Figures 4 to 9: trees that devices build themselves, in a world that never stands still.

Xu, Sun, Cui, Qi, Bilal, Dou, Cai, Crowcroft. Dynamic Optimization of Edge Aggregation Structures and Update
Frequencies for Efficient Distributed Hierarchical Model Training. IEEE Transactions on Mobile Computing.

Tables I, II and V and Figures 5 and 6 read the same runs, as do Tables III and IV and Figure 7, and Table VI and
Figure 9. How nodes spend their time (Table V), and what the paper's analysis is about, is read off a run's record.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from espalier.core.seeds import stream
from espalier.methods.easf.dsf.messages import STATISTIC_EVENT
from espalier.methods.easf.settings import ABLATION, BESIDE, METHODS, NOTES, STRUCTURES, WORKS, GraphKind, cell
from espalier.methods.easf.theory import DISCREPANCY_EVENT, label_correlation
from espalier.record.run import Run
from espalier.study.base import Cell, Metric, Scale, Study, best, published, reached, register
from espalier.study.results import Results

Interval = tuple[float, float]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Return disjoint intervals that cover the same time, ascending."""
    found: list[Interval] = []
    for start, stop in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        else:
            found.append((start, stop))
    return found


def within(intervals: Iterable[Interval], window: Interval) -> float:
    """Return the seconds of disjoint intervals that lie in a window."""
    return sum(max(0.0, min(stop, window[1]) - max(start, window[0])) for start, stop in intervals)


def closings(run: Run) -> list[float]:
    """Return when the root's rounds closed, as far as they were evaluated (each, if not said otherwise)."""
    return [t for (t,) in run.query("SELECT min(time) FROM metrics WHERE round > 0 GROUP BY round ORDER BY round")]


def seconds_per_round(run: Run) -> float:
    """Return the mean seconds of a root's round (NaN if none closed)."""
    found = closings(run)
    return found[-1] / len(found) if found else float("nan")


def shares(run: Run) -> tuple[float, float, float]:
    """Return a device's mean shares of time: training, transmitting, waiting.

    Of the root's rounds only those count in which a device took part from end to end: it was there all the while and
    trained. Who trains while one of its messages is under way trains; several messages at once count once.
    """
    ends = closings(run)
    windows = list(zip([0.0, *ends], ends, strict=False))
    training: dict[int, list[Interval]] = {}
    carrying: dict[int, list[Interval]] = {}
    for node, kind, start, stop, other in run.query("SELECT node, kind, start, stop, other FROM spans"):
        if kind == "train":
            training.setdefault(node, []).append((start, stop))
        elif kind == "send":
            for end in (node, other):
                carrying.setdefault(end, []).append((start, stop))
    steps: dict[int, list[float]] = {}
    for kind in ("gone", "came"):
        for event in run.events(kind):
            steps.setdefault(event["node"], []).append(event["time"])
    totals = [0.0, 0.0, 0.0]
    for device, spans in training.items():
        works = merged(spans)
        busy = merged([*works, *carrying.get(device, [])])
        changes = sorted(steps.get(device, []))
        for window in windows:
            trained = within(works, window)
            there = bisect.bisect(changes, window[0]) == bisect.bisect(changes, window[1])
            if trained > 0 and there:
                occupied, length = within(busy, window), window[1] - window[0]
                for i, value in enumerate((trained, occupied - trained, length - occupied)):
                    totals[i] += value
    whole = sum(totals)
    if whole == 0:
        return (float("nan"),) * 3
    return totals[0] / whole, totals[1] / whole, totals[2] / whole


def balance_correlation(run: Run) -> float | None:
    """Return how far the distances that DSF lowers go with distances in labels (None: the run does not balance)."""
    deltas = {int(event["node"]): event["values"] for event in run.events(STATISTIC_EVENT)}
    if not deltas:
        return None
    counts = {int(d): np.frombuffer(raw, "<i4") for d, raw in run.query("SELECT node, histogram FROM devices")}
    labels = [counts[d] / counts[d].sum() for d in sorted(deltas)]
    found = label_correlation([deltas[d] for d in sorted(deltas)], labels, stream(run.seed, "label_correlation"))
    return None if np.isnan(found) else round(found, 4)


def mean_discrepancy(run: Run) -> float | None:
    """Return the mean over the root's rounds of Δ_r, Eq. (15)."""
    found = [float(event["value"]) for event in run.events(DISCREPANCY_EVENT)]
    return float(np.mean(found)) if found else None


#: numbers of devices of Tables I and II
DEVICES = (30, 60, 100, 150, 200)
#: classes per device of Tables III and IV, and of Table VI
CLASSES, ABLATION_CLASSES = (4, 8, 16, 47), (6, 10)
#: accuracies whose first exceeding Tables II and IV time, by dataset; what the small scales can reach
TARGETS: Mapping[str, float] = {"mnist": 0.68, "emnist": 0.44, "digits": 0.3}
#: the devices of Table V and of Table VI, which the paper does not tell: those of Tables I (the middle) and III
SHARED, ABLATED = 100, 50


def time_to(run: Run) -> float:
    """Return the virtual seconds until the root's model first reached the table's accuracy (NaN: never)."""
    return reached(run, TARGETS[run.experiment["task"]["dataset"]], "acc_global")


ACCURACY = Metric("highest accuracy", lambda run: best(run, "acc_global"), digits=4)
TIME = Metric("time to accuracy (s)", time_to, lower=True, never="seconds")
#: kept of each run: whether what DSF balances tells of labels, and what it does to the clusters' models
FACTS = {"label_correlation": balance_correlation, "delta_r": mean_discrepancy}
SHOWN_FACTS = {"label_correlation": "δ against labels (correlation)", "delta_r": "Δ_r (Eq. 15)"}
LENGTH = Metric("seconds per round", seconds_per_round, lower=True)


def comparison(scale: Scale, numbers: Sequence[int] | None = None, graph: GraphKind = "random") -> list[Cell]:
    """Return the four methods on MNIST with different numbers of devices (Tables I, II, V)."""
    known = {"smoke": (8, 12), "small": (30, 60), "full": DEVICES}[scale]
    return [
        cell(scale, row, f"{n} devices", method, "MNIST", devices=n, classes=2, seconds=250, graph=graph)
        for n in numbers or known
        for row, method in METHODS.items()
    ]


def distributions(scale: Scale) -> list[Cell]:
    """Return the four methods on EMNIST with different numbers of classes per device (Tables III, IV)."""
    known = {"smoke": (4, 8), "small": (4, 47), "full": CLASSES}[scale]
    return [
        cell(scale, row, f"{k} classes", method, "EMNIST", devices=50, classes=k, seconds=500)
        for k in known
        for row, method in METHODS.items()
    ]


def ablation(scale: Scale) -> list[Cell]:
    """Return the eight sets of Table VI, and what is run beside them."""
    return [
        cell(scale, row, f"{k} classes", method, "EMNIST", devices=ABLATED, classes=k, seconds=400)
        for k in (ABLATION_CLASSES[:1] if scale == "smoke" else ABLATION_CLASSES)
        for row, method in {**ABLATION, **BESIDE}.items()
    ]


def structures(scale: Scale) -> list[Cell]:
    """Return DSF and KMA, each with AAF and RAF, in a relatively stable world (Figure 4)."""
    conditions = [
        ("MNIST", 40, 2, 250), ("MNIST", 80, 2, 250), ("EMNIST", 60, 10, 500), ("EMNIST", 60, 15, 500),
    ]  # fmt: skip
    return [
        cell(
            scale, row, f"{task} {n} devices {k} classes", method, task,
            devices=n, classes=k, seconds=seconds, stable=True,
        )
        for task, n, k, seconds in (conditions[:1] if scale == "smoke" else conditions)
        for row, method in STRUCTURES.items()
    ]  # fmt: skip


def case_study(scale: Scale, names: Sequence[str]) -> list[Cell]:
    """Return the four methods with the models and datasets of the case study (Figure 8)."""
    return [
        cell(scale, row, name, method, name, devices=30, classes=5, seconds=250, case_study=True)
        for name in (names[:1] if scale == "smoke" else names)
        for row, method in METHODS.items()
    ]


# -- what is said of them ------------------------------------------------------------------------------------


def lead(results: Results) -> list[str]:
    """Say how far EASF is ahead of the best of the paper's others, here and there."""
    name = next(iter(results.study.measures))
    lower, digits = results.study.measures[name].lower, results.study.measures[name].digits
    out = []
    for column in results.columns:
        gaps = []
        for read in (results.mean, results.published):
            others = [v for r in METHODS if r != "EASF" and (v := read(r, column, name)) == v]
            ours = read("EASF", column, name)
            gaps.append((min(others) - ours if lower else ours - max(others)) if others else float("nan"))
        if gaps[0] == gaps[0]:
            out.append(
                f"{column}: EASF is {gaps[0]:+.{digits}f} ahead of the best other (paper: {gaps[1]:+.{digits}f})."
            )
    return out


def parts(results: Results) -> list[str]:
    """Say what each of the three modules adds on average over the four pairs of sets that differ in it."""
    pairs = {
        "DSF": (("#1", "#2"), ("#3", "#5"), ("#4", "#6"), ("#7", "#8")),
        "AAF": (("#1", "#3"), ("#2", "#5"), ("#4", "#7"), ("#6", "#8")),
        "abandonment": (("#1", "#4"), ("#2", "#6"), ("#3", "#7"), ("#5", "#8")),
    }
    out = []
    for column in results.columns:
        for module, sets in pairs.items():
            ours, theirs = (
                sum(read(b, column, "accuracy") - read(a, column, "accuracy") for a, b in sets) / len(sets)
                for read in (results.mean, results.published)
            )
            if ours == ours:
                out.append(f"{column}: {module} adds {ours:+.4f} on average over four pairs (paper: {theirs:+.4f}).")
    return out


NAMES = tuple(name for name in WORKS if ";" in name)
NO_NUMBERS = "The paper's figure has no numbers; the curves are in curves.csv and in the report."

#: what all studies with runs of their own have
BASE: Mapping[str, Any] = {"measures": {"accuracy": ACCURACY}, "facts": FACTS, "shown_facts": SHOWN_FACTS}
CURVES: Mapping[str, Any] = {"notes": (*NOTES, NO_NUMBERS), "curves": ("acc_global",)}

TABLE1 = Study(
    name="easf/table1",
    title="highest accuracy within 250 s with different numbers of devices on MNIST",
    cells=comparison,
    published=published(__package__, "table1"),
    notes=NOTES,
    comment=lead,
    **BASE,
)
TABLE3 = Study(
    name="easf/table3",
    title="highest accuracy within 500 s with different sample distributions on EMNIST",
    cells=distributions,
    published=published(__package__, "table3"),
    notes=NOTES,
    comment=lead,
    **BASE,
)
TABLE6 = Study(
    name="easf/table6",
    title="EASF without DSF, AAF, abandonment: highest accuracy within 400 s on EMNIST",
    cells=ablation,
    published=published(__package__, "table6"),
    notes=(
        *NOTES,
        "#1 none, #2 DSF, #3 AAF, #4 abandonment, #5 DSF and AAF, #6 DSF and abandonment, #7 AAF and abandonment, "
        f"#8 all. The paper does not say for how many devices; here {ABLATED}, as in Table III.",
        "Beside them: #8 with δ (Eq. 8) from true label shares, and from the classes that pre-trained models "
        "answer with; #3 and #7 whose clusters forget frequencies whenever a member comes or goes, as the paper "
        "says of training without DSF (#3 and #7 themselves keep them).",
    ),
    comment=parts,
    **BASE,
)
register(
    TABLE1,
    replace(
        TABLE1,
        name="easf/table1_geometric",
        title=f"{TABLE1.title}, geometric graph",
        cells=lambda scale: comparison(scale, graph="geometric"),
    ),
    TABLE1.reread(
        "table2",
        "time until an accuracy of 0.68 with different numbers of devices on MNIST",
        measures={"time": TIME},
        published=published(__package__, "table2"),
        comment=lead,
    ),
    TABLE3,
    TABLE3.reread(
        "table4",
        "time until an accuracy of 0.44 with different sample distributions on EMNIST",
        measures={"time": TIME},
        published=published(__package__, "table4"),
        comment=lead,
    ),
    TABLE1.reread(
        "table5",
        "a node's time in training, transmission and waiting, CNN on MNIST",
        cells=lambda scale: comparison(scale, {"smoke": (12,), "small": (60,), "full": (SHARED,)}[scale]),
        measures={
            "training": Metric("training (%)", lambda run: 100 * shares(run)[0], digits=1),
            "transmission": Metric("transmission (%)", lambda run: 100 * shares(run)[1], lower=True, digits=1),
            "waiting": Metric("waiting (%)", lambda run: 100 * shares(run)[2], lower=True, digits=1),
        },
        published=published(__package__, "table5"),
        notes=(*NOTES, f"The paper does not say for how many devices; here {SHARED}."),
    ),
    TABLE6,
    Study(
        name="easf/fig4",
        title="DSF and KMA with AAF and RAF in a relatively stable world",
        cells=structures,
        notes=(*NOTES, NO_NUMBERS, "It shows DSF above KMA with either frequency."),
        curves=("acc_global",),
        **{**BASE, "measures": {"accuracy": ACCURACY, "length": LENGTH}},
    ),
    TABLE1.reread("fig5", "accuracy over time with different numbers of devices on MNIST", **CURVES),
    TABLE1.reread(
        "fig6",
        "mean duration of a round with different numbers of devices on MNIST",
        measures={"length": LENGTH},
        published={},
        notes=(*NOTES, "The paper's figure has no numbers; it shows KMA-RAF's rounds longest, EASF's and Syn's alike."),
    ),
    TABLE3.reread("fig7", "accuracy over time with different sample distributions on EMNIST", **CURVES),
    Study(
        name="easf/fig8",
        title="the case study: four models on MNIST and 20 newsgroups, half the devices may not aggregate",
        cells=lambda scale: case_study(scale, NAMES[:-1]),
        measures={"accuracy": ACCURACY},
        notes=(*NOTES, NO_NUMBERS, "ResNet-18 on ImageNet-10 is easf/fig8_resnet."),
        curves=("acc_global",),
        comment=lead,
    ),
    Study(
        name="easf/fig8_resnet",
        title="the case study: ResNet-18 on ImageNet-10 (whose files you must have)",
        cells=lambda scale: case_study(scale, NAMES[-1:]),
        measures={"accuracy": ACCURACY},
        notes=(*NOTES, NO_NUMBERS, "Batch normalisation is replaced by group normalisation; images are 64×64."),
        curves=("acc_global",),
        comment=lead,
    ),
    TABLE6.reread("fig9", "accuracy over time of EASF without DSF, AAF, abandonment on EMNIST", **CURVES),
)
