"""Does a model fit its task? One look at its outputs before anything runs, and sentences about what looks wrong."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from espalier.core.code import is_own
from espalier.core.errors import ConfigError, raised, warn
from espalier.training.losses import BY_KIND, Loss, PerSample, checked, resolve

#: samples that are looked at
ROWS = 4


def check_outputs(module: nn.Module, x: Tensor, kind: str, n_classes: int, loss: Loss, y: Tensor | None = None) -> None:
    """Refuse a model whose outputs its task cannot use; warn about those that look like a mistake.

    Args:
        module: The model; a copy is asked.
        x: Some inputs, ``[n, …]``.
        kind: The task.
        n_classes: Classes, or outputs of a regression.
        loss: What it is trained with.
        y: The inputs' targets, ``[n, …]``: a loss of the user's own is tried with them.

    Raises:
        ConfigError: The model gives no tensor, or too few outputs; the loss fails on them.
        TrainingError: The loss gives something else than one number per sample.
    """
    outputs = _outputs(module, x[:ROWS])
    shape = tuple(outputs.shape)
    if outputs.ndim < 1 or shape[0] != len(x[:ROWS]):
        raise ConfigError(
            f"The model gave outputs of shape {shape} for {len(x[:ROWS])} samples: give one row per sample."
        )
    if not any(p.requires_grad for p in module.parameters()):
        raise ConfigError("The model has no parameters to train (none at all, or all are frozen by requires_grad).")
    if callable(loss) or is_own(loss):
        if y is not None:
            _check_loss(resolve(loss), outputs, y[:ROWS])
        return  # a loss of the user's own knows what it wants
    _check_kind(loss, kind)
    if kind == "regression":
        if outputs[0].numel() != n_classes:
            raise ConfigError(f"The model has {outputs[0].numel()} outputs; the targets have {n_classes}.")
        return
    axes = 2 if kind == "classification" else 4
    if outputs.ndim != axes:
        wanted = f"[samples, {n_classes}]" if axes == 2 else f"[samples, {n_classes}, height, width]"
        raise ConfigError(f"The model gave outputs of shape {shape}; a {kind} needs {wanted}.")
    if shape[1] < n_classes:
        raise ConfigError(
            f"The model has {shape[1]} output{'s' * (shape[1] != 1)} and the data have {n_classes} classes: give it "
            f"{n_classes}."
        )
    if shape[1] > n_classes:
        warn(f"The model has {shape[1]} outputs and the data have {n_classes} classes: the others are never right.")
    if bool((outputs >= 0).all()) and torch.allclose(outputs.sum(1), torch.ones(()).to(outputs), atol=1e-4):
        warn("The model's outputs look like probabilities (a softmax); cross-entropy wants logits: leave it out.")
    elif isinstance(list(module.modules())[-1], nn.Sigmoid) and bool(((outputs >= 0) & (outputs <= 1)).all()):
        warn("The model ends with a sigmoid; cross-entropy wants logits, one output per class: leave it out.")


def _check_kind(loss: Loss, kind: str) -> None:
    if loss in BY_KIND.values() and loss != BY_KIND[kind]:
        raise ConfigError(f"task.loss = {loss!r} does not fit a {kind}: leave it out (it is {BY_KIND[kind]!r} then).")


def _check_loss(loss: PerSample, outputs: Tensor, y: Tensor) -> None:
    try:
        with torch.no_grad():
            losses = loss(outputs, y.to(outputs.dtype) if y.is_floating_point() else y)
    except Exception as error:  # whatever the user's code raises
        raise ConfigError(
            f"task.loss cannot take outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(y.shape)}: "
            f"{raised(error)}."
        ) from error
    checked(losses, len(outputs))


def _outputs(module: nn.Module, x: Tensor) -> Tensor:
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    look = copy.deepcopy(module).eval()
    try:
        with torch.no_grad(), torch.random.fork_rng():
            outputs = look(x.to(dtype) if x.is_floating_point() else x)
    except Exception as error:  # whatever the user's code raises
        shape = tuple(x.shape[1:])
        raise ConfigError(
            f"The model cannot take an input of shape {shape}: {raised(error)}. A dataset says its inputs' shape: "
            "data.input_shape; a model gets it if its class or function takes input_shape (and n_classes)."
        ) from error
    if not isinstance(outputs, Tensor):
        raise ConfigError(
            f"The model returns a {type(outputs).__name__}; a tensor is accepted. Return the first part alone, such as "
            "the logits."
        )
    return outputs


def check_classes(y_train: Tensor, y_test: Tensor, names: Sequence[str] = ()) -> None:
    """Warn about test classes that no training sample has, and about a single class."""
    called = (lambda c: repr(names[c])) if names else str
    if len(y_train) > 1 and bool((y_train == y_train[0]).all()):
        warn(f"All training samples are of class {called(int(y_train[0]))}: there is nothing to tell apart.")
    unseen = np.setdiff1d(y_test.numpy(), y_train.numpy()).tolist()
    if unseen:
        shown = ", ".join(map(called, unseen[:5])) + (" …" if len(unseen) > 5 else "")
        warn(f"The test data have classes that no training sample has ({shown}): they cannot be learnt.")
