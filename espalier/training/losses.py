"""Losses, always per sample: the mini-batch mean is taken by the trainer, over each client's own samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.core.code import is_own, named
from espalier.core.errors import ConfigError, TrainingError, nearest

PerSample = Callable[[Tensor, Tensor], Tensor]
Loss = str | PerSample
"""A bundled loss's name, an import path, or a callable (outputs, y) -> loss per sample."""

IGNORED = 255
"""Pixel label that takes no part in a segmentation loss or metric (Cityscapes' convention)."""


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Softmax cross-entropy of logits ``[n, C]`` and classes ``[n]``, per sample ``[n]``."""
    return F.cross_entropy(outputs, y, reduction="none")


def mse(outputs: Tensor, y: Tensor) -> Tensor:
    """Squared error of outputs and targets ``[n, ...]``, the mean over all but the first axis, ``[n]``."""
    return (outputs - y.reshape(outputs.shape)).square().flatten(1).mean(1)


def pixel_cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of logits ``[n, C, H, W]`` and classes ``[n, H, W]``, the mean over valid pixels, ``[n]``.

    A pixel labelled `IGNORED` takes no part; an image without valid pixels has loss zero.
    """
    pixels = F.cross_entropy(outputs, y, reduction="none", ignore_index=IGNORED).flatten(1)
    valid = (y != IGNORED).flatten(1).sum(1).clamp(min=1)
    return pixels.sum(1) / valid


def ensemble(logits: Tensor, weights: Sequence[float], temperature: float) -> Tensor:
    """Return several teachers' common answer ``sum_k rho_k softmax(z_k / T)``.

    Args:
        logits: ``[K, n, C, …]``: classes are the third axis, pixels may follow.
        weights: ``rho [K]``, scaled to sum one here.
        temperature: T.

    Returns:
        Probabilities ``[n, C, …]``.
    """
    rho = torch.as_tensor(weights, dtype=logits.dtype)
    rho = rho / rho.sum()
    return torch.einsum("k,k...->...", rho, F.softmax(logits / temperature, dim=2))


def distillation_loss(temperature: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a student's loss: logits and probabilities ``[n, C, …]`` to one number per sample ``[n]``.

    It is ``T^2 KL(answers || softmax(z / T))``; ``T^2`` keeps the gradients' size independent of T (Hinton, Vinyals,
    Dean, Distilling the Knowledge in a Neural Network, 2015).
    """

    def loss(outputs: Tensor, answers: Tensor) -> Tensor:
        mine = F.log_softmax(outputs / temperature, dim=1)
        apart = (torch.xlogy(answers, answers) - answers * mine).sum(1)
        return apart.flatten(1).mean(1) * temperature**2 if apart.dim() > 1 else apart * temperature**2

    return loss


def label_offset(labels: Tensor, n_classes: int, tau: float, smoothing: float) -> Tensor:
    """Return ``tau * log(shares)`` of labels ``[n]``, float64 ``[n_classes]``; ``smoothing`` of the shares is uniform.

    Added to logits, it lets a loss take a device's own labels for granted: the model need not learn that it has few of
    some (Menon et al., Long-Tail Learning via Logit Adjustment, ICLR 2021; Zhang et al., Federated Learning with Label
    Distribution Skew via Logits Calibration, ICML 2022).
    """
    if labels.is_floating_point():
        raise TrainingError(f"A calibrated loss needs labels; the targets are {labels.dtype}: use the plain loss.")
    valid = labels.flatten()[labels.flatten() != IGNORED] if labels.dim() > 1 else labels
    counts = torch.bincount(valid, minlength=n_classes).double()
    if len(counts) > n_classes:
        raise TrainingError(f"A label is {len(counts) - 1}, but the model has {n_classes} outputs.")
    shares = (1.0 - smoothing) * counts / counts.sum() + smoothing / n_classes
    return tau * shares.log()


def shifted(outputs: Tensor, offsets: Tensor) -> Tensor:
    """Add every client's offset ``[K, C]`` to its outputs, ``[K·B, C, …]``."""
    merged = outputs.view(len(offsets), -1, *outputs.shape[1:])
    return (merged + offsets.view(len(offsets), 1, -1, *(1 for _ in outputs.shape[2:]))).view(outputs.shape)


_BY_NAME: dict[str, PerSample] = {
    "cross_entropy": cross_entropy,
    "mse": mse,
    "pixel_cross_entropy": pixel_cross_entropy,
}
BY_KIND = {"classification": "cross_entropy", "regression": "mse", "segmentation": "pixel_cross_entropy"}
"""The loss of a task that names none."""


def resolve(loss: Loss) -> PerSample:
    """Return the per-sample function of a loss given by name, by import path or as a callable."""
    if callable(loss):
        return loss
    if is_own(loss):
        found: PerSample = named(loss, "task.loss")
        return found
    if loss not in _BY_NAME:
        known = ", ".join(repr(n) for n in _BY_NAME)
        raise ConfigError(
            f"loss is {loss!r}; accepted: {known}, 'package.module:function', or a callable (outputs, y) -> "
            f"per-sample loss [n]."
            f"{nearest(str(loss), _BY_NAME)}"
        )
    return _BY_NAME[loss]


def checked(losses: Tensor, rows: int) -> Tensor:
    """Return the losses if they are one number per row; a loss already averaged is refused."""
    if not isinstance(losses, Tensor) or losses.shape != torch.Size([rows]):
        found = f"tensor of shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
        raise TrainingError(
            f"The loss gave a {found} for {rows} samples; "
            f"one number per sample, shape ({rows},), is accepted: use reduction='none'."
        )
    return losses
