"""May a module be merged? Two dry runs make the plan, a comparison with one-by-one training decides.

The comparison is what makes merging safe: a model that mixes samples in a way no rule can see
(statistics over the batch, attention between samples) gives other numbers, and is trained one by one.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from espalier.core.errors import TrainingError
from espalier.core.params import ParamSpec
from espalier.core.seeds import key, stream
from espalier.training.losses import PerSample
from espalier.training.merged.dropout import Noise
from espalier.training.merged.plan import ROWS, Call, compare
from espalier.training.merged.replica import Replica
from espalier.training.merged.slots import Stack
from espalier.training.merged.standin import Unsupported
from espalier.training.modules import cast, put
from espalier.training.sequential import Seeded

_CLIENTS, _WIDTH = 3, 2


@dataclass(frozen=True)
class Plan:
    """How a module runs merged.

    Attributes:
        calls: The intercepted calls of its forward pass.
        used: Indices of the entries that the forward pass uses.
        once: Whether each of them is used once: then plain SGD may step inside the backward pass.
    """

    calls: tuple[Call, ...]
    used: frozenset[int]
    once: bool


def probe(module: nn.Module, spec: ParamSpec, loss: PerSample | None, x: Tensor, y: Tensor, dtype: torch.dtype) -> Plan:
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
    starts = _perturbed(module, spec, dtype)
    many = torch.arange(max(ROWS)) % x.shape[0]
    x, y = cast(x[many], dtype), cast(y[many], dtype)
    expected = _one_by_one(module, spec, loss, x, y, starts)
    try:
        calls, uses = _recorded(module, spec, loss, x, dtype)
        plan = Plan(calls, frozenset(i for i, n in enumerate(uses) if n), all(n <= 1 for n in uses))
        found = _merged(module, spec, loss, x, y, starts, plan)
    except Unsupported:
        raise
    except Exception as error:
        raise Unsupported(f"it fails for several clients at once ({type(error).__name__}: {error})") from error
    tolerance = 1e-3 if dtype == torch.float32 else 1e-7
    for a, b in zip(expected, found, strict=True):
        if a.shape != b.shape or not float((a - b).norm()) <= tolerance * (float(a.norm()) + tolerance):
            raise Unsupported("a client's result depends on other clients' samples")
    return plan


def _recorded(
    module: nn.Module, spec: ParamSpec, loss: PerSample | None, x: Tensor, dtype: torch.dtype
) -> tuple[tuple[Call, ...], list[int]]:
    seen = []
    for rows in ROWS:
        replica = Replica(module, spec, dtype, training=loss is not None, rows=rows)
        with torch.no_grad():
            replica.forward(x[:rows], 1)
        seen.append(replica.merge.seen)
    uses = [0 if slot.entry is not e else slot.uses for slot, e in zip(replica.slots, spec.entries, strict=True)]
    return compare(*seen), uses


def _merged(
    module: nn.Module,
    spec: ParamSpec,
    loss: PerSample | None,
    x: Tensor,
    y: Tensor,
    starts: list[Tensor],
    plan: Plan,
) -> list[Tensor]:
    """Outputs and gradients of three clients, merged: per client one vector each."""
    replica = Replica(module, spec, starts[0].dtype, training=loss is not None, plan=plan.calls)
    replica.merge.noise = _noise()
    views = Stack(spec, starts).views(_CLIENTS)
    sinks = {i: torch.zeros_like(views[i]) for i in replica.trained if loss is not None}
    replica.bind(views, sinks)
    rows = _CLIENTS * _WIDTH
    with torch.set_grad_enabled(loss is not None):
        out = replica.forward(x[:rows], _CLIENTS)
        outputs = list(out.detach().reshape(_CLIENTS, -1))
        if loss is None:
            return outputs
        losses = loss(out, y[:rows])
        torch.autograd.backward([losses], [torch.full_like(losses, 1.0 / _WIDTH)])
    replica.collect()
    joined = torch.cat([sinks[i].reshape(_CLIENTS, -1) for i in replica.trained], 1)
    return outputs + list(joined)


def _one_by_one(
    module: nn.Module, spec: ParamSpec, loss: PerSample | None, x: Tensor, y: Tensor, starts: list[Tensor]
) -> list[Tensor]:
    outputs, gradients = [], []
    noise = _noise()
    for client, start in enumerate(starts):
        one = copy.deepcopy(module).to(start.dtype).train(loss is not None)
        put(one, spec, start)
        cut = slice(client * _WIDTH, (client + 1) * _WIDTH)
        try:
            with torch.set_grad_enabled(loss is not None), Seeded(noise.of(client), _WIDTH):
                out = one(x[cut])
            outputs.append(out.detach().reshape(-1))
            if loss is not None:
                torch.autograd.backward([loss(out, y[cut]).mean()])
        except Exception as error:
            raise TrainingError(
                f"The model cannot be computed on inputs of shape {tuple(x[cut].shape)} and targets of shape "
                f"{tuple(y[cut].shape)}: {type(error).__name__}: {error}"
            ) from error
        trained = [p for p in one.parameters() if p.requires_grad]
        gradients.append(torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in trained]))
    return outputs + (gradients if loss is not None else [])


def _perturbed(module: nn.Module, spec: ParamSpec, dtype: torch.dtype) -> list[Tensor]:
    """Three different models near the module's own, so that a mix-up of clients shows."""
    own = spec.flatten(module.state_dict(), dtype)
    starts = []
    for client in range(_CLIENTS):
        noise = torch.from_numpy(stream(0, "probe", client).standard_normal(spec.n_params)).to(dtype)
        start = own.clone()
        start[: spec.n_params] += noise * (0.01 + 0.1 * start[: spec.n_params].abs())
        starts.append(start)
    return starts


def _noise() -> Noise:
    return Noise([key(0, "probe", client) for client in range(_CLIENTS)], _WIDTH)
