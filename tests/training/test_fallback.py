"""Models that cannot be merged are trained one by one: said once, same result."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from espalier.training.trainer import FallbackWarning, Trainer
from espalier.training.work import Optimizer
from tests.training.problems import Case, Memory, Textbook, distance, make


class Normed(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


class Deciding(nn.Linear):
    def __init__(self):
        super().__init__(6, 3)

    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else super().forward(-x)


class Centred(nn.Linear):
    def __init__(self):
        super().__init__(6, 3)

    def forward(self, x):
        return super().forward(x - x.mean(0))


class Attending(nn.Linear):
    """Samples look at each other: an activation of shape [rows, rows]."""

    def __init__(self):
        super().__init__(6, 3)
        self.mix = nn.Linear(6, 6)

    def forward(self, x):
        return super().forward((x @ self.mix(x).T).softmax(1) @ x)


class Counting(nn.Linear):
    """Keeps a buffer of its own up to date."""

    def __init__(self):
        super().__init__(6, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += len(x)
        return super().forward(x)


MODELS = {
    Normed: "statistics over the batch",
    Deciding: "data-dependent control flow",
    Centred: "depends on other clients' samples",
    Attending: "depends on other clients' samples",
    Counting: "changed in place",
}


def problem(module, dtype=torch.float64, **options):
    g = torch.Generator().manual_seed(0)
    pool = Memory(torch.randn(16, 6, generator=g), torch.randint(3, (16,), generator=g))
    return make(module, pool, [8, 4, 4], dtype=dtype, optimizer=Optimizer(lr=0.1, momentum=0.9), **options)


@pytest.mark.parametrize("kind", MODELS)
def test_it_is_said_once_and_the_result_is_the_textbooks(kind):
    torch.manual_seed(0)
    module = kind()
    jobs = problem(module, updates=2)
    trainer = Trainer(module, "cross_entropy")
    with pytest.warns(FallbackWarning, match=MODELS[kind]) as said:
        found = list(trainer.run(jobs))
    assert len(said) == 1
    assert not trainer.batched and trainer.why_not is not None and MODELS[kind] in trainer.why_not
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = list(trainer.run(jobs))
    for job, ours, repeated in zip(jobs, found, again, strict=True):
        vector, loss = Textbook(module, "cross_entropy").run(job)
        assert distance(ours.vector, vector, job.start) < 1e-10
        assert ours.loss == pytest.approx(loss, rel=1e-10)
        assert torch.equal(ours.vector, repeated.vector)


def test_running_statistics_travel_in_the_vector():
    torch.manual_seed(0)
    module = Normed()
    (job, *_) = problem(module, dtype=torch.float32)
    trainer = Trainer(module, "cross_entropy", batched=False)
    (result,) = trainer.run([job])
    moved = {e.name: result.vector[e.start : e.stop] - job.start[e.start : e.stop] for e in trainer.spec.entries}
    assert moved["1.running_mean"].abs().sum() > 0
    assert moved["1.num_batches_tracked"].tolist() == [2.0]


def test_a_batch_of_one_sample_is_normed_by_the_running_statistics():
    torch.manual_seed(0)
    module = Normed()
    g = torch.Generator().manual_seed(0)
    pool = Memory(torch.randn(16, 6, generator=g), torch.randint(3, (16,), generator=g))
    (job,) = make(module, pool, [5], batch=4)  # four samples, then the last one alone
    trainer = Trainer(module, "cross_entropy", batched=False)
    (result,) = trainer.run([job])
    assert torch.isfinite(result.vector).all() and result.loss > 0
    moved = {e.name: result.vector[e.start : e.stop] - job.start[e.start : e.stop] for e in trainer.spec.entries}
    assert moved["0.weight"].abs().sum() > 0 and moved["1.num_batches_tracked"].tolist() == [2.0]


class Noisy(nn.Linear):
    def __init__(self):
        super().__init__(6, 3)

    def forward(self, x):
        return super().forward(x + 0.1 * torch.randn_like(x))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_models_own_randomness_is_a_function_of_the_job(workers):
    module = Noisy()
    jobs = problem(module)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with Trainer(module, "cross_entropy", workers=workers, chunk=1) as trainer:
        with pytest.warns(FallbackWarning, match="random numbers"):
            found = list(trainer.run(jobs))
        backwards = list(trainer.run(jobs[::-1]))[::-1]
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a.vector, b.vector) for a, b in zip(found, backwards, strict=True))


def test_a_model_that_changes_its_way_later_still_gets_its_result():
    class Mood:
        good = True

        def __deepcopy__(self, memo):
            return self

    class Moody(nn.Module):
        """Two layers, or one: decided by something outside the data."""

        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)
            self.mood = Mood()

        def forward(self, x):
            return self.second(F.relu(self.first(x)) if self.mood.good else x)

    module = Moody()
    jobs = problem(module)
    trainer = Trainer(module, "cross_entropy")
    list(trainer.run(jobs))
    assert trainer.batched
    module.mood.good = False
    with pytest.warns(FallbackWarning, match="another way"):
        found = list(trainer.run(jobs))
    for job, ours in zip(jobs, found, strict=True):
        assert distance(ours.vector, Textbook(module, "cross_entropy").run(job)[0], job.start) < 1e-10


def test_one_by_one_can_be_asked_for():
    case = Case("mlp", (1, 4, 4), 3)
    module = case.module()
    trainer = Trainer(module, case.loss, batched=False)
    jobs = make(module, case.pool(8), [5, 3], dtype=torch.float64)
    for job, ours in zip(jobs, trainer.run(jobs), strict=True):
        assert distance(ours.vector, Textbook(module, case.loss).run(job)[0], job.start) < 1e-10
    assert trainer.why_not == "batched=False was asked for"
