import numpy as np
import pytest
import torch

from espalier.core.errors import ConfigError
from espalier.training.work import Optimizer, TrainerJob
from tests.training.problems import Memory


def job(**options):
    pool = Memory(torch.zeros(5, 1), torch.zeros(5))
    given = {"batch_size": 2, "optimizer": Optimizer(), "seed": 0} | options
    return TrainerJob(start=torch.zeros(3), pool=pool, rows=np.arange(5), **given)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"name": "sdg"}, "Did you mean 'sgd'"),
        ({"lr": 0.0}, "optimizer.lr is 0.0"),
        ({"lr": float("nan")}, "optimizer.lr"),
        ({"lr": float("inf")}, "optimizer.lr"),
        ({"momentum": 1.0}, "optimizer.momentum is 1.0"),
        ({"weight_decay": -1e-3}, "optimizer.weight_decay"),
        ({"betas": (0.9, 1.0)}, "optimizer.betas"),
        ({"betas": (0.9,)}, "optimizer.betas"),
        ({"eps": 0.0}, "optimizer.eps"),
        ({"name": "adam", "momentum": 0.9}, "belong to 'sgd'"),
        ({"nesterov": True}, "momentum is 0"),
    ],
)
def test_an_impossible_optimizer_is_refused_with_the_field_and_the_value(options, word):
    with pytest.raises(ConfigError, match=word):
        Optimizer(**options)


def test_the_last_partial_batch_counts_as_a_step():
    # 5 rows in batches of 2: 2 + 2 + 1, three steps an epoch.
    assert job(updates=1).n_steps == 3
    assert job(updates=4).n_steps == 12


def test_steps_override_epochs():
    assert job(updates=7, unit="step").n_steps == 7


def test_an_anchor_takes_part_only_with_a_weight():
    assert not job(anchor=torch.zeros(3)).proximal
    assert job(anchor=torch.zeros(3), mu=0.1).proximal
