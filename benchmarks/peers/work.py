"""The work that everybody does in the comparison: models and data, plain torch, nothing of espalier's.

Each client holds ``STEPS × batch`` random samples of the model's shape and trains one epoch with SGD; a round is all
clients and the average of their models.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn

STEPS = int(os.environ.get("BENCH_STEPS", "30"))
LR = 0.01


#: models by the shape of a sample: grey and coloured images, and texts of so many words
GREY, COLOURED, WORDS, VOCABULARY = (1, 28, 28), (3, 32, 32), 64, 2000
MODELS = ("mlp", "lenet", "fedavg_cnn", "resnet8", "resnet20", "mobile", "lstm", "transformer", "lora")
#: names of what is trained of the model with adapters, and travels
ADAPTERS = ("*.down", "*.up", "head.*")


def model(name: str) -> nn.Module:
    """Return one of the models."""
    torch.manual_seed(0)
    if name == "mlp":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
        )
    if name == "lenet":
        return nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
        )  # fmt: skip
    if name == "fedavg_cnn":
        return nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10),
        )  # fmt: skip
    if name in ("resnet8", "resnet20"):
        return ResNet(1 if name == "resnet8" else 3)
    if name == "mobile":
        return mobile()
    if name == "lstm":
        return Lstm()
    if name == "transformer":
        return Transformer()
    if name == "lora":
        return Adapted()
    raise SystemExit(f"no model {name!r}: {', '.join(MODELS)}")


class Block(nn.Module):
    """Two 3×3 convolutions with GroupNorm, and a way around them."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.GroupNorm(8, outside), nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.GroupNorm(8, outside),
        )  # fmt: skip
        same = inside == outside and stride == 1
        self.around = nn.Identity() if same else nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.body(x) + self.around(x))


class ResNet(nn.Module):
    """CIFAR's ResNet of 6n + 2 layers (He et al. 2016) with GroupNorm, 32×32 images, 16, 32 and 64 channels."""

    def __init__(self, n: int) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        inside = 16
        for width in (16, 32, 64):
            for i in range(n):
                blocks.append(Block(inside, width, 2 if i == 0 and width > 16 else 1))
                inside = width
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.GroupNorm(8, 16), nn.ReLU())
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return out


def mobile() -> nn.Module:
    """Return depthwise separable convolutions (MobileNet's) on 32×32 images."""

    def separable(inside: int, outside: int, stride: int) -> list[nn.Module]:
        return [
            nn.Conv2d(inside, inside, 3, stride, 1, groups=inside, bias=False), nn.GroupNorm(8, inside), nn.ReLU(),
            nn.Conv2d(inside, outside, 1, bias=False), nn.GroupNorm(8, outside), nn.ReLU(),
        ]  # fmt: skip

    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.GroupNorm(8, 16), nn.ReLU(),
        *separable(16, 32, 2), *separable(32, 64, 1), *separable(64, 128, 2), *separable(128, 128, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


class Lstm(nn.Module):
    """Two LSTM layers over 64 words, their mean, ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 64)
        self.lstm = nn.LSTM(64, 64, num_layers=2, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, words: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(self.embedding(words))[0].mean(1))
        return out


class Transformer(nn.Module):
    """Two encoder layers of four heads over 64 words, their mean, ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 64)
        self.position = nn.Parameter(torch.randn(WORDS, 64) * 0.02)
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)

    def forward(self, words: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(self.embedding(words) + self.position).mean(1))
        return out


class LowRank(nn.Linear):
    """A frozen linear layer with a trained product of two thin matrices added to it (LoRA, Hu et al. 2022)."""

    def __init__(self, inside: int, outside: int, rank: int = 4) -> None:
        super().__init__(inside, outside)
        self.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, inside) / inside**0.5)
        self.up = nn.Parameter(torch.zeros(outside, rank))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + nn.functional.linear(nn.functional.linear(x, self.down), self.up)


class AdaptedLayer(nn.Module):
    """An encoder layer of four heads, all of its linear layers with adapters."""

    def __init__(self, size: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (LowRank(size, size) for _ in range(4))
        self.wide, self.narrow = LowRank(size, 2 * size), LowRank(2 * size, size)
        self.first, self.second = nn.LayerNorm(size), nn.LayerNorm(size)
        for norm in (self.first, self.second):
            norm.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        weights = (q @ k.transpose(2, 3) / q.shape[-1] ** 0.5).softmax(3)
        x = self.first(x + self.out((weights @ v).transpose(1, 2).flatten(2)))
        out: Tensor = self.second(x + self.narrow(nn.functional.relu(self.wide(x))))
        return out


class Adapted(nn.Module):
    """The small Transformer, frozen, of which adapters of rank 4 and the head are fine-tuned."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 64).requires_grad_(False)
        self.position = nn.Parameter(torch.randn(WORDS, 64) * 0.02, requires_grad=False)
        self.layers = nn.Sequential(AdaptedLayer(), AdaptedLayer())
        self.head = nn.Linear(64, 10)

    def forward(self, words: Tensor) -> Tensor:
        out: Tensor = self.head(self.layers(self.embedding(words) + self.position).mean(1))
        return out


def shape(name: str) -> tuple[int, ...]:
    """Return the shape of one sample of a model."""
    if name in ("lstm", "transformer", "lora"):
        return (WORDS,)
    return GREY if name in ("mlp", "lenet", "fedavg_cnn") else COLOURED


def data(clients: int, batch: int, name: str = "mlp") -> tuple[Tensor, Tensor]:
    """Return a model's samples ``[clients, STEPS·batch, …]`` and labels ``[clients, STEPS·batch]``."""
    draw = torch.Generator().manual_seed(1)
    sizes = (clients, STEPS * batch, *shape(name))
    words = len(sizes) == 3
    x = torch.randint(0, VOCABULARY, sizes, generator=draw) if words else torch.rand(*sizes, generator=draw)
    y = torch.randint(0, 10, (clients, STEPS * batch), generator=draw)
    return x, y
