"""The D2D paper's experiments as settings: data distributions, worlds (Table 4), tasks, at three scales.

``full`` is the paper's. ``small`` is made for a CIFAR-10 of 18,000 training images: sizes and batches per step shrink
together, so that a local epoch takes as many steps as in the paper and clusters do as many rounds. ``smoke`` does the
same with the embedded digits. One step is one virtual second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from espalier.study.base import Cell, Scale, notes

#: steps of the paper's CIFAR-10 runs, and of the feature collection in a global round
STEPS, T_FEATURE = 2400, 80
#: mean samples of a device in the paper: 50,000 images over 20 devices, 10⁶ points over 24
IMAGES, POINTS = 2500, 1_000_000 / 24

#: length of a model in the units of Table 4's links, and what pixels are standardised by (see `READINGS`)
MODEL_UNITS = 10.0
PIXELS = {"mean": [0.4914, 0.4822, 0.4465], "std": [0.247, 0.2435, 0.2616]}

Links = Literal["1a", "1b", "3", "3-intermittent"]


@dataclass(frozen=True)
class Distribution:
    """How data are dealt, and what the appendix found best for the spectral benchmarks there (C.2).

    Attributes:
        devices: N.
        sigma: Standard deviation of the devices' sizes, in samples of the paper's data (0: Dirichlet).
        classes: Classes per device, I_c.
        alpha: Dirichlet's concentration.
        width: σ of benchmark A.
        widths: (σ_t, σ_ft) of benchmark A+.
    """

    devices: int
    sigma: float = 0.0
    classes: int = 0
    alpha: float = 0.0
    width: float = 1.5
    widths: tuple[float, float] = (1.5, 1.0)

    def partition(self, share: float) -> dict[str, Any]:
        """Return the partition where devices have ``share`` of the paper's samples."""
        if self.alpha:
            return {"kind": "dirichlet", "alpha": self.alpha, "min_samples": max(4, round(16 * share))}
        least = max(4, self.classes, round(200 * share))
        return {"kind": "sized", "sigma": self.sigma * share, "classes": self.classes, "min_samples": least}


DISTRIBUTIONS: Mapping[str, Distribution] = {
    "σ=750 I_c=4": Distribution(20, 750, 4, width=0.5, widths=(0.5, 0.8)),
    "σ=750 I_c=7": Distribution(20, 750, 7, width=1.5, widths=(1.0, 0.8)),
    "σ=1250 I_c=4": Distribution(20, 1250, 4, width=0.5, widths=(0.5, 0.8)),
    "σ=1250 I_c=7": Distribution(20, 1250, 7, width=1.5, widths=(1.0, 0.8)),
    "Dir(0.1)": Distribution(30, alpha=0.1),
    "Dir(0.5)": Distribution(30, alpha=0.5),
    "σ=1600 I_c=2": Distribution(20, 1600, 2),
    "Dir(0.05)": Distribution(30, alpha=0.05),
}
#: the six distributions of Tables 6 to 9, 11 and 12
SIX = tuple(DISTRIBUTIONS)[:6]

#: what was tried for what the paper leaves open: how pixels are scaled, and a model's length (d2d/calibration)
READINGS: Mapping[str, tuple[Mapping[str, Any], float]] = {
    "pixels in 0…1, 30 units": ({}, 30.0),
    "pixels in 0…1, 10 units": ({}, MODEL_UNITS),
    "pixels in −1…1, 30 units": ({"mean": [0.5] * 3, "std": [0.5] * 3}, 30.0),
    "standardised, 10 units": (PIXELS, MODEL_UNITS),
}

NOTES = notes(__package__)


def world(links: Links, batches: float, spread: float = 0.0, units: float = MODEL_UNITS) -> dict[str, Any]:
    """Return a column of Table 4: links redrawn per round, ``batches`` per step (± ``spread`` of it, redrawn)."""
    low, high = (3.0, 3.0) if links == "1a" else (0.0 if links == "3-intermittent" else 1.0, 5.0)
    slow, fast = batches * (1 - spread), batches * (1 + spread)
    compute: dict[str, Any] = {"kind": "rate", "low": slow, "high": fast}
    if spread:
        # the paper's 5 to 15 are whole numbers; those of a fleet scaled down to a share need not be
        whole = slow.is_integer() and fast.is_integer()
        compute = {"kind": "redrawn", "of": {**compute, "whole": True} if whole else compute}
    drawn = {"kind": "pairs", "throughput": [low, high], "whole": True, "model_units": units}
    return {"compute": compute, "links": drawn}


