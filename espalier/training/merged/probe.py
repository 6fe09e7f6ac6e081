"""May a module be merged? Two dry runs make the plan, a comparison with one-by-one training decides.

The comparison is what makes merging safe: a model that mixes samples in a way no rule can see
(statistics over the batch, attention between samples) gives other numbers, and is trained one by one.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from espalier.core.errors import TrainingError
from espalier.core.params import ParamSpec
from espalier.core.seeds import stream
from espalier.training.losses import PerSample
from espalier.training.merged.chain import ChainLayer
from espalier.training.merged.plan import ROWS, PlannedCall, compare
from espalier.training.merged.replica import Replica
from espalier.training.merged.stacked import Stack, Unsupported
from espalier.training.sequential import Seeded, cast, put

_CLIENTS, _WIDTH = 3, 2


@dataclass(frozen=True)
class MergePlan:
    """How a module runs merged.

    Attributes:
        calls: The intercepted calls of its forward pass.
        used: Indices of the entries that the forward pass uses.
        once: Whether each of them is used once: then plain SGD may step inside the backward pass.
        chain: The layers, if the model is a chain of them.
    """

    calls: tuple[PlannedCall, ...]
    used: frozenset[int]
    once: bool
    chain: tuple[ChainLayer, ...] | None = None


def probe(
    module: nn.Module, spec: ParamSpec, loss: PerSample | None, x: Tensor, y: Tensor, dtype: torch.dtype
) -> MergePlan:
    """Plan a module's merged run.

    Args:
        module: The user's module.
        spec: Its tensors.
        loss: The training loss; None plans for evaluation, without gradients.
        x: Real inputs ``[n, ...]``, at least one; a dozen are enough.
        y: Their targets.
        dtype: The arithmetic.

    Raises:
        Unsupported: It cannot be merged; the message says why.
        TrainingError: It cannot be run on these inputs at all.
    """
    many = torch.arange(max(ROWS)) % x.shape[0]
    task = _Task(module, spec, loss, x[many], y[many])
    with torch.random.fork_rng(devices=[]):
        expected = task.one_by_one(dtype)
        before = torch.get_rng_state()
        try:
            plan = task.recorded(dtype)
            found = task.merged(dtype, plan)
        except Unsupported:
            raise
        except Exception as error:
            raise Unsupported(f"it fails for several clients at once ({type(error).__name__}: {error})") from error
        if not torch.equal(before, torch.get_rng_state()):
            raise Unsupported("it draws random numbers of its own in the forward pass")
        # Rounding may flip a unit at its kink, once in many models; exact arithmetic tells that from a mixture.
        exact = torch.float64
        if not _agree(expected, found, 1e-3) and not _agree(task.one_by_one(exact), task.merged(exact, plan), 1e-9):
            raise Unsupported("a client's result depends on other clients' samples")
    return plan


def _agree(expected: list[Tensor], found: list[Tensor], tolerance: float) -> bool:
    return all(
        a.shape == b.shape and float((a - b).norm()) <= tolerance * (float(a.norm()) + tolerance)
        for a, b in zip(expected, found, strict=True)
    )


@dataclass(frozen=True, eq=False)
class _Task:
    """A small training problem: three clients with two samples each."""

    module: nn.Module
    spec: ParamSpec
    loss: PerSample | None
    x: Tensor
    y: Tensor

    @property
    def training(self) -> bool:
        return self.loss is not None

    def recorded(self, dtype: torch.dtype) -> MergePlan:
        """Run one client with two numbers of rows, and compare what was called."""
        seen, chains = [], []
        for rows in ROWS:
            replica = Replica(self.module, self.spec, dtype, training=self.training, rows=rows)
            with torch.no_grad():
                replica.forward(cast(self.x[:rows], dtype), 1)
            seen.append(replica.merge.seen)
            chains.append(replica.merge.chain)
        uses = [slot.uses for slot in replica.slots]
        used = frozenset(i for i, n in enumerate(uses) if n)
        once = all(n <= 1 for n in uses)
        chain = chains[0] if once and chains[0] == chains[1] else None
        return MergePlan(compare(*seen), used, once, chain)

    def merged(self, dtype: torch.dtype, plan: MergePlan) -> list[Tensor]:
        """Outputs of every client, then gradients of every client, all computed at once."""
        replica = Replica(self.module, self.spec, dtype, training=self.training, plan=plan.calls)
        views = Stack(self.spec, self._starts(dtype)).views(_CLIENTS)
        sinks = {i: torch.zeros_like(views[i]) for i in replica.trained if self.training}
        replica.bind(views, sinks)
        rows = _CLIENTS * _WIDTH
        with torch.set_grad_enabled(self.training):
            out = replica.forward(cast(self.x[:rows], dtype), _CLIENTS)
            outputs = list(out.detach().reshape(_CLIENTS, -1))
            if self.loss is None:
                return outputs
            losses = self.loss(out, cast(self.y[:rows], dtype))
            torch.autograd.backward([losses.sum() / _WIDTH])
        replica.collect()
        return outputs + list(torch.cat([sinks[i].reshape(_CLIENTS, -1) for i in replica.trained], 1))

    def one_by_one(self, dtype: torch.dtype) -> list[Tensor]:
        """The same, one client after the other."""
        outputs, gradients = [], []
        for client, start in enumerate(self._starts(dtype)):
            one = _without_dropout(copy.deepcopy(self.module).to(dtype).train(self.training))
            put(one, self.spec, start)
            cut = slice(client * _WIDTH, (client + 1) * _WIDTH)
            x, y = cast(self.x[cut], dtype), cast(self.y[cut], dtype)
            try:
                with torch.set_grad_enabled(self.training), Seeded(None, _WIDTH):
                    out = one(x)
                outputs.append(out.detach().reshape(-1))
                if self.loss is not None:
                    torch.autograd.backward([self.loss(out, y).mean()])
            except Exception as error:
                raise TrainingError(
                    f"The model cannot be computed on inputs of shape {tuple(x.shape)} and targets of shape "
                    f"{tuple(y.shape)}: {type(error).__name__}: {error}"
                ) from error
            if self.training:
                trained = [p for p in one.parameters() if p.requires_grad]
                parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
                gradients.append(torch.cat([p.reshape(-1) for p in parts]))
        return outputs + gradients

    def _starts(self, dtype: torch.dtype) -> list[Tensor]:
        """Three different models near the module's own, so that a mix-up of clients shows."""
        own, size = self.spec.flatten(self.module.state_dict(), dtype), self.spec.n_params
        noise = torch.from_numpy(stream(0, "probe").standard_normal(size, dtype=np.float32)).to(dtype)
        starts = []
        for client in range(_CLIENTS):
            start = own.clone()
            start[:size] += noise.roll(client) * (0.01 + 0.1 * start[:size].abs())
            starts.append(start)
        return starts


def _without_dropout(module: nn.Module) -> nn.Module:
    """Silence the dropout that layers apply inside themselves (what they call is silenced by `Seeded`)."""
    for part in module.modules():
        if isinstance(part, nn.RNNBase | nn.MultiheadAttention):
            part.dropout = 0.0
    return module
