"""Chains of layers: which models are chains, and that one native call trains them as the textbook does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from espalier.core.messages import Calibration
from espalier.core.params import ParamSpec
from espalier.training import native
from espalier.training.losses import resolve
from espalier.training.merged import chain
from espalier.training.merged.probe import probe
from espalier.training.models import build
from espalier.training.trainer import Trainer
from espalier.training.work import Optimizer, TrainerJob
from tests.training.problems import CASES, Memory, Textbook, distance, make, starts

LEVELS = native.levels()


class Written(nn.Module):
    """A chain as users write them, or nearly one."""

    def __init__(self, way: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(16, 8), nn.Linear(8, 8)
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x)


WAYS: dict[str, tuple[Callable[[Any, Tensor], Tensor], bool]] = {
    "view": (lambda m, x: m.two(F.relu(m.one(x.view(x.size(0), -1)))), True),
    "reshape": (lambda m, x: m.two(torch.relu(m.one(x.reshape(len(x), -1)))), True),
    "in place": (lambda m, x: m.two(F.relu(m.one(x.flatten(1)), inplace=True)), True),
    "no relu": (lambda m, x: m.two(m.one(x.flatten(1))), True),
    "relu at the end": (lambda m, x: m.two(m.one(x.flatten(1))).relu(), True),
    "residual": (lambda m, x: (y := m.one(x.flatten(1))) + m.two(y), False),
    "another function": (lambda m, x: m.two(torch.tanh(m.one(x.flatten(1)))), False),
    "an earlier result": (lambda m, x: (m.one(x.flatten(1)), m.two(m.one(x.flatten(1))))[1], False),
    "scaled": (lambda m, x: m.two(m.one(2 * x.flatten(1))), False),
    "turned": (lambda m, x: m.two(m.one(x.transpose(1, 2).reshape(len(x), -1))), False),
    "written into": (lambda m, x: m.two(m.one(x.flatten(1)).clamp_(min=0)), False),
}


@pytest.mark.parametrize("name", WAYS)
def test_which_forward_passes_are_chains(name: str) -> None:
    way, expected = WAYS[name]
    net = Written(way)
    x, y = torch.randn(13, 4, 4), torch.randint(8, (13,))
    plan = probe(net, ParamSpec.of(net), resolve("cross_entropy"), x, y, torch.float32)
    assert (plan.chain is not None) == expected


@pytest.mark.parametrize(
    ("name", "layers"), [("logistic", 1), ("mlp", 3), ("lenet", 5), ("fedavg_cnn", 4), ("d2d_cnn", 5)]
)
def test_which_bundled_models_are_chains(name: str, layers: int) -> None:
    shape = (3, 16, 16) if name == "d2d_cnn" else (1, 8, 8)
    net = build(name, input_shape=shape, n_classes=5)
    x, y = torch.randn(13, *shape), torch.randint(5, (13,))
    chain = probe(net, ParamSpec.of(net), resolve("cross_entropy"), x, y, torch.float32).chain
    assert chain is not None and len(chain) == layers
    assert [c.pooled for c in chain] == [len(c.weight.shape) == 4 for c in chain]
    assert [c.relu for c in chain] == [len(c.weight.shape) == 2 and c is not chain[-1] for c in chain]


@pytest.mark.parametrize("case", [c for c in CASES if c.name in ("resnet_small", "lstm", "unet")], ids=str)
def test_other_models_are_none(case: Any) -> None:
    net, pool = case.module(), case.pool(13)
    assert probe(net, ParamSpec.of(net), resolve(case.loss), pool.x, pool.y, torch.float32).chain is None


# ---- training

SGD = {
    "plain": Optimizer(lr=0.05),
    "momentum": Optimizer(lr=0.02, momentum=0.9, weight_decay=1e-2),
    "nesterov": Optimizer(lr=0.02, momentum=0.8, nesterov=True),
    "decay": Optimizer(lr=0.05, weight_decay=0.1),
}
MORE = ["", "proximal", "corrected", "all", "part"]


def native_calls(monkeypatch: pytest.MonkeyPatch, level: str) -> list[int]:
    """Train with one level's kernels, whatever the batch; the list gets the steps of every native call."""
    kernels, calls = native.load(level), list[int]()
    train = kernels.train
    monkeypatch.setattr(native, "kernels", lambda: kernels)
    monkeypatch.setattr(kernels, "linear_rows", 512)
    monkeypatch.setattr(kernels, "train", lambda training: calls.append(training.steps) or train(training))
    return calls


def given(module: nn.Module, name: str, more: str) -> dict[str, Any]:
    options: dict[str, Any] = {"optimizer": SGD[name], "keep_optimizer_state": True}
    if more in ("proximal", "all", "part"):
        options |= {"anchor": starts(module, 1)[0] * 0.5, "mu": lambda i: 0.1 + 0.1 * i}
    if more in ("corrected", "all", "part"):
        corrections = starts(module, 4)
        options |= {"correction": lambda i: 0.3 * corrections[3 - i]}
    if more == "all":
        options |= {"calibration": lambda i: Calibration(1.0 - 0.25 * i, 0.1)}
    if more == "part":
        options |= {"trains": ("*.2.*", "*.bias")}
    return options


