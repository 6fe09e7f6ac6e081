"""Whatever a model does with its parameters, merged training is the textbook's, bit-independent of the chunk."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from espalier.training.trainer import Trainer
from espalier.training.work import Optimizer
from tests.training.problems import Memory, Textbook, distance, make

LENGTH, SIZE, CLASSES = 5, 6, 3


class Base(nn.Module):
    """Maps sequences [n, LENGTH, SIZE] to scores [n, CLASSES]; `body` may do anything in between."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(SIZE, CLASSES)

    def forward(self, x):
        return self.head(self.body(x).contiguous().view(x.shape[0], -1, SIZE).mean(1))


class Arithmetic(Base):
    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.rand(SIZE)), nn.Parameter(torch.rand(LENGTH, SIZE))
        self.power = nn.Parameter(torch.rand(()))

    def body(self, x):
        x = 2.0 * self.scale * x + self.shift[: x.shape[1]] - self.shift.mean(0) / 3
        return (1 - self.scale) * x - -(self.scale**2) + x * self.power.exp() + 1 / (self.scale + 1)


class Matrices(Base):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.rand(SIZE, SIZE))

    def body(self, x):
        return x @ self.w + torch.einsum("nti,ij->ntj", x, self.w.t()) + torch.matmul(x, self.w.T / self.w.norm())


class ClassToken(Base):
    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.rand(1, 1, SIZE))

    def body(self, x):
        return torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)


class Constant(Base):
    """A table that is data of no client meets parameters: the result belongs to the parameters."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.linspace(-1, 1, LENGTH * SIZE).view(LENGTH, SIZE), persistent=False)
        self.net = nn.Linear(SIZE, SIZE)

    def body(self, x):
        return x + self.net(self.table).tanh()


class Convolutions(Base):
    def __init__(self):
        super().__init__()
        self.one = nn.Conv1d(LENGTH, LENGTH, 3, padding=1)
        self.up = nn.ConvTranspose2d(1, 2, 2, stride=2)
        self.down = nn.Conv2d(2, 1, 3, stride=2, padding=1, bias=False)
        self.same = nn.Conv2d(2, 2, (3, 2), padding="same", groups=2, dilation=(1, 2))
        self.act = nn.PReLU()

    def body(self, x):
        y = self.act(self.up(self.one(x).unsqueeze(1)))
        return self.down(y + self.same(y))


class Norms(Base):
    def __init__(self):
        super().__init__()
        self.layer, self.group = nn.LayerNorm((LENGTH, SIZE)), nn.GroupNorm(1, LENGTH)
        self.bare, self.scaled = nn.LayerNorm(SIZE, elementwise_affine=False), nn.LayerNorm(SIZE, bias=False)
        self.instance = nn.InstanceNorm1d(LENGTH, affine=True)

    def body(self, x):
        return self.scaled(self.bare(self.group(self.layer(x)))) + self.instance(x)


class Lstms(Base):
    def __init__(self):
        super().__init__()
        self.both = nn.LSTM(SIZE, 4, 2, batch_first=True, bidirectional=True)
        self.time_major = nn.LSTM(8, 3, bias=False)
        self.last = nn.LSTM(3, SIZE, batch_first=True)

    def body(self, x):
        y, (h, c) = self.both(x)
        z, _ = self.time_major(y.transpose(0, 1))
        out, _ = self.last(z.transpose(0, 1))
        return out + h[-1, :, :1].unsqueeze(1) * c[0].mean(1)[:, None, None]


class Grus(Base):
    def __init__(self):
        super().__init__()
        self.gru, self.rnn = nn.GRU(SIZE, 4, batch_first=True), nn.RNN(4, SIZE)

    def body(self, x):
        y, _ = self.gru(x)
        return self.rnn(y.transpose(0, 1))[0].transpose(0, 1)


class TimeMajor(Base):
    """Samples along the second axis, as `nn.Transformer` has them by default."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(SIZE, 2, 9, dropout=0.0)

    def body(self, x):
        return self.layer(x.transpose(0, 1)).transpose(0, 1)


class Cross(Base):
    def __init__(self):
        super().__init__()
        self.query = nn.Parameter(torch.rand(2, SIZE))
        self.cross = nn.MultiheadAttention(SIZE, 3, batch_first=True)
        self.other = nn.MultiheadAttention(SIZE, 2, batch_first=True, kdim=3, vdim=3, bias=False)

    def body(self, x):
        found, weights = self.cross(self.query.expand(x.shape[0], -1, -1), x, x)
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        self_found, _ = self.cross(x, x, x, attn_mask=mask, need_weights=False)
        third, _ = self.other(x, x[..., :3], x[..., 3:])
        return torch.cat([found + weights.sum(2, keepdim=True), self_found, third], 1)


