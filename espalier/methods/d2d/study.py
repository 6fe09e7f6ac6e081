"""Tables 6 to 12 of the D2D paper: benchmarks, theory beside practice, solutions, features.

Wu, Boban, Dressler, Hierarchical Federated Learning in Device-to-Device Networks with Learning-Topology
Co-Optimization, IEEE Transactions on Mobile Computing, 2026.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.interpolate import PchipInterpolator

from espalier.core.errors import RunError
from espalier.methods.d2d.settings import (
    DISTRIBUTIONS,
    NOTES,
    READINGS,
    SIX,
    Distribution,
    Links,
    benchmark,
    image,
    rounds,
    solution,
)
from espalier.methods.d2d.theory import affordable_feature_time, loss_term, mismatch_term, needed_phi_time
from espalier.record.run import Run, slug
from espalier.study.base import Cell, Metric, Scale, Study, last, published, register
from espalier.study.results import Results

T_G = 120
ACCURACY = Metric("accuracy (%)", lambda run: 100 * last(run, "acc_global"), digits=1)
FOUR: Mapping[str, Callable[[Distribution], dict[str, Any]]] = {
    "Benchmark A": lambda dealt: benchmark("A", T_G, dealt),
    "Benchmark A+": lambda dealt: benchmark("A+", T_G, dealt),
    "Solution 1.1": lambda dealt: solution("1.1", T_G),
    "Solution 1.2": lambda dealt: solution("1.2", T_G),
}


def chosen(scale: Scale, names: Sequence[str] = SIX) -> Sequence[str]:
    """Return the distributions of a scale: two suffice to see that it runs."""
    return (names[0], names[-1]) if scale == "smoke" else names


def compared(links: Links, **options: Any) -> Callable[[Scale], list[Cell]]:
    """Return the cells of a comparison of the four methods under six distributions."""

    def cells(scale: Scale) -> list[Cell]:
        many = rounds(scale, T_G)
        return [
            image(scale, row, name, links, {**make(DISTRIBUTIONS[name]), **options}, many)
            for name in chosen(scale)
            for row, make in FOUR.items()
        ]

    return cells


def gains(results: Results) -> list[str]:
    """Say how far each method is from benchmark A, relative to it, as the paper's brackets do."""
    out = []
    for row in results.rows:
        mine, base = ({c: results.mean(r, c, "accuracy") for c in results.columns} for r in (row, "Benchmark A"))
        change = [f"{100 * (v / base[c] - 1):+.1f} % ({c})" for c, v in mine.items() if not math.isnan(v / base[c])]
        if row != "Benchmark A" and change:
            out.append(f"{row} against benchmark A: {', '.join(change)}.")
    return out


for _table, _links, _what in (("table6", "1a", "equal"), ("table7", "1b", "heterogeneous")):
    register(
        Study(
            name=f"d2d/{_table}",
            title=f"accuracy after 2,400 steps on CIFAR-10, {_what} links",
            cells=compared(_links),  # type: ignore[arg-type]
            measures={"accuracy": ACCURACY},
            published=published(__package__, _table),
            notes=NOTES,
            comment=gains,
            curves=("acc_global",),
        )
    )


def calibration(scale: Scale) -> list[Cell]:
    """Return benchmark A in one setting of Table 7, one seed, by how pixels are scaled and how long a model is."""
    name, many = "σ=750 I_c=7", rounds(scale, T_G)
    method = FOUR["Benchmark A"](DISTRIBUTIONS[name])
    return [image(scale, row, name, "1b", method, many, seeds=1, reading=row) for row in READINGS]


register(
    Study(
        name="d2d/calibration",
        title="what the paper leaves open: how pixels are scaled and how long a model is, by benchmark A (Table 7)",
        cells=calibration,
        measures={"accuracy": ACCURACY},
        published={
            row: {"σ=750 I_c=7": published(__package__, "table7")["Benchmark A"]["σ=750 I_c=7"]} for row in READINGS
        },
        notes=NOTES,
    )
)

# -- theory ---------------------------------------------------------------------------------------------------


def mismatch(run: Run, what: str) -> list[float]:
    """Return one figure per global round of what the server recorded about gradients."""
    return [float(event["values"][what]) for event in run.events("mismatch")]


