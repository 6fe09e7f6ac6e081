"""The guard: looks at every report before it counts.

A report that makes no sense is dropped, recorded with the reason, and never reaches a merge. A child that sends
such reports again and again is left out, unless most children do (then the guard is more likely to be wrong).
What costs no look at a model is checked here, as a report arrives; ``espalier.policies.guard`` looks at the
models too. Numbers that are not finite never get into a merge, guard or not: see ``ModelStore.combine``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from espalier.core.address import Address
from espalier.core.bounds import NonNegativeInt, PositiveInt
from espalier.core.environment import Environment
from espalier.core.memory import Policy
from espalier.core.messages import Report
from espalier.core.view import Arrival, View


@dataclass(frozen=True)
class Guard(Policy, family="guard", kind="plain"):
    """Checks what a report claims: samples, work, times and version.

    Attributes:
        patience: Offences after which a child is left out; None: never.
        stale: Reports more than so many rounds old are refused; None: the pace alone decides.
    """

    patience: PositiveInt | None = 3
    stale: NonNegativeInt | None = None

    def refuse(self, env: Environment, report: Report, rounds: int | None) -> str | None:
        """Return why a report that arrives must not count, or None if it may.

        Args:
            env: The aggregator's environment.
            report: The report.
            rounds: Rounds that the aggregator has closed, if it gave the order itself.
        """
        for group, claimed in report.samples.items():
            if not isinstance(claimed, int) or isinstance(claimed, bool) or claimed < 0:
                return f"its samples of {group!r} are {claimed!r}"
            if env.is_device(report.sender) and claimed > env.samples(report.sender):
                return f"it claims {claimed} samples, {env.samples(report.sender)} are registered"
        if report.models.keys() - report.samples.keys():
            return "it does not say how many samples its models stand for"
        if not isinstance(report.updates, int) or report.updates < 0:
            return f"its updates are {report.updates!r}"
        for name in ("sent", "download", "compute"):
            value = getattr(report, name)
            if not math.isfinite(value) or value < 0:
                return f"its time {name} is {value!r}"
        if rounds is not None and report.round > rounds:
            return f"it answers round {report.round}, which has not begun"
        if rounds is not None and self.stale is not None and rounds - report.round > self.stale:
            return f"it is {rounds - report.round} rounds old"
        return None

    def sift(self, view: View, arrivals: Sequence[Arrival]) -> dict[int, str]:
        """Return which of a closing round's arrivals must not count (by position), and why."""
        return {}

    def left_out(self, offences: Mapping[Address, int], children: Sequence[Address]) -> set[Address]:
        """Return the children that are left out."""
        if self.patience is None or not offences:
            return set()
        found = {child for child in children if offences.get(child, 0) >= self.patience}
        return found if 2 * len(found) <= len(children) else set()
