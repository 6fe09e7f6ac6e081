"""Error feedback for 8-bit reports (q8): what a report is a difference from, and what rounding took away so far.

A device sends the difference between its model and the one it was given, in 8 bits a number. What the rounding takes
away (the residual) is added to its next difference, so that nothing is lost in the long run
(`espalier.core.quantise`). Whoever gave the order keeps the model that went with it until the answer is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from espalier.core import quantise
from espalier.core.codec import refs_in
from espalier.core.messages import Order, Report
from espalier.core.store import Ref
from espalier.fleet.links.encoding import Encoding
from espalier.fleet.links.framing import LetterPart
from espalier.fleet.node.store import EagerStore

#: orders to one child whose models are kept, because a difference from them may still arrive
ORDERS_KEPT = 4


class ErrorFeedback:
    """The models that differences are from, and the residuals, of one host."""

    def __init__(self, store: EagerStore, saved: dict[str, Any] | None) -> None:
        """Go on from what :meth:`to_plain` said."""
        known = saved or {}
        self._store = store
        #: models that went out with orders: child -> order -> model
        self._sent: dict[int, dict[int, Ref]] = known.get("sent", {})
        #: the model that a device of this host was given last: device -> (dispatcher, order, model)
        self._given: dict[int, tuple[int, int, Ref]] = known.get("given", {})
        #: what rounding took away from a device's models so far
        self._residuals: dict[int, Ref] = known.get("residuals", {})

    def to_plain(self) -> dict[str, Any]:
        """Return all that must outlive the process."""
        return {"sent": self._sent, "given": self._given, "residuals": self._residuals}

    def held(self, found: set[int]) -> None:
        """Add the models that are needed here."""
        refs_in([self._sent, self._given, self._residuals], found)

    # -- whoever orders -------------------------------------------------------------------------------------

    def sent(self, order: Order) -> None:
        """An order went to a device: its report will be a difference from this model."""
        kept = self._sent.setdefault(order.to, {})
        kept[order.id] = next(iter(order.models.values()))
        for old in sorted(kept)[:-ORDERS_KEPT]:
            del kept[old]

    def answered(self, report: Report) -> None:
        """An order's answer is there."""
        self._sent.get(report.sender, {}).pop(report.order, None)

    def decoded(self, part: LetterPart, origin: int) -> Tensor | None:
        """Return the model that a difference stands for; None if what it differs from is not here any more."""
        base = self._sent.get(origin, {}).get(part.base)
        return None if base is None else quantise.decode(part.data, self._store.vector(base), self._store.spec)

    # -- whoever reports ------------------------------------------------------------------------------------

    def given(self, order: Order) -> None:
        """A device of this host was given a model to begin with."""
        self._given[order.to] = (order.sender, order.id, next(iter(order.models.values())))

    def differences(self, report: Report, refs: Sequence[Ref]) -> list[Any]:
        """Return a report's parts: differences where its receiver has what they differ from, else the models."""
        given = self._given.get(report.sender)
        if given is None or given[:2] != (report.dispatcher, report.order) or report.to != report.dispatcher:
            return list(refs)
        store, parts = self._store, list[Any]()
        for ref in refs:
            if ref not in report.models.values():
                parts.append(ref)
                continue
            residual = self._residuals.get(report.sender)
            before = None if residual is None else store.vector(residual)[: store.spec.n_float]
            found = quantise.code(store.vector(ref), store.vector(given[2]), before, store.spec)
            padded = found.error.new_zeros(store.spec.size)
            padded[: len(found.error)] = found.error
            self._residuals[report.sender] = store.put(padded)
            parts.append((int(Encoding.Q8), report.order, found.data))
        return parts
