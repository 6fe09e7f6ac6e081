"""The interception of torch calls while a module runs for K clients at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from espalier.training.merged import attention, conv, dropout, layers, lstm, pool
from espalier.training.merged.chain import ChainLayer, ChainTracker
from espalier.training.merged.fusion import FOLLOWED, FusedResult, FusionTracker
from espalier.training.merged.plan import PlannedCall, SeenCall, leaves, looks_merged, mark, rebuilt
from espalier.training.merged.stacked import Stacked, Unsupported, own

Rule = Callable[..., Any]

_RULES: dict[Any, Rule] = {
    F.linear: layers.linear_rule,
    F.conv2d: conv.rule,
    F.layer_norm: layers.layer_norm_rule,
    F.group_norm: layers.group_norm_rule,
    F.embedding: layers.embedding_rule,
    F.multi_head_attention_forward: attention.rule,
    torch.lstm: lstm.rule,
    F.dropout: layers.dropout_rule,
    torch.dropout: layers.dropout_rule,
    F.dropout1d: layers.channel_dropout_rule,
    F.dropout2d: layers.channel_dropout_rule,
    F.dropout3d: layers.channel_dropout_rule,
}
_FUSED: dict[Any, Rule] = {F.conv2d: conv.pooled_rule, F.group_norm: layers.norm_relu_rule}
"""Rules of calls together with what follows them."""

_ANY_AXIS: frozenset[Any] = frozenset([F.linear, F.layer_norm, F.embedding, F.dropout, torch.dropout])
"""Rules that hold for samples along any axis, once that axis is brought to the front."""

_OWN_AXES: frozenset[Any] = frozenset([F.multi_head_attention_forward, torch.lstm])
"""Rules that know themselves where the samples are."""

_HALF: frozenset[Any] = frozenset([F.conv2d, F.group_norm])
"""Rules that take images in bfloat16."""

_SHORTCUTS: dict[Any, Rule] = {
    F.max_pool2d: pool.shortcut,
    torch.max_pool2d: pool.shortcut,
    F.scaled_dot_product_attention: attention.shortcut,
}

_UNEVEN: frozenset[Any] = frozenset(
    [
        *(getattr(torch, n) for n in ("sigmoid", "pow", "logit", "sinc", "erfinv")),
        *(getattr(torch.Tensor, n) for n in ("sigmoid", "pow", "__pow__", "__rpow__", "logit", "sinc", "erfinv")),
        *(F.sigmoid, F.logsigmoid, F.gelu, F.silu, F.mish, F.softplus, F.elu, F.selu, F.celu),
    ]
)
"""Functions whose vector and scalar code round differently, so that a number's place in memory shows."""

_TO_PYTHON: frozenset[Any] = frozenset(
    [
        *(getattr(torch.Tensor, n) for n in ("__bool__", "__int__", "__float__", "__index__", "item", "tolist")),
        *(getattr(torch.Tensor, n) for n in ("numpy", "nonzero", "masked_select", "unique", "equal")),
        *(getattr(torch, n) for n in ("is_nonzero", "nonzero", "masked_select", "unique", "equal", "allclose")),
    ]
)
"""Functions whose answer, or its shape, depends on values: what a client sees would depend on the others."""

_MOST_RESULTS = 64
"""More results than any torch function has."""


