"""Training on another device than the CPU: what goes there, what comes back, and how many clients fit.

Jobs and results stay on the CPU; a chunk's vectors and mini-batches go to the device when it is trained. Nothing else
of the trainer knows of devices: new tensors are made on the device that the context names.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from espalier.core.errors import ConfigError
from espalier.core.params import ParamSpec
from espalier.training.work import Pool, Result, TrainerJob

_VECTORS_PER_CLIENT = 6
"""Vectors of a client at work: parameters, gradients, two of an optimizer's, an anchor, a correction."""

_MEMORY_SHARE = 0.25
"""Part of the free memory that a chunk may take: the rest is for unfolded convolutions and other temporaries."""

_MOST_CLIENTS = 1024

CPU = torch.device("cpu")


def find(name: str) -> torch.device:
    """Return the device of a name.

    Raises:
        ConfigError: There is no such device here.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device is {name!r}; accepted: 'cpu', 'cuda', or 'cuda:1' for the second GPU.") from error
    if device.type == "cuda" and not (device.index or 0) < torch.cuda.device_count():
        raise ConfigError(
            f"device is {name!r}, but torch {torch.__version__} finds {torch.cuda.device_count()} CUDA devices here. "
            "Use --device cpu, or install a torch with CUDA on a machine with a GPU."
        )
    return device


def has_half(device: torch.device) -> bool:
    """Whether products in bfloat16 are faster there than in float32."""
    found = torch.cuda.is_bf16_supported() if device.type == "cuda" else torch.cpu._is_avx512_bf16_supported()
    return bool(found)


@contextmanager
def computing(device: torch.device) -> Iterator[None]:
    """Make new tensors on the device inside."""
    if device.type == "cpu":
        yield
        return
    with device:
        yield


@dataclass(frozen=True, eq=False)
class Sent:
    """A pool whose samples are sent to a device as they are gathered."""

    pool: Pool
    device: torch.device

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of rows, on the device."""
        x, y = self.pool.gather(rows.cpu())
        return x.to(self.device), y.to(self.device)


def sent(jobs: list[TrainerJob], device: torch.device) -> list[TrainerJob]:
    """Return jobs with their vectors and samples on the device; jobs that share a pool still do."""
    if device.type == "cpu":
        return jobs
    pools = {id(job.pool): Sent(job.pool, device) for job in jobs}
    return [
        replace(
            job, pool=pools[id(job.pool)], start=job.start.to(device), anchor=_to(job.anchor, device),
            correction=_to(job.correction, device), beside=_to(job.beside, device),
            optimizer_state=_to(job.optimizer_state, device),
        )
        for job in jobs
    ]  # fmt: skip


def returned(results: list[Result]) -> list[Result]:
    """Return results with their vectors on the CPU."""
    return [
        r
        if r.vector.device.type == "cpu"
        else replace(r, vector=r.vector.cpu(), optimizer_state=_to(r.optimizer_state, CPU))
        for r in results
    ]


def _to(vector: Tensor | None, device: torch.device) -> Tensor | None:
    return None if vector is None else vector.to(device)


def clients(module: nn.Module, spec: ParamSpec, x: Tensor, free: int) -> int:
    """Clients that train at once in so many free bytes, for mini-batches like ``x [B, …]``; 2 at least."""
    need = 4 * _VECTORS_PER_CLIENT * spec.size + activations(module, x)
    return int(min(_MOST_CLIENTS, max(2, _MEMORY_SHARE * free // need)))


def activations(module: nn.Module, x: Tensor) -> int:
    """Bytes that a forward pass of inputs like ``x`` keeps for its backward pass; no number is computed.

    A model that cannot run without numbers is taken to keep ten times its inputs and parameters.
    """
    bare = copy.deepcopy(module).to("meta").train()
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        seen[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    try:
        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            outputs = bare(torch.empty_like(x, device="meta"))
    except Exception:
        return 10 * (x.nbytes + sum(p.nbytes for p in module.parameters()))
    del outputs
    mine = {p.untyped_storage()._cdata for p in bare.parameters()}
    return sum(size for key, size in seen.items() if key not in mine)
