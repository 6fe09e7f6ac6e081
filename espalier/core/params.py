"""A model is one flat float32 vector and a spec of names and shapes.

Layout of the vector: ``[parameters | floating buffers | integer buffers]``. The first two parts are
averaged when models merge; integer buffers (BatchNorm's counters) are carried as whole numbers and
copied from the largest contributor. A tensor that has two names (tied weights) is there once, under its first.
``model_bytes`` is what one model costs on a link.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from espalier.core.errors import TrainingError

#: parts of a flat vector: (start, stop) pairs, ascending
Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Entry:
    """One tensor of the model: where it lies in the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    dtype: str


@dataclass(frozen=True)
class ParamSpec:
    """Names, shapes and places of a model's tensors in its flat vector."""

    entries: tuple[Entry, ...]
    n_params: int
    n_float: int
    size: int

    @staticmethod
    def of(module: nn.Module) -> ParamSpec:
        """Describe a module: its parameters first, then floating buffers, then integer buffers."""
        params = [(n, p.detach()) for n, p in module.named_parameters()]
        known = {n for n, _ in params}
        state = module.state_dict(keep_vars=True)
        buffers = [(n, state[n]) for n in dict.fromkeys(first_names(module).values()) if n not in known]
        floats = [(n, t) for n, t in buffers if t.is_floating_point()]
        ints = [(n, t) for n, t in buffers if not t.is_floating_point()]
        entries, at = [], 0
        for name, tensor in [*params, *floats, *ints]:
            stop = at + tensor.numel()
            entries.append(Entry(name, tuple(tensor.shape), at, stop, str(tensor.dtype).removeprefix("torch.")))
            at = stop
        n_params = sum(t.numel() for _, t in params)
        n_float = n_params + sum(t.numel() for _, t in floats)
        return ParamSpec(tuple(entries), n_params, n_float, at)

    @property
    def model_bytes(self) -> int:
        """Bytes of one model on a link: 4 for every floating number."""
        return 4 * self.n_float

    @property
    def parameters(self) -> Iterator[Entry]:
        """The trainable entries."""
        return (e for e in self.entries if e.stop <= self.n_params)

    def spans(self, patterns: Sequence[str]) -> Spans:
        """Return where the tensors lie whose names match one of some patterns (as file names do: ``"head.*"``)."""
        found: list[tuple[int, int]] = []
        for e in self.entries:
            if not any(fnmatchcase(e.name, pattern) for pattern in patterns):
                continue
            if found and found[-1][1] == e.start:
                found[-1] = (found[-1][0], e.stop)
            else:
                found.append((e.start, e.stop))
        return tuple(found)

    def rest(self, spans: Spans) -> Spans:
        """Return where all other numbers lie."""
        ends = [0, *(end for span in spans for end in span), self.size]
        return tuple((a, b) for a, b in zip(ends[::2], ends[1::2], strict=True) if a < b)

    def common(self, one: Spans | None, two: Spans | None) -> Spans | None:
        """Return where the numbers lie that are in both of two parts of a model (None: the whole)."""
        if one is None or two is None:
            return two if one is None else one
        found = ((max(a, c), min(b, d)) for a, b in one for c, d in two)
        return tuple((a, b) for a, b in found if a < b)

    def link_bytes(self, spans: Spans | None) -> int:
        """Return the bytes of a part of a model on a link (None: of the whole)."""
        return self.model_bytes if spans is None else 4 * sum(max(0, min(b, self.n_float) - a) for a, b in spans)

    def last_layer(self) -> tuple[str, ...]:
        """Return the pattern of the last layer's parameters: those beside the last one."""
        last = list(self.parameters)[-1].name
        return (f"{last.rpartition('.')[0]}.*",) if "." in last else (last,)

    def flatten(self, state: Mapping[str, Tensor], dtype: torch.dtype = torch.float32) -> Tensor:
        """Copy a state dict into a new flat vector ``[size]``."""
        vector = torch.empty(self.size, dtype=dtype)
        for e in self.entries:
            if e.name not in state:
                raise TrainingError(f"The state has no tensor {e.name!r}; expected {len(self.entries)} tensors.")
            tensor = state[e.name]
            if tuple(tensor.shape) != e.shape:
                raise TrainingError(f"Tensor {e.name!r} has shape {tuple(tensor.shape)}, expected {e.shape}.")
            vector[e.start : e.stop] = tensor.detach().reshape(-1).to(dtype)
        return vector

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Name views into a flat vector ``[size]`` (or a stack ``[K, size]``); nothing is copied."""
        lead = vector.shape[:-1]
        return {e.name: vector[..., e.start : e.stop].reshape((*lead, *e.shape)) for e in self.entries}

    def load(self, module: nn.Module, vector: Tensor) -> None:
        """Write a flat vector into a module."""
        views = self.views(vector)
        state = {name: views[first] for name, first in first_names(module).items()}
        module.load_state_dict(state)

    def to_plain(self) -> dict[str, Any]:
        """Describe the spec as plain data (for a run directory or a handshake)."""
        return {
            "entries": [[e.name, list(e.shape), e.dtype] for e in self.entries],
            "n_params": self.n_params,
        }


def first_names(module: nn.Module) -> dict[str, str]:
    """Return the first name of every tensor of a module's state dict: its own, but for tied weights."""
    first = {id(p): n for n, p in module.named_parameters()}
    return {n: first.setdefault(id(t), n) for n, t in module.state_dict(keep_vars=True).items()}


def numel(shape: tuple[int, ...]) -> int:
    """Number of elements of a shape."""
    return math.prod(shape)


def spliced(base: Tensor, part: Tensor, spans: Spans) -> Tensor:
    """Return a copy of ``base`` with the numbers of ``part`` in some places."""
    found = base.clone()
    for start, stop in spans:
        found[start:stop] = part[start:stop]
    return found
