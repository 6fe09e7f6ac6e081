"""8-bit reports: a device sends the difference from the model it was given, rounded, with error feedback.

    { name = "hierfavg", local = { kind = "q8" } }

A report costs about a quarter of a model (`espalier.core.quantise`). What rounding takes away is added to the device's
next difference. A device that reports to somebody else than gave it the model (it has moved) sends the whole model: the
receiver does not have what it would differ from. Rounding needs the numbers, so a simulation trains one device at a
time; a real fleet does the same with ``--compress q8``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from espalier.core import quantise
from espalier.core.messages import Order, Train
from espalier.core.params import ParamSpec
from espalier.core.policies import Local, LocalView
from espalier.core.store import Ref


@dataclass(frozen=True)
class Quantised(Local, kind="q8"):
    """Puts rounding around a method's own local policy.

    Attributes:
        of: The local policy whose reports are rounded (the method's own, if it is put into a method).
    """

    @dataclass(slots=True)
    class State:
        """The residual: what rounding has taken away so far."""

        residual: Ref | None = None

    of: Local | None = None

    def around(self, own: Local) -> Quantised:
        """Return this policy around another."""
        return self if self.of is not None else replace(self, of=own)

    @property
    def inner(self) -> Local:
        """The policy whose reports are rounded."""
        return self.of if self.of is not None else Local(self.mu)

    def model_bytes(self, spec: ParamSpec) -> int:
        """Return the bytes of a model in a report."""
        return quantise.coded_bytes(spec.n_float, spec.size)

    def train(self, view: LocalView, order: Order) -> Train:
        """Return the training that an order means."""
        return self.inner.train(view, order)

    def question(self, view: LocalView, order: Order) -> str | None:
        """Return the statistic that the device must know before it trains, if any."""
        return self.inner.question(view, order)

    def answer(self, view: LocalView, order: Order, values: Mapping[str, Any]) -> Order:
        """Return the order as it stands after :meth:`question` was answered."""
        return self.inner.answer(view, order, values)

    def arguments(self, view: LocalView, order: Order) -> dict[str, Any]:
        """Return the arguments with which a statistic that was asked for is computed."""
        return self.inner.arguments(view, order)

    def reply(self, view: LocalView, order: Order, values: dict[str, Any]) -> dict[str, Any]:
        """Return the statistics that go out in answer to a survey."""
        return self.inner.reply(view, order, values)

    def done(self, view: LocalView, order: Order, model: Ref) -> dict[str, Any]:
        """Look at the finished model; return statistics for the report."""
        return self.inner.done(view, order, model)

    def sends(self, view: LocalView, order: Order, model: Ref) -> dict[str, Ref]:
        """Return the models as the receiver will see them; remember what rounding took away."""
        models, store = self.inner.sends(view, order, model), view.env.store
        if view.env.parent(view.me) not in (None, order.sender) and not order.back:
            return models
        spec, found, state = store.spec, {}, view.state(self)
        for group, ref in models.items():
            error = state.residual
            refs = [ref, next(iter(order.models.values())), *([] if error is None else [error])]
            vectors = store.vectors(refs)
            coded = quantise.code(vectors[0], vectors[1], None if error is None else vectors[2, : spec.n_float], spec)
            kept = torch.zeros_like(vectors[0])
            kept[: spec.n_float] = coded.error
            state.residual = store.put(kept)
            found[group] = store.put(coded.model)
        return found
