from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from espalier.core.errors import ConfigError
from espalier.training.work import Optimizer, TrainerJob, schedule, width
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


POOL = Memory(torch.zeros(1, 1), torch.zeros(1))


def scheduled_job(n, batch, seed=0, **options):
    rows = np.arange(100, 100 + n)
    return TrainerJob(
        start=torch.zeros(1), pool=POOL, rows=rows, batch_size=batch, optimizer=Optimizer(), seed=seed, **options
    )


def test_five_rows_in_batches_of_two():
    plan = schedule(scheduled_job(5, 2, updates=2))
    # 2 + 2 + 1 twice; the lone row of an epoch is padded with itself.
    assert plan.sizes.tolist() == [2, 2, 1, 2, 2, 1]
    assert plan.rows.shape == (6, 2)
    assert plan.rows[2, 0] == plan.rows[2, 1]
    assert plan.samples == 10


def test_steps_cycle_through_reshuffled_epochs():
    plan = schedule(scheduled_job(5, 2, updates=4, unit="step"))
    assert plan.sizes.tolist() == [2, 2, 1, 2]
    first = [*plan.rows[:2].ravel(), plan.rows[2, 0]]
    assert sorted(first) == [100, 101, 102, 103, 104]


def test_a_longer_job_begins_like_a_shorter_one():
    short, long = (
        schedule(scheduled_job(7, 3, updates=4, unit="step")),
        schedule(scheduled_job(7, 3, updates=9, unit="step")),
    )
    assert np.array_equal(short.rows, long.rows[:4])


def test_widths_climb_a_ladder():
    # At least a batch of rows: the batch. Fewer: multiples of 4 to 16, of 8 to 32, of 16 to 64; never above the batch.
    found = [width(scheduled_job(n, 64)) for n in (1, 4, 5, 16, 17, 24, 25, 33, 63, 64, 65, 1000)]
    assert found == [4, 4, 8, 16, 24, 24, 32, 48, 64, 64, 64, 64]
    assert width(scheduled_job(5, 6)) == 6
    assert width(scheduled_job(2, 2)) == 2


@given(n=st.integers(1, 40), batch=st.integers(1, 20), epochs=st.integers(1, 4), seed=st.integers(0, 2**100))
def test_every_epoch_sees_every_row_once(n, batch, epochs, seed):
    work = scheduled_job(n, batch, seed, updates=epochs)
    plan = schedule(work)
    assert len(plan.sizes) == work.n_steps
    assert plan.samples == n * epochs
    assert plan.rows.shape[1] == width(work) >= plan.sizes.max()
    per = -(-n // batch)
    for epoch in range(epochs):
        steps = range(epoch * per, (epoch + 1) * per)
        seen = np.concatenate([plan.rows[s, : plan.sizes[s]] for s in steps])
        assert sorted(seen) == list(range(100, 100 + n))
    for rows, size in zip(plan.rows, plan.sizes, strict=True):
        assert set(rows[size:]) <= set(rows[:size])


@given(n=st.integers(1, 30), batch=st.integers(1, 9), seed=st.integers(0, 2**100))
def test_the_order_is_a_function_of_the_seed(n, batch, seed):
    work = scheduled_job(n, batch, seed, updates=2)
    assert np.array_equal(schedule(work).rows, schedule(replace(work, mu=3.0)).rows)


def test_seeds_and_epochs_shuffle_differently():
    plan = schedule(scheduled_job(50, 50, updates=2))
    assert not np.array_equal(plan.rows[0], plan.rows[1])
    assert not np.array_equal(plan.rows[0], schedule(scheduled_job(50, 50, seed=1)).rows[0])
