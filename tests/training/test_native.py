"""The native kernels against torch, and with every shape that a row, a vector or a block of images can end in."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from espalier.core.errors import TrainingError
from espalier.training import native

#: channels, image, outputs, kernel, padding, pooled: the models' layers, and shapes on the edge
SHAPES = {
    "lenet1": (1, (28, 28), 6, (5, 5), [2, 2], True),
    "lenet2": (6, (14, 14), 16, (5, 5), [0, 0], True),
    "d2d": (3, (32, 32), 6, (5, 5), [0, 0], True),
    "residual": (8, (16, 16), 8, (3, 3), [1, 1], False),
    "odd image": (3, (13, 11), 5, (3, 3), [1, 1], True),
    "odd channels": (5, (9, 17), 9, (3, 2), [2, 0], False),
    "points": (4, (6, 5), 7, (1, 1), [0, 0], False),
    "one place": (2, (5, 4), 3, (5, 4), [0, 0], False),
    "wide padding": (2, (3, 4), 3, (7, 6), [6, 5], True),
}


CHOSEN: dict[str, native.Kernels] = {}


@pytest.fixture(scope="module", autouse=True, params=native.LEVELS)
def level(request: pytest.FixtureRequest) -> None:
    """Every test runs with the kernels of every level that this processor has."""
    assert native.levels(), "`make install` builds the kernels"
    CHOSEN["now"] = native.load(request.param if request.param in native.levels() else native.levels()[-1])


def kernels() -> native.Kernels:
    return CHOSEN["now"]


def library(x: Tensor, w: Tensor, bias: Tensor | None, padding: list[int], pooled: bool) -> Tensor:
    out = []
    for k in range(len(x)):
        y = F.conv2d(x[k], w[k], None if bias is None else bias[k], padding=padding)
        out.append(F.max_pool2d(F.relu(y), 2) if pooled else y)
    return torch.stack(out)


def decided(y: Tensor) -> Tensor:
    """Windows whose largest number (zero, for ReLU, among them) leads by more than rounding could turn."""
    corners = [y[..., i::2, j::2][..., : y.shape[-2] // 2, : y.shape[-1] // 2] for i in (0, 1) for j in (0, 1)]
    first, second = torch.stack([*corners, torch.zeros_like(corners[0])]).topk(2, dim=0).values
    return (first - second > 1e-4).float()


def check(x: Tensor, w: Tensor, bias: Tensor, padding: list[int], pooled: bool, draw: torch.Generator) -> None:
    """Results and gradients against the library's in double precision."""
    truth = [t.double().requires_grad_() for t in (x, w, bias)]
    expected = library(truth[0], truth[1], truth[2], padding, pooled)
    y, where = kernels().conv(x, w, bias, padding, pooled=pooled)
    torch.testing.assert_close(y, expected.float(), rtol=1e-4, atol=1e-4)
    g = torch.randn(y.shape, generator=draw)
    if pooled:
        g = g * decided(library(truth[0], truth[1], truth[2], padding, False).detach())
    expected.backward(g.double())
    found = kernels().conv_backward(x, w, g, where, padding, wants_x=True)
    for mine, theirs in zip(found, truth, strict=True):
        assert mine is not None and theirs.grad is not None
        assert float((mine - theirs.grad).norm()) <= 1e-4 * float(theirs.grad.norm()) + 1e-3


def drawn(
    shape: tuple[int, tuple[int, int], int, tuple[int, int], list[int], bool], clients: int, batch: int, seed: int
) -> tuple[Tensor, Tensor, Tensor, torch.Generator]:
    channels, size, outs, window, _, _ = shape
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(clients, batch, channels, *size, generator=draw)
    w = torch.randn(clients, outs, channels, *window, generator=draw)
    return x, w, torch.randn(clients, outs, generator=draw), draw


