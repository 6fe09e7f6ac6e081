"""The settings of CFLHKD's tables and figures at three scales: data, methods, drift, what differs from the paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from espalier.methods.cflhkd.world import paper_world
from espalier.study.base import Cell, Scale, notes

NOTES = notes(__package__)

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
ROUNDS_BETWEEN_EVALUATIONS = 5
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


def cell(
    scale: Scale, row: str, column: str, data: Data, method: Mapping[str, Any], drift: Mapping[str, Any] | None = None
) -> Cell:
    """Return a method's runs on some data, under drift or not."""
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
    setting = {
        "name": f"cflhkd {scale}",
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
        "evaluate": {"every": 1 if drift or scale == "smoke" else ROUNDS_BETWEEN_EVALUATIONS},
        "record": {"spans": False},
    }
    return Cell.of(row, column, setting, method)
