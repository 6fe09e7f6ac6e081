"""EASF's experiments as settings (section V): the methods, the fleet's data, the world, at three scales.

The paper names neither speeds nor rates of its world. A link takes 0.25 to 2.5 s for a model, a batch 0.02 to 0.2 s,
busy spells last 3 s on average: chosen once, so that Syn (a baseline without anything adaptive) comes near its own
published row of Table I; nothing was fitted to another method. Everything else is as in the paper's world (`world`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

from espalier.core.params import ParamSpec
from espalier.methods.easf.world import paper_world
from espalier.study.base import Cell, Scale, notes
from espalier.training.models import build
from espalier.world.churn import TwoState
from espalier.world.compute import Busy, Fluctuating, Uniform
from espalier.world.links import Graph, RandomGraph
from espalier.world.world import World

METHODS: Mapping[str, Mapping[str, Any]] = {
    "Syn": {"name": "syn"},
    "KMA-RAF": {"name": "kma_raf"},
    "HFL": {"name": "hfl_easf"},
    "EASF": {"name": "easf"},
}
#: Table VI: without DSF the tree is Syn's, without AAF frequencies are RAF's, abandonment without AAF is fixed
ABLATION: Mapping[str, Mapping[str, Any]] = {
    "#1": {"name": "easf", "structure": "syn", "frequency": "raf", "abandon": "none"},
    "#2": {"name": "easf", "structure": "dsf", "frequency": "raf", "abandon": "none"},
    "#3": {"name": "easf", "structure": "syn", "frequency": "aaf", "abandon": "none"},
    "#4": {"name": "easf", "structure": "syn", "frequency": "raf", "abandon": "fixed"},
    "#5": {"name": "easf", "structure": "dsf", "frequency": "aaf", "abandon": "none"},
    "#6": {"name": "easf", "structure": "dsf", "frequency": "raf", "abandon": "fixed"},
    "#7": {"name": "easf", "structure": "syn", "frequency": "aaf", "abandon": "adaptive"},
    "#8": {"name": "easf", "structure": "dsf", "frequency": "aaf", "abandon": "adaptive"},
}
#: beside Table VI: what balance is worth if labels were known, with a statistic that tells of them, and sets without
#: DSF as the paper has them, whose clusters forget frequencies when a member comes or goes
BESIDE: Mapping[str, Mapping[str, Any]] = {
    "#8 labels known": {**ABLATION["#8"], "balance": "labels"},
    "#8 by answers": {**ABLATION["#8"], "balance": "answers"},
    "#3 forgets": {**ABLATION["#3"], "keeps_frequencies": False},
    "#7 forgets": {**ABLATION["#7"], "keeps_frequencies": False},
}
#: Figure 4: structure and frequency, nobody is abandoned
STRUCTURES: Mapping[str, Mapping[str, Any]] = {
    f"{s.upper()}-{f.upper()}": {"name": "easf", "structure": s, "frequency": f, "abandon": "none"}
    for s in ("kma", "dsf")
    for f in ("raf", "aaf")
}
#: seconds of a model over a link, of a batch at a device
LINK_SECONDS, BATCH_SECONDS = (0.25, 2.5), (0.02, 0.2)
#: mean neighbours in the random graph: as many links among those present as the geometric one has
RANDOM_DEGREE = 8.0
#: bandwidth of the case study over the others', so that signal strength shapes links without slowing the fleet: between
#: two of 30 devices a model takes 1.2 s on average, as it does without
SIGNAL_GAIN = 3.3

GraphKind = Literal["random", "geometric"]

NOTES = notes(__package__)


@dataclass(frozen=True)
class Workload:
    """What is trained.

    Attributes:
        dataset: Its name; ``options`` are its options.
        model: The model's name.
        shape: Shape of an input, ``labels`` the classes: the size of a model follows from both.
        samples: The fewest and the most samples of a device.
        training: Optimiser, learning rate, batch size.
        pretrain: Epochs of the pre-training.
    """

    dataset: str
    model: str
    shape: tuple[int, ...]
    labels: int
    samples: tuple[int, int]
    training: Mapping[str, Any]
    pretrain: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)


CNN = "espalier.methods.easf.models:cnn"
SGD = {"batch_size": 64, "lr": 0.1}
ADAM = {"batch_size": 64, "optimizer": "adam"}
TEXT = {"topics": 10, "max_len": 200, "vocab": 10_000}
WORKS: Mapping[str, Workload] = {
    "MNIST": Workload("mnist", CNN, (1, 28, 28), 10, (200, 300), SGD),
    "EMNIST": Workload("emnist", CNN, (1, 28, 28), 47, (300, 500), SGD),
    "MLP; MNIST": Workload("mnist", "mlp_easf", (1, 28, 28), 10, (200, 300), {**ADAM, "lr": 2e-4}),
    "CNN; MNIST": Workload("mnist", CNN, (1, 28, 28), 10, (200, 300), SGD),
    "LSTM; 20newsgroups": Workload(
        "newsgroups20", "lstm", (200,), 10, (400, 600), {**ADAM, "lr": 0.01}, 3, TEXT, {"vocabulary": 10_000}
    ),
    "Transformer; 20newsgroups": Workload(
        "newsgroups20", "transformer", (200,), 10, (400, 600), {**ADAM, "lr": 0.01}, 3, TEXT, {"vocabulary": 10_000}
    ),
    "ResNet-18; ImageNet-10": Workload(
        "imagenet10", "resnet18", (3, 64, 64), 10, (250, 350), {**ADAM, "batch_size": 32, "lr": 1e-4}
    ),
}
#: stands in for all of them at the smallest scale
DIGITS = Workload(
    "digits", "mlp", (1, 8, 8), 10, (40, 60), {"batch_size": 16, "lr": 0.1}, model_options={"hidden": [32]}
)


def model_bytes(work: Workload) -> int:
    """Return the bytes of a model on a link."""
    return _model_bytes(work.model, work.shape, work.labels, json.dumps(dict(work.model_options)))


@cache
def _model_bytes(model: str, shape: tuple[int, ...], labels: int, options: str) -> int:
    # a study has hundreds of cells with a few models
    return ParamSpec.of(build(model, input_shape=shape, n_classes=labels, **json.loads(options))).model_bytes


def world(work: Workload, *, case_study: bool = False, stable: bool = False, graph: GraphKind = "random") -> World:
    """Return section V's world.

    Args:
        work: Its model's size decides the links' bandwidth: a model takes ``LINK_SECONDS`` per hop, whatever it is.
        case_study: Half the devices may not aggregate, and signal strength shapes the bandwidth of a geometric graph.
        graph: Who has a link with whom.
        stable: The "relatively stable" world of Figure 4: no busy spells, half the fluctuation, stays of 240 s.
    """
    base = paper_world(case_study)
    assert isinstance(base.links, Graph)
    size, gain = model_bytes(work), SIGNAL_GAIN if case_study else 1.0
    bandwidth = (gain * size / LINK_SECONDS[1], gain * size / LINK_SECONDS[0])
    power = Uniform(*BATCH_SECONDS)
    random = graph == "random" and not case_study
    return replace(
        base,
        links=RandomGraph(RANDOM_DEGREE, bandwidth) if random else replace(base.links, bandwidth=bandwidth),
        compute=Fluctuating(power, 0.75, 1.25, period=20.0)
        if stable
        else Busy(Fluctuating(power, 0.5, 1.5, period=20.0), mean=3.0, every=100.0),
        churn=TwoState(working=0.7, mean_stay=240.0 if stable else 60.0),
    )


def cell(
    scale: Scale,
    row: str,
    column: str,
    method: Mapping[str, Any],
    task: str,
    *,
    devices: int,
    classes: int,
    seconds: float,
    **kind: Any,
) -> Cell:
    """Return the runs of one method under one condition.

    Args:
        scale: ``smoke`` puts digits, 12 devices at most and 20 s in place of everything.
        row: How the method is called.
        column: How the condition is called.
        method: The method's table.
        task: A key of ``WORKS``.
        devices: N.
        classes: Classes per device.
        seconds: Virtual time of the run; ``small`` takes half of it.
        **kind: Of world, see :func:`world`.
    """
    smoke = scale == "smoke"
    work = DIGITS if smoke else WORKS[task]
    setting = {
        "name": f"easf {scale}",
        "seeds": [0, 1, 2] if scale == "full" else [0],
        "task": {
            "dataset": work.dataset,
            "dataset_options": dict(work.options),
            "model": work.model,
            "model_options": {} if work.options else dict(work.model_options),
            "score": "acc_global",
        },
        "partition": {
            "kind": "classes", "k": min(classes, work.labels), "overlap": True, "samples_per_device": work.samples,
            "coverage": devices * classes >= work.labels,
        },
        "fleet": {"devices": min(devices, 12) if smoke else devices, "edges": 1},
        "training": dict(work.training),
        "world": world(work, **kind),
        "stop": {"seconds": {"smoke": 20.0, "small": seconds / 2, "full": seconds}[scale]},
    }  # fmt: skip
    return Cell.of(row, column, setting, {**method, "pretrain_epochs": work.pretrain, "theory": True})
