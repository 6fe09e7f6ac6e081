"""What a device's training looks at besides its loss, as plain data; `espalier.training.objectives` computes it.

*Features* are what a model's last layer gets. The terms are per sample and join the loss before the mini-batch mean;
like the anchor's they are no part of the training loss that is reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from espalier.core.codec import register


@register
@dataclass(frozen=True, slots=True)
class Calibration:
    """A loss that knows which labels a device has: cross-entropy of other logits than the model's.

    Attributes:
        tau: Strength, or (restricted) the factor.
        smoothing: The part of the label shares that is spread evenly over all labels.
        form: With n training samples of each label and their shares p of all: ``shares`` takes ``z + tau * log(p)``,
            ``margins`` ``z - tau * n^(-1/4)``, ``restricted`` ``tau * z`` for labels that the device lacks.
    """

    tau: float
    smoothing: float = 0.0
    form: Literal["shares", "margins", "restricted"] = "shares"


@register
@dataclass(frozen=True, slots=True)
class Contrast:
    """Features are drawn to those of ``anchor``, away from those of ``beside`` (MOON).

    With ``a`` and ``b`` the cosines of a sample's features with the two, ``-mu log(e^(a/T) / (e^(a/T) + e^(b/T)))``.

    Attributes:
        mu: Strength.
        temperature: T.
    """

    mu: float
    temperature: float = 0.5


@register
@dataclass(frozen=True, slots=True)
class Distillation:
    """Answers are drawn to those of ``beside``: ``weight T^2 KL(softmax(z' / T) || softmax(z / T))``.

    Attributes:
        weight: Strength.
        temperature: T.
    """

    weight: float
    temperature: float = 1.0


@register
@dataclass(frozen=True, slots=True)
class NearPrototypes:
    """Features are drawn to the mean features of their label (FedProto), of which ``beside`` holds the sums.

    ``lam`` times the mean square of the difference; a label that nobody had has no prototype, and no pull.
    """

    lam: float


@register
@dataclass(frozen=True, slots=True)
class ClassSums:
    """Nothing is trained: the result is the start whose last layer holds what prototypes are made of.

    Of each label, in place of its row of weights the sum of its samples' features, in place of its bias their number,
    both divided by the number of all samples: averaged by samples over devices they are still the same of all devices.
    """


@register
@dataclass(frozen=True, slots=True)
class Mixture:
    """The loss is taken at ``alpha v + (1 - alpha) w``: v is trained, w goes its own way from ``beside`` (APFL).

    Each step moves both on one mini-batch: w by the gradient of its own loss, v by ``alpha`` times the mixture's.
    """

    alpha: float


Objective = Contrast | Distillation | NearPrototypes | ClassSums | Mixture
