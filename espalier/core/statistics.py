"""Statistics that a device can compute of its own data when it is asked.

A statistic is a pure function of the local data (and of models, where it takes any). It is registered by
name with its cost in mini-batches; what it returns travels to the node that asked and is paid for in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from espalier.core.address import Address
from espalier.core.errors import ConfigError, nearest
from espalier.core.memory import Product

#: the label counts that devices have reported: ``histogram [n_cells]`` by device
LABEL_HISTOGRAMS = Product("label histograms", dict[Address, NDArray[Any]])


class Pool(Protocol):
    """Samples by row: a dataset's arrays, or a transformed view of them (concept drift)."""

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs ``[n, …]`` and targets ``[n, …]`` of int64 rows ``[n]``; pure, any order."""
        ...


class LocalData(Protocol):
    """A device's own data and what it can do with them."""

    rng: np.random.Generator
    n_cells: int
    batch_size: int

    def arrays(self) -> tuple[Tensor, Tensor]:
        """Return the samples: ``x [n, …], y [n, …]``."""
        ...

    def cells(self) -> NDArray[np.int64]:
        """Return the cell (the class, in a classification) of each sample as the device sees it, [n]."""
        ...

    def losses(self, vectors: Sequence[Tensor]) -> list[float]:
        """Return each model's mean loss on the samples."""
        ...

    def logits(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return each model's outputs on the samples, ``[K, n, …]``."""
        ...

    def held_out(self, vectors: Sequence[Tensor]) -> list[float]:
        """Return each model's share of right answers on the samples that the device holds out ([] if it has none)."""
        ...


@dataclass(frozen=True)
class Statistic:
    """A named function of local data; ``batches(n_batches, n_models)`` is its cost in mini-batches.

    ``models`` says whether it looks at the models that came with the question: if not, they are not computed.
    """

    name: str
    compute: Callable[..., dict[str, Any]]
    batches: Callable[[int, int], float]
    models: bool = True


_REGISTRY: dict[str, Statistic] = {}


def register_statistic(
    name: str, batches: Callable[[int, int], float] = lambda n_batches, n_models: 0.0, *, models: bool = True
) -> Callable[[Callable[..., dict[str, Any]]], Callable[..., dict[str, Any]]]:
    """Register ``f(local, vectors, **args) -> dict`` under a name."""

    def add(function: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        _REGISTRY[name] = Statistic(name, function, batches, models)
        return function

    return add


def statistic(name: str) -> Statistic:
    """Return a registered statistic."""
    if name not in _REGISTRY:
        known = ", ".join(sorted(_REGISTRY))
        raise ConfigError(f"No statistic is called {name!r}; known: {known}.{nearest(name, _REGISTRY)}")
    return _REGISTRY[name]


@register_statistic("label_histogram", models=False)
def label_histogram(local: LocalData, vectors: Sequence[Tensor]) -> dict[str, Any]:
    """Return how many samples of each label the device holds, ``histogram [n_cells]``."""
    return {"histogram": np.bincount(local.cells(), minlength=local.n_cells).astype(np.float32)}


# Evaluating costs a third of a training step per batch.
@register_statistic("losses", lambda n_batches, n_models: n_batches * n_models / 3)
def losses(local: LocalData, vectors: Sequence[Tensor]) -> dict[str, Any]:
    """Return each model's mean loss on the device's training data, ``losses [K]``."""
    return {"losses": np.asarray(local.losses(vectors), dtype=np.float32)}