@settings(max_examples=80)
@given(
    clients=st.integers(1, 3),
    batch=st.integers(1, 19),
    channels=st.tuples(st.integers(1, 9), st.integers(1, 19)),
    size=st.tuples(st.integers(1, 37), st.integers(1, 37)),
    window=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    padding=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    pooled=st.booleans(),
    seed=st.integers(0, 999),
)
def test_convolutions_agree_with_torch(
    clients: int,
    batch: int,
    channels: tuple[int, int],
    size: tuple[int, int],
    window: tuple[int, int],
    padding: tuple[int, int],
    pooled: bool,
    seed: int,
) -> None:
    least = 2 if pooled else 1
    pad = [min(p, k - 1) for p, k in zip(padding, window, strict=True)]
    height, width = (max(s, k - 2 * p + least - 1) for s, k, p in zip(size, window, pad, strict=True))
    shape = (channels[0], (height, width), channels[1], window, pad, pooled)
    x, w, bias, draw = drawn(shape, clients, batch, seed)
    check(x, w, bias, pad, pooled, draw)


@pytest.mark.parametrize("batch", [1, 2, 7, 8, 10, 15, 16, 17, 23, 32, 48])
@pytest.mark.parametrize("name", SHAPES)
def test_batches_of_every_size_agree_with_torch(name: str, batch: int) -> None:
    x, w, bias, draw = drawn(SHAPES[name], 2, batch, batch)
    check(x, w, bias, *SHAPES[name][4:], draw)


def test_no_images_give_no_results_and_no_gradients() -> None:
    x, w = torch.randn(2, 0, 3, 8, 8), torch.randn(2, 5, 3, 3, 3)
    y, where = kernels().conv(x, w, None, [1, 1], pooled=True)
    assert y.shape == (2, 0, 5, 4, 4)
    gx, gw, gb = kernels().conv_backward(x, w, y, where, [1, 1], wants_x=True)
    assert gx is not None and gx.shape == x.shape
    assert not gw.any() and not gb.any()


@pytest.mark.parametrize("batch", [3, 16])
def test_bias_and_the_input_s_gradient_can_be_left_out(batch: int) -> None:
    x, w = torch.randn(2, batch, 2, 9, 9), torch.randn(2, 5, 2, 3, 3)
    y, where = kernels().conv(x, w, None, [1, 1], pooled=False)
    torch.testing.assert_close(y, library(x, w, None, [1, 1], False), rtol=1e-4, atol=1e-5)
    gx, gw, gb = kernels().conv_backward(x, w, torch.ones_like(y), where, [1, 1], wants_x=False)
    assert gx is None
    # Every output of every image is counted once: batch * 9 * 9.
    torch.testing.assert_close(gb, torch.full((2, 5), batch * 81.0))
    alone = kernels().conv_backward(x, w, torch.ones_like(y), where, [1, 1], wants_x=True)
    assert torch.equal(gw, alone[1])


@pytest.mark.parametrize("batch", [1, 10, 16, 23])
@pytest.mark.parametrize("name", ["lenet2", "odd image", "residual"])
def test_a_client_s_bits_depend_neither_on_its_neighbours_nor_on_what_was_computed_before(
    name: str, batch: int
) -> None:
    padding, pooled = SHAPES[name][4:]
    x, w, bias, draw = drawn(SHAPES[name], 5, batch, 0)
    y, where = kernels().conv(x, w, bias, padding, pooled=pooled)
    g = torch.randn(y.shape, generator=draw)
    together = kernels().conv_backward(x, w, g, where, padding, wants_x=True)
    # Another layer in between leaves other numbers in the kernels' memory.
    other = drawn(SHAPES["d2d"], 1, 16, 1)[:3]
    for k in range(5):
        kernels().conv(*(torch.full_like(t, torch.nan) for t in other), [0, 0], pooled=True)
        one = slice(k, k + 1)
        again, at = kernels().conv(x[one], w[one], bias[one], padding, pooled=pooled)
        assert torch.equal(again, y[one])
        alone = kernels().conv_backward(x[one], w[one], g[one], at, padding, wants_x=True)
        for mine, all_of_them in zip(alone, together, strict=True):
            assert mine is not None and all_of_them is not None
            assert torch.equal(mine, all_of_them[one])


