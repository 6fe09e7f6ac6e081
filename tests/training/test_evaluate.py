import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

from espalier.core.errors import ConfigError, TrainingError
from espalier.training.evaluate import Evaluator
from espalier.training.losses import IGNORED, resolve
from espalier.training.sequential import put
from espalier.training.trainer import FallbackWarning, Trainer
from tests.training.problems import CASES, Memory, starts

ROWS = np.arange(3, 20)


def alone(module, vector, x):
    """One model's outputs, the plain way."""
    model = copy.deepcopy(module).to(vector.dtype).eval()
    put(model, Trainer(module, "mse").spec, vector)
    with torch.no_grad():
        return model(x.to(vector.dtype) if x.is_floating_point() else x)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_models_together_are_models_alone(case):
    module, pool = case.module(), case.pool(20)
    vectors = starts(module, 2 if case.heavy else 3, torch.float64)
    evaluator = Evaluator(module, case.kind, 4, batch=7)
    rows = ROWS[:8] if case.heavy else ROWS
    cells = rows % 4
    found = evaluator.run(vectors, pool, rows, cells)
    assert evaluator.batched
    x, y = pool.gather(torch.from_numpy(rows))
    y = y.double() if case.kind == "regression" else y
    outputs = [alone(module, v, x) for v in vectors]
    assert torch.allclose(evaluator.logits(vectors, pool, rows), torch.stack(outputs), rtol=1e-9, atol=1e-12)
    losses = [resolve(case.loss)(o, y).numpy() for o in outputs]
    assert evaluator.mean_loss(vectors, pool, rows) == pytest.approx([x.mean() for x in losses], rel=1e-9)
    for evaluation, out, loss in zip(found, outputs, losses, strict=True):
        assert evaluation.count.tolist() == np.bincount(cells, minlength=4).tolist()
        assert evaluation.loss_sum == pytest.approx(np.bincount(cells, loss, 4), rel=1e-9)
        assert evaluation.loss == pytest.approx(loss.mean(), rel=1e-9)
        if case.kind == "regression":
            assert evaluation.correct is None
            assert evaluation.sums[:, 0] == pytest.approx(np.bincount(cells, loss, 4), rel=1e-9)
            continue
        expected = np.zeros(evaluation.confusion.shape, dtype=np.int64)
        answers = out.argmax(1).numpy()
        if case.kind == "classification":
            np.add.at(expected, (cells, answers), 1)
            right = np.bincount(cells, answers == y.numpy(), 4).astype(int)
            assert evaluation.correct is not None and evaluation.correct.tolist() == right.tolist()
        else:
            np.add.at(expected, (cells[:, None, None], y.numpy(), answers), 1)
        assert np.array_equal(evaluation.confusion, expected)


@pytest.mark.parametrize("case", [case for case in CASES if not case.heavy], ids=str)
def test_rows_of_their_own_are_as_each_model_alone(case):
    module, pool = case.module(), case.pool(20)
    vectors = starts(module, 3, torch.float64)
    rows = np.stack([np.roll(np.arange(20), -6 * k)[:11] for k in range(3)])
    evaluator = Evaluator(module, case.kind, 4, batch=7)
    found = evaluator.run(vectors, pool, rows, rows % 4, each=True)
    for vector, own, together in zip(vectors, rows, found, strict=True):
        (one,) = evaluator.run([vector], pool, own, own % 4, each=True)
        for name in ("count", "confusion", "answers"):
            assert np.array_equal(getattr(together, name), getattr(one, name))
        for name in ("loss_sum", "sums", "losses"):
            assert getattr(together, name) == pytest.approx(getattr(one, name), rel=1e-6)


def test_a_confusion_by_hand():
    # The model's scores are its inputs: answers 1, 0, 1; cells 0, 0, 1; true classes 1, 1, 1.
    module = nn.Linear(2, 2)
    pool = Memory(torch.tensor([[0.0, 1.0], [2.0, 1.0], [0.0, 3.0]]), torch.tensor([1, 1, 1]))
    vector = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    (found,) = Evaluator(module, "classification", 2).run([vector], pool, np.arange(3), np.array([0, 0, 1]))
    assert found.confusion.tolist() == [[1, 1], [0, 1]]
    assert found.correct is not None and found.correct.tolist() == [1, 1]
    assert found.count.tolist() == [2, 1]
    # -log softmax: log(1+e^-1), log(1+e^1), log(1+e^-3).
    assert found.loss_sum.tolist() == pytest.approx(
        [math.log(1 + math.exp(-1)) + math.log(1 + math.e), math.log(1 + math.exp(-3))], rel=1e-6
    )


