"""Text classifiers over token ids; id 0 is padding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from espalier.core.errors import ConfigError


class BagOfWords(nn.Module):
    """The mean of the words' embeddings, and a linear layer over it."""

    def __init__(self, vocabulary: int, classes: int, embedding: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.head = nn.Linear(embedding, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Classify ids ``[n, length]``."""
        out: Tensor = self.head(_mean(self.embedding(ids), ids))
        return out


class Lstm(nn.Module):
    """Embedding, stacked LSTM layers, the mean over real tokens, a linear layer."""

    def __init__(self, vocabulary: int, classes: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Classify ids ``[n, length]``."""
        states, _ = self.lstm(self.embedding(ids))
        out: Tensor = self.head(_mean(states, ids))
        return out


class Transformer(nn.Module):
    """Embedding with learnt positions, encoder layers, the mean over real tokens, a linear layer."""

    def __init__(
        self, vocabulary: int, classes: int, length: int, size: int, heads: int, layers: int, dropout: float
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size, padding_idx=0)
        self.position = nn.Parameter(torch.empty(length, size))
        layer = nn.TransformerEncoderLayer(size, heads, 2 * size, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(size, classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Redraw the positions."""
        nn.init.normal_(self.position, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """Classify ids ``[n, length]``."""
        length = ids.shape[1]
        # The first place is never masked: a text without tokens must not divide nothing by nothing.
        padding = ids.eq(0) & (torch.arange(length, device=ids.device) > 0)
        x = self.embedding(ids) + self.position[:length]
        states = self.encoder(x, src_key_padding_mask=padding)
        out: Tensor = self.head(_mean(states, ids))
        return out


def _mean(states: Tensor, ids: Tensor) -> Tensor:
    """Mean of states ``[n, length, d]`` over places whose id is not padding."""
    real = ids.ne(0).to(states.dtype).unsqueeze(2)
    return (states * real).sum(1) / real.sum(1).clamp(min=1.0)


def bag_of_words(*, input_shape: tuple[int, ...], n_classes: int, vocabulary: int, embedding: int = 32) -> nn.Module:
    """FastText's classifier without n-grams (Joulin et al. 2017): the order of words does not count."""
    _check(input_shape, "bag_of_words", vocabulary=vocabulary, embedding=embedding)
    return BagOfWords(vocabulary, n_classes, embedding)


def lstm(
    *,
    input_shape: tuple[int, ...],
    n_classes: int,
    vocabulary: int,
    embedding: int = 64,
    hidden: int = 64,
    layers: int = 2,
) -> nn.Module:
    """EASF's LSTM classifier: two LSTM layers (the paper gives no sizes)."""
    _check(input_shape, "lstm", vocabulary=vocabulary, embedding=embedding, hidden=hidden, layers=layers)
    return Lstm(vocabulary, n_classes, embedding, hidden, layers)


def transformer(
    *,
    input_shape: tuple[int, ...],
    n_classes: int,
    vocabulary: int,
    size: int = 64,
    heads: int = 4,
    layers: int = 2,
    dropout: float = 0.1,
) -> nn.Module:
    """EASF's Transformer classifier: two encoder layers (the paper gives no sizes)."""
    _check(input_shape, "transformer", vocabulary=vocabulary, size=size, heads=heads, layers=layers)
    if size % heads:
        raise ConfigError(f"model.size is {size} and model.heads is {heads}; the size must be a multiple of heads.")
    return Transformer(vocabulary, n_classes, input_shape[0], size, heads, layers, dropout)


def _check(shape: tuple[int, ...], name: str, **sizes: int) -> None:
    if len(shape) != 1:
        raise ConfigError(
            f"model {name!r} was given inputs of shape {shape}; token ids of shape (length,) are accepted."
        )
    for key, value in sizes.items():
        if value < 1:
            raise ConfigError(f"model.{key} is {value}; a positive number is accepted.")
