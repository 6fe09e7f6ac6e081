"""How devices train: the settings that methods may see, and how the learning rate goes on from round to round.

    [training]
    lr = 0.1
    schedule = { kind = "warmup", rounds = 5, then = { kind = "cosine", rounds = 100 } }

A schedule is a factor of ``training.lr`` by the root's round; one of your own is a function named by its import path.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from espalier.core.bounds import PositiveFloat, PositiveInt, Share, UnitFloat
from espalier.core.code import imported, is_own, name_of
from espalier.core.errors import ConfigError, nearest
from espalier.core.spec import Spec


class Schedule(Spec, family="schedule"):
    """The learning rate by round, as a factor of ``training.lr``."""

    @property
    def code(self) -> tuple[str, ...]:
        """Import paths of a user's own code that it calls."""
        return ()

    def factor(self, clock: int) -> float:
        """Return the factor of the root's round ``clock``, counted from 0 (the plainest: always 1)."""
        return 1.0


@dataclass(frozen=True)
class ConstantRate(Schedule, kind="constant"):
    """The same in every round."""


@dataclass(frozen=True)
class StepRate(Schedule, kind="step"):
    """``gamma`` times less after every ``every`` rounds, or at each of the rounds ``at``."""

    gamma: PositiveFloat = 0.1
    every: PositiveInt | None = None
    at: tuple[int, ...] = ()

    def check(self) -> None:
        """Refuse two rhythms, and none."""
        self.require((self.every is None) != (not self.at), "every", "given where at is not, and only there")

    def factor(self, clock: int) -> float:
        """Return ``gamma`` to the power of the steps so far."""
        steps = sum(clock >= round for round in self.at) if self.every is None else clock // self.every
        return float(self.gamma**steps)


@dataclass(frozen=True)
class CosineRate(Schedule, kind="cosine"):
    """From 1 to ``final`` along half a cosine in ``rounds`` rounds, and ``final`` from then on."""

    rounds: PositiveInt = 100
    final: UnitFloat = 0.0

    def factor(self, clock: int) -> float:
        """Return ``final + (1 - final) (1 + cos(pi t / rounds)) / 2``; never 0, which no optimiser takes."""
        share = min(1.0, clock / self.rounds)
        return max(1e-6, self.final + (1.0 - self.final) * (1.0 + math.cos(math.pi * share)) / 2.0)


@dataclass(frozen=True)
class WarmupRate(Schedule, kind="warmup"):
    """Rises evenly over the first ``rounds`` rounds; after them ``then`` begins at its own round 0."""

    rounds: PositiveInt = 5
    then: Schedule = field(default_factory=ConstantRate)

    @property
    def code(self) -> tuple[str, ...]:
        """That of the other schedule."""
        return self.then.code

    def factor(self, clock: int) -> float:
        """Return ``(t + 1) / (rounds + 1)``, then the other schedule's factor."""
        return (clock + 1) / (self.rounds + 1) if clock < self.rounds else self.then.factor(clock - self.rounds)


@dataclass(frozen=True)
class FunctionRate(Schedule, kind="function"):
    """A function of your own, ``package.module:function``: the round in, the factor out."""

    path: str

    @property
    def code(self) -> tuple[str, ...]:
        """The function's path."""
        return (self.path,)

    def check(self) -> None:
        """Refuse what is no import path; it is imported when the first training asks for a rate."""
        self.require(":" in self.path, "path", "package.module:function")

    def factor(self, clock: int) -> float:
        """Return what the function says."""
        function: Callable[[int], Any] = imported(self.path, "schedule.path =")
        found = float(function(clock))
        if not 0 < found < math.inf:
            raise ConfigError(
                f"schedule.path = {self.path!r} gave {found} for round {clock}; a number > 0 is accepted."
            )
        return found


@dataclass(frozen=True)
class TrainingFacts(Spec, family="training"):
    """How a device trains, as far as methods may see it.

    The learning rate of the root's round t is ``lr`` times the schedule's factor, times
    ``lr_decay ** (t // lr_decay_every)``.

    Attributes:
        batch_size: Samples of a mini-batch; the last one of an epoch may be smaller.
        updates: Updates per order; methods that fit work to devices take it as the most.
        unit: What an update is: a local epoch, or one mini-batch (``step``).
        optimizer: ``sgd``, ``adam``, or a class by its import path (``torch.optim:AdamW``), which trains one client at
            a time.
        optimizer_options: What the optimiser's class takes besides the learning rate.
        lr: The learning rate at the start.
        momentum: Of ``sgd``.
        weight_decay: Added to gradients: this times the weights.
        lr_decay: Factor on the learning rate, once in every ``lr_decay_every`` rounds.
        lr_decay_every: Rounds of the root between two decays.
        schedule: The learning rate over the root's rounds, as a factor: ``espalier config schedule``.
    """

    batch_size: PositiveInt = 10
    updates: PositiveInt = 1
    unit: Literal["epoch", "step"] = "epoch"
    optimizer: Literal["sgd", "adam"] | str = "sgd"
    optimizer_options: dict[str, Any] = field(default_factory=dict)
    lr: PositiveFloat = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_decay: Share = 1.0
    lr_decay_every: PositiveInt = 1
    schedule: Schedule = field(default_factory=ConstantRate)

    def __post_init__(self) -> None:
        if not isinstance(self.optimizer, str):
            name = name_of(self.optimizer, "training.optimizer", "'sgd', 'adam' or a class of torch.optim")
            object.__setattr__(self, "optimizer", name)
        super().__post_init__()

    def check(self) -> None:
        """Refuse an unknown optimiser, and options said twice."""
        own, known = is_own(self.optimizer), ("sgd", "adam")
        if not own and self.optimizer not in known:
            raise ConfigError(
                f"training.optimizer = {self.optimizer!r}: must be 'sgd', 'adam' or package.module:Class."
                f"{nearest(self.optimizer, known)}"
            )
        self.require(own or not self.optimizer_options, "optimizer_options", "empty for sgd and adam")
        self.require("lr" not in self.optimizer_options, "optimizer_options", "without lr: say it as training.lr")
        for name in ("momentum", "weight_decay"):
            self.require(not own or not getattr(self, name), name, "0 here, and given in optimizer_options")

    def lr_at(self, clock: int) -> float:
        """Return the learning rate of the root's round ``clock``."""
        return self.lr * self.schedule.factor(clock) * self.lr_decay ** (clock // self.lr_decay_every)

    def batches(self, samples: int, updates: int) -> int:
        """Return the mini-batch steps of that many updates on that many samples."""
        return updates if self.unit == "step" else updates * -(-samples // self.batch_size)
