"""Products in bfloat16: near float32, in no need of more, and only where they pay."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import espalier
from espalier.core.seeds import key
from espalier.settings import Training
from espalier.training import device, native
from espalier.training.evaluate import Evaluator
from espalier.training.models import build
from espalier.training.trainer import Trainer
from espalier.training.work import Optimizer, TrainerJob
from tests.training.problems import CASES, Memory, distance, make


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arithmetic is there on every processor, if only slowly."""
    monkeypatch.setattr(device, "has_half", lambda where: True)


@pytest.mark.parametrize(("name", "options"), [("resnet_small", {"width": 32}), ("fedavg_cnn", {}), ("squeezenet", {})])
def test_wide_convolutions_are_near_float32_and_depend_on_no_chunk(
    name: str, options: dict[str, int], units: None
) -> None:
    torch.manual_seed(0)
    module = build(name, input_shape=(3, 16, 16), n_classes=5, **options)
    draw = torch.Generator().manual_seed(5)
    pool = Memory(torch.randn(9, 3, 16, 16, generator=draw), torch.randint(5, (9,), generator=draw))
    jobs = make(module, pool, [5, 4], batch=4, optimizer=Optimizer(lr=0.01))
    exact = list(Trainer(module, "cross_entropy").run(jobs))
    half = list(Trainer(module, "cross_entropy", half=True).run(jobs))
    alone = list(Trainer(module, "cross_entropy", half=True, chunk=1).run(jobs))
    for job, ours, single, true in zip(jobs, half, alone, exact, strict=True):
        assert torch.equal(ours.vector, single.vector) and ours.vector.dtype == torch.float32
        assert 0 < distance(ours.vector, true.vector, job.start) < 0.1
        assert ours.loss == pytest.approx(true.loss, rel=0.02)


@pytest.mark.parametrize("name", ["mlp", "lenet", "transformer"])
def test_other_models_stay_in_float32(name: str, units: None) -> None:
    case = next(c for c in CASES if c.name == name)
    module = case.module()
    jobs = make(module, case.pool(8), [5, 3])
    found = (Trainer(module, case.loss, half=half).run(jobs) for half in (False, True))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.vector, other.vector)


@pytest.mark.parametrize("level", native.levels())
def test_normalisation_reads_and_writes_bfloat16(level: str) -> None:
    kernels = native.load(level)
    x = (torch.randn(6, 32, 5, 5) * 3 + 1).bfloat16().contiguous(memory_format=torch.channels_last)
    g = torch.randn(6, 32, 5, 5).bfloat16().contiguous(memory_format=torch.channels_last)
    w, b = torch.randn(2, 32), torch.randn(2, 32)
    y, stats = kernels.norm(x, w, b, 8, 1e-5, relu=True)
    true, same = kernels.norm(x.float(), w, b, 8, 1e-5, relu=True)
    assert torch.equal(y, true.bfloat16()) and torch.equal(stats, same)  # rounded once, as PyTorch rounds
    found = kernels.norm_backward(x, w, b, g, stats, relu=True, wants_x=True)
    expected = kernels.norm_backward(x.float(), w, b, g.float(), stats, relu=True, wants_x=True)
    assert found[0] is not None and expected[0] is not None and torch.equal(found[0], expected[0].bfloat16())
    assert torch.equal(found[1], expected[1]) and torch.equal(found[2], expected[2])
    x[0, 0, 0, 0] = torch.nan
    assert kernels.norm(x, w, b, 8, 1e-5, relu=True)[0][0, :4].isnan().all()


@pytest.mark.parametrize("level", native.levels())
def test_convolutions_of_each_channel_read_and_write_bfloat16(level: str) -> None:
    kernels, last = native.load(level), torch.channels_last
    x, g = (torch.randn(6, 32, 5, 7).bfloat16().contiguous(memory_format=last) for _ in range(2))
    w, bias = torch.randn(2, 32, 1, 3, 3), torch.randn(2, 32)
    y, _ = kernels.conv(x, w, bias, [1, 1], pooled=False)
    wide = x.float().contiguous(memory_format=last)
    assert torch.equal(y, kernels.conv(wide, w, bias, [1, 1], pooled=False)[0].bfloat16())
    found = kernels.conv_backward(x, w, g, None, [1, 1], wants_x=True)
    gx, gw, gb = kernels.conv_backward(wide, w, g.float().contiguous(memory_format=last), None, [1, 1], wants_x=True)
    assert gx is not None and gw is not None and found[0] is not None and found[1] is not None
    assert torch.equal(found[0], gx.bfloat16()) and torch.equal(found[1], gw) and torch.equal(found[2], gb)


HALVES = [level for level in native.levels() if native.load(level).half]


