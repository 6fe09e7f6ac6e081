"""Predicting how long something will take from how long it took: one number, exchangeable by kind."""

from __future__ import annotations

from dataclasses import dataclass

from espalier.core.spec import Spec


@dataclass(frozen=True)
class Predictor(Spec, family="predictor", kind="smoothing"):
    """Exponential smoothing (EASF, Eq. 12): ``next = beta * measured + (1 - beta) * predicted``.

    As printed the equation has ``t_{m+1}`` on both sides; this is the one reading that uses what was measured. The
    first prediction is the first measurement. What a predictor remembers is a list of numbers, empty at first.
    """

    beta: float = 0.5

    def check(self) -> None:
        """Refuse weights outside (0, 1]."""
        self.require(0 < self.beta <= 1, "beta", "in (0, 1]")

    def after(self, memory: list[float], measured: float) -> list[float]:
        """Return the memory after one more measurement; its last number is the prediction."""
        return [self.beta * measured + (1 - self.beta) * memory[-1]] if memory else [measured]


@dataclass(frozen=True)
class Window(Predictor, kind="window"):
    """The mean of the last ``size`` measurements."""

    size: int = 5

    def check(self) -> None:
        """Refuse an empty window."""
        self.require(self.size >= 1, "size", "at least 1")

    def after(self, memory: list[float], measured: float) -> list[float]:
        """Return the measurements kept, and their mean."""
        kept = [*memory[:-1], measured][-self.size :]
        return [*kept, sum(kept) / len(kept)]
