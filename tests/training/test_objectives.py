"""Terms over features, prototypes and mixtures: numbers worked by hand, and both ways of training alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from espalier.core.errors import TrainingError
from espalier.core.objectives import ClassSums, Contrast, Distillation, Mixture, NearPrototypes, Objective
from espalier.training.objectives import class_sums, contrast, far_from, mixed, prototypes
from espalier.training.trainer import Trainer
from espalier.training.work import Optimizer, TrainerJob
from tests.training.problems import CASES, Memory, make, starts

SIZES = [9, 5, 12, 7]


def test_the_contrast_is_small_where_features_are_like_the_anchors() -> None:
    # z = (3, 4): cosine with the anchor (1, 0) is 3/5, with the model beside (0, 2) it is 4/5; T = 0.5.
    # -log(e^1.2 / (e^1.2 + e^1.6)) = log(1 + e^0.4) = 0.9130152
    found = contrast(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]]), 0.5)
    assert found.tolist() == pytest.approx([math.log(1 + math.exp(0.4))])


def test_between_two_like_models_the_contrast_has_no_gradient() -> None:
    z = torch.randn(3, 4, requires_grad=True)
    other = torch.randn(3, 4)
    contrast(z, other, other, 0.5).sum().backward()
    assert z.grad is not None and float(z.grad.abs().max()) < 1e-7


def test_averages_of_class_sums_are_the_prototypes_of_all_samples() -> None:
    # Device 1 has features 1, 3 of label 0 and 10 of label 1; device 2 has 5 of label 0. Label 2 nobody has.
    one = class_sums(torch.tensor([[1.0], [3.0], [10.0]]), torch.tensor([0, 0, 1]), 3)
    two = class_sums(torch.tensor([[5.0]]), torch.tensor([0]), 3)
    assert one[0].flatten().tolist() == pytest.approx([4 / 3, 10 / 3, 0]) and one[1].tolist() == pytest.approx(
        [2 / 3, 1 / 3, 0]
    )
    sums, counts = (0.75 * a + 0.25 * b for a, b in zip(one, two, strict=True))  # by their samples, 3 and 1
    assert prototypes(sums, counts).flatten().tolist() == pytest.approx([(1 + 3 + 5) / 3, 10, 0])


def test_features_are_far_from_known_prototypes_alone() -> None:
    found = far_from(torch.tensor([[1.0, 2.0], [1.0, 2.0]]), torch.tensor([[0.0, 4.0]] * 2), torch.tensor([1.0, 0.0]))
    assert found.tolist() == [(1 + 4) / 2, 0.0]


def test_a_mixture() -> None:
    assert mixed(torch.tensor([8.0]), torch.tensor([4.0]), 0.25).item() == 5.0


def _jobs(case: Any, objective: Objective, dtype: torch.dtype, **options: Any) -> tuple[nn.Module, list[TrainerJob]]:
    module = case.module().to(dtype)
    pool = case.pool(sum(SIZES))
    others = starts(module, 2 * len(SIZES), dtype)[len(SIZES) :]
    if isinstance(objective, NearPrototypes):  # what prototypes are made of has shares of labels for biases
        others = [v.clone() for v in others]
        for v in others:
            v[-case.outputs :] = torch.linspace(0.0, 0.5, case.outputs, dtype=dtype)
    return module, make(
        module, pool, SIZES, dtype=dtype, objective=objective, beside=lambda i: others[i], anchor=lambda i: others[-1],
        updates=2, **options,
    )  # fmt: skip


OBJECTIVES = [Contrast(2.0, 0.5), Distillation(0.5, 2.0), NearPrototypes(0.7), Mixture(0.3)]
KINDS = [c for c in CASES if c.kind == "classification" and not c.heavy]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("case", KINDS, ids=lambda c: f"{c.name}{c.shape}")
def test_clients_at_once_and_one_by_one_are_alike(case: Any, objective: Objective) -> None:
    module, jobs = _jobs(case, objective, torch.float64)
    together, apart = Trainer(module, "cross_entropy"), Trainer(module, "cross_entropy", batched=False)
    for a, b in zip(together.run(jobs), apart.run(jobs), strict=True):
        torch.testing.assert_close(a.vector, b.vector, rtol=1e-9, atol=1e-10)
        assert a.loss == pytest.approx(b.loss)
    assert together.batched or "batch" in (together.why_not or "").lower()


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_a_result_does_not_depend_on_other_clients(objective: Objective) -> None:
    module, jobs = _jobs(KINDS[1], objective, torch.float32)
    whole = list(Trainer(module, "cross_entropy").run(jobs))
    for chunk in (1, 3):
        for a, b in zip(whole, Trainer(module, "cross_entropy", chunk=chunk).run(jobs), strict=True):
            assert torch.equal(a.vector, b.vector)


class Plain(nn.Module):
    """One number in, one hidden, two out."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(1, 1, bias=False), nn.Linear(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.body(x))
        return found


