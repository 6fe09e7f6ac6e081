"""Dropout's masks are a function of the job."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from espalier.core.seeds import stream
from espalier.training.trainer import Trainer
from espalier.training.work import Optimizer, schedule
from tests.training.problems import Memory, distance, make


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 10), nn.Linear(10, 3)

    def forward(self, x):
        x = F.dropout(x, 0.2, self.training)
        return self.second(F.dropout(F.relu(self.first(x)), 0.5, self.training))


class Channels(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 4, 2), nn.Dropout1d(0.5), nn.Flatten(), nn.Linear(8, 3))


class Layers(nn.Module):
    """Dropout inside an LSTM and inside attention, samples along either axis."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(2, 4, 2, batch_first=True, dropout=0.3)
        self.encoder = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        states, _ = self.lstm(x.view(-1, 3, 2))
        return self.head(self.encoder(states.transpose(0, 1)).mean(0))


def problem(module, dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    pool = Memory(torch.randn(24, 6, generator=g), torch.randint(3, (24,), generator=g))
    return make(module, pool, [8, 6, 10], dtype=dtype, optimizer=Optimizer(lr=0.1))


@pytest.mark.parametrize("kind", [Dropping, Channels, Layers])
def test_the_chunk_changes_no_mask(kind):
    torch.manual_seed(0)
    module = kind()
    jobs = problem(module)
    trainer = Trainer(module, "cross_entropy")
    found = list(trainer.run(jobs))
    assert trainer.batched, trainer.why_not
    for a, b in zip(found, Trainer(module, "cross_entropy", chunk=1).run(jobs), strict=True):
        assert torch.equal(a.vector, b.vector)


@pytest.mark.parametrize("kind", [Dropping, Channels])
def test_one_by_one_draws_the_same_masks(kind):
    torch.manual_seed(0)
    module = kind()
    jobs = problem(module, torch.float64)
    merged, single = Trainer(module, "cross_entropy"), Trainer(module, "cross_entropy", batched=False)
    for job, a, b in zip(jobs, merged.run(jobs), single.run(jobs), strict=True):
        assert distance(a.vector, b.vector, job.start) < 1e-10


def test_masks_come_from_the_jobs_stream():
    torch.manual_seed(0)
    module = Dropping().double()
    job = problem(module, torch.float64)[1]
    # 6 rows in batches of 4: the second step has two samples, its masks are still drawn for four.
    weights = [p.detach().clone() for p in module.parameters()]
    at = 0
    for w in weights:
        w.copy_(job.start[at : at + w.numel()].view(w.shape))
        w.requires_grad_()
        at += w.numel()
    rng = stream(job.seed, "dropout")
    plan = schedule(job)
    for rows, size in zip(plan.rows, plan.sizes, strict=True):
        x, y = job.pool.gather(torch.from_numpy(rows[:size].copy()))
        keep = [torch.from_numpy(rng.random((4, n), dtype="float32")) for n in (6, 10)]
        x = x.double() * (keep[0][:size] >= 0.2) / 0.8
        h = F.relu(F.linear(x, weights[0], weights[1])) * (keep[1][:size] >= 0.5) / 0.5
        loss = F.cross_entropy(F.linear(h, weights[2], weights[3]), y)
        for w, g in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            w.data -= 0.1 * g
    (result,) = Trainer(module, "cross_entropy").run([job])
    assert distance(result.vector, torch.cat([w.detach().reshape(-1) for w in weights]), job.start) < 1e-10


def test_dropout_does_drop():
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3))
    torch.manual_seed(0)
    plain, dropped = (Trainer(m, "cross_entropy") for m in (nn.Sequential(nn.Identity(), module[1]), module))
    jobs = problem(module)
    assert any(not torch.equal(a.vector, b.vector) for a, b in zip(plain.run(jobs), dropped.run(jobs), strict=True))
