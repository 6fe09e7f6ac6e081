"""A guard that looks at the models: shape, finiteness, and a bound on the length of a change.

The bound adapts: ``factor`` times the median length of the round's changes (or, where too few report, of earlier
ones'), which a minority cannot raise. Looking at models makes the store compute them when a round closes, not
when somebody wants the merged model: a simulation trains in smaller batches. So it is put where it is wanted::

    { name = "hierfavg", edge = { guard = { kind = "median" } } }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from espalier.core.bounds import Bound
from espalier.core.guard import Guard
from espalier.core.view import Arrival, View
from espalier.policies.robust import coordinate_median

#: lengths of accepted changes that are remembered, per group
REMEMBERED_LENGTHS = 64


@dataclass(frozen=True)
class MedianGuard(Guard, kind="median"):
    """Refuses models that are not finite, and changes longer than ``factor`` times the median.

    Attributes:
        factor: How much longer than the median a change may be.
        least: With fewer lengths to compare with there is no bound.
    """

    @dataclass(slots=True)
    class State:
        """The lengths of changes that were accepted, by group."""

        lengths: dict[str, list[float]] = field(default_factory=dict)

    factor: Annotated[float, Bound(gt=1)] = 3.0
    least: Annotated[int, Bound(ge=2)] = 4

    def sift(self, view: View, arrivals: Sequence[Arrival]) -> dict[int, str]:
        """Return which arrivals must not count, by position, and why."""
        groups: dict[str, list[int]] = {}
        for i, arrival in enumerate(arrivals):
            for group in arrival.report.models:
                groups.setdefault(group, []).append(i)
        refused: dict[int, str] = {}
        for group, members in groups.items():
            refs = [arrivals[i].report.models[group] for i in members]
            base = view.models.get(group)
            vectors = view.store.vectors(refs if base is None else [*refs, base])[:, : view.store.spec.n_float]
            centre = None if base is None else vectors[-1]
            for i, why in self._judge(view, group, vectors[: len(refs)], centre).items():
                refused.setdefault(members[i], why)
        return refused

    def _judge(self, view: View, group: str, vectors: Tensor, centre: Tensor | None) -> dict[int, str]:
        finite = torch.isfinite(vectors.sum(dim=1, dtype=torch.float64)).numpy()
        refused = {int(i): "its model has numbers that are not finite" for i in np.flatnonzero(~finite)}
        rows = np.flatnonzero(finite)
        if len(rows) == 0:
            return refused
        if centre is None:
            centre = coordinate_median(vectors[torch.from_numpy(rows)])
        lengths = np.array([float((vectors[int(i)] - centre).to(torch.float64).norm()) for i in rows])
        known = view.state(self).lengths.setdefault(group, [])
        compared = lengths if len(lengths) >= self.least else np.concatenate([known, lengths])
        bound = self.factor * float(np.median(compared)) if len(compared) >= self.least else np.inf
        for i, length in zip(rows.tolist(), lengths.tolist(), strict=True):
            if length > bound > 0:
                refused[i] = f"its change is {length:.3g} long, the bound is {bound:.3g}"
        known += [length for length in lengths.tolist() if length <= bound]
        del known[:-REMEMBERED_LENGTHS]
        return refused
