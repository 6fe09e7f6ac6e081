"""The table of methods is what plans and short runs say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from espalier.core.errors import EspalierError
from espalier.core.method import available
from espalier.data.dataset import Dataset
from espalier.experiment import Experiment
from espalier.simulator.runner import Runner
from espalier.testing import BASE
from espalier.testing.matrix import facts, markdown

DOCUMENT = Path(__file__).parents[2] / "docs" / "methods.md"


def test_the_document_is_what_the_methods_are() -> None:
    told = DOCUMENT.read_text(encoding="utf-8")
    assert told == markdown(), "renew it: espalier methods --table > docs/methods.md"


def refuses(name: str, table: dict[str, Any], data: Dataset | None = None) -> bool:
    """Tell whether a method says in a sentence that it cannot be run so."""
    try:
        Runner(Experiment.build({**BASE, "stop": {"rounds": 1}, **table}).only(name, 0), None, dataset=data).run()
    except EspalierError:
        return True
    return False


def numbers() -> Dataset:
    """Return a regression."""
    x = np.random.default_rng(0).normal(size=(120, 5)).astype(np.float32)
    return Dataset.from_arrays(x, x[:, :1], x[:30], x[:30, :1])


TRAINING = BASE["training"]
REGRESSION = {"task": {"model": "mlp", "model_options": {"hidden": [4]}}, "partition": {"kind": "iid"}}
LACKING: dict[str, tuple[dict[str, Any], Dataset | None]] = {
    "plain SGD": ({"training": {**TRAINING, "momentum": 0.5}}, None),
    "SGD": ({"training": {**TRAINING, "optimizer": "adam", "lr": 0.01}}, None),
    "SGD or Adam": ({"training": {**TRAINING, "optimizer": "torch.optim:AdamW", "lr": 0.01}}, None),
    "classes": (REGRESSION, numbers()),
    "data held out": ({"partition": {"kind": "two_level", "fraction": 0.4}}, None),
}


@pytest.mark.parametrize("name", [name for name, cls in available().items() if cls.needs])
def test_what_a_method_needs_it_refuses_to_do_without(name: str) -> None:
    assert refuses(name, *LACKING[available()[name].needs]) and not refuses(name, {})


@pytest.mark.parametrize("need", ["plain SGD", "SGD", "classes"])
def test_others_do_without(need: str) -> None:
    assert not refuses("ditto", *LACKING[need])


def test_losses_have_no_private_form() -> None:
    assert facts("qfedavg").private == "no" and facts("fedavg").private == "yes"


def test_edges_that_are_clusters_have_no_servers_above() -> None:
    assert [facts(name).tree for name in ("cflhkd", "hierfavg", "fedbuff", "standalone")] == [
        "edges",
        "any",
        "flat",
        "own",
    ]