def test_ignored_pixels_are_not_counted():
    module = nn.Conv2d(1, 2, 1)
    vector = torch.tensor([1.0, -1.0, 0.0, 0.0])
    y = torch.tensor([[[0, 1], [IGNORED, 1]]])
    pool = Memory(torch.tensor([[[[1.0, 1.0], [1.0, -1.0]]]]), y)
    (found,) = Evaluator(module, "segmentation", 1).run([vector], pool, np.arange(1), np.zeros(1, dtype=np.int64))
    # Positive pixels are called 0, negative 1: truth 0 → 0; truth 1 → 0; truth 1 → 1.
    assert found.confusion.tolist() == [[[1, 0], [1, 1]]]


def test_a_metric_of_ones_own():
    module = nn.Linear(1, 1)
    pool = Memory(torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [0.0]]))

    def metric(outputs, y):
        return torch.cat([(outputs - y).abs(), torch.ones_like(outputs)], 1)

    evaluator = Evaluator(module, "regression", 1, metric=metric)
    (found,) = evaluator.run([torch.tensor([3.0, 0.0])], pool, np.arange(2), np.zeros(2, dtype=np.int64))
    assert found.sums.tolist() == [[9.0, 2.0]]


def test_a_vector_given_twice_is_computed_once():
    case = CASES[1]
    module, pool = case.module(), case.pool(20)
    first, second = starts(module, 2)
    found = Evaluator(module, case.kind, 4).run([first, second, first], pool, ROWS, ROWS % 4)
    assert found[0] is found[2]
    assert found[0] is not found[1]


def test_company_changes_no_bit():
    case = next(c for c in CASES if c.name == "lenet")
    module, pool = case.module(), case.pool(20)
    vectors = starts(module, 12)
    evaluator = Evaluator(module, case.kind, 4)
    together = evaluator.logits(vectors, pool, ROWS)
    for vector, outputs in zip(vectors, together, strict=True):
        assert torch.equal(evaluator.logits([vector], pool, ROWS)[0], outputs)


def test_a_model_that_looks_at_values_is_evaluated_alone():
    class Deciding(nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else super().forward(-x)

    module = Deciding(4, 3)
    g = torch.Generator().manual_seed(0)
    pool = Memory(torch.randn(20, 4, generator=g), torch.randint(3, (20,), generator=g))
    vectors = starts(module, 2)
    evaluator = Evaluator(module, "classification", 4)
    with pytest.warns(FallbackWarning, match="one model at a time"):
        found = evaluator.logits(vectors, pool, ROWS)
    x, _ = pool.gather(torch.from_numpy(ROWS))
    assert torch.allclose(found, torch.stack([alone(module, v, x) for v in vectors]))


def test_batch_norm_is_evaluated_together():
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    g = torch.Generator().manual_seed(0)
    pool = Memory(torch.randn(20, 4, generator=g), torch.randint(3, (20,), generator=g))
    vectors = starts(module, 3)
    evaluator = Evaluator(module, "classification", 4)
    x, _ = pool.gather(torch.from_numpy(ROWS))
    found = evaluator.logits(vectors, pool, ROWS)
    assert evaluator.batched
    assert torch.allclose(found, torch.stack([alone(module, v, x) for v in vectors]), atol=1e-6)


def test_impossible_requests_are_refused():
    module = nn.Linear(2, 2)
    pool = Memory(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64))
    evaluator = Evaluator(module, "classification", 2)
    rows = np.arange(3)
    with pytest.raises(TrainingError, match=r"Vector 0 has shape \(4,\)"):
        evaluator.run([torch.zeros(4)], pool, rows, np.zeros(3, dtype=np.int64))
    with pytest.raises(TrainingError, match=r"cells lie in \[0, 2\]"):
        evaluator.run([torch.zeros(6)], pool, rows, rows)
    with pytest.raises(TrainingError, match="2 entries for 3 rows"):
        evaluator.run([torch.zeros(6)], pool, rows, np.zeros(2, dtype=np.int64))
    with pytest.raises(TrainingError, match="rows is empty"):
        evaluator.mean_loss([torch.zeros(6)], pool, rows[:0])
    with pytest.raises(ConfigError, match="kind is 'ranking'"):
        Evaluator(module, "ranking", 2)
    with pytest.raises(ConfigError, match="n_cells is 0"):
        Evaluator(module, "classification", 0)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_threads_change_no_bit(case):
    module, pool = case.module(), case.pool(20)
    vectors, rows = starts(module, 12), np.tile(ROWS, 3)
    options = {"each": True, "outputs": True} if case.kind == "classification" else {}
    alone, together = (Evaluator(module, case.kind, 4, batch=7, workers=n) for n in (1, 3))
    one, other = (e.run(vectors, pool, rows, rows % 4, **options) for e in (alone, together))
    for a, b in zip(one, other, strict=True):
        for field in dataclasses.fields(a):
            assert np.array_equal(getattr(a, field.name), getattr(b, field.name)), field.name
    together.close()
