"""What goes around a method's own local policy: each changes one thing and leaves the rest to the policy inside.

{ name = "hierfavg", local = { kind = "calibrated", tau = 1.0 } }
{ name = "fedprox", local = { kind = "private", clip = 1.0, of = { kind = "calibrated" } } }
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from espalier.core.bounds import NonNegativeFloat, Share, UnitFloat
from espalier.core.messages import Calibration, Order, Train
from espalier.core.params import ParamSpec, Spans
from espalier.core.policies import Contribution, Local, LocalView
from espalier.core.store import Ref


@dataclass(frozen=True)
class LocalWrapper(Local):
    """The base: does what the policy inside does.

    Attributes:
        of: The policy inside (the method's own, if it is put into a method).
    """

    of: Local | None = field(default=None, kw_only=True)

    def around(self, own: Local) -> Self:
        """Return this policy around a method's own (or the one that was given around it); it replaces its like."""
        inside = own.inner if isinstance(own, type(self)) else own
        return replace(self, of=inside if self.of is None else self.of.around(inside))

    @property
    def inner(self) -> Local:
        """The policy inside."""
        return self.of if self.of is not None else Local(self.mu)

    def changed(self, train: Train) -> Train:
        """Return what becomes of each training of the policy inside; the same, by default."""
        return train

    def train(self, view: LocalView, order: Order) -> Train:
        """Return the training that an order means."""
        return self.changed(self.inner.train(view, order))

    def then(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Train | None:
        """Return the order's next training, if there is one."""
        following = self.inner.then(view, order, models)
        return None if following is None else self.changed(following)

    def question(self, view: LocalView, order: Order) -> str | None:
        """Return the statistic that the device must know before it trains, if any."""
        return self.inner.question(view, order)

    def questioned(self, view: LocalView, order: Order) -> tuple[Ref, ...]:
        """Return the models that the question is about."""
        return self.inner.questioned(view, order)

    def answer(self, view: LocalView, order: Order, values: Mapping[str, Any]) -> Order:
        """Return the order as it stands after :meth:`question` was answered."""
        return self.inner.answer(view, order, values)

    def arguments(self, view: LocalView, order: Order) -> dict[str, Any]:
        """Return the arguments with which a statistic that was asked for is computed."""
        return self.inner.arguments(view, order)

    def reply(self, view: LocalView, order: Order, values: dict[str, Any]) -> dict[str, Any]:
        """Return the statistics that go out in answer to a survey."""
        return self.inner.reply(view, order, values)

    def done(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Contribution:
        """Look at the trained models; return what is reported."""
        return self.inner.done(view, order, models)

    def shares(self, spec: ParamSpec) -> Spans | None:
        """Return which places of a model leave a device."""
        return self.inner.shares(spec)

    def model_bytes(self, spec: ParamSpec) -> int:
        """Return the bytes of a model in a report."""
        return self.inner.model_bytes(spec)


@dataclass(frozen=True)
class Calibrated(LocalWrapper, kind="calibrated"):
    """The loss takes the device's own label shares for granted: cross-entropy of ``logits + tau * log(shares)``.

    A device then does not push away labels that it has never seen. ``smoothing`` of its shares is spread evenly over
    all labels, which bounds what unseen labels are given. Nothing is sent for it; ``tau = 0`` is the plain loss. The
    shares are those of the labels that the device trains on at that moment, so drift changes them at once.
    """

    tau: NonNegativeFloat = 1.0
    smoothing: Share = 0.1

    def check(self) -> None:
        """Refuse policies that go around this one."""
        outer = self.of is not None and self.of.kind in ("private", "q8")
        self.require(not outer, "of", "a policy that may stand inside: 'private' and 'q8' go around this one")

    def changed(self, train: Train) -> Train:
        """Return a training with the calibrated loss."""
        return replace(train, calibration=Calibration(self.tau, self.smoothing)) if self.tau else train


@dataclass(frozen=True)
class Margins(LocalWrapper, kind="margins"):
    """FedLC's loss: cross-entropy of ``logits - tau * n^(-1/4)`` with the device's n samples of each label.

    Rare labels have wider margins; a label that the device lacks takes no part. ``tau = 0`` is the plain loss.
    """

    tau: NonNegativeFloat = 1.0

    def changed(self, train: Train) -> Train:
        """Return a training with margins."""
        return replace(train, calibration=Calibration(self.tau, form="margins")) if self.tau else train


@dataclass(frozen=True)
class Restricted(LocalWrapper, kind="restricted"):
    """FedRS's loss: logits of labels that the device lacks count ``alpha`` times; ``alpha = 1`` is the plain loss."""

    alpha: UnitFloat = 0.5

    def changed(self, train: Train) -> Train:
        """Return a training with the restricted softmax."""
        return replace(train, calibration=Calibration(self.alpha, form="restricted")) if self.alpha < 1 else train
