"""The stacked tensors of K clients: one slot per parameter or buffer of the model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from espalier.core.params import Entry, ParamSpec
from espalier.training.merged.products import add_product


class Slot:
    """One parameter (or buffer) of K clients.

    Attributes:
        data: Values ``[K, *shape]``, contiguous.
        sink: Where rules add the gradient, ``[K, *shape]``; None for what is not trained. For plain SGD
            it is ``data`` itself: the step happens inside the backward pass.
        fresh: The sink's contents are stale: the next gradient overwrites instead of adding.
        uses: How many calls of a recorded forward pass were given it.
    """

    __slots__ = ("_leaf", "data", "entry", "fresh", "sink", "uses")

    def __init__(self, entry: Entry, data: Tensor, sink: Tensor | None) -> None:
        self.entry = entry
        self.data = data
        self.sink = sink
        self.fresh = False
        self.uses = 0
        self._leaf: Tensor | None = None

    def leaf(self) -> Tensor:
        """The values as an autograd leaf, for operations that have no rule of their own."""
        if self.sink is None:
            return self.data
        if self._leaf is None:
            self._leaf = self.data.detach().requires_grad_()
        return self._leaf

    def add(self, gradient: Tensor) -> None:
        """Add a gradient ``[K, *shape]`` to the sink."""
        if self.sink is None:
            return
        if self.fresh:
            self.sink.copy_(gradient)
            self.fresh = False
        else:
            self.sink.add_(gradient)

    def add_product(self, left: Tensor, right: Tensor) -> None:
        """Add the batched product ``left [K, a, m] @ right [K, m, b]`` to the sink ``[K, a, b]``."""
        if self.sink is not None:
            add_product(self.sink, left, right, fresh=self.fresh)
            self.fresh = False

    def add_one(self, client: int, gradient: Tensor) -> None:
        """Add one client's gradient; `settle` must have been called for a fresh sink."""
        if self.sink is not None:
            self.sink[client].add_(gradient.reshape(self.entry.shape))

    def settle(self) -> None:
        """Make a fresh sink hold zeros."""
        if self.fresh and self.sink is not None:
            self.sink.zero_()
            self.fresh = False

    def collect(self) -> None:
        """Move what autograd gathered at the leaf into the sink."""
        if self._leaf is not None and self._leaf.grad is not None:
            self.add(self._leaf.grad)
        self._leaf = None
        self.settle()


class Stack:
    """All tensors of K clients, one contiguous block per model entry.

    A block per entry (and not one row per client) is what lets a batched product write a whole layer's
    weights of all clients in one call.
    """

    def __init__(self, spec: ParamSpec, starts: Sequence[Tensor]) -> None:
        """Copy K flat vectors ``[spec.size]`` into blocks ``[K, *shape]``."""
        self.spec = spec
        lengths = [e.stop - e.start for e in spec.entries]
        pieces = [torch.split(v, lengths) for v in starts]
        self.blocks = [torch.stack([p[i] for p in pieces]) for i in range(len(lengths))]

    def views(self, clients: int) -> list[Tensor]:
        """Blocks of the first ``clients`` clients, each ``[clients, *shape]``; floating ones are not copied."""
        views = []
        for block, entry in zip(self.blocks, self.spec.entries, strict=True):
            view = block[:clients].view(clients, *entry.shape)
            views.append(view if "float" in entry.dtype else view.to(getattr(torch, entry.dtype)))
        return views

    def vector(self, client: int) -> Tensor:
        """Copy one client's tensors into a new flat vector ``[spec.size]``."""
        return torch.cat([b[client] for b in self.blocks])
