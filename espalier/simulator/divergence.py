"""Notices that a run has diverged: every update is rejected because it has numbers that are not finite."""

from __future__ import annotations

from typing import Any


class Divergence:
    """Counts updates and those that were rejected, from one evaluation to the next.

    A few devices whose updates are never finite are no divergence: it takes as many rejected updates, with none between
    them that could be used, as half of the devices that are there.
    """

    def __init__(self) -> None:
        self._rejected: set[int] = set()
        #: trainings computed until the last evaluation, and rounds of the run until the last one with a usable update
        self._computed, self._round = 0, 0
        #: updates rejected since then
        self._in_vain = 0

    def rejected(self, ref: int) -> None:
        """An update has numbers that are not finite."""
        self._rejected.add(ref)

    def noticed(self, computed: int, present: int, round: int) -> str:
        """Look at what happened since the last evaluation; return why the run cannot go on ("": it can).

        Args:
            computed: Trainings computed so far.
            present: Devices that are there.
            round: Rounds of the run so far.
        """
        fresh, self._computed = computed - self._computed, computed
        rejected, self._rejected = len(self._rejected), set()
        if rejected < fresh:
            self._in_vain, self._round = 0, round
        elif fresh:
            self._in_vain += fresh
        if not fresh or self._in_vain < max(1, present / 2):
            return ""
        return (
            f"The training has diverged: since round {self._round} all {self._in_vain:,} updates had numbers that are "
            "not finite and were rejected, so no model moves any more."
        )

    def save(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return {
            "rejected": set(self._rejected), "computed": self._computed, "round": self._round,
            "in_vain": self._in_vain,
        }  # fmt: skip

    def restore(self, plain: dict[str, Any]) -> None:
        """Become what :meth:`save` described."""
        self._rejected, self._computed = set(plain["rejected"]), plain["computed"]
        self._round, self._in_vain = plain["round"], plain["in_vain"]