def rounds(scale: Scale, t_g: float, t_feature: float = T_FEATURE) -> int:
    """Return the global rounds that fit into the paper's steps."""
    return 2 if scale == "smoke" else int(STEPS // (t_g + t_feature))


def image(
    scale: Scale, row: str, name: str, links: Links, method: Mapping[str, Any], rounds: int, *, column: str = "",
    seeds: int | None = None, reading: str = "standardised, 10 units",
) -> Cell:  # fmt: skip
    """Return a method's runs on CIFAR-10 under a distribution, whose name is the column's if that has none."""
    pixels, units = READINGS[reading]
    dealt = DISTRIBUTIONS[name]
    share = {"smoke": 144 / IMAGES, "small": 0.36, "full": 1.0}[scale]
    task: dict[str, Any] = {"dataset": "cifar10", "dataset_options": dict(pixels), "model": "d2d_cnn"}
    if scale == "smoke":
        task = {"dataset": "digits", "model": "mlp", "model_options": {"hidden": [16]}}
    many = seeds or {"smoke": 1, "small": 3, "full": 3}[scale]
    setting = {
        "name": f"d2d {name} links {links}",
        "seeds": list(range(many)),
        "task": {**task, "score": "acc_global"},
        "partition": dealt.partition(share),
        "fleet": {"devices": 10 if scale == "smoke" else dealt.devices, "edges": 1},
        # as many samples pass as in the paper per unit of the learning rate
        "training": {"batch_size": 16, "lr": 0.05 if scale == "smoke" else round(0.004 / share, 4)},
        "world": world(links, 10 * share, 0.5 if links.startswith("3") else 0.0, units),
        "stop": {"rounds": rounds},
        "record": {"spans": False},
    }
    return Cell.of(row, column or name, setting, method)


def magnet(scale: Scale, row: str, sigma: float, classes: int, links: Links, method: Mapping[str, Any]) -> Cell:
    """Return a method's runs on magnet tracking (24 devices, 3 layers of 2048)."""
    points = {"smoke": 2400, "small": 100_000, "full": 1_000_000}[scale]
    devices = 8 if scale == "smoke" else 24
    share = points / devices / POINTS
    partition = Distribution(devices, sigma, classes).partition(share)
    # 2,000 of the paper's points at least: the paper states a floor without its value.
    partition["min_samples"] = max(4, round(2000 * share))
    setting = {
        "name": f"d2d magnet σ={sigma:g} I_c={classes}",
        "seeds": [0] if scale == "smoke" else [0, 1, 2],
        "task": {
            "dataset": "magnet",
            "dataset_options": {"samples": points, "test_samples": 500 if scale == "smoke" else 10_000},
            "model": "mlp_d2d",
            "model_options": {"width": {"smoke": 16, "small": 256, "full": 2048}[scale]},
            "score": "position_mm_global",
        },
        "partition": partition,
        "fleet": {"devices": devices, "edges": 1},
        "training": {"batch_size": 32, "lr": 0.004 if scale == "full" else 0.3},
        "world": world(links, 80 * share),
        "stop": {"rounds": 2 if scale == "smoke" else 30},
        "record": {"spans": False},
    }
    return Cell.of(row, "magnet", setting, method)


def solution(number: str, t_g: float, feature: str = "phi", **options: Any) -> dict[str, Any]:
    """Return one of the paper's solutions as a method."""
    return {"name": "d2d", "solution": number, "feature": feature, **timing(t_g, feature), **options}


def benchmark(which: Literal["A", "A+", "B"], t_g: float, dealt: Distribution, **options: Any) -> dict[str, Any]:
    """Return one of the paper's benchmarks as a method, with the widths searched for the distribution."""
    if which == "B":
        return {"name": "d2d_b", **timing(t_g, "skew"), **options}
    times = timing(t_g, "phi")
    if which == "A":
        return {"name": "d2d_a", "sigma": dealt.width, **times, **options}
    return {"name": "d2d_a_plus", "sigma_t": dealt.widths[0], "sigma_ft": dealt.widths[1], **times, **options}


def timing(t_g: float, feature: str) -> dict[str, Any]:
    """Return a global round's times: features that need a training take t_φ, the others what they take."""
    return {"t_g": t_g, "t_feature": T_FEATURE} if feature in ("phi", "phi_crop") else {"t_g": t_g}
