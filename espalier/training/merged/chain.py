"""Models that are chains of layers: the bundled MLPs, LeNet, the FedAvg CNN.

Linear layers and convolutions of stride 1, with ReLU (and 2×2 max-pooling behind a convolution) between them. While the
forward pass is recorded, `ChainTracker` sees whether it is nothing else; how the module is written does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.core.params import Entry
from espalier.training import native
from espalier.training.merged import conv
from espalier.training.merged.fusion import layer_step
from espalier.training.merged.plan import leaves
from espalier.training.merged.stacked import Stacked

_FLATTEN: frozenset[Any] = frozenset(
    [torch.flatten, torch.reshape, torch.Tensor.flatten, torch.Tensor.reshape, torch.Tensor.view]
)


@dataclass(frozen=True)
class ChainLayer:
    """One layer of a chain.

    Attributes:
        weight: The weights' place in the flat vector.
        bias: The biases'; None if there are none.
        inputs: Shape of one input, ``(features,)`` or ``(channels, height, width)``.
        padding: Of a convolution.
        relu: ReLU follows, without pooling.
        pooled: ReLU and 2×2 max-pooling follow.
    """

    weight: Entry
    bias: Entry | None
    inputs: tuple[int, ...]
    padding: tuple[int, int] = (0, 0)
    relu: bool = False
    pooled: bool = False

    @property
    def wide(self) -> bool:
        """Whether it is a convolution of so many channels that bfloat16 pays."""
        return len(self.inputs) == 3 and conv.prefer_channels_last([self.weight.shape], torch.float32)

    def link(self, trained: frozenset[Entry]) -> native.ChainLink:
        """Return it as the kernels read it."""
        image = self.inputs if len(self.inputs) == 3 else (self.inputs[0], 1, 1)
        window = self.weight.shape[2:] or (1, 1)
        place = -1 if self.bias is None else self.bias.start
        moves = self.weight in trained, self.bias in trained
        return native.ChainLink(
            len(self.inputs) == 3, self.weight.start, place, *moves, self.relu, self.pooled,
            *image, self.weight.shape[0], *window, *self.padding,
        )  # fmt: skip


class ChainTracker:
    """Whether a recorded forward pass is a chain, and of which layers."""

    def __init__(self, x: Tensor) -> None:
        self._now: Tensor | None = x  # None: it is no chain
        self._layers: list[ChainLayer] = []
        self._left: set[str] = set()  # what has followed the last layer

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Take note of a call."""
        if self._now is None or (result is not None and not any(isinstance(r, Tensor) for r in leaves(result))):
            return  # asking for a shape changes nothing
        known = isinstance(result, Tensor) and bool(args) and args[0] is self._now
        self._now = result if known and self._takes(func, args, kwargs, result) else None

    def layers(self, out: Tensor) -> tuple[ChainLayer, ...] | None:
        """Return the layers of a forward pass that gave ``out``; None: it is no chain."""
        if self._now is not out or out.dim() != 2 or not self._layers or "pool" in self._left:
            return None
        return (*self._layers[:-1], self._closed())

    def _takes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> bool:
        x: Tensor = args[0]
        if func in _FLATTEN:
            return result.shape == (x.shape[0], x[0].numel())
        if func in (F.linear, F.conv2d):
            return self._opens(func, x, *args[1:], **kwargs)
        step = layer_step(func, args, kwargs)
        if step is None or not self._layers or step in self._left:
            return False
        if step == "pool" and len(self._layers[-1].inputs) == 1:
            return False
        self._left.add(step)
        return True

    def _opens(self, func: Any, x: Tensor, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> bool:
        """Take the next layer, if it and what followed the last one can be computed."""
        given = [t for t in (weight, bias) if t is not None]
        if not all(isinstance(t, Stacked) and t.slot is not None for t in given) or not x.is_contiguous():
            return False
        padding = (0, 0)
        if func is F.conv2d:
            found = conv.chain_padding(weight, *args, **kwargs)
            if found is None or x.dim() != 4:
                return False
            padding = found
        elif x.dim() != 2:
            return False
        if self._layers:
            if self._left == {"pool"}:
                return False
            self._layers[-1] = self._closed()
        self._left = set()
        entries = [t.slot.entry for t in given]
        self._layers.append(
            ChainLayer(entries[0], entries[1] if bias is not None else None, tuple(x.shape[1:]), padding)
        )
        return True

    def _closed(self) -> ChainLayer:
        return replace(self._layers[-1], relu=self._left == {"relu"}, pooled=self._left == {"relu", "pool"})
