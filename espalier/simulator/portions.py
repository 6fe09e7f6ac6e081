"""What is computed beside the ledger's jobs, in portions that may be computed anywhere: evaluations, trial trainings.

A portion is a pure function of the task, the data and some models; a backend that can (:class:`Spreading`) has its
workers compute them. What comes of them does not depend on where that was, nor on how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from espalier.simulator.dataviews import Part, Views
from espalier.simulator.task import Task
from espalier.training.tally import BatchCounts, Cut, Evaluation

#: of which samples: the part, the look that they are seen with (None: as they are), and whether labels are too
Samples = tuple[Part, int | None, bool]
Rows = NDArray[np.int64]

PORTIONS_PER_WORKER = 4
"""Portions of an evaluation that each worker gets: whoever is free first evens them out."""

WORTH_SENDING = 1 << 26
"""Rows times models times their numbers from which an evaluation is worth a worker's call (some milliseconds)."""


@dataclass(frozen=True, eq=False)
class Portion:
    """A pure function, and what it needs.

    Attributes:
        function: Takes the task, the views, the models and ``args``; found by its name where it is computed.
        args: What else it takes: plain data.
        models: Flat vectors.
        rows: The rows that it looks at, by part.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    models: Sequence[Tensor] = ()
    rows: Mapping[Part, Rows] = field(default_factory=dict)


@runtime_checkable
class Spreading(Protocol):
    """What computes portions on workers."""

    def workers(self) -> int:
        """Return how many are computed at a time."""
        ...

    def spread(self, portions: Sequence[Portion]) -> Iterator[Any]:
        """Yield what the portions give, in their order."""
        ...


class Portions:
    """Computes portions: on workers if there are any, else here.

    Args:
        task: What is learnt.
        views: What devices' data look like.
        computer: What computes the run's jobs; workers are its, if it has any that compute portions.
    """

    def __init__(self, task: Task, views: Views, computer: object = None) -> None:
        self._task, self._views = task, views
        self._away = computer if isinstance(computer, Spreading) else None

    def computed(self, portions: Sequence[Portion]) -> Iterator[Any]:
        """Yield what the portions give, in their order."""
        if self._away is not None:
            return self._away.spread(portions)
        return (p.function(self._task, self._views, p.models, *p.args) for p in portions)

    def evaluations(
        self,
        vectors: Sequence[Tensor],
        samples: Samples,
        rows: Rows,
        cells: NDArray[np.int64],
        *,
        each: bool = False,
        outputs: bool = False,
    ) -> list[Evaluation]:
        """Evaluate models on rows, as :meth:`~espalier.training.evaluate.Evaluator.run` does."""

        def elsewhere(models: Sequence[Tensor], cuts: Sequence[Cut]) -> Iterator[BatchCounts]:
            found = self.computed(
                [
                    Portion(
                        _counts, (samples, rows[of], cells[of], inside, each, outputs), [models[m] for m in which],
                        {samples[0]: rows[of]},
                    )
                    for which, of, inside in self._groups(cuts)
                ]
            )  # fmt: skip
            return (counts for some in found for counts in some)

        pool = self._views.samples(*samples)
        sent = elsewhere if self._worth(len(vectors), len(rows)) else None
        return self._task.evaluator.run(vectors, pool, rows, cells, each=each, outputs=outputs, elsewhere=sent)

    def outputs(self, vector: Tensor, samples: Samples, rows: Rows) -> Tensor:
        """Return a model's outputs on rows ``[n, …]``."""
        pool, batch = self._views.samples(*samples), self._task.evaluator.batch
        if not self._worth(1, len(rows)):
            return self._task.evaluator.logits([vector], pool, rows)[0]
        groups = self._groups([(range(1), slice(at, at + batch)) for at in range(0, len(rows), batch)])
        parts = [Portion(_outputs, (samples, rows[of]), [vector], {samples[0]: rows[of]}) for _, of, _ in groups]
        return torch.cat(list(self.computed(parts)))

    def _worth(self, models: int, rows: int) -> bool:
        return self._away is not None and models * rows * self._task.spec.size >= WORTH_SENDING

    def _groups(self, cuts: Sequence[Cut]) -> Iterator[tuple[range, slice, list[Cut]]]:
        """Yield a few consecutive cuts at a time: their models, their rows, and the cuts among those."""
        assert self._away is not None
        each = -(-len(cuts) // (PORTIONS_PER_WORKER * self._away.workers()))
        for at in range(0, len(cuts), each):
            some = cuts[at : at + each]
            first, last = some[0][0].start, some[-1][0].stop
            low, high = min(cut.start for _, cut in some), max(cut.stop for _, cut in some)
            inside = [
                (range(m.start - first, m.stop - first), slice(cut.start - low, cut.stop - low)) for m, cut in some
            ]
            yield range(first, last), slice(low, high), inside


def _counts(
    task: Task,
    views: Views,
    models: Sequence[Tensor],
    samples: Samples,
    rows: Rows,
    cells: NDArray[np.int64],
    cuts: Sequence[Cut],
    each: bool,
    outputs: bool,
) -> list[BatchCounts]:
    return list(task.evaluator.counted(models, views.samples(*samples), rows, cells, cuts, each=each, outputs=outputs))


def _outputs(task: Task, views: Views, models: Sequence[Tensor], samples: Samples, rows: Rows) -> Tensor:
    return task.evaluator.logits(models, views.samples(*samples), rows)[0]
