"""Convolutions that ReLU and 2×2 max-pooling follow, and normalisations that ReLU follows, become one call.

While the forward pass is recorded, `FusionTracker` watches where each such result goes, and that nothing else looks at
it. In a merged pass the rule then returns the last result at once, and `FusedResult` absorbs the calls of ReLU and
pooling that come after it. The two may come in either order: the result is the same, and so is the gradient.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.training.merged import pool
from espalier.training.merged.plan import leaves
from espalier.training.merged.stacked import Unsupported

_RELU: frozenset[Any] = frozenset([F.relu, F.relu_, torch.relu, torch.relu_, torch.Tensor.relu, torch.Tensor.relu_])
_POOL: frozenset[Any] = frozenset([F.max_pool2d, torch.max_pool2d])


def layer_step(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return ``"relu"`` or ``"pool"`` (2×2, by the maximum) if a call is that."""
    if func in _RELU:
        return "relu"
    return "pool" if func in _POOL and pool.is_plain(*args[1:], **kwargs) else None


FOLLOWED: dict[Any, frozenset[str]] = {F.conv2d: frozenset(["relu", "pool"]), F.group_norm: frozenset(["relu"])}
"""What is taken together with a call, if it follows."""


class FusionTracker:
    """Which of the recorded calls are followed by what can be taken together with them.

    Attributes:
        fused: Numbers of those calls.
    """

    def __init__(self) -> None:
        self.fused: set[int] = set()
        self._open: dict[int, tuple[int, Tensor, frozenset[str]]] = {}  # by tensor: the call, and what is to follow
        self._passed: dict[int, tuple[int, Tensor]] = {}  # results on the way, which nobody may look at again

    def begin(self, call: int, func: Any, result: Tensor) -> None:
        """Follow the result of a call."""
        self._open[id(result)] = (call, result, FOLLOWED[func])

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Take note of a call: it continues a way, or it ends it."""
        step = layer_step(func, args, kwargs)
        for leaf in leaves((args, kwargs)):
            if id(leaf) in self._passed:
                self.fused.discard(self._passed[id(leaf)][0])
            if id(leaf) not in self._open:
                continue
            call, tensor, left = self._open.pop(id(leaf))
            self._passed[id(leaf)] = (call, tensor)
            if step not in left or leaf is not args[0]:
                continue
            self._passed.pop(id(result), None)  # ReLU in place
            if left == {step}:
                self.fused.add(call)
            else:
                self._open[id(result)] = (call, result, left - {step})


class FusedResult:
    """The result of a fused call: what follows is done, but the module has yet to call it."""

    def __init__(self, func: Any, result: Tensor) -> None:
        self.result = result
        self._left = set(FOLLOWED[func])

    def absorbs(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
        """Whether this call asks for what is done already, as the last one (True) or not (False); None: no."""
        if not any(leaf is self.result for leaf in leaves((args, kwargs))):
            return None
        step = layer_step(func, args, kwargs)
        if step not in self._left:
            raise Unsupported(f"the forward pass takes another way at {getattr(func, '__name__', func)}")
        self._left.remove(step)
        return not self._left
