"""When a run ends, and when it is measured."""

from __future__ import annotations

from dataclasses import dataclass

from espalier.core.spec import Spec


@dataclass(frozen=True)
class RunLimits(Spec, family="stop"):
    """When a run ends: after so many rounds or so many virtual seconds, whatever comes first.

    Neither given: after 20 rounds.
    """

    rounds: int | None = None
    seconds: float | None = None

    def check(self) -> None:
        """Refuse a run without an end."""
        if self.rounds is None and self.seconds is None:
            object.__setattr__(self, "rounds", 20)
        self.require(self.rounds is None or self.rounds >= 1, "rounds", "at least 1")
        self.require(self.seconds is None or self.seconds > 0, "seconds", "more than 0")


@dataclass(frozen=True)
class EvaluationSchedule(Spec, family="evaluate"):
    """When models are evaluated: every so many rounds, or every so many virtual seconds."""

    every: int = 1
    seconds: float | None = None

    def check(self) -> None:
        """Refuse impossible values."""
        self.require(self.every >= 1, "every", "at least 1")
        self.require(self.seconds is None or self.seconds > 0, "seconds", "more than 0")
