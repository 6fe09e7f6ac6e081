"""Moving flat vectors into and out of modules without a change of arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from espalier.core.params import Entry, ParamSpec


def tensors(module: nn.Module, spec: ParamSpec) -> Iterator[tuple[Entry, Tensor]]:
    """Yield entries and the module's tensors."""
    state = module.state_dict(keep_vars=True)
    for entry in spec.entries:
        yield entry, state[entry.name]


def put(module: nn.Module, spec: ParamSpec, vector: Tensor) -> None:
    """Copy a flat vector ``[spec.size]`` into a module of the same floating type."""
    with torch.no_grad():
        for entry, tensor in tensors(module, spec):
            tensor.copy_(vector[entry.start : entry.stop].view(entry.shape))


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a floating tensor in another floating type, anything else as it is."""
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
