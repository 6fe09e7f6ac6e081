"""How good a model is: figures of its counts under any test distribution, and metrics of a whole test set.

The main figure of a classification is ``acc``, of a segmentation ``miou``, of a regression the first of its metrics (or
``mse``); ``loss`` comes with each. A metric (``task.metrics``) is no mean over samples: it takes all outputs ``[n, C]``
and targets ``[n]`` at once and returns a number. Beside the bundled ones, any function of the user's own is one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from espalier.core.code import is_own, named, short_name
from espalier.core.errors import ConfigError, TrainingError, nearest
from espalier.training.tally import Evaluation

WholeMetric = Callable[[Tensor, Tensor], Any]

CALIBRATION_BINS = 15
"""Bins of confidence, as in Guo et al. (2017)."""


def f1(outputs: Tensor, y: Tensor) -> float:
    """Macro F1: the mean of ``2 tp / (2 tp + fp + fn)`` over the classes that are there or were answered."""
    classes, answers = outputs.shape[1], outputs.argmax(1)
    right = torch.bincount(y[answers == y], minlength=classes).double()
    either = torch.bincount(y, minlength=classes) + torch.bincount(answers, minlength=classes)
    seen = either > 0
    return float((2.0 * right[seen] / either[seen]).mean())


def auc(outputs: Tensor, y: Tensor) -> float:
    """Area under the ROC curve, one class against the rest, the mean over classes that some samples have and some not.

    It is the share of pairs (a sample of the class, one of the rest) in which the first has the higher softmax output;
    equal ones count half. NaN if there is no such class.
    """
    counts = torch.bincount(y, minlength=outputs.shape[1]).numpy()
    return float(mean_area(counts[None].astype(np.float64), pair_areas(outputs, y))[0])


def pair_areas(outputs: Tensor, y: Tensor) -> NDArray[np.float64]:
    """Return for each two classes ``[C, C]`` the share of pairs in which the first's sample is likelier of its class.

    Equal ones count half; it is zero where a class has no sample.
    """
    likely, classes = outputs.double().softmax(1), outputs.shape[1]
    known = torch.nn.functional.one_hot(y, classes).double()
    counts, found = known.sum(0), torch.zeros(classes, classes, dtype=torch.float64)
    for c in counts.nonzero().flatten().tolist():
        values, place = torch.unique(likely[:, c], return_inverse=True)
        at = torch.zeros(len(values), classes, dtype=torch.float64).index_add_(0, place, known)
        found[c] = at[:, c] @ (at.cumsum(0) - at / 2.0) / (counts[c] * counts).clamp(min=1.0)
    return found.numpy()


def mean_area(weights: NDArray[np.float64], areas: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return `auc` under shares of the classes ``[n, C]`` from :func:`pair_areas`, ``[n]``."""
    rest = weights.sum(1, keepdims=True) - weights
    of_each = weights @ (areas * (1.0 - np.eye(len(areas)))).T / np.maximum(rest, 1e-300)
    judged = (weights > 0) & (rest > 1e-12)
    found: NDArray[np.float64] = np.where(judged, of_each, 0.0).sum(1) / np.maximum(judged.sum(1), 1)
    return np.where(judged.any(1), found, np.nan)


def ece(outputs: Tensor, y: Tensor) -> float:
    """Expected calibration error: how far confidence is from accuracy, per bin of confidence, weighted by samples.

    Guo, Pleiss, Sun, Weinberger, On Calibration of Modern Neural Networks, ICML 2017, Eq. (3); the bins are
    ``(0, 1/15], (1/15, 2/15], …``.
    """
    return float(confidence_gaps(outputs, y).sum(0).abs().sum() / len(y))


def confidence_gaps(outputs: Tensor, y: Tensor) -> Tensor:
    """Whether each sample is right (1 or 0) minus its confidence, in its bin's column ``[n, 15]``: what `ece` sums."""
    confidence, answers = outputs.double().softmax(1).max(1)
    at = (confidence * CALIBRATION_BINS).ceil().long().clamp(1, CALIBRATION_BINS) - 1
    gap = (answers == y).double() - confidence
    return torch.zeros(len(y), CALIBRATION_BINS, dtype=torch.float64).scatter_(1, at[:, None], gap[:, None])


