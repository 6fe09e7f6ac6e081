"""Serving on a node of a fleet: models are scored with the node's own label prior."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from espalier.core.errors import ConfigError
from espalier.fleet.coordinator.manifest import plan_of
from espalier.fleet.node.data import from_arrays
from espalier.fleet.node.trainer import ArrayTrainer
from tests.fleet.net import manifest


def test_a_node_scores_with_its_own_prior() -> None:
    rng = np.random.default_rng(0)
    plain = manifest(2, 1, 1)
    shape, classes = plain.card.input_shape, plain.card.n_classes
    x = rng.random((40, *shape), dtype=np.float32)
    y = np.arange(40) % 2  # of all labels it has two
    held = from_arrays({"x": x, "y": y, "x_test": x, "y_test": y}, "here", "classification", classes)
    served = manifest(2, 1, 1, {"name": "hierfavg", "serve": {"prior": "known", "smoothing": 0.01}})
    one, other = ArrayTrainer(plain, held), ArrayTrainer(served, held)
    model = one.initial(0, 0)
    # With an untrained model nearly nothing is right; with the prior every answer is one of its two labels.
    outputs = one._evaluator.logits([model], held.pool, held.rows)[0].double()
    prior = 0.99 * torch.bincount(torch.from_numpy(y), minlength=classes) / 40 + 0.01 / classes
    expected = ((outputs + prior.log()).argmax(1).numpy() == y).mean()
    assert other.score([model], "test")[0]["acc"] == pytest.approx(expected)
    assert other.score([model], "test")[0]["loss"] < one.score([model], "test")[0]["loss"]


def test_a_mixture_is_refused() -> None:
    with pytest.raises(ConfigError, match="one model each"):
        plan_of(manifest(2, 1, 1, {"name": "hierfavg", "serve": {"model": "mixture"}}).experiment, 10)
