"""Merged training equals the textbook's, for every bundled model and every optimizer."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from espalier.core.errors import ConfigError, TrainingError
from espalier.core.messages import Calibration
from espalier.core.params import ParamSpec
from espalier.core.seeds import key
from espalier.training.evaluate import Evaluator
from espalier.training.models import build
from espalier.training.trainer import Trainer
from espalier.training.work import Optimizer, TrainerJob
from tests.training.problems import CASES, Memory, Textbook, distance, make, starts

OPTIMIZERS = {
    "plain": {},
    "momentum": {"optimizer": lambda i: Optimizer(lr=0.02 + 0.01 * i, momentum=0.9, weight_decay=1e-2)},
    "nesterov": {"optimizer": lambda i: Optimizer(lr=0.02 + 0.01 * i, momentum=0.8, nesterov=True)},
    "decay": {"optimizer": lambda i: Optimizer(lr=0.02 + 0.01 * i, weight_decay=0.1)},
    "adam": {"optimizer": lambda i: Optimizer("adam", lr=0.001 + 0.001 * i, weight_decay=1e-2)},
}


def both(case, dtype, sizes, **options):
    module = case.module()
    jobs = make(module, case.pool(sum(sizes)), sizes, dtype=dtype, **options)
    with Trainer(module, case.loss) as trainer:
        found = list(trainer.run(jobs))
        assert trainer.batched, trainer.why_not
    return jobs, found, [Textbook(module, case.loss).run(j) for j in jobs]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_merged_training_is_the_textbooks_in_float64(case):
    # 7 and 5 rows in batches of 4 (2): steps of 4+3 and 4+1, another learning rate for each.
    sizes, batch = ([3, 2], 2) if case.heavy else ([7, 5, 4], 4)
    jobs, found, expected = both(case, torch.float64, sizes, batch=batch)
    for job, ours, (vector, loss) in zip(jobs, found, expected, strict=True):
        assert distance(ours.vector, vector, job.start) < 1e-10
        assert ours.loss == pytest.approx(loss, rel=1e-10)


@pytest.mark.parametrize("case", [c for c in CASES if not c.heavy], ids=str)
def test_merged_training_is_the_textbooks_in_float32(case):
    jobs, found, expected = both(case, torch.float32, [7, 5, 4])
    for job, ours, (vector, loss) in zip(jobs, found, expected, strict=True):
        assert distance(ours.vector, vector, job.start) < 1e-4
        assert ours.loss == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize("batched", [True, False], ids=["merged", "sequential"])
@pytest.mark.parametrize("form", ["shares", "margins", "restricted"])
@pytest.mark.parametrize("name", ["mlp", "unet"])
def test_calibrated_training_is_the_textbooks(name, form, batched):
    case = next(c for c in CASES if c.name == name)
    module, sizes = case.module(), [7, 5, 4]
    # One of the clients trains plainly: it runs in a chunk of its own.
    given = {"calibration": lambda i: None if i == 1 else Calibration(1.0 - 0.25 * i, 0.1, form)}
    jobs = make(module, case.pool(sum(sizes)), sizes, dtype=torch.float64, **given)
    with Trainer(module, case.loss, batched=batched) as trainer:
        for job, ours in zip(jobs, trainer.run(jobs), strict=True):
            vector, loss = Textbook(module, case.loss).run(job)
            assert distance(ours.vector, vector, job.start) < 1e-10
            assert ours.loss == pytest.approx(loss, rel=1e-10)


def test_a_calibrated_loss_needs_labels():
    case = next(c for c in CASES if c.kind == "regression")
    module = case.module()
    jobs = make(module, case.pool(4), [4], calibration=Calibration(1.0, 0.1))
    with Trainer(module, case.loss) as trainer, pytest.raises(TrainingError, match="needs labels"):
        list(trainer.run(jobs))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("more", ["", "proximal", "corrected", "both", "part"])
def test_every_optimizer_with_uneven_steps(name, more):
    case = CASES[1]
    module = case.module()
    options = dict(OPTIMIZERS[name])
    if more in ("proximal", "both", "part"):
        anchor = starts(module, 1, torch.float64)[0] * 0.5
        options |= {"anchor": anchor, "mu": lambda i: 0.1 + 0.1 * i}
    if more in ("corrected", "both", "part"):
        corrections = starts(module, 4, torch.float64)
        options |= {"correction": lambda i: 0.3 * corrections[3 - i]}
    if more == "part":
        options |= {"trains": ("*.2.*", "*.bias")}
    epochs = [1, 3, 2, 1]
    jobs, found, expected = both(case, torch.float64, [9, 4, 11, 2], updates=lambda i: epochs[i], **options)
    for job, ours, (vector, loss) in zip(jobs, found, expected, strict=True):
        assert ours.steps == job.n_steps
        assert ours.samples == len(job.rows) * job.updates
        assert distance(ours.vector, vector, job.start) < 1e-10
        assert ours.loss == pytest.approx(loss, rel=1e-10)


@pytest.mark.parametrize("case", CASES[:6], ids=str)
def test_a_part_of_a_model_is_trained_and_the_rest_stays(case):
    module = case.module()
    last = [name for name, _ in module.named_parameters()][-2:]
    jobs, found, expected = both(case, torch.float64, [7, 5], trains=tuple(last), updates=2)
    spec = ParamSpec.of(module)
    for job, ours, (vector, _) in zip(jobs, found, expected, strict=True):
        assert distance(ours.vector, vector, job.start) < 1e-10
        for e in spec.entries:
            same = torch.equal(ours.vector[e.start : e.stop], job.start[e.start : e.stop])
            assert same == (e.name not in last)
    with Trainer(module, case.loss, batched=False) as trainer:
        for job, ours, alone in zip(jobs, found, trainer.run(jobs), strict=True):
            assert distance(ours.vector, alone.vector, job.start) < 1e-10


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_correction_alone_moves_a_model_one_by_one_as_it_does_merged(name):
    module = CASES[1].module()
    correction = starts(module, 1, torch.float64)[0]
    options = {**OPTIMIZERS[name], "correction": correction, "trains": ("*weight",), "updates": 2}
    jobs = make(module, CASES[1].pool(12), [7, 5], dtype=torch.float64, **options)
    with Trainer(module, "cross_entropy") as merged, Trainer(module, "cross_entropy", batched=False) as single:
        for job, one, other in zip(jobs, merged.run(jobs), single.run(jobs), strict=True):
            assert distance(one.vector, other.vector, job.start) < 1e-10


@pytest.mark.parametrize("name", ["momentum", "nesterov", "adam"])
def test_memory_goes_on_where_it_stopped(name):
    case = CASES[1]
    module = case.module()
    whole = make(
        module,
        case.pool(20),
        [10, 10],
        dtype=torch.float64,
        keep_optimizer_state=True,
        updates=6,
        unit="step",
        **OPTIMIZERS[name],
    )
    with Trainer(module, case.loss) as trainer:
        first = list(trainer.run([replace(j, updates=3) for j in whole]))
        # The second half of a job sees other batches, so both halves are compared step by step with the textbook.
        halves = [
            replace(j, start=r.vector, optimizer_state=r.optimizer_state, updates=3)
            for j, r in zip(whole, first, strict=True)
        ]
        found = list(trainer.run(halves))
    for job, result in zip(whole, found, strict=True):
        book = Textbook(module, case.loss)
        kept = {}

        def keeping(job, model, make=book.optimizer, kept=kept):
            optimizer = make(job, model)
            if "state" in kept:
                optimizer.load_state_dict(kept["state"])
            kept["optimizer"] = optimizer
            return optimizer

        book.optimizer = keeping
        middle, _ = book.run(replace(job, updates=3))
        kept["state"] = kept["optimizer"].state_dict()
        last, _ = book.run(replace(job, updates=3, start=middle))
        assert distance(result.vector, last, job.start) < 1e-10


def test_an_update_may_hold_nan_and_is_still_handed_back():
    case = CASES[0]
    module = case.module()
    pool = case.pool(8)
    pool.x[5] = float("nan")
    jobs = make(module, pool, [4, 4])
    with Trainer(module, case.loss) as trainer:
        good, bad = trainer.run(jobs)
    assert torch.isfinite(good.vector).all()
    assert torch.isnan(bad.vector).any()


def test_pools_may_differ_within_a_chunk():
    case = CASES[1]
    module = case.module()
    a, b = case.pool(8), case.pool(8)
    b.y = (b.y + 1) % case.outputs
    jobs = make(module, a, [4, 4], dtype=torch.float64)
    jobs = [jobs[0], replace(jobs[1], pool=b), replace(jobs[0], pool=b)]
    with Trainer(module, case.loss) as trainer:
        found = list(trainer.run(jobs))
    for job, ours in zip(jobs, found, strict=True):
        assert distance(ours.vector, Textbook(module, case.loss).run(job)[0], job.start) < 1e-10


def test_the_module_given_is_never_changed():
    case = CASES[4]
    module = case.module()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    with Trainer(module, case.loss) as trainer:
        list(trainer.run(make(module, case.pool(8), [4, 4])))
        list(Trainer(module, case.loss, batched=False).run(make(module, case.pool(8), [4, 4])))
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())


def test_initial_draws_from_the_seed_and_leaves_torchs_generator_alone():
    module = build("transformer", input_shape=(6,), n_classes=3, vocabulary=9, size=8, heads=2)
    trainer = Trainer(module, "cross_entropy")
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, again, other = trainer.initial(3), trainer.initial(3), trainer.initial(4)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, again)
    for entry in trainer.spec.parameters:
        drawn = not entry.name.endswith(("norm1.weight", "norm2.weight")) and "bias" not in entry.name
        same = torch.equal(first[entry.start : entry.stop], other[entry.start : entry.stop])
        assert same != drawn or "linear" in entry.name or "head" in entry.name


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"rows": np.zeros(0, dtype=np.int64)}, "Job 1 of 2: rows is empty"),
        ({"start": torch.zeros(3)}, r"Job 1 of 2: start has shape \(3,\)"),
        ({"anchor": torch.zeros(3), "mu": 1.0}, r"anchor has shape \(3,\)"),
        ({"mu": 1.0}, "no anchor"),
        ({"correction": torch.zeros(3)}, r"correction has shape \(3,\)"),
        ({"trains": ("head.*",)}, "no parameter's name"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"updates": 0}, "updates is 0"),
        ({"updates": -1, "unit": "step"}, "updates is -1"),
        ({"optimizer": Optimizer("adam"), "optimizer_state": torch.zeros(3)}, r"optimizer_state has shape \(3,\)"),
    ],
)
def test_an_impossible_job_is_refused_before_any_is_computed(change, word):
    case = CASES[0]
    module = case.module()
    first, second = make(module, case.pool(8), [4, 4])
    with pytest.raises(TrainingError, match=word):
        Trainer(module, case.loss).run([first, replace(second, **change)])


def test_data_that_the_model_cannot_take_are_one_clear_error():
    case = CASES[0]
    module = case.module()
    jobs = make(module, Memory(torch.zeros(4, 7), torch.zeros(4, dtype=torch.int64)), [4])
    with pytest.raises(TrainingError, match=r"inputs of shape \(2, 7\)"):
        list(Trainer(module, case.loss).run(jobs))


@pytest.mark.parametrize("options", [{"workers": 0}, {"chunk": 0}])
def test_impossible_settings_are_refused(options):
    with pytest.raises(ConfigError, match="positive number"):
        Trainer(nn.Linear(1, 1), "mse", **options)


def test_no_jobs_give_no_results():
    assert list(Trainer(nn.Linear(1, 1), "mse").run([])) == []


def test_devices_learn_the_digits():
    x, y = load_digits(return_X_y=True)
    pool = Memory(torch.tensor(x / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(y))
    module = build("mlp", input_shape=(1, 8, 8), n_classes=10)
    trainer = Trainer(module, "cross_entropy")
    rows = np.arange(1400).reshape(7, 200)
    optimizer = Optimizer(lr=0.05, momentum=0.9)
    vector = trainer.initial(0)
    for turn in range(6):
        jobs = [
            TrainerJob(
                start=vector, pool=pool, rows=rows[d], batch_size=20, optimizer=optimizer, seed=key(0, "t", turn, d),
                updates=4,
            )
            for d in range(7)
        ]  # fmt: skip
        vector = torch.stack([r.vector for r in trainer.run(jobs)]).mean(0)
    held = np.arange(1400, 1797)
    (found,) = Evaluator(module, "classification", 10).run([vector], pool, held, y[held])
    assert found.correct is not None
    assert found.correct.sum() / found.count.sum() > 0.88