class Twice(Base):
    """One layer used twice: the gradient has two parts, and plain SGD may not step between them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(SIZE, SIZE)

    def body(self, x):
        return self.layer(F.relu(self.layer(x)))


class Tied(Base):
    """Two names for one parameter."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(SIZE, SIZE, bias=False), nn.Linear(SIZE, SIZE, bias=False)
        self.second.weight = self.first.weight

    def body(self, x):
        return self.second(self.first(x).relu())


class Parametrised(Base):
    def __init__(self):
        super().__init__()
        self.layer, self.conv = weight_norm(nn.Linear(SIZE, SIZE)), weight_norm(nn.Conv2d(1, 1, 3, padding=1))

    def body(self, x):
        return self.conv(self.layer(x).unsqueeze(1))


class Curves(Base):
    """Functions whose vector and scalar code round differently."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(4))

    def body(self, x):
        a, b, c, d = (layer(x) for layer in self.layers)
        return torch.sigmoid(a) * F.gelu(b) + F.silu(c).tanh() - F.softplus(d).pow(1.7) + F.elu(a)


class PartlyFrozen(Base):
    def __init__(self):
        super().__init__()
        self.frozen, self.unused = nn.Linear(SIZE, SIZE).requires_grad_(False), nn.Linear(2, 2)

    def body(self, x):
        return self.frozen(x)


class Positions(Base):
    """An integer buffer, looked up in a table."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(LENGTH + 1, SIZE, padding_idx=0)
        self.register_buffer("ids", torch.arange(LENGTH).unsqueeze(0))

    def body(self, x):
        return x + self.table(self.ids) + self.table((x[..., 0] > 0).long())


MODELS = [
    Arithmetic, Matrices, ClassToken, Constant, Convolutions, Norms, Lstms, Grus, TimeMajor, Cross,
    Twice, Tied, Parametrised, Curves, PartlyFrozen, Positions,
]  # fmt: skip


def problem(kind, dtype, **options):
    torch.manual_seed(0)
    module = kind()
    g = torch.Generator().manual_seed(1)
    pool = Memory(torch.randn(20, LENGTH, SIZE, generator=g), torch.randint(CLASSES, (20,), generator=g))
    return module, make(module, pool, [7, 4, 9], dtype=dtype, **options)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("optimizer", [Optimizer(lr=0.1), Optimizer(lr=0.1, momentum=0.9, weight_decay=0.01)], ids=str)
def test_merged_is_the_textbooks(kind, optimizer):
    module, jobs = problem(kind, torch.float64, optimizer=optimizer)
    trainer = Trainer(module, "cross_entropy")
    for job, ours in zip(jobs, trainer.run(jobs), strict=True):
        vector, loss = Textbook(module, "cross_entropy").run(job)
        assert distance(ours.vector, vector, job.start) < 1e-10
        assert ours.loss == pytest.approx(loss, rel=1e-10)
    assert trainer.batched, trainer.why_not


@pytest.mark.parametrize("kind", MODELS)
def test_the_chunk_changes_no_bit(kind):
    module, jobs = problem(kind, torch.float32)
    together, alone = Trainer(module, "cross_entropy"), Trainer(module, "cross_entropy", chunk=1)
    for a, b in zip(together.run(jobs), alone.run(jobs), strict=True):
        assert torch.equal(a.vector, b.vector)
        assert a.loss == b.loss
    assert together.batched and alone.batched


def test_what_is_frozen_stays():
    module, jobs = problem(PartlyFrozen, torch.float32, optimizer=Optimizer(lr=0.1, weight_decay=0.1))
    trainer = Trainer(module, "cross_entropy")
    for job, ours in zip(jobs, trainer.run(jobs), strict=True):
        changed = job.start != ours.vector
        moved = {e.name for e in trainer.spec.entries if changed[e.start : e.stop].any()}
        assert moved == {"head.weight", "head.bias"}


def test_a_step_by_hand():
    # One weight w=2, inputs 1 and 3, targets 0 and 1, squared error, one batch of both:
    # gradient = mean(2(wx - y)x) = (2·2·1 + 2·(6-1)·3)/2 = (4 + 30)/2 = 17; w - .1·17 = .3.
    module = nn.Linear(1, 1, bias=False)
    pool = Memory(torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [1.0]]))
    (job,) = make(module, pool, [2], batch=2, optimizer=Optimizer(lr=0.1))
    start = torch.tensor([2.0])
    (result,) = Trainer(module, "mse").run([replace(job, start=start)])
    assert result.vector.item() == pytest.approx(0.3)
    # ((2-0)² + (6-1)²)/2 = 14.5.
    assert result.loss == pytest.approx(14.5)
    assert start.item() == 2.0
