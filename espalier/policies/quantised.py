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

import torch

from espalier.core import quantise
from espalier.core.messages import Order
from espalier.core.params import ParamSpec
from espalier.core.policies import Contribution, LocalView
from espalier.core.store import Ref
from espalier.policies.local_objectives import LocalWrapper


@dataclass(frozen=True)
class Quantised(LocalWrapper, kind="q8"):
    """Puts rounding around a method's own local policy. Auxiliary vectors go out whole."""

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
        told, store = self.inner.done(view, order, models), view.env.store
        if view.env.parent(view.me) not in (None, order.sender) and not order.back:
            return told
        spec, found, state = store.spec, {}, view.state(self)
        for group, ref in told.models.items():
            error = state.residual
            refs = [ref, next(iter(order.models.values())), *([] if error is None else [error])]
            vectors = store.vectors(refs)
            coded = quantise.code(vectors[0], vectors[1], None if error is None else vectors[2, : spec.n_float], spec)
            kept = torch.zeros_like(vectors[0])
            kept[: spec.n_float] = coded.error
            state.residual = store.put(kept)
            found[group] = store.put(coded.model)
        return replace(told, models=found)
