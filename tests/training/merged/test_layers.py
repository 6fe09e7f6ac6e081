"""Linear layers in merged training: the native kernels and the library's products are two ways to one result."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from espalier.core.params import ParamSpec
from espalier.training import native
from espalier.training.merged import layers
from espalier.training.merged.chain import ChainEngine
from espalier.training.merged.mode import MergedForward
from espalier.training.merged.stacked import Slot, Stacked
from espalier.training.models import build
from espalier.training.trainer import Trainer
from espalier.training.work import Optimizer
from tests.training.problems import Memory, Textbook, distance, make

CLIENTS, BATCH, IN, OUT = 3, 7, 19, 5


class Layer:
    """K linear layers; gradients go to sinks that hold 0.25, or to the values themselves (``inside``)."""

    def __init__(self, *, outs=OUT, bias=True, inside=False, trained=(0, 1), dtype=torch.float32):
        self.merge = MergedForward()
        self.merge.begin(CLIENTS)
        g = torch.Generator().manual_seed(1)
        self.slots = []
        for i, entry in enumerate(ParamSpec.of(nn.Linear(IN, outs, bias=bias)).entries):
            data = torch.randn(CLIENTS, *entry.shape, generator=g).to(dtype)
            sink = data if inside else torch.full_like(data, 0.25)
            self.slots.append(Slot(entry, data, sink if i in trained else None))

    def __call__(self, x):
        return layers.linear_rule(self.merge, x, *(Stacked(self.merge, slot=s) for s in self.slots))

    def run(self, x):
        """Return the result and the input's gradient for an upstream gradient that tells places apart."""
        x = x.detach().requires_grad_()
        out = self(x)
        upstream = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
        torch.autograd.backward([(out * upstream).sum()])
        return out.detach(), x.grad


def inputs(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


@pytest.fixture
def taken(monkeypatch):
    """Names of the ways that calls took."""
    ways = []
    for kind in (layers._NativeLinear, layers._Linear):
        call = kind.call
        monkeypatch.setattr(kind, "call", lambda *a, kind=kind, call=call: (ways.append(kind.__name__), call(*a))[1])
    return ways


@pytest.fixture
def without(monkeypatch):
    """Switches the kernels off."""
    return lambda: monkeypatch.setattr(native, "kernels", lambda: None)


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_both_ways_agree(taken, without, bias, inside, fresh):
    found = []
    for switch_off in (lambda: None, without):
        switch_off()
        layer = Layer(bias=bias, inside=inside)
        for slot in layer.slots:
            slot.fresh = fresh and not inside
        found.append((*layer.run(inputs(CLIENTS * BATCH, IN)), *(s.sink for s in layer.slots)))
        assert not any(s.fresh for s in layer.slots)
    assert taken == ["_NativeLinear", "_Linear"]
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)


def test_what_the_kernels_cannot_take_goes_to_the_library(taken):
    most = native.kernels().linear_rows
    Layer().run(inputs(CLIENTS * most, IN))
    Layer().run(inputs(CLIENTS * (most + 1), IN))
    Layer(dtype=torch.float64).run(inputs(CLIENTS * BATCH, IN).double())
    many = [] if native.kernels().last_weights else ["_Linear"]  # many rows are a convolution where that is native
    assert taken == ["_NativeLinear", *many, "_Linear"]


@pytest.mark.parametrize("switched_off", [False, True])
def test_a_layer_with_one_output_depends_on_no_neighbour(without, switched_off):
    if switched_off:
        without()
    found = []
    for clients in (CLIENTS, 1):
        layer = Layer(outs=1)
        layer.merge.begin(clients)
        for slot in layer.slots:
            slot.data, slot.sink = slot.data[:clients], slot.sink[:clients]
        x = inputs(CLIENTS * 36, IN)[: clients * 36]
        found.append(layer(x)[:36].detach())
    assert torch.equal(*found)


def test_sequences_are_rows_and_any_layout_will_do():
    x = inputs(4, CLIENTS * BATCH, IN).transpose(0, 1)
    found = [Layer().run(t) for t in (x, x.contiguous(), x.reshape(-1, IN))]
    for out, back in found:
        assert torch.equal(out.reshape(-1, OUT), found[2][0])
        assert torch.equal(back.reshape(-1, IN), found[2][1])


@pytest.mark.parametrize("trained", [(), (0,), (1,)])
def test_what_is_frozen_stays(trained):
    layer, whole = Layer(inside=True, trained=trained), Layer(inside=True)
    before = [s.data.clone() for s in layer.slots]
    x = inputs(CLIENTS * BATCH, IN)
    assert torch.equal(layer.run(x)[1], whole.run(x)[1])
    for i, slot in enumerate(layer.slots):
        assert torch.equal(slot.data, whole.slots[i].data if i in trained else before[i])


def test_a_layer_used_twice_gathers_both_gradients():
    x, found = inputs(CLIENTS * BATCH, IN), []
    for dtype in (torch.float32, torch.float64):
        layer = Layer(outs=IN, dtype=dtype)
        for slot in layer.slots:
            slot.fresh = True
        torch.autograd.backward([layer(layer(x.to(dtype)).tanh()).sum()])
        found.append([s.sink for s in layer.slots])
    for ours, exact in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "optimizer",
    [
        Optimizer(lr=0.1),
        Optimizer(lr=0.1, weight_decay=0.01),
        Optimizer(lr=0.1, momentum=0.9, weight_decay=0.01),
        Optimizer(name="adam", lr=0.001),
    ],
    ids=str,
)
def test_training_on_digits_is_the_textbooks_and_the_chunk_changes_no_bit(taken, optimizer, monkeypatch):
    monkeypatch.setattr(ChainEngine, "accepts", staticmethod(lambda job, loss: False))  # layer by layer
    x, y = load_digits(return_X_y=True)
    pool = Memory(torch.from_numpy(x).float() / 16, torch.from_numpy(y))
    torch.manual_seed(0)
    module = build("mlp", input_shape=(64,), n_classes=10, hidden=(50, 30))
    jobs = make(module, pool, [53, 40, 71], batch=10, optimizer=optimizer)
    found = list(Trainer(module, "cross_entropy").run(jobs))
    assert "_NativeLinear" in taken
    for job, ours, alone in zip(jobs, found, Trainer(module, "cross_entropy", chunk=1).run(jobs), strict=True):
        assert torch.equal(ours.vector, alone.vector)
        vector, loss = Textbook(module, "cross_entropy").run(job)
        assert distance(ours.vector, vector, job.start) < 1e-4
        assert ours.loss == pytest.approx(loss, rel=1e-5)