def mae(outputs: Tensor, y: Tensor) -> float:
    """Mean absolute error of outputs and targets ``[n, …]``."""
    return float((outputs.double() - y.reshape(outputs.shape).double()).abs().mean())


def absolute_errors(outputs: Tensor, y: Tensor) -> Tensor:
    """Each sample's mean absolute error ``[n]``."""
    return (outputs - y.reshape(outputs.shape)).abs().flatten(1).mean(1)


#: those that are means over samples, and so can be measured under any test distribution
_BY_SAMPLE: dict[str, tuple[WholeMetric, str]] = {"mae": (absolute_errors, "regression")}
_BY_NAME: dict[str, tuple[WholeMetric, str]] = {
    "f1": (f1, "classification"),
    "auc": (auc, "classification"),
    "ece": (ece, "classification"),
    "mae": (mae, "regression"),
}


def resolve(
    names: Sequence[str], kind: str, taken: Sequence[str] = (), *, by_sample: bool = False
) -> dict[str, WholeMetric]:
    """Return the metrics by the names they are recorded under; one of the user's own has its function's name.

    Args:
        names: Bundled ones or import paths.
        kind: The task's.
        taken: Figures that are measured anyway.
        by_sample: Whether they give a number per sample.

    Raises:
        ConfigError: One is unknown, of another kind of task, or recorded under a name that is taken.
    """
    found: dict[str, WholeMetric] = {}
    key, bundled = ("task.sample_metrics", _BY_SAMPLE) if by_sample else ("task.metrics", _BY_NAME)
    for name in names:
        if not is_own(name) and name not in bundled:
            known = ", ".join(bundled)
            raise ConfigError(
                f"{key} has {name!r}; accepted: {known}, package.module:function.{nearest(name, bundled)}"
            )
        function, wanted = (named(name, key), kind) if is_own(name) else bundled[name]
        if wanted != kind:
            raise ConfigError(f"{key} has {name!r}, which needs a {wanted}; this task is a {kind}.")
        label = short_name(name)
        if label in (*taken, *found):
            raise ConfigError(f"{key} has {name!r}, but {label!r} is measured already; give it another name.")
        found[label] = function
    return found


def measured(metrics: Mapping[str, WholeMetric], outputs: Tensor, y: Tensor) -> dict[str, float]:
    """Return a model's metrics, given its outputs and the targets of all samples.

    Raises:
        TrainingError: A metric fails, or gives no number.
    """
    found = {}
    for name, metric in metrics.items():
        try:
            found[name] = float(metric(outputs, y))
        except Exception as error:  # the user's own code may raise anything
            raise TrainingError(
                f"The metric {name!r} gave no number for outputs of shape {tuple(outputs.shape)} and targets of shape "
                f"{tuple(y.shape)}: {type(error).__name__}: {error}"
            ) from error
    return found


Floats = NDArray[np.float64]


def figure_names(kind: str, metrics: Sequence[str]) -> tuple[str, ...]:
    """Return the figures of a task, the main one first, besides ``loss``; ``metrics`` are those of samples."""
    main = {"classification": ("acc",), "segmentation": ("miou",)}.get(kind, () if metrics else ("mse",))
    return (*main, *metrics)


