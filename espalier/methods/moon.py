"""MOON: devices whose features stay near the received model's, away from those of their own last one.

Li, He, Song. Model-Contrastive Federated Learning. CVPR 2021.

1. A device starts from the received model w, and remembers the model v that it ended with in its last order.
2. To the loss of a sample it adds ``-mu log(e^(a/T) / (e^(a/T) + e^(b/T)))``: a is the cosine between the sample's
   features under the model in training and under w, b the one between them and those under v.
3. It reports what it has trained, which is averaged over the tree as HierFAVG's models are.

Nothing is sent for it. ``mu = 0`` is HierFAVG, and so is everybody's first order: while v is w, the term's gradient is
zero, so a device without a last model trains on the plain loss. The features of w and v do not change during a
training and are computed once; the time of that is not counted.

Differences: features are what the model's last layer gets. The paper puts a projection of two layers before that layer
for the purpose; a model that has one is trained as published. w and v are used without dropout, as in the authors'
code. In a tree w is what the device's own parent handed down. ``mu`` is what the paper tunes (0.1, 1, 5 or 10).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from espalier.core.bounds import NonNegativeFloat, PositiveFloat
from espalier.core.messages import Order, Train
from espalier.core.method import Setting, TwoBarriers
from espalier.core.objectives import Contrast
from espalier.core.policies import Contribution, Local, LocalView
from espalier.core.store import Ref


@dataclass(frozen=True)
class Contrasted(Local, kind="moon"):
    """Local training with the contrast between the received model and the device's last one.

    Attributes:
        strength: That of the contrast, the paper's mu.
        temperature: Its temperature.
    """

    @dataclass(slots=True)
    class State:
        """The model of the device's last order."""

        last: Ref | None = None

    strength: NonNegativeFloat = 1.0
    temperature: PositiveFloat = 0.5

    def train(self, view: LocalView, order: Order) -> Train:
        """Train from the received model, with the contrast if there is a last one."""
        plain, last = super().train(view, order), view.state(self).last
        if last is None or not self.strength:
            return plain
        anchor = plain.start if plain.anchor is None else plain.anchor
        return replace(plain, anchor=anchor, beside=last, objective=Contrast(self.strength, self.temperature))

    def done(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Contribution:
        """Remember the trained model."""
        if self.strength:
            view.state(self).last = next(iter(models.values()))
        return super().done(view, order, models)


@dataclass(frozen=True)
class Moon(TwoBarriers, kind="moon"):
    """HierFAVG with contrasted features.

    Attributes:
        mu: Strength of the contrast.
        temperature: Its temperature, T.
        fraction: Share of an edge's devices in each round (default: the experiment's).
    """

    title: ClassVar[str] = "MOON"
    citation: ClassVar[str] = "Li et al., Model-Contrastive Federated Learning, CVPR 2021"

    mu: NonNegativeFloat = 1.0
    temperature: PositiveFloat = 0.5

    def local(self, setting: Setting) -> Local:
        """Return training with the contrast."""
        return Contrasted(strength=self.mu, temperature=self.temperature)
