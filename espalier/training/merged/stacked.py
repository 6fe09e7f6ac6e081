"""The stacked parameters of K clients, and what a module finds in place of each: K clients' tensors posing as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from espalier.core.params import Entry, ParamSpec
from espalier.training.merged.dropout import DropoutNoise
from espalier.training.merged.products import add_product


class Unsupported(Exception):
    """The model does something that cannot be done for many clients at once; the message says what."""


def own(part: Tensor) -> Tensor:
    """Return the part laid out as if there were no others: kernels may round by layout."""
    return part.contiguous() if part.data_ptr() % 16 == 0 else part.clone(memory_format=torch.contiguous_format)


class ForwardPass(Protocol):
    """What rules and stacked parameters know of the merged forward pass that they take part in.

    Attributes:
        clients: K.
        noise: Where dropout masks come from; None: nothing is dropped.
        tick: A scalar that requires gradients, so that autograd visits rules whose input needs none.
        channels_last: Whether convolutions lay images out with their channels last.
        half: Whether products are in bfloat16 where that is faster.
    """

    clients: int
    noise: DropoutNoise | None
    tick: Tensor
    channels_last: bool
    half: bool

    def planned(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a call that involves parameters or dropout."""
        ...


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


def _calling(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return the operator of a :class:`Stacked` that calls a torch function for all clients."""
    return lambda self, *args: self._call(func, *args)


def _changed_in_place(*args: Any) -> Any:
    raise Unsupported("a parameter or buffer is changed in place")


class Stacked:
    """K clients' values of one tensor; its shape is one client's.

    Any torch function that is given one calls `MergedForward`, which answers for all clients. It is not a
    `torch.Tensor`: whatever would treat K clients' numbers as one client's fails instead of mixing them.
    """

    def __init__(self, merge: ForwardPass, *, slot: Slot | None = None, value: Tensor | None = None) -> None:
        self._merge = merge
        self.slot = slot
        self._value = value

    @property
    def value(self) -> Tensor:
        """Values ``[K, *shape]``, connected to autograd."""
        if self._value is not None:
            return self._value
        assert self.slot is not None
        return self.slot.leaf()

    @property
    def raw(self) -> Tensor:
        """Values ``[K, *shape]`` without autograd, for what only asks about shape or type."""
        return self.value if self.slot is None else self.slot.data

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Refuse: a stand-in has a meaning only inside the merged forward pass."""
        raise Unsupported(f"a parameter is used by {_name(func)} outside the forward pass")

    @property
    def shape(self) -> torch.Size:
        """One client's shape."""
        return self.raw.shape[1:]

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""
        return self.raw.dtype

    @property
    def device(self) -> torch.device:
        """Device."""
        return self.raw.device

    @property
    def ndim(self) -> int:
        """Number of one client's axes."""
        return self.raw.ndim - 1

    @property
    def requires_grad(self) -> bool:
        """Whether it is trained."""
        return self.raw.requires_grad or (self.slot is not None and self.slot.sink is not None)

    @property
    def is_nested(self) -> bool:
        """Never nested."""
        return False

    def dim(self) -> int:
        """Number of one client's axes."""
        return self.ndim

    def numel(self) -> int:
        """Number of one client's elements."""
        return self.shape.numel()

    def size(self, dim: int | None = None) -> Any:
        """One client's shape, or one axis of it."""
        return self.shape if dim is None else self.shape[dim]

    def is_floating_point(self) -> bool:
        """Whether the elements are floating numbers."""
        return self.dtype.is_floating_point

    def __len__(self) -> int:
        return self.shape[0]

    def __getattr__(self, name: str) -> Any:
        """Any other tensor method, for every client."""
        if name.startswith("__") or not hasattr(torch.Tensor, name):
            raise AttributeError(name)
        attribute = getattr(torch.Tensor, name)
        if name in ("T", "mT"):
            return self._call(torch.Tensor.t) if name == "T" else self._call(torch.Tensor.transpose, -2, -1)
        if not callable(attribute):
            raise Unsupported(f"a parameter's attribute {name!r} is read in the forward pass")
        return lambda *args, **kwargs: self._call(attribute, *args, **kwargs)

    def _call(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._merge.planned(func, (self, *args), kwargs)

    __getitem__ = _calling(torch.Tensor.__getitem__)
    __add__ = __radd__ = _calling(torch.add)
    __mul__ = __rmul__ = _calling(torch.mul)
    __sub__, __rsub__ = _calling(torch.sub), _calling(torch.rsub)
    __truediv__, __rtruediv__ = _calling(torch.div), _calling(torch.Tensor.__rtruediv__)
    __pow__, __matmul__, __neg__ = _calling(torch.pow), _calling(torch.matmul), _calling(torch.neg)

    __iadd__ = __isub__ = __imul__ = __itruediv__ = _changed_in_place


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func))