class MergedForward(TorchFunctionMode):
    """Answers torch calls for K clients whose samples lie client-major along one axis.

    Attributes:
        clients: K.
        plan: The calls of a forward pass; None while it is being recorded (then K is 1).
        noise: Where dropout masks come from; None while recording (then nothing is dropped).
        tick: A scalar that requires gradients, so that autograd visits rules whose input needs none.
        half: Products are in bfloat16 where that is faster.
        channels_last: Images are laid out [row][column][channel], which the library's wide convolutions want.
        seen: The calls that were recorded.
        chain: The layers, if what was recorded is a chain of them and nothing else.
    """

    def __init__(self, plan: tuple[PlannedCall, ...] | None = None, *, rows: int = 0) -> None:
        super().__init__()
        self.clients = 1
        self.plan = plan
        self.noise: dropout.DropoutNoise | None = None
        self.tick = torch.zeros((), requires_grad=True)
        self.channels_last = False
        self.half = False
        self.seen: list[SeenCall] = []
        self.chain: tuple[ChainLayer, ...] | None = None
        self._rows = rows
        self._cursor = 0
        self._fusions = FusionTracker()
        self._fused: FusedResult | None = None
        self._links: ChainTracker | None = None

    def begin(self, clients: int, x: Tensor | None = None) -> None:
        """Start a forward pass of ``clients`` clients' inputs ``x``."""
        self.clients = clients
        self._links = ChainTracker(x) if self.plan is None and x is not None else None
        self._cursor = 0
        self._fused = None

    def end(self, out: Tensor) -> None:
        """End a forward pass, which gave ``out``: all of the plan's calls must have been met."""
        if self._fused is not None or (self.plan is not None and self._cursor != len(self.plan)):
            raise Unsupported("the forward pass takes another way and leaves out calls")
        self.chain = None if self._links is None else self._links.layers(out)
        self.seen = [replace(s, fused=i in self._fusions.fused) for i, s in enumerate(self.seen)]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Answer one call."""
        kwargs = kwargs or {}
        if self._fused is not None:
            last = self._fused.absorbs(func, args, kwargs)
            if last is not None:
                result, self._fused = self._fused.result, None if last else self._fused
                return result
        answer = self._call(func, types, args, kwargs)
        if self._links is not None:
            self._links.see(func, args, kwargs, answer)
        if self.plan is None:
            self._fusions.see(func, args, kwargs, answer)
            if func in FOLLOWED and Stacked in types and isinstance(answer, Tensor):
                self._fusions.begin(len(self.seen) - 1, func, answer)
        return answer

    def _call(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if Stacked in types or func in dropout.FUNCTIONS:
            return self.planned(func, args, kwargs)
        if func in _TO_PYTHON:
            raise Unsupported(f"the forward pass looks at values (data-dependent control flow) by {_name(func)}")
        shortcut = _SHORTCUTS.get(func)
        if shortcut is not None:
            return shortcut(func, *args, **kwargs)
        if func in _UNEVEN and self.clients > 1:
            return self._evenly(func, args, kwargs)
        if func is F.batch_norm and kwargs.get("training", len(args) > 5 and args[5]):
            raise Unsupported("batch_norm takes statistics over the batch")
        return func(*args, **kwargs)

    def _evenly(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute each client's elements by themselves, as they would be without the others."""
        x = args[0]
        uneven = isinstance(x, Tensor) and x.dim() and x.shape[0] % self.clients == 0 and x.numel() // self.clients % 64
        if not uneven or any(isinstance(a, Tensor) for a in (*args[1:], *kwargs.values())):
            return func(*args, **kwargs)
        return torch.cat([func(part, *args[1:], **kwargs) for part in x.chunk(self.clients)])

    def planned(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a call that involves parameters or dropout."""
        if self.plan is None:
            return self._record(func, args, kwargs)
        if self._cursor >= len(self.plan) or self.plan[self._cursor].name != _name(func):
            raise Unsupported(f"the forward pass takes another way at {_name(func)}")
        call = self.plan[self._cursor]
        self._cursor += 1
        return self._answer(func, args, kwargs, call)

    def _answer(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: PlannedCall) -> Any:
        if self.half and func not in _HALF:
            args, kwargs = rebuilt((args, kwargs), _single)
        rule, axis = _RULES.get(func), call.axes[0]
        result: Any = NotImplemented
        if call.fused and axis == 0:
            result = _FUSED[func](self, *args, **kwargs)
            if result is not NotImplemented:
                self._fused = FusedResult(func, result)
                return result
        if rule is not None and (axis == 0 or (axis is not None and func in _OWN_AXES)):
            result = rule(self, *args, **kwargs)
        elif rule is not None and axis is not None and func in _ANY_AXIS:
            result = rule(self, args[0].movedim(axis, 0), *args[1:], **kwargs)
            result = result if result is NotImplemented else result.movedim(0, axis)
        return self._one_by_one(func, args, kwargs, call) if result is NotImplemented else result

    def _one_by_one(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: PlannedCall) -> Any:
        """Call the function once per client and join the results: slow, and right for any function."""
        name = _name(func)
        if name.endswith("_") and not name.endswith("__") and isinstance(args[0], Stacked):
            raise Unsupported(f"a parameter or buffer is changed in place by {name}")
        if func is F.batch_norm and (args[5] if len(args) > 5 else kwargs.get("training")):
            raise Unsupported("batch_norm takes statistics over the batch")
        shares = [self._share((args, kwargs), call, client) for client in range(self.clients)]
        results = [func(*a, **k) for a, k in shares]
        axes = iter(call.out)
        parts = [leaves(r) for r in results]

        def join(leaf: Any) -> Any:
            axis, values = next(axes), [next(p) for p in parts]
            if not isinstance(leaf, Tensor):
                return leaf if axis is None else leaf * self.clients
            return Stacked(self, value=torch.stack(values)) if axis is None else torch.cat(values, axis).contiguous()

        return rebuilt(results[0], join)

    def _share(self, tree: Any, call: PlannedCall, client: int) -> Any:
        """One client's share of the arguments."""
        axes = iter(call.axes)

        def share(leaf: Any) -> Any:
            axis = next(axes)
            if isinstance(leaf, Stacked):
                return own(leaf.value[client])
            if axis is None:
                return leaf
            if isinstance(leaf, int):
                return leaf // self.clients
            return own(torch.unflatten(leaf, axis, (self.clients, -1)).select(axis, client))

        return rebuilt(tree, share)

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer for one client, whose share is the whole, and note what was seen."""
        for leaf in leaves((args, kwargs)):
            if isinstance(leaf, Stacked) and leaf.slot is not None:
                leaf.slot.uses += 1
        marks = tuple(mark(x) for x in leaves((args, kwargs)))
        merged = looks_merged((args, kwargs), self._rows)
        rule = _RULES.get(func) if merged and not isinstance(args[0], Stacked) else None
        result = NotImplemented if rule is None else rule(self, *args, **kwargs)
        if result is NotImplemented:
            whole = PlannedCall(_name(func), (None,) * len(marks), (0 if merged else None,) * _MOST_RESULTS)
            result = self._one_by_one(func, args, kwargs, whole)
        self.seen.append(SeenCall(_name(func), marks, tuple(mark(x) for x in leaves(result)), merged))
        return result


def _single(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, Tensor) and leaf.dtype == torch.bfloat16 else leaf


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func))
