"""What the ledger writes down in place of models, and what becomes of it when it is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from espalier.core.codec import register
from espalier.core.messages import Train
from espalier.core.params import Spans, spliced
from espalier.core.store import Ref
from espalier.simulator.reduction import PartialSum


@register
@dataclass(frozen=True, slots=True)
class Job:
    """A training that was ordered: everything its result depends on.

    Attributes:
        device: Whose data.
        number: How many trainings the device was asked for before.
        work: What is to be trained.
        look: The number of the look that the device's data have then (:class:`~espalier.simulator.dataviews.Look`).
    """

    device: int
    number: int
    work: Train
    look: int = 0

    @property
    def inputs(self) -> list[int]:
        """Names of the models that must be there first."""
        return self.work.inputs


@register
@dataclass(frozen=True, slots=True)
class Sum:
    """A weighted sum that was asked for; its terms are in the order of their names."""

    terms: tuple[tuple[float, Ref], ...]
    fallback: Ref | None = None

    @property
    def inputs(self) -> list[int]:
        """Names of the models that must be there first."""
        names = [int(r) for _, r in self.terms]
        return names if self.fallback is None else [*names, int(self.fallback)]


@register
@dataclass(frozen=True, slots=True)
class Splice:
    """A model that is another but for some places, which are of a third."""

    base: Ref
    part: Ref
    spans: Spans

    @property
    def inputs(self) -> list[int]:
        """Names of the models that must be there first."""
        return [int(self.base), int(self.part)]

    def of(self, base: Tensor, part: Tensor) -> Tensor:
        """Return the model."""
        return spliced(base, part, self.spans)


@dataclass(slots=True)
class Outcome:
    """What a computed job left: the model, its mean loss, and optimiser state if it was to be kept."""

    vector: Tensor
    loss: float
    optimizer_state: Tensor | None


#: computes jobs: (jobs, look up a vector, look up an optimiser state) -> outcomes in the same order
Compute = Callable[[Sequence[Job], Callable[[Ref], Tensor], Callable[[Ref], Tensor | None]], Iterator[Outcome]]


@dataclass(slots=True)
class RemoteOutcome:
    """What a computed job left whose model stayed where it was made, because only parts of sums need it.

    Attributes:
        finite: Whether its numbers are finite.
        parts: The parts that end with it, by the sum's name and the place of the term.
        loss: Mean training loss.
        optimizer_state: Optimiser state if it was to be kept.
    """

    finite: bool
    parts: dict[tuple[int, int], PartialSum]
    loss: float
    optimizer_state: Tensor | None


@runtime_checkable
class SummingCompute(Protocol):
    """What computes jobs, and can make parts of sums of them on the way."""

    def summed(
        self,
        jobs: Mapping[int, Job],
        sums: Mapping[int, Sum],
        free: AbstractSet[int],
        vector: Callable[[Ref], Tensor],
        optimizer_state: Callable[[Ref], Tensor | None],
    ) -> Iterator[Outcome | RemoteOutcome]:
        """Compute jobs by name, in their order; ``sums`` need them, and nothing else needs those in ``free``."""
        ...