def exact(job: TrainerJob) -> TrainerJob:
    """The same job in double precision."""
    from dataclasses import replace

    doubled = {k: None if v is None else v.double() for k, v in job.models.items()}
    return replace(job, **doubled)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("name", SGD)
def test_all_steps_of_a_client_are_one_call_and_the_textbook_s(
    name: str, more: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[1]
    module, epochs = case.module(), [1, 3, 2, 1]
    calls = native_calls(monkeypatch, level)
    jobs = make(module, case.pool(26), [9, 4, 11, 2], updates=lambda i: epochs[i], **given(module, name, more))
    for job, ours in zip(jobs, Trainer(module, case.loss).run(jobs), strict=True):
        vector, loss = Textbook(module, case.loss).run(exact(job))
        assert distance(ours.vector.double(), vector, job.start.double()) < 1e-5
        assert ours.loss == pytest.approx(loss, rel=1e-5)
    assert sorted(calls) == sorted(j.n_steps for j in jobs)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["lenet", "d2d_cnn", "fedavg_cnn"])
def test_convolutions_train_in_the_same_call(name: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(c for c in CASES if c.name == name)
    module, calls = case.module(), native_calls(monkeypatch, level)
    jobs = make(module, case.pool(12), [7, 5], updates=2, optimizer=SGD["momentum"])
    for job, ours in zip(jobs, Trainer(module, case.loss).run(jobs), strict=True):
        vector, loss = Textbook(module, case.loss).run(exact(job))
        assert distance(ours.vector.double(), vector, job.start.double()) < 1e-4
        assert ours.loss == pytest.approx(loss, rel=1e-4)
    assert len(calls) == 2


def test_momentum_goes_on_where_it_stopped() -> None:
    case = CASES[1]
    module = case.module()
    jobs = make(module, case.pool(8), [8], optimizer=SGD["momentum"], keep_optimizer_state=True, updates=3)
    (native_one,) = Trainer(module, case.loss).run(jobs)
    (merged,) = Trainer(module, case.loss).run([exact(jobs[0])])
    assert native_one.optimizer_state is not None and merged.optimizer_state is not None
    torch.testing.assert_close(native_one.optimizer_state.double(), merged.optimizer_state, rtol=1e-4, atol=1e-6)
    again = make(module, case.pool(8), [8], optimizer=SGD["momentum"], optimizer_state=native_one.optimizer_state)
    (on,) = Trainer(module, case.loss).run(again)
    (fresh,) = Trainer(module, case.loss).run(make(module, case.pool(8), [8], optimizer=SGD["momentum"]))
    assert not torch.allclose(on.vector, fresh.vector, atol=1e-4)


def test_more_inputs_than_a_block_holds_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[1]
    module = case.module()
    jobs = make(module, case.pool(11), [11], updates=3)
    (whole,) = Trainer(module, case.loss).run(jobs)
    calls = native_calls(monkeypatch, LEVELS[-1])
    monkeypatch.setattr(chain, "_BLOCK_BYTES", 4 * 4 * 25 * 2)  # two steps of four samples
    (cut,) = Trainer(module, case.loss).run(jobs)
    assert calls == [2, 2, 2, 2, 1]
    assert torch.equal(whole.vector, cut.vector) and whole.loss == pytest.approx(cut.loss, rel=1e-12)


def test_labels_that_are_ignored_take_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[1]
    module, pool = case.module(), case.pool(8)
    pool.y[3] = -100  # PyTorch's cross-entropy leaves it out
    jobs = make(module, pool, [4, 4])
    for job, ours in zip(jobs, Trainer(module, case.loss).run(jobs), strict=True):
        vector, _ = Textbook(module, case.loss).run(exact(job))
        assert distance(ours.vector.double(), vector, job.start.double()) < 1e-4


def test_infinite_numbers_are_seen_by_the_receiver() -> None:
    case = CASES[1]
    module, pool = case.module(), case.pool(8)
    pool.x[5] = torch.inf
    good, bad = Trainer(module, case.loss).run(make(module, pool, [4, 4]))
    assert torch.isfinite(good.vector).all() and not torch.isfinite(bad.vector).all()
    assert bad.loss != bad.loss


def test_inputs_of_another_type_are_cast() -> None:
    case = CASES[1]
    module, pool = case.module(), case.pool(8)
    double = Memory(pool.x.double(), pool.y)
    (one,), (other,) = (Trainer(module, case.loss).run(make(module, p, [8])) for p in (pool, double))
    assert torch.equal(one.vector, other.vector)