def read_loss_term(run: Run) -> float:
    """Table 8, times 10⁴; the loss after the last round is not measured, so the last round is left out."""
    losses, progress = mismatch(run, "loss"), mismatch(run, "progress")[:-1]
    return 1e4 * loss_term(losses, progress) if any(w > 0 for w in progress) else float("nan")


register(
    Study(
        name="d2d/table8",
        title="the bound's loss term, 10⁴/P Σ (2/w)(F before − F after)",
        cells=compared("1a", theory=True),
        measures={"term": Metric("loss term × 10⁴", read_loss_term)},
        published=published(__package__, "table8"),
        notes=(
            *NOTES,
            "The printed magnitudes fit a w without the learning rate (with it the term would be 250 times larger); so "
            "it is computed here.",
        ),
    )
)


def read_mismatch_term(run: Run) -> float:
    """Return the mean over the rounds of the mismatch's part of Eq. (11), times γL."""
    found = (mismatch(run, what) for what in ("cluster_global", "device_cluster", "r_max"))
    return float(np.mean([mismatch_term(cg, ic, int(r)) for cg, ic, r in zip(*found, strict=True)]))


def ratios(results: Results) -> list[str]:
    """Say the mismatches relative to benchmark A, as the paper's brackets do."""
    out = []
    for measure, what in (("cluster", "clusters from the fleet"), ("device", "devices from their clusters")):
        for row in results.rows[1:]:
            values = [results.mean(row, c, measure) / results.mean("Benchmark A", c, measure) for c in results.columns]
            out.append(f"{row}, {what}, relative to benchmark A: {', '.join(f'{v:.2f}' for v in values)}.")
    return out


register(
    Study(
        name="d2d/table9",
        title="mismatch of gradients",
        cells=compared("1a", theory=True),
        measures={
            "cluster": Metric("‖∇F_c − ∇F‖", lambda run: float(np.mean(mismatch(run, "cluster_global"))), lower=True),
            "device": Metric("‖∇F_i − ∇F_c‖", lambda run: float(np.mean(mismatch(run, "device_cluster"))), lower=True),
            "term": Metric("½‖∇F_i − ∇F_c‖² + (r_max + 1)/4 ‖∇F_c − ∇F‖²", read_mismatch_term, lower=True),
        },
        published=published(__package__, "table9"),
        notes=(*NOTES, "The paper does not say what its norms are scaled by; compare the ratios."),
        comment=ratios,
        runs_of="d2d/table8",
    )
)


# -- solutions ------------------------------------------------------------------------------------------------

ROUND_TIMES = (90, 120, 150, 180)
SOLUTIONS = ("1.1", "2", "3")


def by_round_time(scale: Scale, names: Sequence[str], times: Sequence[float]) -> list[Cell]:
    """Return solutions 1.1, 2 and 3 under some distributions and round times."""
    return [
        image(
            scale, f"Solution {number}", name, "1b", solution(number, t), rounds(scale, t), column=f"{name} RT={t}"
        )
        for name in names
        for t in times
        for number in SOLUTIONS
    ]  # fmt: skip


register(
    Study(
        name="d2d/table10",
        title="accuracy of three solutions by global round time, varying links",
        cells=lambda scale: by_round_time(
            scale, chosen(scale, tuple(DISTRIBUTIONS)), ROUND_TIMES[:1] if scale == "smoke" else ROUND_TIMES
        ),
        measures={"accuracy": ACCURACY},
        published=published(__package__, "table10"),
        notes=NOTES,
        curves=("acc_global",),
    )
)


# -- features -------------------------------------------------------------------------------------------------

R_PHI, MOST, T_G_FEATURES = 16, 26, 100
T_PHI, T_CG = 50, 30
ORIGINAL = "Solution 1.1"


def cells_features(*rows: str) -> Callable[[Scale], list[Cell]]:
    """Return solution 1.1 for 16 rounds, and others for as many as they may need to catch up with it."""
    kinds = {"1.1-crop": "phi_crop", "1.1-pred": "pred", "1.1-skew": "skew"}

    def cells(scale: Scale) -> list[Cell]:
        found = []
        for name in chosen(scale):
            for row in (ORIGINAL, *rows):
                if row == "Benchmark B":
                    method = benchmark("B", T_G_FEATURES, DISTRIBUTIONS[name])
                else:
                    method = solution("1.1", T_G_FEATURES, kinds.get(row, "phi"))
                many = 2 if scale == "smoke" else R_PHI if row == ORIGINAL else MOST
                found.append(image(scale, row, name, "3", method, many))
        return found

    return cells


