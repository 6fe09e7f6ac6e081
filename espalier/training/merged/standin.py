"""What a module finds in place of a parameter: the same tensor of K clients, posing as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from espalier.training.merged.slots import Slot

if TYPE_CHECKING:
    from espalier.training.merged.mode import Merge


class Unsupported(Exception):
    """The model does something that cannot be done for many clients at once; the message says what."""


class Stacked:
    """K clients' values of one tensor; its shape is one client's.

    Any torch function that is given one calls `Merge`, which answers for all clients. It is not a
    `torch.Tensor`: whatever would treat K clients' numbers as one client's fails instead of mixing them.
    """

    def __init__(self, merge: Merge, *, slot: Slot | None = None, value: Tensor | None = None) -> None:
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

    def __getitem__(self, index: Any) -> Any:
        return self._call(torch.Tensor.__getitem__, index)

    def __add__(self, other: Any) -> Any:
        return self._call(torch.add, other)

    __radd__ = __add__

    def __mul__(self, other: Any) -> Any:
        return self._call(torch.mul, other)

    __rmul__ = __mul__

    def __sub__(self, other: Any) -> Any:
        return self._call(torch.sub, other)

    def __rsub__(self, other: Any) -> Any:
        return self._call(torch.rsub, other)

    def __truediv__(self, other: Any) -> Any:
        return self._call(torch.div, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._call(torch.Tensor.__rtruediv__, other)

    def __pow__(self, other: Any) -> Any:
        return self._call(torch.pow, other)

    def __matmul__(self, other: Any) -> Any:
        return self._call(torch.matmul, other)

    def __iadd__(self, other: Any) -> Any:
        raise Unsupported("a parameter or buffer is changed in place")

    __isub__ = __imul__ = __itruediv__ = __iadd__

    def __neg__(self) -> Any:
        return self._call(torch.neg)


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func))
