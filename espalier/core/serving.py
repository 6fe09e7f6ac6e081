"""Serving: how a device, or an edge, uses the models that it has.

    { name = "hierfavg", serve = { prior = "known" } }
    { name = "csahfl", serve = { model = "mixture", prior = "estimated" } }

Whichever model it is, it may be used with the device's label prior: a device that knows which labels it meets adds
``log(prior)`` to the logits. The prior is the shares of the labels it trains on (``known``), or it is estimated from
unlabelled inputs by expectation maximisation (``estimated``: Saerens, Latinne, Decaestecker, Adjusting the Outputs of a
Classifier to New a Priori Probabilities, Neural Computation 2002), for devices without labels and under drift. Nothing
is sent for either. Both take the model's own prior to be even, which a calibrated objective makes it, and balanced
data.

How much a prior should count depends on how sure the model is. The average of devices with few labels each answers
everything with nearly the same probabilities, and a prior overrules it. So a known prior may be ``validated``: the
device's labelled samples say by which factor the model's logits are too small or too great beside the prior
(:func:`temper`; one number, as in the calibration of Guo et al., ICML 2017). The samples are those that it holds out,
or else those it trains on. Labels that drift change prior and factor at once: what the device's own samples cost under
the served model is all that is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from espalier.core.bounds import PositiveInt, Share
from espalier.core.memory import Policy

Floats = NDArray[np.float64]

#: by what a model's logits may be multiplied before a prior is added
FACTORS = tuple(2.0**e for e in range(-3, 7))

#: whose model: the root's for everybody, the root's for the device's group, its edge's, its own
Source = Literal["global", "cluster", "edge", "own"]


@dataclass(frozen=True)
class Serving(Policy, family="serve"):
    """Which model a device uses, and how.

    Attributes:
        model: ``method``: the one that the method means for it; ``global``, its group's at the root (``cluster``), its
            ``edge``'s, its ``own`` after its last training; ``mixture``: the answers of all of them, weighed by how
            likely they make the samples that the device holds out.
        prior: Whether the device's label prior goes into the answers: from the labels that it trains on, as they are
            (``known``) or ``validated`` by its samples; ``estimated`` from unlabelled inputs.
        smoothing: The part of the prior that is spread evenly over all labels: what was never seen may still come.
        inputs: The most samples by which a prior is estimated or validated.
    """

    model: Literal["method", "global", "cluster", "edge", "own", "mixture"] = "method"
    prior: Literal["none", "known", "validated", "estimated"] = "none"
    smoothing: Share = 0.01
    inputs: PositiveInt = 256

    @property
    def plain(self) -> bool:
        """Whether one model answers as it is."""
        return self.prior == "none" and self.model != "mixture"

    @property
    def keeps_own(self) -> bool:
        """Whether devices keep the models that they have trained."""
        return self.model in ("own", "mixture")

    def sources(self, level: Literal["root", "edge", "device"]) -> Sequence[Source]:
        """Return whose models are used, where the method means those of a level."""
        if self.model == "mixture":
            return "cluster", "edge", "own"
        if self.model != "method":
            return (self.model,)
        meant: dict[str, Source] = {"root": "cluster", "edge": "edge", "device": "own"}
        return (meant[level],)


def smoothed(counts: ArrayLike, smoothing: float) -> Floats:
    """Return shares of counts ``[C]``, ``smoothing`` of them even; even shares where nothing was counted."""
    found = np.asarray(counts, dtype=np.float64)
    shares = found / found.sum() if found.sum() > 0 else np.full(len(found), 1.0 / len(found))
    return (1.0 - smoothing) * shares + smoothing / len(found)


def temper(logs: ArrayLike, labels: ArrayLike, prior: ArrayLike) -> float:
    """Return the factor of :data:`FACTORS` that a model's answers should have beside a prior, given labelled samples.

    With the factor ``f`` the answers are ``softmax(f * logs + prior)``. The most probable one is taken: that under
    which the samples cost least, where a factor is thought to be about 1 beforehand (one octave off is one standard
    deviation), so that a few samples that any factor gets right change nothing.

    Args:
        logs: Logits or log-probabilities of samples, ``[N, C]``.
        labels: Their labels, ``[N]``.
        prior: Log shares, ``[C]``.
    """
    given, truth = np.asarray(logs, dtype=np.float64), np.asarray(labels, dtype=np.int64)

    def cost(factor: float) -> float:
        scores = factor * given + np.asarray(prior)
        right = scores[np.arange(len(truth)), truth]
        return float((np.logaddexp.reduce(scores, axis=1) - right).sum()) + 0.5 * math.log2(factor) ** 2

    return min(FACTORS, key=cost)


def proportions(likelihoods: ArrayLike, most: int = 200, tolerance: float = 1e-8) -> Floats:
    """Return the mixture's proportions ``[K]`` that make samples most likely, by expectation maximisation.

    With ``likelihoods[n, k] = p(k | x_n)`` of a classifier with an even prior, these are the label shares behind
    unlabelled inputs; with ``p_k(y_n | x_n)`` of several models, the weights of their mixture.

    Args:
        likelihoods: Each sample's likelihood under each component, up to a factor per sample, ``[N, K]``.
        most: Greatest number of steps.
        tolerance: Ends when no proportion changes by more.
    """
    given = np.asarray(likelihoods, dtype=np.float64)
    found = np.full(given.shape[1], 1.0 / given.shape[1])
    given = given[given.max(1) > 0]
    if len(given) == 0:
        return found
    # a sample that is unlikely under all classes must count too, and not divide by zero
    given = given / given.max(1, keepdims=True)
    for _ in range(most):
        joint = given * found
        new: Floats = (joint / joint.sum(1, keepdims=True)).mean(0)
        if np.abs(new - found).max() <= tolerance:
            return new
        found = new
    return found
