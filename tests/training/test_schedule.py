from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from espalier.training.schedule import schedule, width
from espalier.training.work import Optimizer, TrainerJob
from tests.training.problems import Memory

POOL = Memory(torch.zeros(1, 1), torch.zeros(1))


def job(n, batch, seed=0, **options):
    rows = np.arange(100, 100 + n)
    return TrainerJob(
        start=torch.zeros(1), pool=POOL, rows=rows, batch_size=batch, optimizer=Optimizer(), seed=seed, **options
    )


def test_five_rows_in_batches_of_two():
    plan = schedule(job(5, 2, updates=2))
    # 2 + 2 + 1 twice; the lone row of an epoch is padded with itself.
    assert plan.sizes.tolist() == [2, 2, 1, 2, 2, 1]
    assert plan.rows.shape == (6, 2)
    assert plan.rows[2, 0] == plan.rows[2, 1]
    assert plan.samples == 10


def test_steps_cycle_through_reshuffled_epochs():
    plan = schedule(job(5, 2, updates=4, unit="step"))
    assert plan.sizes.tolist() == [2, 2, 1, 2]
    first = [*plan.rows[:2].ravel(), plan.rows[2, 0]]
    assert sorted(first) == [100, 101, 102, 103, 104]


def test_a_longer_job_begins_like_a_shorter_one():
    short, long = schedule(job(7, 3, updates=4, unit="step")), schedule(job(7, 3, updates=9, unit="step"))
    assert np.array_equal(short.rows, long.rows[:4])


def test_widths_climb_a_ladder():
    # At least a batch of rows: the batch. Fewer: multiples of 4 to 16, of 8 to 32, of 16 to 64; never above the batch.
    found = [width(job(n, 64)) for n in (1, 4, 5, 16, 17, 24, 25, 33, 63, 64, 65, 1000)]
    assert found == [4, 4, 8, 16, 24, 24, 32, 48, 64, 64, 64, 64]
    assert width(job(5, 6)) == 6
    assert width(job(2, 2)) == 2


@given(n=st.integers(1, 40), batch=st.integers(1, 20), epochs=st.integers(1, 4), seed=st.integers(0, 2**100))
def test_every_epoch_sees_every_row_once(n, batch, epochs, seed):
    work = job(n, batch, seed, updates=epochs)
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
    work = job(n, batch, seed, updates=2)
    assert np.array_equal(schedule(work).rows, schedule(replace(work, mu=3.0)).rows)


def test_seeds_and_epochs_shuffle_differently():
    plan = schedule(job(50, 50, updates=2))
    assert not np.array_equal(plan.rows[0], plan.rows[1])
    assert not np.array_equal(plan.rows[0], schedule(job(50, 50, seed=1)).rows[0])
