"""Figures of a model: counts per cell, weighted by a test distribution.

The main figure of a classification is ``acc``, of a segmentation ``miou``, of a regression the first of its metrics (or
``mse``); ``loss`` comes with each.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from espalier.training.metrics import CALIBRATION_BINS, mean_area
from espalier.training.tally import Evaluation

Floats = NDArray[np.float64]


def figure_names(kind: str, metrics: Sequence[str]) -> tuple[str, ...]:
    """Return the figures of a task, the main one first, besides ``loss``; ``metrics`` are those of samples."""
    main = {"classification": ("acc",), "segmentation": ("miou",)}.get(kind, () if metrics else ("mse",))
    return (*main, *metrics)


def figures(
    evaluation: Evaluation,
    mix: NDArray[np.float32] | NDArray[np.int64],
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
