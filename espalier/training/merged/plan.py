"""Which axis of which tensor runs over the clients' samples.

A merged activation is client-major along one axis, usually the first. Nothing in a tensor says which,
and a constant (a mask, a table) may have any size, so it is not guessed: the module runs twice with one
client and with two numbers of rows, and an axis runs over samples exactly if its size followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from espalier.training.merged.stacked import Stacked, Unsupported

Mark = tuple[int, ...] | int | None
"""What a recording keeps of a leaf: a tensor's shape, an integer's value, nothing of the rest."""

ROWS = (11, 13)
"""Rows of the two recordings: primes, seldom met as another size."""


@dataclass(frozen=True)
class PlannedCall:
    """One intercepted call of the forward pass.

    Attributes:
        name: The function's name; it must be the same call in every forward pass.
        axes: For every leaf of the arguments: the axis over samples, or None. For an integer 0 says that
            it counts rows.
        out: The same for the leaves of the result.
        fused: ReLU follows (behind a convolution: ReLU and 2×2 max-pooling), and nothing else uses what lies between.
    """

    name: str
    axes: tuple[int | None, ...]
    out: tuple[int | None, ...]
    fused: bool = False


@dataclass(frozen=True)
class SeenCall:
    """One call as a recording saw it."""

    name: str
    marks: tuple[Mark, ...]
    out: tuple[Mark, ...]
    merged: bool
    fused: bool = False


def leaves(tree: Any) -> Iterator[Any]:
    """Yield the leaves of nested lists, tuples and dicts."""
    if isinstance(tree, list | tuple):
        for branch in tree:
            yield from leaves(branch)
    elif isinstance(tree, dict):
        for branch in tree.values():
            yield from leaves(branch)
    else:
        yield tree


def rebuilt(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Return the tree with every leaf changed, visited in the order of `leaves`."""
    if isinstance(tree, torch.Size):
        return torch.Size([change(b) for b in tree])
    if isinstance(tree, list | tuple):
        return type(tree)([rebuilt(b, change) for b in tree])
    if isinstance(tree, dict):
        return {k: rebuilt(b, change) for k, b in tree.items()}
    return change(tree)


def mark(leaf: Any) -> Mark:
    """What a recording keeps of a leaf."""
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape)
    if isinstance(leaf, int) and not isinstance(leaf, bool):
        return leaf
    return None


def looks_merged(tree: Any, rows: int) -> bool:
    """Whether a leaf seems to run over ``rows`` samples (a guess that `compare` verifies)."""
    return any(
        (isinstance(x, Tensor) and any(s and s % rows == 0 for s in x.shape)) or (type(x) is int and x == rows)
        for x in leaves(tree)
        if not isinstance(x, Stacked)
    )


def compare(first: Sequence[SeenCall], second: Sequence[SeenCall]) -> tuple[PlannedCall, ...]:
    """Derive the plan from recordings with ``ROWS[0]`` and ``ROWS[1]`` rows."""
    if [s.name for s in first] != [s.name for s in second]:
        raise Unsupported("the forward pass takes another way for another number of samples")
    calls = []
    for a, b in zip(first, second, strict=True):
        axes = tuple(_axis(x, y, a.name) for x, y in zip(a.marks, b.marks, strict=True))
        out = tuple(_axis(x, y, a.name) for x, y in zip(a.out, b.out, strict=True))
        merged = any(x is not None for x in axes)
        if merged != a.merged or merged != b.merged:
            raise Unsupported(f"{a.name} joins a parameter and a tensor of which it is not clear whether it is data")
        calls.append(PlannedCall(a.name, axes, out, a.fused and b.fused))
    return tuple(calls)


def _axis(a: Mark, b: Mark, name: str) -> int | None:
    if a == b:
        return None
    if isinstance(a, int) and isinstance(b, int) and a * ROWS[1] == b * ROWS[0]:
        return 0
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        moved = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
        if len(moved) == 1 and a[moved[0]] * ROWS[1] == b[moved[0]] * ROWS[0]:
            return moved[0]
    raise Unsupported(f"{name} has an argument whose shape mixes samples: {a} for {ROWS[0]}, {b} for {ROWS[1]} rows")
