"""Losses, always per sample: the mini-batch mean is taken by the trainer, over each client's own samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.core.code import is_own, named
from espalier.core.errors import ConfigError, TrainingError, nearest
from espalier.core.messages import Calibration

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
    counts = label_counts(labels, n_classes)
    shares = (1.0 - smoothing) * counts / counts.sum() + smoothing / n_classes
    return tau * shares.log()


def label_counts(labels: Tensor, n_classes: int) -> Tensor:
    """Return how many samples there are of each label ``[n_classes]``, float64."""
    if labels.is_floating_point():
        raise TrainingError(f"A calibrated loss needs labels; the targets are {labels.dtype}: use the plain loss.")
    valid = labels.flatten()[labels.flatten() != IGNORED] if labels.dim() > 1 else labels
    counts = torch.bincount(valid, minlength=n_classes).double()
    if len(counts) > n_classes:
        raise TrainingError(f"A label is {len(counts) - 1}, but the model has {n_classes} outputs.")
    return counts


FEWEST_SAMPLES = 1e-8
"""Samples that a label without any counts as in a margin, which is then 100 tau: it takes no part."""


def label_margin(counts: Tensor, tau: float) -> Tensor:
    """Return ``tau * n^(-1/4)`` of counts ``[C]``: FedLC's margin of each label (Zhang et al. 2022)."""
    return tau * counts.clamp(min=FEWEST_SAMPLES) ** -0.25


def restriction(counts: Tensor, alpha: float) -> Tensor:
    """Return the factor of each logit ``[C]``, 1 for labels that a device has, ``alpha`` for others (FedRS)."""
    return torch.where(counts > 0, 1.0, alpha).double()


def adjustment(labels: Tensor, n_classes: int, calibration: Calibration) -> Tensor:
    """Return what a calibrated loss makes of logits z: the factors and offsets of ``a z + b``, ``[2, n_classes]``."""
    plain = torch.ones(n_classes, dtype=torch.float64), torch.zeros(n_classes, dtype=torch.float64)
    if calibration.form == "restricted":
        return torch.stack([restriction(label_counts(labels, n_classes), calibration.tau), plain[1]])
    if calibration.form == "margins":
        return torch.stack([plain[0], -label_margin(label_counts(labels, n_classes), calibration.tau)])
    return torch.stack([plain[0], label_offset(labels, n_classes, calibration.tau, calibration.smoothing)])


def adjusted(outputs: Tensor, terms: Tensor) -> Tensor:
    """Return ``a z + b`` of every client's outputs, ``[K·B, C, …]``, with its own ``terms [K, 2, C]``."""
    merged = outputs.view(len(terms), -1, *outputs.shape[1:])
    shape = (len(terms), 1, -1, *(1 for _ in outputs.shape[2:]))
    return (merged * terms[:, 0].reshape(shape) + terms[:, 1].reshape(shape)).view(outputs.shape)


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
