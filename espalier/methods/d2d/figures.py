"""Figures 5 to 17 of the D2D paper. They have no numbers but those in the text; curves are in curves.csv."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from espalier.methods.d2d.settings import (
    DISTRIBUTIONS,
    NOTES,
    Distribution,
    Links,
    benchmark,
    image,
    magnet,
    rounds,
    solution,
    world,
)
from espalier.methods.d2d.study import ACCURACY, FOUR, SOLUTIONS, T_G, T_G_FEATURES, accuracies, by_round_time
from espalier.record.run import Run
from espalier.study.base import Cell, Metric, Scale, Study, last, notes, reached, register
from espalier.study.results import Results

MAGNET_NOTES = notes(__package__, "magnet")


def figure(
    name: str,
    title: str,
    cells: Callable[[Scale], Sequence[Cell]],
    measures: Mapping[str, Metric],
    notes: Sequence[str] = NOTES,
    curves: Sequence[str] = ("acc_global",),
    comment: Callable[[Results], Sequence[str]] = lambda results: (),
    runs_of: str = "",
) -> None:
    """Register a figure."""
    register(Study(name=f"d2d/{name}", title=title, cells=cells, measures=measures, notes=notes, curves=curves,
                   comment=comment, runs_of=runs_of))  # fmt: skip


def steps_to(what: str, target: float, name: str) -> Metric:
    """Return the steps until a metric was as good as a target."""
    return Metric(f"steps to {what}", lambda r: reached(r, target, name), lower=True, digits=0, never="seconds")


def images(
    names: Sequence[str], links: Links, methods: Mapping[str, Callable[[Distribution], dict[str, Any]]], t_g: float,
    many: int | None = None, **options: Any,
) -> Callable[[Scale], list[Cell]]:  # fmt: skip
    """Return the cells of methods under distributions."""

    def cells(scale: Scale) -> list[Cell]:
        r = rounds(scale, t_g) if many is None or scale == "smoke" else many
        return [
            image(scale, row, name, links, {**make(DISTRIBUTIONS[name]), **options}, r)
            for name in (names[:1] if scale == "smoke" else names)
            for row, make in methods.items()
        ]

    return cells


figure(
    "fig5",
    "accuracy over steps, solution 1 and benchmark A, equal links",
    images(("σ=750 I_c=4", "σ=750 I_c=7"), "1a", {k: v for k, v in FOUR.items() if k != "Benchmark A+"}, T_G),
    {
        "accuracy": ACCURACY,
        "steps": steps_to("40 %", 0.4, "acc_global"),
    },
    (*NOTES, "The text: solutions take 500 steps fewer to 40 % where data are unbalanced (I_c = 4)."),
    runs_of="d2d/table6",
)


def spread(what: str, share: float) -> Callable[[Run], float]:
    """Return the measure of a quantile of gradient distances over all rounds."""

    def read(run: Run) -> float:
        values = np.concatenate([np.asarray(e[what], dtype=float) for e in run.events("mismatch")])
        return float(np.quantile(values, share))

    return read


figure(
    "fig6",
    "how gradient mismatch is distributed, Dir(0.1), equal links",
    images(("Dir(0.1)",), "1a", FOUR, T_G, theory=True),
    {
        "cluster": Metric("‖∇F_c − ∇F‖, median", spread("clusters", 0.5), lower=True),
        "cluster90": Metric("90 %", spread("clusters", 0.9), lower=True),
        "device": Metric("‖∇F_i − ∇F_c‖, median", spread("devices", 0.5), lower=True),
        "device90": Metric("90 % of devices", spread("devices", 0.9), lower=True),
    },
    curves=(),
    runs_of="d2d/table8",
)

ERRORS = {
    "position": Metric("position error (mm)", lambda run: last(run, "position_mm_global"), lower=True),
    "angle": Metric("angular error (°)", lambda run: last(run, "angle_deg_global"), lower=True),
    "to_5mm": steps_to("5 mm", 5.0, "position_mm_global"),
    "to_6deg": steps_to("6°", 6.0, "angle_deg_global"),
    "to_10mm": steps_to("10 mm", 10.0, "position_mm_global"),
}
ERROR_CURVES = ("position_mm_global", "angle_deg_global", "loss_global")


def magnets(
    sigma: float, classes: int, links: Links, methods: Mapping[str, dict[str, Any]]
) -> Callable[[Scale], list[Cell]]:
    """Return the cells of methods on magnet tracking."""

    def cells(scale: Scale) -> list[Cell]:
        return [magnet(scale, row, sigma, classes, links, method) for row, method in methods.items()]

    return cells


def saved(results: Results) -> list[str]:
    """Say how much sooner the solutions reach the targets than benchmark A."""
    out = []
    for measure, what, said in (("to_5mm", "5 mm", "18"), ("to_6deg", "6°", "16.7")):
        slow = results.mean("Benchmark A", "magnet", measure)
        for row in results.rows[1:]:
            share = 100 * (1 - results.mean(row, "magnet", measure) / slow)
            verdict = "cannot be compared" if share != share else f"{share:.1f} % sooner than benchmark A"
            out.append(f"{row} to {what}: {verdict} (the paper: at least {said} %).")
    return out


figure(
    "fig7",
    "magnet tracking, solution 1 and benchmark A (I_c = 3, σ = 12,500)",
    magnets(
        12_500,
        3,
        "1a",
        {
            "Benchmark A": benchmark("A", 80, Distribution(24, width=1.5)),
            "Solution 1.1": solution("1.1", 80),
            "Solution 1.2": solution("1.2", 80),
        },
    ),
    ERRORS,
    MAGNET_NOTES,
    ERROR_CURVES,
    saved,
)

figure(
    "fig8",
    "accuracy over steps by global round time, solutions 1.1, 2 and 3",
    lambda scale: (
        by_round_time(scale, ("σ=1250 I_c=4",), (90,))
        if scale == "smoke"
        else by_round_time(scale, ("σ=1250 I_c=4", "Dir(0.5)"), (90, 180))
    ),
    {"accuracy": ACCURACY},
    runs_of="d2d/table10",
)

figure(
    "fig9",
    "magnet tracking, solutions 1.1, 2 and 3 (I_c = 2, σ = 20,000)",
    magnets(20_000, 2, "1b", {f"Solution {s}": solution(s, 80) for s in SOLUTIONS}),
    ERRORS,
    MAGNET_NOTES,
    ERROR_CURVES,
)

figure(
    "fig10",
    "accuracy over rounds by feature, and benchmark B",
    images(
        ("σ=750 I_c=4", "Dir(0.1)"),
        "3",
        {
            "Solution 1.1": lambda d: solution("1.1", T_G_FEATURES),
            "1.1-crop": lambda d: solution("1.1", T_G_FEATURES, "phi_crop"),
            "1.1-skew": lambda d: solution("1.1", T_G_FEATURES, "skew"),
            "1.1-pred": lambda d: solution("1.1", T_G_FEATURES, "pred"),
            "Benchmark B": lambda d: benchmark("B", T_G_FEATURES, d),
        },
        T_G_FEATURES,
        many=20,
    ),
    {"accuracy": ACCURACY},
)


def hundred(
    scale: Scale, row: str, column: str, devices: int, alpha: float, model: str, links: Links, method: dict[str, Any]
) -> Cell:
    """Return a method's runs on CIFAR-100; at ``small`` CIFAR-10 with a small ResNet and a third of the devices."""
    many = {"smoke": 8, "small": devices // 3, "full": devices}[scale]
    task: dict[str, Any] = {"dataset": "cifar100", "model": model}
    layers = 4
    if scale == "small":
        task = {"dataset": "cifar10", "model": "resnet_small"}
    if scale == "smoke":
        task, layers = {"dataset": "digits", "model": "mlp", "model_options": {"hidden": [16]}}, 1
    samples = {"smoke": 1437, "small": 18_000, "full": 50_000}[scale] / many
    if method.get("feature") == "phi_crop":
        method = {**method, "crop_layers": layers}
    setting = {
        "name": f"d2d cifar100 {devices} {model} {links}",
        "seeds": [0] if scale != "full" else [0, 1, 2],
        "task": {**task, "score": "acc_global"},
        "partition": {"kind": "dirichlet", "alpha": alpha, "min_samples": 4 if scale == "smoke" else 16},
        "fleet": {"devices": many, "edges": 1},
        "training": {"batch_size": 16, "lr": 0.05 if scale == "smoke" else 0.004},
        # an epoch of a device takes as many steps as on CIFAR-10
        "world": world(links, 10 * samples / 2500, 0.5),
        "stop": {"rounds": {"smoke": 2, "small": 10, "full": 40}[scale]},
        "record": {"spans": False},
    }
    return Cell.of(row, column, setting, method)


HUNDRED_NOTES = notes(__package__, "hundred")


def wide(*settings: tuple[str, int, float, str, Links, Mapping[str, dict[str, Any]]]) -> Callable[[Scale], list[Cell]]:
    """Return the cells of the CIFAR-100 figures: (column, devices, α, model, links, methods) each."""

    def cells(scale: Scale) -> list[Cell]:
        return [
            hundred(scale, row, column, devices, alpha, model, links, method)
            for column, devices, alpha, model, links, methods in settings
            for row, method in methods.items()
        ]

    return cells


_DIRICHLET = Distribution(100, alpha=0.1)
_VERSUS_B = {
    "1.1-crop": solution("1.1", T_G_FEATURES, "phi_crop"),
    "1.1-skew": solution("1.1", T_G_FEATURES, "skew"),
    "1.1-pred": solution("1.1", T_G_FEATURES, "pred"),
    "Benchmark B": benchmark("B", T_G_FEATURES, _DIRICHLET),
}

figure(
    "fig11",
    "CIFAR-100: cropped features beside benchmarks A and B",
    wide(
        ("100 devices", 100, 0.1, "resnet18", "3", {
            "Benchmark A": benchmark("A", T_G_FEATURES, _DIRICHLET),
            "A-crop": benchmark("A", T_G_FEATURES, _DIRICHLET, feature="phi_crop"),
            "1.1-crop": solution("1.1", T_G_FEATURES, "phi_crop"),
        }),
        ("80 devices", 80, 0.05, "resnet18", "3", _VERSUS_B),
    ),
    {"accuracy": ACCURACY},
    HUNDRED_NOTES,
)  # fmt: skip

figure(
    "fig12",
    "CIFAR-100 with SqueezeNet, 200 devices, links always there and not",
    wide(
        ("links always there", 200, 0.1, "squeezenet", "3", _VERSUS_B),
        ("links come and go", 200, 0.1, "squeezenet", "3-intermittent", _VERSUS_B),
    ),
    {"accuracy": ACCURACY},
    HUNDRED_NOTES,
)

figure(
    "fig13",
    "magnet tracking, solution 1.1 by feature φ and by label skew (I_c = 3, σ = 12,500)",
    magnets(
        12_500,
        3,
        "1b",
        {"Solution 1.1": solution("1.1", T_G_FEATURES), "1.1-skew": solution("1.1", T_G_FEATURES, "skew")},
    ),
    ERRORS,
    MAGNET_NOTES,
    ERROR_CURVES,
)


# -- appendix C: grid searches --------------------------------------------------------------------------------

#: z and n_swap that are searched (the paper names only what it chose), and the widths of benchmarks A and A+ (C.2)
FACTORS, TRIALS = (1.05, 1.2, 1.5, 1.8), (20, 40, 80, 160)
WIDTHS = (0.5, 0.8, 1.0, 1.5, 2.0)
GRID_SEEDS = 5


def grid_cell(scale: Scale, row: str, column: str, name: str, links: Links, method: dict[str, Any]) -> Cell:
    """Return one point of a grid search under a distribution."""
    seeds = None if scale == "smoke" else GRID_SEEDS
    return image(scale, row, name, links, method, rounds(scale, T_G), column=column, seeds=seeds)


def swap_grid(scale: Scale) -> list[Cell]:
    """Return solutions 1.1 and 3 for every z and n_swap under two distributions (C.1)."""
    few = scale == "smoke"
    return [
        grid_cell(
            scale, f"Solution {number} z={z:g}", f"{name} n_swap={n}", name, "1b",
            solution(number, T_G, z=z, n_swap=n),
        )
        for name in (("Dir(0.1)",) if few else ("σ=750 I_c=4", "Dir(0.1)"))
        for n in (TRIALS[:1] if few else TRIALS)
        for number in ("1.1", "3")
        for z in (FACTORS[:1] if few else FACTORS)
    ]  # fmt: skip


def width_grid(which: Literal["A", "A+"]) -> Callable[[Scale], list[Cell]]:
    """Return benchmark A for every σ, or A+ for every pair of widths, under three distributions (C.2)."""

    def cells(scale: Scale) -> list[Cell]:
        some = WIDTHS[:2] if scale == "smoke" else WIDTHS
        names = ("Dir(0.1)",) if scale == "smoke" else ("σ=750 I_c=4", "σ=750 I_c=7", "Dir(0.1)")
        points = [(s, {"sigma": s}) for s in some] if which == "A" else [
            (t, {"sigma_t": t, "sigma_ft": f}) for t in some for f in some
        ]  # fmt: skip
        return [
            grid_cell(
                scale, f"{'σ' if which == 'A' else 'σ_t'}={width:g}",
                name if which == "A" else f"{name} σ_ft={widths['sigma_ft']:g}", name, "1a",
                {**benchmark(which, T_G, DISTRIBUTIONS[name]), **widths},
            )
            for name in names
            for width, widths in points
        ]  # fmt: skip

    return cells


GRID_NOTES = (
    *NOTES,
    f"{GRID_SEEDS} seeds, as in the paper. Its heat maps have no numbers, and of z and n_swap it names only what it "
    "chose: z = 1.05 (solution 1.1) and 1.8 (solution 3), n_swap = 80.",
)
figure(
    "fig14", "accuracy after 2,400 steps by z and n_swap, solutions 1.1 and 3", swap_grid, {"accuracy": ACCURACY},
    GRID_NOTES,
)  # fmt: skip
figure(
    "fig15", "accuracy averaged over all global rounds by z and n_swap, solutions 1.1 and 3", swap_grid,
    {"accuracy": Metric("mean accuracy (%)", lambda run: 100 * float(np.mean(accuracies(run)[1:])), digits=1)},
    GRID_NOTES, runs_of="d2d/fig14",
)  # fmt: skip
figure(
    "fig16", "accuracy after 2,400 steps by σ, benchmark A", width_grid("A"), {"accuracy": ACCURACY},
    (*GRID_NOTES, "The paper chose σ = 0.5 where I_c = 4, else 1.5."),
)  # fmt: skip
figure(
    "fig17", "accuracy after 2,400 steps by σ_t and σ_ft, benchmark A+", width_grid("A+"), {"accuracy": ACCURACY},
    (*GRID_NOTES, "The paper chose (0.5, 0.8) where I_c = 4, (1.0, 0.8) where I_c = 7, (1.5, 1.0) for Dirichlet."),
)  # fmt: skip
