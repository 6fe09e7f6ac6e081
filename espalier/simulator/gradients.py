"""Gradients of the devices' losses at one model, over all their samples: for theory beside practice.

No method may use them (no device could send them for free); they are measured, like an accuracy.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from espalier.core.store import Ref
from espalier.training.losses import resolve

if TYPE_CHECKING:
    from espalier.simulator.simulation import Simulation

_BATCH = 256


def gradients(
    simulation: Simulation, model: Ref, devices: Sequence[int]
) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Return each device's mean loss ``[n]`` and its gradient ``[n, parameters]``, without dropout.

    Args:
        simulation: Whose data and model.
        model: Where.
        devices: Whose losses.
    """
    task, views = simulation.task, simulation.views
    module = copy.deepcopy(task.module).eval()
    task.spec.load(module, simulation.ledger.vector(model))
    loss = resolve(task.loss)
    parameters = list(module.parameters())
    losses = np.empty(len(devices))
    found = np.empty((len(devices), task.spec.n_params), dtype=np.float32)
    for i, device in enumerate(devices):
        look = simulation.weather.look(device)
        rows = torch.from_numpy(np.ascontiguousarray(views.rows(device, look)))
        pool = views.pool(look)
        total = 0.0
        module.zero_grad()
        for at in range(0, len(rows), _BATCH):
            x, y = pool.gather(rows[at : at + _BATCH])
            x = x.to(task.dtype) if x.is_floating_point() else x
            y = y.to(task.dtype) if y.is_floating_point() else y
            part = loss(module(x), y).sum() / len(rows)
            part.backward()  # type: ignore[no-untyped-call]
            total += float(part.detach())
        losses[i] = total
        flat = [torch.zeros_like(p).reshape(-1) if p.grad is None else p.grad.reshape(-1) for p in parameters]
        found[i] = torch.cat(flat).numpy()
    return losses, found
