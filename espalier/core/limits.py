"""When a run ends, and when it is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from espalier.core.bounds import Bound, PositiveFloat, PositiveInt
from espalier.core.spec import Spec

DEFAULT_ROUNDS = 20


@dataclass(frozen=True)
class RunLimits(Spec, family="stop"):
    """When a run ends: after so many rounds or so many virtual seconds, whatever comes first.

    A round is more work in one method than in another. With ``budget = "time"`` the methods of a comparison have equal
    virtual time: the first of them closes ``rounds``, the others end when it did, seed by seed. With
    ``budget = "rounds"`` each closes ``rounds``. Neither ``rounds`` nor ``seconds`` given: 20 rounds, and equal time.

    Attributes:
        rounds: Rounds of the root.
        seconds: Virtual seconds.
        budget: What the methods of a comparison have alike.
    """

    rounds: PositiveInt | None = None
    seconds: PositiveFloat | None = None
    budget: Literal["time", "rounds"] | None = None

    def check(self) -> None:
        """Refuse a run without an end."""
        if self.rounds is None and self.seconds is None:
            object.__setattr__(self, "rounds", DEFAULT_ROUNDS)
            object.__setattr__(self, "budget", self.budget or "time")
        object.__setattr__(self, "budget", self.budget or "rounds")
        self.require(self.budget == "rounds" or self.rounds is not None, "budget", "'rounds' where no rounds are given")


@dataclass(frozen=True)
class EvaluationSchedule(Spec, family="evaluate"):
    """When models are evaluated, and what is measured besides.

    Where every device has a model of its own (Standalone, Ditto, FedRep), judging them all after each round takes
    longer than training them: see ``share`` and ``rows``.

    Attributes:
        every: Rounds of the root between two evaluations.
        seconds: Virtual seconds between two evaluations, in place of rounds.
        by_source: Whether it is also told, at the end, how each device does with the global model, its edge's, its
            cluster's, and with its own after local training (which takes a training per device).
        prior: Whether it is also told, at every evaluation, how devices and edges do that use their models with their
            known label priors: with and without, out of one run.
        share: In a simulation, devices' own models are judged when it takes at most this part of the run's passes over
            samples (a training step counts as three), and at the end. Each figure is exact; there are fewer.
        rows: Each device's own model is judged on so many test rows, drawn once from the device's own test
            distribution, as clients' own test sets are in most of the literature: the mean over devices stays unbiased,
            while their spread and the worst tenth also hold the draw's chance (not where label priors or mixtures are
            served).
    """

    every: PositiveInt = 1
    seconds: PositiveFloat | None = None
    by_source: bool = False
    prior: bool = False
    share: Annotated[float, Bound(gt=0, lt=1, words="a part of the run, between 0 and 1")] | None = None
    rows: PositiveInt | None = None
