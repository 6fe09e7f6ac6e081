"""Trellis beside every method of the five papers, each in its paper's headline setting, under equal serving.

Settings are the papers' own, taken from their studies; ``small`` shrinks them further. A label prior changes no
training, so every run is evaluated twice, as the method serves and with label priors: what is won by serving is not
booked on the rest. Trellis also runs without each of its other parts. Where a paper's fleet has no given tree (EASF,
D2D), "Trellis" is its parts on the tree which that paper's own method grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from espalier.experiment import Experiment, MethodEntry
from espalier.methods.cflhkd.measures import shocks
from espalier.methods.trellis.method import Trellis
from espalier.record.run import Run
from espalier.study.base import (
    Cell,
    Metric,
    MoreRows,
    Scale,
    Study,
    add_rows,
    final_time,
    method_row,
    notes,
    reached,
    register,
    study,
    tail,
)
from espalier.study.results import Results

#: how the study and its page are called, whatever the package
PAPER = "espalier"
OURS = "Trellis"
#: times the bytes and the virtual time of the method whose tree it has that Trellis may take
MOST_COST = 1.2
SEEDS: Mapping[Scale, Sequence[int]] = {"smoke": (0,), "small": range(100, 110), "full": (0, 1, 2)}
#: one method has one name here, though the papers spell it in two ways
SPELT: Mapping[str, str] = {"FedAVG": "FedAvg", "HierFedAVG": "HierFAVG"}
#: parts that can be taken out one by one, where they act; the prior needs no runs of its own
PARTS: Mapping[str, Any] = {"momentum": {"beta": 0.0}, "late work": {"semi_async": False}, "alert": {"alert": 0.0}}


@dataclass(frozen=True)
class Headline:
    """A paper's headline setting.

    Attributes:
        study: Its study there.
        column: The study's column.
        tree: The row whose tree Trellis has, and whose bytes and time are its measure.
        target: Accuracy of the global model whose first reaching is timed, at small (``smoke`` and ``full`` alike).
        begins: The scale of the paper's study that small begins with, in the column of that scale.
        smaller: The study's column at smoke and small, where that is another.
        answers: The scale of the paper's study that full has: the one at which that paper's claims are judged.
        changes: What small changes there.
        rounds: By what small multiplies its rounds (or seconds).
        options: Trellis's where the tree is given; None: its parts go onto the tree of ``tree``'s method.
        without: Parts without which Trellis also runs there.
        noise: Run-time noise put into the setting, so that late work matters: its logarithm's standard deviation.
        rows: The published rows that are run there, as the paper spells them; None: all.
    """

    study: str
    column: str
    tree: str
    target: float
    smaller: str = ""
    begins: Scale = "small"
    answers: Scale = "small"
    changes: Mapping[str, Any] = field(default_factory=dict)
    rounds: float = 1.0
    options: Mapping[str, Any] | None = None
    without: Sequence[str] = ("momentum",)
    noise: float = 0.0
    rows: Sequence[str] | None = None


_CSAHFL_SMALL: Mapping[str, Any] = {
    "fleet": {"devices": 25, "fraction": 0.4},
    "partition": {"samples_per_device": 80},
    "training": {"updates": 5, "lr": 0.03},
    "world": {"compute": {"epochs": 5}},
}
_CFLHKD: Mapping[str, Any] = {"kappa2": 4, "clock": "edge"}
HEADLINES: Mapping[str, Headline] = {
    **{
        f"CSAHFL {skew}": Headline(
            "csahfl/table1", f"Fashion-MNIST {skew} p_s=1", "HierFAVG", 0.5, changes=_CSAHFL_SMALL,
            rounds=12 / 50, options={"kappa2": 3},
        )
        for skew in ("EIID", "ENIID30%")
    },
    "CSAHFL EIID, noisy": Headline(
        "csahfl/table1", "Fashion-MNIST EIID p_s=1", "HierFAVG", 0.5,
        changes=_CSAHFL_SMALL, rounds=12 / 50, options={"kappa2": 3}, noise=0.5, without=("late work",),
        rows=("HierFedAVG",),
    ),
    "EASF": Headline(
        "easf/table1", "100 devices", "EASF", 0.5, smaller="12 devices",
        begins="smoke", answers="full", changes={"fleet": {"devices": 30}}, rounds=6.0,
    ),
    "CFLHKD": Headline("cflhkd/table1", "MNIST", "HierFAVG", 0.8, smaller="digits", options=_CFLHKD),
    **{
        f"CFLHKD {drift}": Headline(
            "cflhkd/table2", f"MNIST{kind}", "HierFAVG", 0.8, smaller=f"digits{kind}", options=_CFLHKD,
            without=("momentum", "alert"),
        )
        for drift, kind in (("drift", ", exchange"), ("new labels", ""))
    },
    "PHE-FL D3": Headline(
        "phefl/table5", "mnist D3 imbalanced", "EdgeCloud", 0.5,
        begins="smoke", changes={"training": {"updates": 5}}, rounds=5.0, options={"clock": "edge"},
    ),
    "D2D": Headline("d2d/table7", "σ=750 I_c=4", "Solution 1.1", 0.25, begins="smoke", answers="full", rounds=6.0),
}  # fmt: skip

#: the papers' tables in which Trellis has a row, with the row whose tree it has there and its options
BESIDE: Mapping[str, tuple[str, Mapping[str, Any] | None]] = {
    **{f"csahfl/table{n}": ("HierFedAVG", {"kappa2": 3}) for n in (1, 2)},
    **{f"easf/table{n}": ("EASF", None) for n in (1, 2)},
    "d2d/table7": ("Solution 1.1", None),
    **{f"cflhkd/table{n}": ("HierFAVG", _CFLHKD) for n in (1, 2, 7)},
    "phefl/table5": ("EdgeCloud", {"clock": "edge"}),
}

NOTES = (
    *notes(__package__),
    "Times to a target are of the global model: "
    + ", ".join(f"{column} {100 * found.target:g} %" for column, found in HEADLINES.items())
    + ". Rounds until devices are back after the drift are counted under the better serving.",
)


def changed(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with the values of another in place of its own, table by table."""
    found = dict(table)
    for key, value in changes.items():
        found[key] = changed(found.get(key, {}), value) if isinstance(value, Mapping) else value
    return found