def figures(
    evaluation: Evaluation,
    mix: NDArray[np.float32] | NDArray[np.int64] | Floats,
    kind: str,
    metrics: Sequence[str] = (),
    truth: NDArray[np.int64] | None = None,
    counted: Collection[str] = (),
) -> dict[str, Floats]:
    """Return a model's figures under test distributions.

    Args:
        evaluation: Its counts.
        mix: The distributions ``[n, n_cells]``; they need not be normalised.
        kind: What its outputs are.
        metrics: The names of the metrics that were summed, if not a regression's ``mse``.
        truth: Classification: the answer that is right in each cell ``[n_cells]`` (None: what the labels said).
        counted: Classification, cells being classes: which of ``f1``, ``ece`` and ``auc`` are wanted, which are no
            means over samples but are made of counts per cell; for ``ece`` the gaps of its bins were summed last.
    """
    count = np.maximum(evaluation.count, 1)
    weights = mix.astype(np.float64) * (evaluation.count > 0).astype(np.float64)
    weights /= np.maximum(weights.sum(1, keepdims=True), 1e-300)
    out = {"loss": weights @ (evaluation.loss_sum / count)}
    if kind == "classification":
        right = evaluation.correct if truth is None else evaluation.confusion[np.arange(len(count)), truth]
        assert right is not None
        out["acc"] = weights @ (right / count)
    elif kind == "segmentation":
        confusion = np.einsum("nc,cij->nij", weights, evaluation.confusion / count[:, None, None])
        hit = np.einsum("nii->ni", confusion)
        union = confusion.sum(1) + confusion.sum(2) - hit
        iou = np.where(union > 0, hit / np.maximum(union, 1e-300), np.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of no class at all: NaN is right
            out["miou"] = np.nanmean(iou, axis=1)
    for i, name in enumerate(metrics or (("mse",) if kind == "regression" else ())):
        out[name] = weights @ (evaluation.sums[:, i] / count)
    if "f1" in counted:
        cells = np.arange(len(count)) if truth is None else truth
        out["f1"] = _macro_f1(weights, evaluation.confusion / count[:, None], cells)
    if "ece" in counted:
        out["ece"] = np.abs(weights @ (evaluation.sums[:, -CALIBRATION_BINS:] / count[:, None])).sum(1)
    if "auc" in counted:
        out["auc"] = mean_area(weights, evaluation.areas)
    return out


def answered(likely: Floats, truth: NDArray[np.int64], shares: Floats, counted: Collection[str]) -> dict[str, float]:
    """Return figures of answers ``[n, C]`` (probabilities) to samples that count by their shares ``[n]``.

    Samples of one class count alike: then these are what :func:`figures` makes of counts.
    """
    y, outputs, classes = torch.from_numpy(truth), torch.from_numpy(np.log(np.maximum(likely, 1e-300))), likely.shape[1]
    confusion = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(confusion, (truth, likely.argmax(1)), 1)
    gaps, losses = np.zeros((classes, CALIBRATION_BINS)), np.zeros(classes)
    np.add.at(gaps, truth, confidence_gaps(outputs, y).numpy())
    np.add.at(losses, truth, -outputs[torch.arange(len(y)), y].numpy())
    areas = pair_areas(outputs, y) if "auc" in counted else np.zeros((0, 0))
    none: NDArray[Any] = np.zeros(0, dtype=np.int32)
    of_classes = Evaluation(
        np.bincount(truth, minlength=classes), losses, confusion.diagonal(), confusion, gaps, none,
        np.zeros(0, dtype=np.float32), np.zeros(0, dtype=np.float32), areas,
    )  # fmt: skip
    mix = np.bincount(truth, weights=shares, minlength=classes)[None]
    found = figures(of_classes, mix, "classification", counted=counted)
    return {name: float(values[0]) for name, values in found.items()}


def _macro_f1(weights: Floats, answered: Floats, truth: NDArray[np.int64]) -> Floats:
    """Return the mean of ``2 tp / (2 tp + fp + fn)`` over the classes that are there or were answered.

    Args:
        weights: Each cell's share ``[n, n_cells]``.
        answered: The shares of a cell's samples that were given each class ``[n_cells, n_classes]``.
        truth: Each cell's class.
    """
    known = np.eye(answered.shape[1])[truth]
    right, either = weights @ (known * answered), weights @ (known + answered)
    found: Floats = (2 * right / np.maximum(either, 1e-300)).sum(1) / np.maximum((either > 0).sum(1), 1)
    return found