def rounds_to(curve: Sequence[float], target: float) -> float:
    """Return the (fractional) round at which a curve, interpolated by PCHIP, first reaches a target; NaN if never.

    Args:
        curve: Accuracy before the first round and after each.
        target: What is to be reached.
    """
    reached = next((i for i, v in enumerate(curve) if v >= target), None)
    if reached is None or reached == 0:
        return float("nan") if reached is None else 0.0
    smooth = PchipInterpolator(np.arange(len(curve)), np.asarray(curve))
    # PCHIP is monotone between two points: bisection finds the crossing.
    low, high = float(reached - 1), float(reached)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if smooth(middle) >= target else (middle, high)
    return high


def accuracies(run: Run) -> list[float]:
    """Return the global accuracy before the first round and after each."""
    return [float(v) for (v,) in run.query("SELECT value FROM metrics WHERE name = 'acc_global' ORDER BY rowid")]


def target(run: Run) -> float:
    """Return a partition's target: the mean over the seeds of solution 1.1's accuracy after its last round."""
    if run.directory is None:
        raise RunError("A run in memory has no neighbours: this figure compares runs of a study's directory.")
    seeds = sorted((run.directory.parent.parent / slug(ORIGINAL)).glob("seed-*/run.sqlite"))
    return float(np.mean([accuracies(Run(file.parent))[-1] for file in seeds]))


def read_reached(run: Run) -> float:
    """Return 1 if a run has reached its partition's target, 0 if it has not in all its rounds."""
    return float(max(accuracies(run)) >= target(run))


def read_rounds(run: Run) -> float:
    """Return the rounds that a run needed to its partition's target; if it never got there, those that it had.

    The second is too few: leaving such a run out would praise a method for its failures.
    """
    curve = accuracies(run)
    needed = rounds_to(curve, target(run))
    return len(curve) - 1.0 if math.isnan(needed) else needed


def read_affordable(run: Run) -> float:
    """Return the feature time below which a run is faster than solution 1.1 with t_φ = 50 (negative: never)."""
    needed = read_rounds(run)
    if run.label == ORIGINAL or not needed > 0:
        return float("nan")
    return affordable_feature_time(R_PHI, needed, T_PHI, T_G_FEATURES, T_CG)


def read_needed(run: Run) -> float:
    """Return the time of collecting φ below which a run, however cheap its feature, is slower than solution 1.1."""
    return float("nan") if run.label == ORIGINAL else needed_phi_time(R_PHI, read_rounds(run), T_G_FEATURES, T_CG)


def censored(results: Results) -> list[str]:
    """Say which cells hold runs that never reached their target."""
    out = []
    for row in results.rows:
        for column in results.columns:
            found = results.known(row, column, "reached")
            if row != ORIGINAL and len(found) > found.sum():
                out.append(
                    f"{row}, {column}: {len(found) - found.sum():.0f} of {len(found)} seeds never reached the target "
                    "and count with all their rounds, so the rounds shown are a lower bound."
                )
    return out


for _table, _rows in (("table11", ("1.1-crop",)), ("table12", ("Benchmark B", "1.1-pred", "1.1-skew"))):
    register(
        Study(
            name=f"d2d/{_table}",
            title="rounds to what solution 1.1 reaches in 16, and when a cheaper feature pays",
            cells=cells_features(*_rows),
            measures={
                "accuracy": ACCURACY,
                "rounds": Metric("rounds to the target", read_rounds, lower=True, digits=1),
                "reached": Metric("share of seeds that reach it", read_reached, digits=2),
                "affordable": Metric("pays below t = (steps; negative: never)", read_affordable, digits=1),
                "needed": Metric("cannot pay when t_φ < (steps)", read_needed, lower=True, digits=1),
            },
            published=published(__package__, _table),
            notes=(
                *NOTES,
                f"Rounds of t_g = {T_G_FEATURES} steps, t_cg = {T_CG}; others than solution 1.1 run {MOST} rounds. The "
                "target is solution 1.1's mean accuracy under the partition after its last round. The accuracy column "
                "is after each one's own last round.",
            ),
            curves=("acc_global",),
            comment=censored,
        )
    )
