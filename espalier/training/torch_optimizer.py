"""An optimiser of `torch.optim`'s making, by its import path: it steps one client's parameters at a time."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from espalier.core.code import named
from espalier.core.errors import ConfigError, TrainingError
from espalier.training.updates import Span, Update
from espalier.training.work import Optimizer, TrainerJob


class TorchOptimizer(Update):
    """Any optimiser of `torch.optim`'s making, on one client's parameters in their own shapes."""

    def __init__(
        self, job: TrainerJob, values: list[Tensor], spans: Sequence[Span], parameters: Sequence[Tensor]
    ) -> None:
        super().__init__([job], values, spans)
        self.sinks = [torch.empty_like(v) for v in values]
        self.stale = not self._filled
        self._name = job.optimizer.name
        self._optimizer = _made(job.optimizer, parameters)
        if job.optimizer_state is not None:
            self._recall(job, parameters)

    def before(self) -> None:
        """Fill the gradients with pull and correction."""
        self._fill()

    def after(self) -> None:
        """Step; the parameters' gradients are the sinks."""
        self._optimizer.step()

    def state(self, client: int, n_params: int) -> Tensor | None:
        """The optimiser's tensors, one after another."""
        held = self._tensors(self._optimizer)
        return torch.cat([t.reshape(-1).to(self.values[0].dtype) for t in held]) if held else None

    def _recall(self, job: TrainerJob, parameters: Sequence[Tensor]) -> None:
        """Go on with an earlier training's state; a step of copies shows which tensors the optimiser keeps."""
        memory, copies = job.optimizer_state, [p.detach().clone() for p in parameters]
        for copy in copies:
            copy.grad = torch.zeros_like(copy)
        like = _made(job.optimizer, copies)
        like.step()
        held = self._tensors(like)
        sizes = [t.numel() for t in held]
        assert memory is not None
        if len(memory) != sum(sizes):
            raise TrainingError(
                f"optimizer_state has {len(memory)} numbers, that of {self._name!r} has {sum(sizes)}: it must come "
                "from a result of the same model and optimizer."
            )
        for tensor, part in zip(held, torch.split(memory, sizes), strict=True):
            tensor.copy_(part.view(tensor.shape))
        for parameter, copy in zip(parameters, copies, strict=True):
            self._optimizer.state[parameter] = like.state[copy]

    def _tensors(self, optimizer: torch.optim.Optimizer) -> list[Tensor]:
        kept = [optimizer.state[p] for group in optimizer.param_groups for p in group["params"]]
        named = [(name, value) for state in kept for name, value in state.items() if value is not None]
        for name, value in named:
            if not isinstance(value, Tensor):
                raise TrainingError(
                    f"The state of {self._name!r} cannot be carried from one training to the next, as this method "
                    f"asks: {name!r} is no tensor. Use 'sgd' or 'adam'."
                )
        return [value for _, value in named]


def check_optimizer(optimizer: Optimizer) -> None:
    """Refuse an optimiser of the user's own that cannot be made or used.

    Raises:
        ConfigError: It cannot.
    """
    if optimizer.own:
        _made(optimizer, [torch.zeros(1)])


def _made(optimizer: Optimizer, parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    where, found = f"training.optimizer = {optimizer.name!r}", named(optimizer.name, "training.optimizer")
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        raise ConfigError(f"{where} is no class of optimisers; a subclass of torch.optim.Optimizer is accepted.")
    _, *wanted = inspect.signature(found.step).parameters.values()
    if any(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in wanted):
        raise ConfigError(f"{where} cannot be used: its step wants a closure; one that steps by the gradient can.")
    make: Any = found
    try:
        made: torch.optim.Optimizer = make(parameters, lr=optimizer.lr, **optimizer.options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where} cannot be made with optimizer_options = {optimizer.options}: {error}") from error
    return made
