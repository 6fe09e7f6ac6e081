"""Devices that watch their own data: they say so when their labels are no longer distributed as they told the cloud.

A device keeps the histogram that it told last. Before it trains it compares its labels of now with it; if the
Jensen–Shannon divergence exceeds ``threshold``, it sends the new histogram with its report, and only then: 4 bytes per
class. When it is asked to (the order says ``tell``), it also scores the model it got on the samples it holds out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from espalier.core.messages import Order, Train
from espalier.core.policies import Contribution, Local, LocalView
from espalier.core.statistics import LocalData, label_histogram, register_statistic
from espalier.core.store import Ref
from espalier.methods.cflhkd.fdc import jensen_shannon


# A tenth of the samples is held out; evaluating costs a third of a training step.
@register_statistic("checkup", lambda n_batches, n_models: n_batches * n_models / 30)
def checkup(local: LocalData, vectors: Sequence[Tensor], **args: Any) -> dict[str, Any]:
    """Return the label histogram and the first model's accuracy on held-out samples (if there are any)."""
    scores = local.held_out(vectors[:1])
    return {**label_histogram(local, []), **({"accuracy": scores[0]} if scores else {})}


@dataclass(frozen=True)
class Watchful(Local, kind="watchful"):
    """Local training that tells of drift; ``threshold`` is a divergence in bits (None: it does not watch).

    An order's ``pull`` is the strength of the pull towards its anchor.
    """

    @dataclass(slots=True)
    class State:
        """The label histogram that the device told last, and what its next report must say."""

        histogram: NDArray[Any] | None = None
        say: dict[str, Any] = field(default_factory=dict)

    threshold: float | None = 0.3

    def train(self, view: LocalView, order: Order) -> Train:
        """Return the training, pulled to the anchor if the order says so."""
        start = next(iter(order.models.values()))
        pull = float(order.args.get("pull", 0.0))
        anchor = order.anchor if pull else None
        return Train(start=start, updates=order.updates, clock=order.clock, anchor=anchor, mu=pull)

    def question(self, view: LocalView, order: Order) -> str | None:
        """Look at the labels, and at the model if the order asks for it."""
        if order.args.get("tell"):
            return "checkup"
        return "label_histogram" if self.threshold is not None and not order.args else None

    def answer(self, view: LocalView, order: Order, values: Mapping[str, Any]) -> Order:
        """Keep what the report must say."""
        state = view.state(self)
        if "accuracy" in values:
            state.say["accuracy"] = float(values["accuracy"])
        if self.threshold is not None:
            now = np.asarray(values["histogram"])
            if state.histogram is None:
                state.histogram = now
            if jensen_shannon(state.histogram, now) > self.threshold:
                state.say["histogram"] = state.histogram = now
        return order

    def reply(self, view: LocalView, order: Order, values: dict[str, Any]) -> dict[str, Any]:
        """Remember the histogram that the cloud asked for."""
        if self.threshold is not None and "histogram" in values:
            view.state(self).histogram = np.asarray(values["histogram"])
        return values

    def done(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Contribution:
        """Say it."""
        state = view.state(self)
        said, state.say = state.say, {}
        if state.histogram is None:
            view.forget(self)
        return replace(super().done(view, order, models), stats=said)
