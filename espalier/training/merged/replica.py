"""A copy of the user's module that holds stand-ins where its parameters and buffers were."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from espalier.core.params import ParamSpec, first_names
from espalier.training.merged import conv
from espalier.training.merged.mode import MergedForward
from espalier.training.merged.plan import PlannedCall
from espalier.training.merged.stacked import Slot, Stacked, Unsupported


class Replica:
    """The module, the interception and the slots behind its stand-ins.

    Attributes:
        module: The module.
        slots: One per entry of the spec; entries that name one tensor twice share a slot.
        trained: Indices of the entries that are parameters and may change.
    """

    def __init__(
        self,
        module: nn.Module,
        spec: ParamSpec,
        dtype: torch.dtype,
        *,
        training: bool,
        plan: tuple[PlannedCall, ...] | None = None,
        rows: int = 0,
        half: bool = False,
    ) -> None:
        self.spec = spec
        self.merge = MergedForward(plan, rows=rows)
        pooled = any(call.fused and call.name == "conv2d" for call in plan or ())
        shapes = [e.shape for e in spec.entries if len(e.shape) == 4]
        self.merge.half = half
        self.merge.channels_last = plan is not None and conv.prefer_channels_last(shapes, dtype, pooled, half)
        self.module = copy.deepcopy(module).to(dtype).train(training)
        for part in self.module.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and (training or part.running_mean is None):
                raise Unsupported(f"{type(part).__name__} takes statistics over the batch")
        tensors = self.module.state_dict(keep_vars=True)
        self.slots = [Slot(e, tensors[e.name].detach().unsqueeze(0), None) for e in spec.entries]
        self.trained = [i for i, e in enumerate(spec.entries) if tensors[e.name].requires_grad]
        slots = {e.name: slot for e, slot in zip(spec.entries, self.slots, strict=True)}
        for path, first in first_names(module).items():
            owner, name = _place(self.module, path)
            holder = owner._parameters if name in owner._parameters else owner._buffers
            holder[name] = Stacked(self.merge, slot=slots[first])  # type: ignore[assignment]
        for part in self.module.modules():
            if isinstance(part, nn.RNNBase):
                part._flat_weights = [part._parameters[n] for n in part._flat_weights_names]

    def bind(self, values: Sequence[Tensor], sinks: dict[int, Tensor]) -> None:
        """Put K clients' tensors ``[K, *shape]`` behind the stand-ins; ``sinks`` by entry index."""
        for index, (slot, value) in enumerate(zip(self.slots, values, strict=True)):
            slot.data = value
            sink = sinks.get(index)
            slot.sink = None if sink is None else sink.view(value.shape)

    def forward(self, x: Tensor, clients: int) -> Tensor:
        """Run merged inputs ``[K·B, ...]`` through the module."""
        self.merge.begin(clients, x)
        with self.merge:
            out: Tensor = self.module(x)
        self.merge.end(out)
        return out

    def collect(self) -> None:
        """Bring all gradients of a backward pass into the sinks."""
        for slot in self.slots:
            slot.collect()

    def refresh(self) -> None:
        """Declare the sinks' contents stale."""
        for index in self.trained:
            self.slots[index].fresh = self.slots[index].sink is not None


def _place(module: nn.Module, path: str) -> tuple[nn.Module, str]:
    owner, _, name = path.rpartition(".")
    return module.get_submodule(owner), name
