"""The native attention against torch, at every level of the kernels, and where the merged rules take it."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from espalier.training import native
from espalier.training.trainer import Trainer
from tests.training.problems import Memory, Textbook, distance, make

LEVELS = native.levels()
MASKS = ("none", "causal", "padding", "own", "nothing left")


def masked(kind: str, samples: int, heads: int, queries: int, keys: int, draw: torch.Generator) -> Tensor | None:
    shape = (samples, heads, queries, keys)
    if kind == "none":
        return None
    if kind == "causal":
        return torch.full((queries, keys), -torch.inf).triu(1).expand(shape)
    if kind == "padding":
        return torch.randn(samples, 1, 1, keys, generator=draw).expand(shape)
    mask = torch.randn(shape, generator=draw)
    return mask if kind == "own" else mask.index_fill(2, torch.tensor([queries // 2]), -torch.inf)


def check(kernels: native.Kernels, shape: tuple[int, int, int, int, int], kind: str, seed: int) -> None:
    """Results and gradients against the library's in double precision; a sample alone has the same bits."""
    samples, heads, queries, keys, numbers = shape
    draw = torch.Generator().manual_seed(seed)
    q, g = (torch.randn(samples, queries, heads, numbers, generator=draw).transpose(1, 2) for _ in range(2))
    k, v = (torch.randn(samples, heads, keys, numbers, generator=draw) for _ in range(2))
    mask = masked(kind, samples, heads, queries, keys, draw)
    truth = [t.double().requires_grad_() for t in (q, k, v)]
    added = None if mask is None else mask.double()
    expected = F.scaled_dot_product_attention(truth[0], truth[1], truth[2], added, scale=0.3)
    y, stats = kernels.attention((q, k, v), mask, 0.3)
    torch.testing.assert_close(y, expected.float(), rtol=1e-5, atol=1e-5)
    torch.autograd.backward([expected], [g.double()])
    into = [torch.full_like(t, torch.nan) for t in (q, k, v)]
    kernels.attention_backward((q, k, v), mask, g, stats, 0.3, into)
    for mine, theirs in zip(into, truth, strict=True):
        assert theirs.grad is not None
        torch.testing.assert_close(mine, theirs.grad.float(), rtol=1e-4, atol=2e-5)
    one = None if mask is None else mask[-1:]
    own, kept = kernels.attention((q[-1:], k[-1:], v[-1:]), one, 0.3)
    alone = [torch.empty_like(t[-1:]) for t in (q, k, v)]
    kernels.attention_backward((q[-1:], k[-1:], v[-1:]), one, g[-1:], kept, 0.3, alone)
    assert torch.equal(own, y[-1:]) and all(torch.equal(a, b[-1:]) for a, b in zip(alone, into, strict=True))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("shape", [(2, 4, 64, 64, 16), (1, 1, 1, 1, 1), (2, 3, 17, 17, 20), (1, 2, 33, 33, 100)])
def test_attention_agrees_with_torch(shape: tuple[int, int, int, int, int], kind: str, level: str) -> None:
    check(native.load(level), shape, kind, 0)


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 70), st.integers(1, 70), st.integers(1, 70)),
    kind=st.sampled_from([kind for kind in MASKS if kind != "causal"]),
    seed=st.integers(0, 999),
)
def test_lengths_and_sizes_of_every_kind_agree_with_torch(
    shape: tuple[int, int, int, int, int], kind: str, seed: int
) -> None:
    for level in LEVELS:
        check(native.load(level), shape, kind, seed)


@pytest.mark.parametrize("level", LEVELS)
def test_large_scores_lose_nothing(level: str) -> None:
    """Softmax of 300, 0, -300, …: shares of 1 and of less than the least number."""
    q, k = torch.ones(1, 1, 2, 1), torch.tensor([300.0, 0.0, -300.0]).view(1, 1, 3, 1)
    v = torch.tensor([2.0, 5.0, 7.0]).view(1, 1, 3, 1)
    y, _ = native.load(level).attention((q, k, v), None, 1.0)
    assert y.flatten().tolist() == [2.0, 2.0]


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_not_a_number_stays_with_its_sample_and_head(level: str) -> None:
    q, k, v = (torch.randn(2, 2, 5, 3) for _ in range(3))
    q[1, 0, 2, 1] = torch.nan
    y, _ = native.load(level).attention((q, k, v), None, 1.0)
    assert y.isnan().any(3).nonzero().tolist() == [[1, 0, 2]]


class Attentive(nn.Module):
    """A layer of PyTorch's, and attention as a user calls it: causal, with a mask of the samples, with its weights."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(12, 3, 9, dropout, batch_first=True)
        self.cross = nn.MultiheadAttention(12, 2, batch_first=True)
        self.qkv, self.head = nn.Linear(12, 36), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        padding = x[..., 0] < -1
        padding[:, 0] = False
        x = self.layer(x, src_key_padding_mask=padding)
        x = x + self.cross(x[:, :2], x, x, need_weights=False)[0].mean(1, keepdim=True)
        q, k, v = (t.unflatten(2, (3, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, 2))
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        keep = torch.ones(5, 5, dtype=torch.bool).triu()
        x = x + F.scaled_dot_product_attention(q, k, v, attn_mask=keep, scale=0.2).transpose(1, 2).flatten(2)
        out: Tensor = self.head(x.mean(1))
        return out


def pool(samples: int) -> Memory:
    draw = torch.Generator().manual_seed(1)
    return Memory(torch.randn(samples, 5, 12, generator=draw), torch.randint(3, (samples,), generator=draw))


@pytest.mark.parametrize("level", [level for level in LEVELS if native.load(level).scores])
def test_models_train_by_it_as_a_textbook_does(level: str) -> None:
    torch.manual_seed(0)
    module, kernels = Attentive(), native.load(level)
    jobs = make(module, pool(15), [7, 8], dtype=torch.float32)
    trainer = Trainer(module, "cross_entropy")
    with patch.object(native, "kernels", lambda: kernels):
        with patch.object(kernels, "attention", wraps=kernels.attention) as calls:
            found = list(trainer.run(jobs))
        with patch.object(kernels, "scores", 0):
            library = list(Trainer(module, "cross_entropy").run(jobs))
    assert trainer.why_not is None and calls.call_count
    for job, ours, theirs in zip(jobs, found, library, strict=True):
        assert distance(ours.vector, Textbook(module, "cross_entropy").run(job)[0], job.start) < 1e-4
        torch.testing.assert_close(ours.vector, theirs.vector, rtol=1e-5, atol=1e-6)
