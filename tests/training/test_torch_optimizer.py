import pytest
import torch

from espalier.core.errors import ConfigError, TrainingError
from espalier.settings import Training
from espalier.training.torch_optimizer import check_optimizer
from espalier.training.trainer import FallbackWarning, Trainer
from espalier.training.work import Optimizer
from tests.training.problems import CASES, Textbook, distance, make

CASE = CASES[1]


class Counting(torch.optim.SGD):
    """An optimiser whose state is not made of tensors."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["calls"] = 1


def trained(optimizer, sizes=(7, 4), **options):
    """Train clients with an own optimiser; return the module, jobs and results."""
    module, pool = CASE.module(), CASE.pool(sum(sizes))
    jobs = make(module, pool, list(sizes), dtype=torch.float64, optimizer=optimizer, **options)
    with pytest.warns(FallbackWarning, match="one client at a time: the optimiser") as told:
        results = list(Trainer(module, CASE.loss).run(jobs))
    assert len(told) == 1, "it is said once"
    return module, jobs, results


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("AdamW", {"weight_decay": 0.1, "betas": [0.8, 0.99]}),
        ("RMSprop", {"momentum": 0.5}),
        ("Adagrad", {}),
        ("Adafactor", {}),  # steps by rows and columns: shapes are the model's own
        ("NAdam", {}),
    ],
)
def test_a_torch_optimiser_trains_as_a_plain_loop_does(name, options):
    optimizer = Optimizer(f"torch.optim:{name}", lr=0.02, options=options)
    module, jobs, results = trained(optimizer, updates=2)
    for job, result in zip(jobs, results, strict=True):
        assert distance(result.vector, Textbook(module, CASE.loss).run(job)[0], job.start) < 1e-12


def test_adamw_steps_with_an_anchor_by_hand():
    # AdamW's first step is lr in the gradient's sign, after decay by lr·wd; far from the anchor the pull decides the
    # sign: w = 3, anchor 0, mu = 1000: 3·(1 - .1·.5) - .1 = 2.75.
    module = torch.nn.Linear(1, 1, bias=False)
    optimizer = Optimizer("torch.optim:AdamW", lr=0.1, options={"weight_decay": 0.5})
    pool = CASE.pool(1)
    pool.x, pool.y = torch.ones(1, 1), torch.zeros(1, 1)
    (job,) = make(
        module,
        pool,
        [1],
        dtype=torch.float64,
        optimizer=optimizer,
        updates=1,
        mu=1000.0,
        anchor=lambda i: torch.zeros(1),
    )
    job.start.fill_(3.0)
    with pytest.warns(FallbackWarning):
        (result,) = Trainer(module, "mse").run([job])
    assert result.vector.item() == pytest.approx(2.75, abs=1e-6)


@pytest.mark.parametrize("name", ["AdamW", "SGD", "RMSprop", "NAdam", "Adafactor"])
def test_state_is_carried_from_one_training_to_the_next(name):
    # 4 samples in batches of 4: every update is one whole batch, so one and one make two
    optimizer = Optimizer(f"torch.optim:{name}", lr=0.02, options={"momentum": 0.9} if name == "SGD" else {})
    module, (whole,), (expected,) = trained(optimizer, sizes=(4,), updates=2)
    pool, trainer = whole.pool, Trainer(module, CASE.loss, batched=False)
    (first,) = make(module, pool, [4], dtype=torch.float64, optimizer=optimizer, updates=1, keep_optimizer_state=True)
    (half,) = trainer.run([first])
    (second,) = make(
        module, pool, [4], dtype=torch.float64, optimizer=optimizer, updates=1, optimizer_state=half.optimizer_state
    )
    second.start.copy_(half.vector)
    (found,) = trainer.run([second])
    assert distance(found.vector, expected.vector, whole.start) < 1e-12


def test_state_that_cannot_be_carried_is_refused():
    optimizer = Optimizer(f"{__name__}:Counting", lr=0.1)
    with pytest.raises(TrainingError, match=r"cannot be carried from one training to the next.*'calls' is no tensor"):
        trained(optimizer, updates=1, keep_optimizer_state=True)
    with pytest.raises(TrainingError, match="optimizer_state has 3 numbers"):
        trained(Optimizer("torch.optim:AdamW"), updates=1, optimizer_state=lambda i: torch.zeros(3))


@pytest.mark.parametrize(
    ("name", "options", "word"),
    [
        ("torch.optim:Adamw", {}, "cannot be imported"),
        ("torch:zeros", {}, "a subclass of torch.optim.Optimizer"),
        ("torch.optim:LBFGS", {}, "wants a closure"),
        ("torch.optim:AdamW", {"beta": 0.9}, "optimizer_options = {'beta': 0.9}"),
    ],
)
def test_what_cannot_be_used_is_refused_before_a_run(name, options, word):
    with pytest.raises(ConfigError, match=word):
        check_optimizer(Optimizer(name, options=options))


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ({"optimizer": "adm"}, "must be 'sgd', 'adam' or package.module:Class. Did you mean 'adam'"),
        ({"optimizer": "torch.optim:AdamW", "momentum": 0.9}, "training.momentum = 0.9: must be 0 here"),
        ({"optimizer": "torch.optim:AdamW", "optimizer_options": {"lr": 1.0}}, "say it as training.lr"),
        ({"optimizer_options": {"betas": [0.5, 0.5]}}, "empty for sgd and adam"),
        ({"optimizer": 3}, "training.optimizer is a int"),
    ],
)
def test_wrong_settings_are_told_in_a_sentence(table, word):
    with pytest.raises(ConfigError, match=word):
        Training.build(table)


def test_a_class_is_named_by_its_import_path():
    made = Training(optimizer=torch.optim.AdamW, optimizer_options={"weight_decay": 0.1})
    assert made.optimizer == "torch.optim.adamw:AdamW"
    assert Training.build(made.to_plain()) == made