@pytest.mark.parametrize("level", HALVES)
@pytest.mark.parametrize(
    ("channels", "size", "outs", "window", "padding", "stride"),
    [
        (16, (8, 8), 32, 3, 1, 1),
        (16, (9, 7), 16, 3, 1, 2),
        (48, (5, 5), 16, 1, 0, 1),
        (32, (6, 6), 48, 1, 0, 2),
        (2, (7, 7), 16, 5, 2, 1),
        (64, (3, 41), 16, 2, 1, 2),
        (16, (1, 1), 16, 3, 1, 1),
    ],
)
def test_convolutions_multiply_bfloat16_and_add_in_float32(
    channels: int, size: tuple[int, int], outs: int, window: int, padding: int, stride: int, level: str
) -> None:
    """What bfloat16 numbers give in the float32 kernels, rounded once at the end."""
    kernels, around = native.load(level), [padding] * 2
    draw, last = torch.Generator().manual_seed(0), torch.channels_last
    x = torch.randn(2 * 3, channels, *size, generator=draw).bfloat16().contiguous(memory_format=last)
    w = torch.randn(2, outs, channels, window, window, generator=draw)
    bias, wide = torch.randn(2, outs, generator=draw), x.float().contiguous(memory_format=last)
    y, _ = kernels.conv(x, w, bias, around, stride=stride, pooled=False)
    true, _ = kernels.conv(wide, w.bfloat16().float(), bias, around, stride=stride, pooled=False)
    torch.testing.assert_close(y.float(), true, rtol=2**-8, atol=1e-4)  # half a unit in the last place, and sums' order
    g = torch.randn(y.shape, generator=draw).bfloat16().contiguous(memory_format=last)
    wants = channels % kernels.lanes == 0
    found = kernels.conv_backward(x, w, g, None, around, stride=stride, wants_x=wants)
    exact = kernels.conv_backward(
        wide, w.bfloat16().float(), g.float().contiguous(memory_format=last), None, around, stride=stride, wants_x=wants
    )
    torch.testing.assert_close(found[1], exact[1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[2], exact[2], rtol=1e-5, atol=1e-5)
    if found[0] is not None and exact[0] is not None:
        torch.testing.assert_close(found[0].float(), exact[0], rtol=2**-8, atol=1e-4)
    # Alone, a client computes the same bits.
    own, _ = kernels.conv(x[3:], w[1:], bias[1:], around, stride=stride, pooled=False)
    alone = kernels.conv_backward(x[3:], w[1:], g[3:], None, around, stride=stride, wants_x=wants)
    assert torch.equal(own, y[3:]) and alone[1] is not None and found[1] is not None
    assert torch.equal(alone[1], found[1][1:])


def learnt(half: bool, seed: int) -> float:
    """Return the accuracy on held-out digits of a CNN that five devices trained."""
    x, y = load_digits(return_X_y=True)
    pool = Memory(torch.tensor(x / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(y))
    module = build("fedavg_cnn", input_shape=(1, 8, 8), n_classes=10)
    optimizer, rows = Optimizer(lr=0.05, momentum=0.9), np.arange(1000).reshape(5, 200)
    with Trainer(module, "cross_entropy", half=half) as trainer:
        vector = trainer.initial(seed)
        for turn in range(2):
            jobs = [
                TrainerJob(
                    start=vector, pool=pool, rows=own, batch_size=20, optimizer=optimizer,
                    seed=key(seed, "t", turn, d), updates=3,
                )
                for d, own in enumerate(rows)
            ]  # fmt: skip
            vector = torch.stack([r.vector for r in trainer.run(jobs)]).mean(0)
    held = np.arange(1000, 1797)
    (found,) = Evaluator(module, "classification", 10).run([vector], pool, held, y[held])
    assert found.correct is not None
    return float(found.correct.sum() / found.count.sum())


def test_accuracy_stays_within_the_seeds_spread(units: None) -> None:
    exact, half = ([learnt(precision, seed) for seed in range(3)] for precision in (False, True))
    spread = max(exact) - min(exact)
    assert min(exact) > 0.7
    assert abs(np.mean(exact) - np.mean(half)) <= spread


def test_a_run_is_asked_for_it_by_its_file() -> None:
    assert Training(precision="bfloat16").dtype == torch.float32 and Training(precision="bfloat16").half
    assert Training(precision="float64").dtype == torch.float64 and not Training().half
    settings = {
        "task": {"dataset": "digits", "model": "resnet_small", "model_options": {"width": 32, "stride": 2}},
        "fleet": {"devices": 2, "edges": 1},
        "training": {"batch_size": 10, "updates": 1, "unit": "step", "precision": "bfloat16"},
        "stop": {"rounds": 1},
    }
    run = espalier.simulate("fedavg", settings, seed=0)
    assert 0 <= run.frame()["acc_global"].iloc[-1] <= 1
