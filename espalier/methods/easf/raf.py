"""RAF: parents set how often a child updates from its last times, and nobody adapts in between.

Yang, Gan, Cao, Wang. Optimizing Aggregation Frequency for Hierarchical Model Training in Heterogeneous Edge
Computing. IEEE Transactions on Mobile Computing 22(7), 2023. As EASF's comparison describes and uses it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from espalier.core.address import Address
from espalier.core.bounds import PositiveInt
from espalier.core.memory import Memory
from espalier.core.policies import Assignment
from espalier.core.view import Arrival, View
from espalier.methods.easf.timeout import TimedPace


def frequencies(
    computing: Mapping[int, float], transfer: Mapping[int, float], updates: Mapping[int, int], most: int, base: str
) -> dict[int, int]:
    """Return each child's updates: as many as fit into the slowest child's time.

    ``T = max_i(t_comp,i + t_tran,i)``, ``f_i = max(1, floor((T - t_tran,i) / (t_comp,i / f_i)))``, at most ``most``.

    Args:
        computing: Seconds that each child computed.
        transfer: Seconds of its download and upload.
        updates: Updates that it did.
        most: The upper bound.
        base: ``measured``: T of the round as it was; ``single``: T of one update each.
    """
    single = {c: computing[c] / max(1, updates[c]) for c in computing}
    basis = computing if base == "measured" else single
    slowest = max(basis[c] + transfer[c] for c in computing)
    found = {}
    for child, one in single.items():
        spare = slowest - transfer[child]
        if one > 0:
            found[child] = max(1, min(most, math.floor(min(spare / one + 1e-9, most))))
        else:
            found[child] = most if spare > 0 else 1  # where nothing takes any time there is none to fill
    return found


@dataclass(frozen=True)
class RAF(TimedPace, kind="raf"):
    """RAF: the first round one update each, then as many as fit into the slowest child's time.

    ``base = "single"`` measures the slowest child by one update, so that a round does not stay long because it was.
    """

    @dataclass(slots=True)
    class State:
        """Each child's updates."""

        frequencies: dict[Address, int] = field(default_factory=dict)

    f_max: PositiveInt = 20
    base: Literal["measured", "single"] = "measured"

    def assign(self, view: View, chosen: Sequence[Address]) -> Mapping[Address, Assignment]:
        """Return each child's updates; new pairs begin with one."""
        known = view.state(self).frequencies
        return {child: Assignment(known.get(child, 1)) for child in chosen}

    def learn(self, view: View, arrivals: Sequence[Arrival]) -> None:
        """Set the frequencies of those that reported."""
        super().learn(view, arrivals)
        reports = {a.report.sender: a for a in arrivals}
        found = frequencies(
            {c: a.report.compute for c, a in reports.items()},
            {c: a.report.download + a.upload for c, a in reports.items()},
            {c: a.report.updates for c, a in reports.items()},
            self.f_max,
            self.base,
        )
        view.state(self).frequencies.update(found)

    def forget(self, memory: Memory, child: Address) -> None:
        """A new pair begins anew."""
        memory.state(self).frequencies.pop(child, None)
