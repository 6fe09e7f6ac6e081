"""A merge by secure aggregation: the aggregator learns the weighted sum of its children's models, no single one.

    { name = "hierfavg", edge = { merge = { kind = "secure" } } }

The protocol is really run (see ``espalier.secure``): every child's model goes in masked, children that were ordered
to work and did not report are lost clients whose masks are recovered. The result is HierFAVG's average, rounded to
fixed point. Nobody can look at single models then: no robust merge and no guard that does goes with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from espalier.core.address import Address
from espalier.core.errors import ConfigError
from espalier.core.policies import Merge
from espalier.core.store import Ref
from espalier.core.view import Arrival, View


def secure_sum(values: Mapping[int, NDArray[np.float64]], absent: Sequence[int], threshold: int) -> NDArray[np.float64]:
    """Run the protocol among clients with values and clients that are lost after they shared their keys."""
    try:
        from espalier.secure import Client, Server
    except ImportError as error:
        raise ConfigError(
            "Secure aggregation needs the package cryptography: pip install 'espalier[privacy]'."
        ) from error
    server = Server(threshold)
    clients = {number: Client(number, threshold) for number in sorted({*values, *absent})}
    keys = server.collect_keys({n: c.advertise() for n, c in clients.items()})
    boxes = server.route({n: c.share(keys) for n, c in clients.items()})
    there = server.collect({n: clients[n].hide(x, boxes[n]) for n, x in values.items()})
    return server.sum({n: clients[n].unmask(there) for n in there})


@dataclass(frozen=True)
class SecureMerge(Merge, kind="secure"):
    """The average weighted by samples, by secure aggregation.

    Attributes:
        threshold: The share of a round's children that must report; with fewer the model stays as it is.
    """

    threshold: float = 0.67

    def check(self) -> None:
        """Refuse a threshold at which two halves could be asked."""
        self.require(0.5 < self.threshold <= 1, "threshold", "more than 0.5 and at most 1")

    def merge(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
        """Return the new models per group; a group with too few reports keeps its model."""
        groups: dict[str, dict[Address, Arrival]] = {}
        for arrival in arrivals:
            for group in arrival.report.models:
                groups.setdefault(group, {})[arrival.report.sender] = arrival
        merged: dict[str, Ref] = {}
        for group, found in groups.items():
            total = self._sum(view, group, found)
            if total is not None:
                merged[group] = total
        return merged

    def _sum(self, view: View, group: str, found: dict[Address, Arrival]) -> Ref | None:
        members = [*sorted(found), *(a for a in view.absent if a not in found)]
        floats = view.store.spec.n_float
        vectors = view.store.vectors([found[a].report.models[group] for a in sorted(found)])
        values: dict[int, NDArray[np.float64]] = {}
        for number, address in enumerate(sorted(found)):
            weight = self.weight(view, found[address], group)
            numbers = vectors[number, :floats].to(torch.float64).numpy()
            if np.isfinite(numbers).all() and weight > 0:  # a client that finds no sense in its own model stays away
                values[number] = np.append(weight * numbers, weight)
        needed = max(len(members) // 2 + 1, math.ceil(self.threshold * len(members) - 1e-9))
        view.note("secure", group=group, clients=len(members), reports=len(values), threshold=needed)
        if len(values) < needed:
            return None
        total = secure_sum(values, [n for n in range(len(members)) if n not in values], needed)
        result = torch.from_numpy(total[:-1] / total[-1]).to(vectors.dtype)
        # Counters are not secret sums: they come from the first report.
        return view.store.put(torch.cat([result, vectors[0, floats:]]))