def ours(options: Mapping[str, Any] | None, table: Mapping[str, Any], **change: Any) -> dict[str, Any]:
    """Return Trellis with a change, for the fleet on which a published method's table runs.

    ``options`` are its own where the tree is given; None: its parts go onto the tree of that method.
    """
    if options is None:
        merge = {"kind": "momentum", "beta": Trellis().beta, "look_ahead": True, "warm_up": True, **change}
        return {**table, "root": {"merge": merge}}
    return {"name": "trellis", "prior": "none", **options, **change}


def variants(known: Headline, table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return Trellis and Trellis without each part that may act."""
    changes: dict[str, Mapping[str, Any]] = {OURS: {}} | {f"w/o {part}": PARTS[part] for part in known.without}
    return {row: ours(known.options, table, **change) for row, change in changes.items()}


def setting(scale: Scale, column: str, cell: Cell, table: Mapping[str, Any], row: str) -> Experiment:
    """Return a row's runs in the setting of a published method's cell."""
    known, base = HEADLINES[column], cell.experiment.to_plain()
    if scale == "small":
        base = changed(base, known.changes)
        base["stop"] = {
            name: known.rounds * value if name == "seconds" else round(known.rounds * value)
            for name, value in base["stop"].items()
            if name in ("rounds", "seconds") and value is not None
        }
    if known.noise:
        base["world"]["compute"] = {"kind": "noise", "sigma": known.noise, "of": base["world"]["compute"]}
    base["evaluate"] = {**base.get("evaluate", {}), "prior": True}
    # the answer to drift was made after runs under the other seeds had been seen
    seeds = range(200, 210) if scale == "small" and "alert" in known.without else SEEDS[scale]
    base |= {"name": f"everywhere {column}", "methods": [{**table, "label": row}], "seeds": list(seeds)}
    return Experiment.build(base)


def cells(scale: Scale) -> list[Cell]:
    """Return every method, and Trellis with its ablations, in every headline setting."""
    made = []
    for column, known in HEADLINES.items():
        at = {"small": known.begins, "full": known.answers}.get(scale, scale)
        there = known.column if scale == "full" else known.smaller or known.column
        published = (c for c in study(known.study).cells(at) if c.column == there and c.row != OURS)
        named = {SPELT.get(c.row, c.row): c for c in published if known.rows is None or c.row in known.rows}
        for row, cell in named.items():
            until = None if cell.until is None else (SPELT.get(cell.until[0], cell.until[0]), column)
            made.append(Cell(row, column, setting(scale, column, cell, _method(cell), row), until))
        for row, table in variants(known, _method(named[known.tree])).items():
            made.append(Cell(row, column, setting(scale, column, named[known.tree], table, row)))
    return made


def _method(cell: Cell) -> dict[str, Any]:
    found: dict[str, Any] = cell.experiment.to_plain()["methods"][0]
    return {key: value for key, value in found.items() if key != "label"}


def beside(tree: str, options: Mapping[str, Any] | None) -> MoreRows:
    """Return what makes Trellis's row in a paper's table: without label priors, as the rows there are."""

    def rows(own: Sequence[Cell]) -> list[Cell]:
        entry = MethodEntry.build({**ours(options, _method(next(c for c in own if c.row == tree))), "label": OURS})
        return list(method_row(entry, tree)(own))

    return rows


for _name, (_tree, _options) in BESIDE.items():
    add_rows(_name, beside(_tree, _options))

# -- what is read off the runs --------------------------------------------------------------------------------


def percent(run: Run, *names: str) -> float:
    """Return the best of some metrics at the end, mean of the last evaluations, in percent (NaN: there is none)."""
    values = [100 * tail(run, name) for name in names]
    return max((v for v in values if v == v), default=float("nan"))


def time_to_target(run: Run) -> float:
    """Return the virtual seconds until the global model reached its setting's target (NaN: never)."""
    return reached(run, HEADLINES[run.experiment["name"].removeprefix("everywhere ")].target, "acc_global")


def rounds_back(run: Run) -> float:
    """Return the rounds until devices were back after the drift; all that were left, if never (NaN: no drift)."""
    served = "acc_device" if tail(run, "acc_device") >= tail(run, "acc_device_prior") else "acc_device_prior"
    found = shocks(run, served)
    if not found:
        return float("nan")
    return float(run.rounds - found[0].round if found[0].recovery is None else found[0].recovery)


def after_drift(run: Run) -> float:
    """Return devices' accuracy in the first five rounds after the drift, under the better serving, in percent."""
    found = shocks(run)
    if not found:
        return float("nan")
    frame = run.frame()
    near = frame[(frame["round"] >= found[0].round) & (frame["round"] < found[0].round + 5)]
    return 100 * max(float(near[name].mean()) for name in ("acc_device", "acc_device_prior"))


def megabytes(run: Run) -> float:
    """Return what was sent in a run, in MB."""
    frame = run.frame()
    return float(frame["bytes"].iloc[-1]) / 1e6 if "bytes" in frame else float("nan")


def costs(results: Results) -> list[str]:
    """Say what Trellis sends and takes relative to the method whose tree it has."""
    out = []
    for column in results.columns:
        tree = HEADLINES[column].tree
        if (OURS, column) not in results.cells or (tree, column) not in results.cells:
            continue
        sent, time = (
            results.mean(OURS, column, measure) / results.mean(tree, column, measure)
            for measure in ("bytes", "seconds")
        )
        kept = "within" if max(sent, time) <= MOST_COST else "beyond"
        out.append(
            f"{column}: Trellis sends {sent:.2f} times what {tree} sends, in {time:.2f} times its virtual time: {kept} "
            f"the bound of {MOST_COST}."
        )
    return out


register(
    Study(
        name="espalier/everywhere",
        title="Trellis and all methods of the five papers in their headline settings, with and without label priors",
        cells=cells,
        measures={
            "global": Metric("global model (%)", lambda run: percent(run, "acc_global")),
            "edge": Metric("edges, as the method serves (%)", lambda run: percent(run, "acc_edge")),
            "edge_best": Metric("edges, better serving (%)", lambda run: percent(run, "acc_edge", "acc_edge_prior")),
            "device": Metric("devices, as the method serves (%)", lambda run: percent(run, "acc_device")),
            "device_best": Metric(
                "devices, better serving (%)", lambda run: percent(run, "acc_device", "acc_device_prior")
            ),
            "target": Metric("time to target (s)", time_to_target, lower=True, digits=0, never="seconds"),
            "back": Metric("back after drift (rounds)", rounds_back, lower=True, digits=1),
            "after": Metric("devices, first five rounds after drift (%)", after_drift),
            "bytes": Metric("sent (MB)", megabytes, lower=True, digits=1),
            "seconds": Metric("virtual time (s)", final_time, lower=True, digits=0),
        },
        notes=NOTES,
        comment=costs,
    )
)