@pytest.mark.parametrize("batch", [1, 7, 16, 23])
@pytest.mark.parametrize("pooled", [False, True])
def test_what_is_not_a_number_stays_with_its_client_and_image(batch: int, pooled: bool) -> None:
    x, w = torch.randn(3, batch, 2, 8, 9), torch.randn(3, 4, 2, 3, 3)
    x[1, batch // 2, 0, 3, 4] = torch.nan
    y, where = kernels().conv(x, w, None, [1, 1], pooled=pooled)
    expected = library(x, w, None, [1, 1], pooled)
    assert torch.equal(y.isnan(), expected.isnan()) and y[1, batch // 2].isnan().any()
    g = torch.randn_like(y)
    g[2, batch - 1, 3] = torch.nan
    gx, gw, gb = kernels().conv_backward(x, w, g, where, [1, 1], wants_x=True)
    assert gx is not None and not gx[:2].isnan().any() and not gx[2, : batch - 1].isnan().any()
    assert gx[2, batch - 1].isnan().any()
    assert not gw[0].isnan().any() and gw[1].isnan().any()
    assert gb[2].isnan().tolist() == [False, False, False, True] and not gb[:2].isnan().any()


@pytest.mark.parametrize("height", [2, 3, 7, 16])
@pytest.mark.parametrize("width", [2, 5, 31, 32, 33, 66])
def test_pooling_agrees_with_torch(height: int, width: int) -> None:
    x = torch.randn(5, height, width, requires_grad=True)
    expected = F.max_pool2d(F.relu(x), 2)
    y, where = kernels().pool(x.detach())
    assert torch.equal(y, expected)
    g = torch.randn_like(y)
    expected.backward(g)
    assert x.grad is not None
    assert torch.equal(kernels().pool_backward(g, where, x.shape), x.grad)


def test_the_first_of_equals_wins_and_nothing_flows_where_nothing_is_above_zero() -> None:
    x = torch.tensor([[[2.0, 2.0, -1.0, 0.0], [2.0, 1.0, -3.0, -2.0]]])
    y, where = kernels().pool(x)
    assert y.tolist() == [[[2.0, 0.0]]]
    assert where.tolist() == [[[0, 4]]]
    back = kernels().pool_backward(torch.tensor([[[7.0, 9.0]]]), where, x.shape)
    assert back.tolist() == [[[7.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]]


@pytest.mark.parametrize("batch", [1, 5, 16])
def test_the_same_holds_where_pooling_follows_a_convolution(batch: int) -> None:
    x = torch.tensor([[2.0, 2.0, -1.0, 0.0], [2.0, 1.0, -3.0, -2.0]]).expand(1, batch, 1, 2, 4).contiguous()
    one = torch.ones(1, 1, 1, 1, 1)
    y, where = kernels().conv(x, one, None, [0, 0], pooled=True)
    assert y.tolist() == [[[[[2.0, 0.0]]]] * batch]
    g = torch.tensor([7.0, torch.inf]).expand(y.shape).contiguous()
    gx, gw, gb = kernels().conv_backward(x, one, g, where, [0, 0], wants_x=True)
    assert gx is not None and gx.tolist() == [[[[[7.0, 0.0, 0.0, 0.0], [0.0] * 4]]] * batch]
    # Each image gives 7 to the bias and 2 * 7 to the weight.
    assert gb.tolist() == [[7.0 * batch]] and gw.flatten().tolist() == [14.0 * batch]


def test_what_is_not_a_number_stays_visible() -> None:
    for place in range(4):
        x = torch.ones(4)
        x[place] = torch.nan
        assert kernels().pool(x.view(1, 2, 2))[0].isnan().all()


# ---- linear layers

#: inputs and outputs: the models' layers, and sizes on the edge of a vector, a tile or a block
SIZES = [(784, 200), (200, 10), (84, 10), (1, 1), (3, 2), (15, 5), (16, 4), (17, 6), (33, 7), (64, 13), (130, 3)]


def layer(clients: int, batch: int, ins: int, outs: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs, weights, biases and the result's gradient."""
    draw = torch.Generator().manual_seed(seed)
    shapes = (clients, batch, ins), (clients, outs, ins), (clients, outs), (clients, batch, outs)
    x, w, bias, g = (torch.randn(shape, generator=draw) for shape in shapes)
    return x, w, bias, g


def check_linear(x: Tensor, w: Tensor, bias: Tensor, g: Tensor) -> None:
    """Result and gradients against the library's in double precision, in every way they can be asked for."""
    x2, w2, g2 = x.double(), w.double(), g.double()
    y, gx, gw, gb = torch.bmm(x2, w2.mT) + bias.unsqueeze(1), torch.bmm(g2, w2), torch.bmm(g2.mT, x2), g2.sum(1)

    def near(found: Tensor | None, expected: Tensor) -> None:
        assert found is not None
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=2e-4)

    near(kernels().linear(x, w, bias), y)
    to_w, to_b = torch.full_like(w, torch.nan), torch.full_like(bias, torch.nan)
    near(kernels().linear_backward(x, w, g, to_w, to_b, wants_x=True), gx)
    near(to_w, gw)
    near(to_b, gb)
    near(kernels().linear_backward(x, w, g, to_w, to_b, add=(True, True), wants_x=True), gx)
    near(to_w, 2 * gw)
    near(to_b, 2 * gb)
    # Plain SGD: the gradient goes to the weights themselves, and the input's gradient is by the old ones.
    step_w, step_b = w.clone(), bias.clone()
    near(kernels().linear_backward(x, step_w, g, step_w, step_b, add=(True, True), wants_x=True), gx)
    near(step_w, w2 + gw)
    near(step_b, bias + gb)


@settings(max_examples=80)
@given(
    clients=st.integers(1, 3),
    batch=st.integers(1, 70),
    ins=st.integers(1, 150),
    outs=st.integers(1, 20),
    seed=st.integers(0, 999),
)
def test_linear_layers_agree_with_torch(clients: int, batch: int, ins: int, outs: int, seed: int) -> None:
    check_linear(*layer(clients, batch, ins, outs, seed))


@pytest.mark.parametrize("batch", [1, 5, 6, 7, 10, 16, 32, 65])
@pytest.mark.parametrize(("ins", "outs"), SIZES)
def test_linear_layers_of_every_size_agree_with_torch(ins: int, outs: int, batch: int) -> None:
    check_linear(*layer(2, batch, ins, outs))


def test_a_linear_layer_worked_by_hand() -> None:
    x, w, bias = torch.tensor([[[1.0, 2.0], [3.0, -1.0]]]), torch.tensor([[[2.0, 1.0]]]), torch.tensor([[0.5]])
    # 1 * 2 + 2 * 1 + 0.5 = 4.5 and 3 * 2 - 1 * 1 + 0.5 = 5.5
    assert kernels().linear(x, w, bias).tolist() == [[[4.5], [5.5]]]
    g = torch.tensor([[[10.0], [1.0]]])
    gx = kernels().linear_backward(x, w, g, w, bias, add=(True, True), wants_x=True)
    # gx: each row's g times the weights as they were, (2, 1).
    assert gx is not None and gx.tolist() == [[[20.0, 10.0], [2.0, 1.0]]]
    # w: 2 + 10 * 1 + 1 * 3 = 15 and 1 + 10 * 2 - 1 * 1 = 20; bias: 0.5 + 10 + 1
    assert w.tolist() == [[[15.0, 20.0]]] and bias.tolist() == [[11.5]]


def test_weight_decay_that_lies_in_the_sink_is_kept() -> None:
    x, w, bias, g = layer(3, 10, 45, 9)
    decay = 0.1
    to_w, to_b = w * decay, torch.full_like(bias, torch.nan)
    kernels().linear_backward(x, w, g, to_w, to_b, add=(True, False), wants_x=False)
    torch.testing.assert_close(to_w, w * decay + g.mT @ x, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(to_b, g.sum(1), rtol=1e-4, atol=1e-4)


def test_parts_of_a_linear_layer_can_be_left_out_and_change_nothing_else() -> None:
    x, w, bias, g = layer(2, 7, 37, 11)
    torch.testing.assert_close(kernels().linear(x, w, None), torch.bmm(x, w.mT), rtol=1e-4, atol=1e-4)
    both, alone, gb = torch.empty_like(w), torch.empty_like(w), torch.empty_like(bias)
    gx = kernels().linear_backward(x, w, g, both, gb, wants_x=True)
    assert kernels().linear_backward(x, w, g, alone, None, wants_x=False) is None
    assert torch.equal(both, alone)
    frozen = kernels().linear_backward(x, w, g, None, None, wants_x=True)
    assert gx is not None and frozen is not None and torch.equal(gx, frozen)


def test_no_rows_give_no_result_and_gradients_of_zero() -> None:
    x, w, bias, g = layer(2, 0, 20, 5)
    assert kernels().linear(x, w, bias).shape == (2, 0, 5)
    gw, gb, kept = torch.full_like(w, torch.nan), torch.full_like(bias, torch.nan), w.clone()
    kernels().linear_backward(x, w, g, gw, gb, wants_x=True)
    assert not gw.any() and not gb.any()
    kernels().linear_backward(x, w, g, w, None, add=(True, False), wants_x=False)
    assert torch.equal(w, kept)


@pytest.mark.parametrize("batch", [1, 10, 33])
@pytest.mark.parametrize(("ins", "outs"), [(200, 10), (33, 7), (3, 2)])
def test_a_client_s_linear_layer_depends_on_no_other_s(ins: int, outs: int, batch: int) -> None:
    x, w, bias, g = layer(5, batch, ins, outs)
    y, stepped, gb = kernels().linear(x, w, bias), w.clone(), torch.zeros_like(bias)
    gx = kernels().linear_backward(x, stepped, g, stepped, gb, add=(True, True), wants_x=True)
    assert gx is not None
    for k in range(5):
        # Alone at another address, which is off every boundary, and again among neighbours that have failed.
        one = [torch.empty(t[k].numel() + 1)[1:].view(1, *t.shape[1:]).copy_(t[k]) for t in (x, w, bias, g)]
        many = [torch.full_like(t, torch.nan) for t in (x, w, bias, g)]
        for t, own in zip(many, one, strict=True):
            t[k] = own[0]
        for (x_k, w_k, bias_k, g_k), at in ((one, 0), (many, k)):
            assert torch.equal(kernels().linear(x_k, w_k, bias_k)[at], y[k])
            to_b = torch.zeros_like(bias_k)
            back = kernels().linear_backward(x_k, w_k, g_k, w_k, to_b, add=(True, True), wants_x=True)
            assert back is not None and torch.equal(back[at], gx[k])
            assert torch.equal(w_k[at], stepped[k]) and torch.equal(to_b[at], gb[k])


def test_what_is_not_a_number_stays_with_its_row_and_its_output() -> None:
    x, w, bias, g = layer(3, 9, 21, 6)
    x[1, 4, 20], g[2, 8, 5] = torch.nan, torch.nan
    y, gw, gb = kernels().linear(x, w, bias), torch.empty_like(w), torch.empty_like(bias)
    assert torch.equal(y.isnan(), torch.bmm(x, w.mT).isnan()) and y[1, 4].isnan().all()
    gx = kernels().linear_backward(x, w, g, gw, gb, wants_x=True)
    assert gx is not None and torch.equal(gx.isnan(), torch.bmm(g, w).isnan()) and gx[2, 8].isnan().all()
    assert torch.equal(gw.isnan(), torch.bmm(g.mT, x).isnan())
    assert gb.isnan().sum() == 1 and gb[2, 5].isnan()


def test_they_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.usable(torch.zeros(1)) and not native.usable(torch.zeros(1, dtype=torch.float64))
    monkeypatch.setenv("ESPALIER_NATIVE", "0")
    assert native.kernels.__wrapped__() is None


def test_a_level_can_be_asked_for_and_one_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.kernels.__wrapped__() is native.load(native.levels()[-1])
    monkeypatch.setenv("ESPALIER_NATIVE", "baseline")
    assert native.kernels.__wrapped__() is native.load("baseline")
    monkeypatch.setenv("ESPALIER_NATIVE", "avx1024")
    with pytest.raises(TrainingError, match=r"'avx1024'.*there are: baseline"):
        native.kernels.__wrapped__()
