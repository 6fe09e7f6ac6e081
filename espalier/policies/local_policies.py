"""What devices may do otherwise than a method's own local policy has it.

A wrapper goes around that policy, changes one thing and leaves the rest to the policy inside::

    { name = "hierfavg", local = { kind = "calibrated", tau = 1.0 } }
    { name = "fedprox", local = { kind = "private", clip = 1.0, of = { kind = "calibrated" } } }
    { name = "hierfavg", local = { kind = "q8" } }

Parts of models (FedPer, FedRep, LG-FedAvg, FedBN) take its place::

    { name = "fedavg", local = { kind = "parts", own = ["head.*"] }, serve = { model = "own" } }

and servers may keep a part for those below them, too::

    { name = "hierfavg", edge = { hand_down = { kind = "parts", own = ["head.*"] } }, serve = { model = "edge" } }
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch

from espalier.core import quantise
from espalier.core.bounds import NonNegativeFloat, PositiveFloat, Share, UnitFloat
from espalier.core.errors import ConfigError
from espalier.core.messages import Calibration, Order, Train
from espalier.core.objectives import Distillation
from espalier.core.params import ParamSpec, Spans
from espalier.core.policies import Contribution, HandDown, Local, LocalView
from espalier.core.store import ModelStore, Ref
from espalier.core.view import View


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

    def question_models(self, view: LocalView, order: Order) -> tuple[Ref, ...]:
        """Return the models that the question is about."""
        return self.inner.question_models(view, order)

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


@dataclass(frozen=True)
class Distilled(LocalWrapper, kind="distilled"):
    """The loss keeps answers near the received model's: plus ``weight T^2 KL(its answers || those in training)``.

    A device then does not forget what the received model knows of labels that it has few of (Yao et al., Local-Global
    Knowledge Distillation in Heterogeneous Federated Learning with Non-IID Data, 2021). Nothing is sent for it;
    ``weight = 0`` is the plain loss. ``temperature`` is T.
    """

    weight: NonNegativeFloat = 0.1
    temperature: PositiveFloat = 1.0

    def changed(self, train: Train) -> Train:
        """Return a training with the term; the received model is what it is pulled to, or else starts from."""
        if not self.weight:
            return train
        if train.objective is not None:
            raise ConfigError(
                f"local.kind = 'distilled': the method's own training ({type(train.objective).__name__}) looks at "
                "another model already. Leave it out."
            )
        beside = train.start if train.anchor is None else train.anchor
        return replace(train, beside=beside, objective=Distillation(self.weight, self.temperature))


@dataclass(frozen=True)
class Parts(Local, kind="parts"):
    """Shares a part of the model and keeps the rest; both are trained together.

    Parts are named by patterns of the names of parameters and buffers, as file names are. A device trains from what it
    receives with its own part put in, reports what it received with the shared part of its training put in, and (where
    the method or ``serve`` says that devices use their own models) uses all of its training. So the own part of a model
    that travels is never a device's, costs no bytes, and does not leave the device on a fleet.

    Attributes:
        own: Patterns of what stays at the device; neither ``own`` nor ``shared``: the last layer.
        shared: Patterns of what is shared, where that is easier to say.
    """

    @dataclass(slots=True)
    class State:
        """The device's last model, of which its own part counts."""

        model: Ref | None = None

    own: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse two answers to one question."""
        self.require(not (self.own and self.shared), "shared", "left out where own is given")

    def shares(self, spec: ParamSpec) -> Spans:
        """Return the places that are shared."""
        return spec.spans(self.shared) if self.shared else spec.rest(spec.spans(self.own or spec.last_layer()))

    def parameters(self, spec: ParamSpec, *, shared: bool) -> tuple[str, ...]:
        """Return the names of the parameters that are shared, or of the device's own."""
        spans = self.shares(spec)
        return tuple(e.name for e in spec.parameters if any(a <= e.start < b for a, b in spans) == shared)

    def start(self, view: LocalView, order: Order) -> Ref:
        """Return the received model with the device's own part, at first the initial one."""
        store, received = view.env.store, next(iter(order.models.values()))
        own = view.state(self).model
        return store.splice(store.initial() if own is None else own, received, self.shares(store.spec))

    def train(self, view: LocalView, order: Order) -> Train:
        """Train both parts together."""
        return replace(super().train(view, order), start=self.start(view, order))

    def done(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Contribution:
        """Keep the device's own part, report the other."""
        store = view.env.store
        (group, received), trained = next(iter(order.models.items())), list(models.values())[-1]
        view.state(self).model = trained
        return Contribution({group: store.splice(received, trained, self.shares(store.spec))}, uses=trained)


@dataclass(frozen=True)
class KeptParts(HandDown, kind="parts"):
    """A server keeps a part of the model for itself and those below it, and shares the rest with its parent.

    It hands its own part down with what it receives, averages both below itself, and reports the other. So the own part
    of a model that goes further up is never an edge's, costs no bytes there, and is not sent on a fleet.

    Attributes:
        own: Patterns of what stays here; neither ``own`` nor ``shared``: the last layer.
        shared: Patterns of what is shared, where that is easier to say.
    """

    own: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse what devices would refuse."""
        Parts(own=self.own, shared=self.shared)

    def shares(self, spec: ParamSpec) -> Spans:
        """Return the places that are shared."""
        return Parts(own=self.own, shared=self.shared).shares(spec)

    def receive(self, view: View, order: Order) -> dict[str, Ref]:
        """Return what came with the server's own part, at first the initial one."""
        return {g: self._joined(view.models.get(g), model, view.store) for g, model in order.models.items()}

    def up(self, view: View) -> dict[str, Ref]:
        """Return the server's models with the initial one's numbers in the place of its own part."""
        return {g: self._joined(None, model, view.store) for g, model in view.models.items()}

    def _joined(self, own: Ref | None, shared: Ref, store: ModelStore) -> Ref:
        return store.splice(store.initial() if own is None else own, shared, self.shares(store.spec))


@dataclass(frozen=True)
class Quantised(LocalWrapper, kind="q8"):
    """8-bit reports: the difference from the model that was given, rounded, with error feedback.

    A report costs about a quarter of a model (`espalier.core.quantise`); auxiliary vectors go out whole. What rounding
    takes away is added to the device's next difference. A device that reports to somebody else than gave it the model
    (it has moved) sends the whole model: the receiver does not have what it would differ from. Rounding needs the
    numbers, so a simulation trains one device at a time; a real fleet does the same with ``--compress q8``.
    """

    @dataclass(slots=True)
    class State:
        """The residual: what rounding has taken away so far."""

        residual: Ref | None = None

    def model_bytes(self, spec: ParamSpec) -> int:
        """Return the bytes of a model in a report."""
        floats = self.shared_bytes(spec) // 4
        return quantise.coded_bytes(floats, floats + spec.size - spec.n_float)

    def done(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Contribution:
        """Return the models as the receiver will see them; remember what rounding took away."""
        contribution, store = self.inner.done(view, order, models), view.env.store
        if view.env.parent(view.me) not in (None, order.sender) and not order.back:
            return contribution
        spec, found, state = store.spec, {}, view.state(self)
        for group, ref in contribution.models.items():
            error = state.residual
            refs = [ref, next(iter(order.models.values())), *([] if error is None else [error])]
            vectors = store.vectors(refs)
            coded = quantise.code(vectors[0], vectors[1], None if error is None else vectors[2, : spec.n_float], spec)
            kept = torch.zeros_like(vectors[0])
            kept[: spec.n_float] = coded.error
            state.residual = store.put(kept)
            found[group] = store.put(coded.model)
        return replace(contribution, models=found)
