"""A job's result is a function of the job: bit for bit, whatever it shares a chunk with."""

import gc
import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.core.params import ParamSpec
from espalier.training.chunks import arranged, size_for
from espalier.training.models import build
from espalier.training.trainer import Trainer
from espalier.training.work import Optimizer, TrainerJob
from tests.training.problems import CASES, Memory, make


def one(pool, n, **given):
    return TrainerJob(start=torch.zeros(1), pool=pool, rows=np.arange(n), **given)


def assert_same(first, second):
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.vector, b.vector)
        assert a.loss == b.loss
        assert (a.samples, a.steps) == (b.samples, b.steps)
        assert (a.optimizer_state is None and b.optimizer_state is None) or torch.equal(
            a.optimizer_state, b.optimizer_state
        )


def jobs_of(case, **options):
    module = case.module()
    sizes = [3, 2] if case.heavy else [7, 5, 10, 4, 7]
    return module, make(module, case.pool(sum(sizes)), sizes, batch=2 if case.heavy else 4, **options)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_chunks_and_order_change_no_bit(case):
    module, jobs = jobs_of(case)
    order = np.random.default_rng(0).permutation(len(jobs))
    with Trainer(module, case.loss) as whole, Trainer(module, case.loss, chunk=1) as single:
        expected = list(whole.run(jobs))
        assert_same(list(single.run(jobs)), expected)
        if not case.heavy:
            shuffled = list(Trainer(module, case.loss, chunk=3).run([jobs[i] for i in order]))
            assert_same([shuffled[np.flatnonzero(order == i)[0]] for i in range(len(jobs))], expected)


@pytest.mark.parametrize("name", ["momentum", "adam", "decay"])
def test_the_optimizer_changes_no_bit(name):
    optimizers = {
        "momentum": lambda i: Optimizer(lr=0.01 * (1 + i), momentum=0.9, weight_decay=1e-3),
        "adam": lambda i: Optimizer("adam", lr=0.001 * (1 + i)),
        "decay": lambda i: Optimizer(lr=0.01 * (1 + i), weight_decay=1e-3),
    }
    case = next(c for c in CASES if c.name == "lenet")
    module, jobs = jobs_of(case, optimizer=optimizers[name], keep_optimizer_state=True)
    assert_same(list(Trainer(module, case.loss, chunk=2).run(jobs)), list(Trainer(module, case.loss).run(jobs)))


@pytest.mark.parametrize("name", ["mlp", "lenet", "fedavg_cnn"])
def test_two_workers_give_the_bits_of_one(name):
    module = build(name, input_shape=(1, 28, 28), n_classes=10)
    g = torch.Generator().manual_seed(0)
    pool = Memory(torch.randn(60, 1, 28, 28, generator=g), torch.randint(10, (60,), generator=g))
    jobs = make(module, pool, [20, 10, 15, 15], batch=10)
    with Trainer(module, "cross_entropy") as one, Trainer(module, "cross_entropy", workers=2) as two:
        assert_same(list(two.run(jobs)), list(one.run(jobs)))


def test_results_come_in_the_jobs_order_while_later_ones_are_still_to_do():
    case = CASES[0]
    module = case.module()
    pool = case.pool(4)
    jobs = make(module, pool, [4], updates=1) * 200
    gathered = []
    counting = Memory(pool.x, pool.y)
    counting.gather = lambda rows: gathered.append(1) or pool.gather(rows)
    stream = Trainer(module, case.loss, chunk=2).run([replace(j, pool=counting) for j in jobs])
    next(stream)
    assert len(gathered) < 20
    stream.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_jobs_are_forgotten_as_they_are_begun(workers):
    case = CASES[0]
    module = case.module()
    jobs = make(module, case.pool(160), [4] * 40)
    starts = [weakref.ref(job.start) for job in jobs]
    with Trainer(module, case.loss, workers=workers, chunk=1) as trainer:
        results = trainer.run(jobs)
        del jobs
        for _ in range(20):
            next(results)
        # twenty have been handed back; of the others some are under way
        assert sum(start() is not None for start in starts) <= 24
        assert len(list(results)) == 20


def test_a_run_that_is_dropped_ends_its_threads():
    case = CASES[0]
    module = case.module()
    before = threading.active_count()
    trainer = Trainer(module, case.loss, workers=2, chunk=1)
    next(trainer.run(make(module, case.pool(40), [4] * 10)))
    trainer.close()
    assert threading.active_count() == before
    other = Trainer(module, case.loss, workers=2, chunk=1)
    list(other.run(make(module, case.pool(40), [4] * 10)))
    threads = [t for t in threading.enumerate() if "espalier-trainer" in t.name]
    del other
    gc.collect()
    for thread in threads:
        thread.join(5)
    assert threading.active_count() == before


def test_an_error_in_a_worker_reaches_the_caller():
    case = CASES[0]
    module = case.module()
    pool = case.pool(8)
    jobs = make(module, pool, [4, 4])
    broken = Memory(pool.x, pool.y)
    broken.gather = lambda rows: 1 / 0
    with Trainer(module, case.loss, workers=2, chunk=1) as trainer, pytest.raises(ZeroDivisionError):
        list(trainer.run([*jobs, replace(jobs[0], pool=broken)]))


def test_the_callers_threads_are_given_back():
    case = CASES[0]
    module = case.module()
    before = torch.get_num_threads()
    for workers in (1, 2):
        with Trainer(module, case.loss, workers=workers) as trainer:
            list(trainer.run(make(module, case.pool(8), [4, 4])))
        assert torch.get_num_threads() == before


def test_a_chunk_fits_the_cache():
    # 8 MB of float32: ten MLPs of 199,210 parameters; 33 LeNets; a big model goes in pairs.
    sizes = {n: build(n, input_shape=(1, 28, 28), n_classes=10) for n in ("mlp", "lenet", "fedavg_cnn")}
    assert {n: size_for(ParamSpec.of(m)) for n, m in sizes.items()} == {"mlp": 10, "lenet": 33, "fedavg_cnn": 2}


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=60),
    size=st.integers(1, 9),
    workers=st.integers(1, 3),
)
def test_every_job_is_in_one_chunk_with_its_like(sizes, size, workers):
    pool = Memory(torch.zeros(1, 1), torch.zeros(1))
    jobs = [one(pool, n, batch_size=8, optimizer=Optimizer(lr=0.1 + n), seed=n) for n in sizes]
    chunks = list(arranged(jobs, size, workers))
    assert sorted(i for c in chunks for i in c) == list(range(len(jobs)))
    for chunk in chunks:
        assert 1 <= len(chunk) <= size
        assert [jobs[i].n_steps for i in chunk] == sorted((jobs[i].n_steps for i in chunk), reverse=True)


def test_few_jobs_are_shared_among_the_workers():
    pool = Memory(torch.zeros(1, 1), torch.zeros(1))
    jobs = [one(pool, 4, batch_size=4, optimizer=Optimizer(), seed=i) for i in range(20)]
    assert [len(c) for c in arranged(jobs, 32, 2)] == [10, 10]
    assert [len(c) for c in arranged(jobs, 12, 1)] == [10, 10]
