"""Computing what the ledger wrote down: sums as soon as their terms are there, trainings many at once.

A wave is all trainings whose inputs are there; what they leave makes sums and the next wave's trainings computable.
Jobs may run in other processes, which hand back parts of sums in place of models (:class:`RemoteOutcome`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice, takewhile

from torch import Tensor

from espalier.core.params import ParamSpec
from espalier.core.store import Ref
from espalier.simulator.jobs import Compute, Job, Outcome, RemoteOutcome, Splice, Sum, SummingCompute
from espalier.simulator.reduction import FAN, RunningMerge

#: A sum is begun when this many of its first terms (or all, if it has fewer) are there. A sum in the making takes the
#: memory of two models, so beginning it earlier would save nothing.
FIRST_TERMS = 3
#: Results wait for each other until they are a whole node of a sum, which is added faster at once than one by one; of
#: large models there are no more than so many bytes.
WAITING_BYTES = 32 << 20


@dataclass(slots=True)
class Tables:
    """What the ledger knows of models, by their names.

    Attributes:
        recipes: Models that are not computed yet: how to make them.
        values: Models that are.
        losses: Mean training losses of computed trainings; of an average of them, the average.
        optimizer_states: Optimiser states that computed trainings left.
        computed: Trainings computed so far.
    """

    recipes: dict[int, Job | Sum | Splice] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    optimizer_states: dict[int, Tensor] = field(default_factory=dict)
    computed: int = 0

    def vector(self, ref: Ref) -> Tensor:
        """Return a computed model."""
        return self.values[int(ref)]

    def optimizer_state(self, ref: Ref) -> Tensor | None:
        """Return the optimiser state that a computed training left, if it left one."""
        return self.optimizer_states.get(int(ref))

    def keep_only(self, names: AbstractSet[int]) -> None:
        """Forget all other models."""
        for table in (self.values, self.recipes, self.losses, self.optimizer_states):
            for name in [n for n in table if n not in names]:
                del table[name]


class Wave:
    """Computes recipes that are needed, and keeps each result only as long as something needs it.

    ``run`` is the whole of it: sums *advance* by the terms that are there, recipes *settle* when all of their inputs
    are, trainings that are ready are computed together, and each input is *released* by whoever used it last.
    """

    def __init__(
        self,
        spec: ParamSpec,
        tables: Tables,
        needed: AbstractSet[int],
        held: AbstractSet[int],
        compute: Compute,
        rejected: Callable[[int], None],
    ) -> None:
        """Prepare to compute the recipes ``needed``; the models ``held`` stay when they have been used."""
        self._spec, self._tables, self._needed, self._held = spec, tables, needed, held
        self._compute, self._rejected = compute, rejected
        #: how many recipes still wait for a model, and which
        self._uses: dict[int, int] = {}
        self._users: dict[int, list[int]] = {}
        for name in sorted(needed):
            for i in set(tables.recipes[name].inputs):
                self._uses[i] = self._uses.get(i, 0) + 1
                self._users.setdefault(i, []).append(name)
        self._running: dict[int, RunningMerge] = {}
        #: trainings whose models stayed where they were computed
        self._remote: dict[int, RemoteOutcome] = {}
        self._settled: set[int] = set()
        self._ready: list[int] = []

    def run(self) -> None:
        """Compute everything that is needed."""
        self._settle(sorted(self._needed, reverse=True))
        while self._ready:
            names, self._ready = sorted(self._ready), []
            self._train(names)
        for name in self._needed:
            self._tables.recipes.pop(name, None)

    def _train(self, names: list[int]) -> None:
        """Compute trainings together; what needs them follows as each result comes in."""
        tables = self._tables
        jobs = {name: recipe for name in names if isinstance(recipe := tables.recipes[name], Job)}
        fresh: dict[int, Job] = {}
        together = max(1, min(FAN, WAITING_BYTES // self._spec.model_bytes))
        for (name, job), outcome in zip(jobs.items(), self._outcomes(jobs), strict=True):
            tables.computed += 1
            tables.losses[name] = outcome.loss
            if outcome.optimizer_state is not None:
                tables.optimizer_states[name] = outcome.optimizer_state
            if isinstance(outcome, RemoteOutcome):
                self._remote[name] = outcome
            else:
                tables.values[name] = outcome.vector
            fresh[name] = job
            if len(fresh) == together:
                self._spread(fresh)
                fresh = {}
        self._spread(fresh)

    def _spread(self, fresh: dict[int, Job]) -> None:
        """Bring new results into the sums that they are terms of, and release what their jobs were computed from."""
        for user in dict.fromkeys(user for name in fresh for user in self._users.get(name, ())):
            self._settle([user])
        for job in fresh.values():
            for i in set(job.inputs):
                self._release(i)

    def _outcomes(self, jobs: dict[int, Job]) -> Iterator[Outcome | RemoteOutcome]:
        """Yield what the jobs give, in their order; where that is possible, without bringing every model here."""
        tables = self._tables
        if not isinstance(self._compute, SummingCompute):
            return self._compute(list(jobs.values()), tables.vector, tables.optimizer_state)
        sums: dict[int, Sum] = {}
        free: set[int] = set()
        for name in jobs:
            recipes = {user: tables.recipes[user] for user in self._users.get(name, ())}
            mine = {user: recipe for user, recipe in recipes.items() if isinstance(recipe, Sum)}
            sums |= mine
            if name not in self._held and len(mine) == len(recipes) and all(r.fallback != name for r in mine.values()):
                free.add(name)
        return self._compute.summed(jobs, sums, free, tables.vector, tables.optimizer_state)

    def _settle(self, names: Iterable[int]) -> None:
        """Go through recipes that may have become computable: sums are computed at once, trainings become ready."""
        tables, todo = self._tables, list(names)
        while todo:
            name = todo.pop()
            if name in self._settled:
                continue
            recipe = tables.recipes[name]
            if isinstance(recipe, Sum):
                total = self._advance(name, recipe)
                if total is not None:
                    tables.values[name] = total
                    todo.extend(self._users.get(name, ()))
            elif all(i in tables.values for i in recipe.inputs):
                self._settled.add(name)
                if isinstance(recipe, Job):
                    self._ready.append(name)
                    continue
                tables.values[name] = recipe.of(tables.vector(recipe.base), tables.vector(recipe.part))
                for i in set(recipe.inputs):
                    self._release(i)
                todo.extend(self._users.get(name, ()))

    def _advance(self, name: int, recipe: Sum) -> Tensor | None:
        """Add to a sum all terms that are there, in order; return it once none is missing."""
        running = self._running.get(name)
        if running is None:
            if not all(self._there(int(ref)) for _, ref in recipe.terms[:FIRST_TERMS]):
                return None
            running = self._running[name] = RunningMerge(self._spec, len(recipe.terms))
        if not self._add_terms(name, recipe, running):
            return None
        if recipe.fallback is None:
            fallback = None
        else:
            fallback = self._tables.values.get(int(recipe.fallback))
            if running.empty and fallback is None:
                return None
        del self._running[name]
        self._settled.add(name)
        total = running.result(fallback)
        losses = [(c, self._tables.losses[int(ref)]) for c, ref in recipe.terms if int(ref) in self._tables.losses]
        if len(losses) == len(recipe.terms) and all(c >= 0 for c, _ in losses):
            self._tables.losses[name] = sum(c * loss for c, loss in losses) / max(1e-300, sum(c for c, _ in losses))
        if recipe.fallback is not None:
            self._release(int(recipe.fallback))
        return total

    def _add_terms(self, name: int, recipe: Sum, running: RunningMerge) -> bool:
        """Add terms until one is missing; return whether none is."""
        terms, values = recipe.terms, self._tables.values
        while running.next < len(terms):
            first = running.next
            here = list(takewhile(lambda term: int(term[1]) in values, islice(terms, first, None)))
            if here:
                finite = running.add([c for c, _ in here], [values[int(ref)] for _, ref in here])
            else:
                coefficient, ref = terms[first]
                remote = self._remote.get(int(ref))
                if remote is None:
                    return False
                finite = [running.count(coefficient, remote.finite, remote.parts.get((name, first)))]
            for place, good in enumerate(finite, first):
                ref = terms[place][1]
                if not good:
                    self._rejected(int(ref))
                again = place + 1 < len(terms) and terms[place + 1][1] == ref
                if not again and recipe.fallback != ref:
                    self._release(int(ref))
        return True

    def _there(self, name: int) -> bool:
        return name in self._tables.values or name in self._remote

    def _release(self, name: int) -> None:
        """Count one use of a model as done; after the last, forget the model unless someone else holds it."""
        self._uses[name] -= 1
        if self._uses[name] == 0 and name not in self._held:
            self._tables.values.pop(name, None)
            self._tables.optimizer_states.pop(name, None)
            self._remote.pop(name, None)