@pytest.mark.parametrize("batched", [True, False])
def test_distillation_worked_by_hand(batched: bool) -> None:
    # x = 1, label 0, body 1, head 0: logits (0, 0). Beside: head (1, 0), zero biases: logits (1, 0). T = 2, weight 3.
    # Cross-entropy's gradient by the logits: softmax(0, 0) - (1, 0) = (-1/2, 1/2). The term's: weight T (q - p) with
    # q = softmax(0, 0) = (1/2, 1/2) and p = softmax(1/2, 0) = (.6224593, .3775407): 3 * 2 * (-.1224593, .1224593) =
    # (-.7347560, .7347560). Together (-1.2347560, 1.2347560), for the biases and (features are 1) the head alike.
    start, beside = (torch.tensor(v, dtype=torch.float64) for v in ([1.0, 0, 0, 0, 0], [1.0, 1, 0, 0, 0]))
    job = TrainerJob(
        start=start, beside=beside, objective=Distillation(3.0, 2.0), pool=Memory(torch.ones(1, 1), torch.tensor([0])),
        rows=np.arange(1), batch_size=1, optimizer=Optimizer(lr=0.1), seed=5,
    )  # fmt: skip
    (found,) = Trainer(Plain().double(), "cross_entropy", batched=batched).run([job])
    wanted = [1.0, 0.1234756, -0.1234756, 0.1234756, -0.1234756]
    assert found.vector.tolist() == pytest.approx(wanted, abs=1e-7)
    assert found.loss == pytest.approx(math.log(2)), "the loss that is told is without the term"


def _textbook(job: TrainerJob, alpha: float, optimizer: Any) -> torch.Tensor:
    """APFL's Algorithm 1 with torch's own autograd and optimisers; every batch is the whole device."""
    assert job.beside is not None
    x, y = job.pool.gather(torch.from_numpy(job.rows))
    v, w = (t.clone().requires_grad_() for t in (job.start, job.beside))
    steps_v, steps_w = optimizer([v]), optimizer([w])
    loss = nn.CrossEntropyLoss()

    def outputs(vector: torch.Tensor) -> torch.Tensor:
        return (x.double() @ vector[:1].view(1, 1).T) @ vector[1:3].view(2, 1).T + vector[3:]

    for _ in range(job.updates):
        loss(outputs(w), y).backward()
        loss(outputs(alpha * v + (1 - alpha) * w.detach()), y).backward()
        steps_v.step(), steps_w.step()
        steps_v.zero_grad(), steps_w.zero_grad()
    return v.detach()


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(
    ("settings", "options"),
    [
        (Optimizer(lr=0.1), {}),
        (Optimizer(lr=0.1, momentum=0.9, weight_decay=0.05), {"momentum": 0.9, "weight_decay": 0.05}),
        (Optimizer("adam", lr=0.1), None),
    ],
)
def test_a_mixture_is_trained_as_published(
    batched: bool, settings: Optimizer, options: dict[str, float] | None
) -> None:
    pool = Memory(torch.randn(6, 1, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 1, 0, 1, 0]))
    start, beside = (torch.randn(5, generator=torch.Generator().manual_seed(i), dtype=torch.float64) for i in (2, 3))
    job = TrainerJob(
        start=start, beside=beside, objective=Mixture(0.3), updates=4, pool=pool, rows=np.arange(6), batch_size=6,
        optimizer=settings, seed=5,
    )  # fmt: skip

    def made(parameters: Any) -> torch.optim.Optimizer:
        return (
            torch.optim.Adam(parameters, lr=0.1) if options is None else torch.optim.SGD(parameters, lr=0.1, **options)  # type: ignore[arg-type]
        )

    (found,) = Trainer(Plain().double(), "cross_entropy", batched=batched).run([job])
    torch.testing.assert_close(found.vector, _textbook(job, 0.3, made), rtol=1e-9, atol=1e-10)


def test_class_sums_lie_in_the_last_layer() -> None:
    pool = Memory(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0, 1, 1]))
    job = TrainerJob(
        start=torch.tensor([3.0, 9.0, 9.0, 9.0, 9.0]), objective=ClassSums(), pool=pool, rows=np.arange(3),
        batch_size=3, optimizer=Optimizer(), seed=0,
    )  # fmt: skip
    (found,) = Trainer(Plain(), "cross_entropy").run([job])
    # features 3, 6, 12: sums 3 and 18, numbers 1 and 2, over 3 samples
    assert found.vector.tolist() == pytest.approx([3.0, 1.0, 6.0, 1 / 3, 2 / 3])


class NoHead(nn.Module):
    """A model whose last parameter belongs to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.T


def test_what_cannot_be_computed_is_refused_in_a_sentence() -> None:
    pool = Memory(torch.ones(2, 1), torch.tensor([0, 1]))
    given: dict[str, Any] = {
        "pool": pool, "rows": np.arange(2), "batch_size": 2, "optimizer": Optimizer(), "seed": 0,
        "start": torch.ones(2),
    }  # fmt: skip
    trainer = Trainer(NoHead(), "cross_entropy")
    with pytest.raises(TrainingError, match="needs a model beside"):
        list(trainer.run([TrainerJob(objective=Mixture(0.5), **given)]))
    contrasted = TrainerJob(objective=Contrast(1.0), beside=torch.ones(2), anchor=torch.ones(2), **given)
    with pytest.raises(TrainingError, match="last layer"):
        list(trainer.run([contrasted]))
    with pytest.raises(TrainingError, match="linear last layer"):
        list(trainer.run([TrainerJob(objective=ClassSums(), **given)]))
