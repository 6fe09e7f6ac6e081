"""Moving flat vectors into and out of modules without a change of arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from espalier.core.params import ParamSpec


def put(module: nn.Module, spec: ParamSpec, vector: Tensor) -> None:
    """Copy a flat vector ``[spec.size]`` into a module of the same floating type."""
    state = module.state_dict(keep_vars=True)
    with torch.no_grad():
        for e in spec.entries:
            state[e.name].copy_(vector[e.start : e.stop].view(e.shape))


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a floating tensor in another floating type, anything else as it is."""
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
