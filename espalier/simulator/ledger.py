"""The lazy ledger: models that exist only as recipes until someone looks at them.

A training is written down as a :class:`Job` when it is ordered, a merge as a :class:`Sum`. Both are small
descriptors that may depend on each other to any depth. When a vector is wanted (an evaluation, a policy
that asks for vectors), everything it depends on is computed in waves: all jobs whose inputs are there run
together in one batch, however asynchronous the method was; each result streams into the sums that want it
and is dropped. What nobody wants (abandoned work) is never computed.

The numbers do not depend on when or in which company a job is computed: a job's result is a function of
its descriptor, and a sum adds its terms in the order of their names, in float64, along a tree whose shape
their number decides. So parts of sums may be made where the jobs are computed (:class:`Summing`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch import Tensor

from espalier.core.errors import TrainingError
from espalier.core.params import ParamSpec
from espalier.core.store import Ref
from espalier.simulator.jobs import Compute, Handed, Job, Outcome, Sum, Summing
from espalier.simulator.reduction import Running

#: terms that must be there before a sum of so many or more is begun
WORTH = 3


class Ledger:
    """The simulator's model store."""

    def __init__(
        self,
        spec: ParamSpec,
        compute: Compute,
        initial: Callable[[int], Tensor],
        roots: Callable[[set[int]], None],
        rejected: Callable[[int], None] = lambda ref: None,
        pending_limit: int = 20_000,
    ) -> None:
        self.spec = spec
        self._compute = compute
        self._initial = initial
        self._roots = roots
        self._rejected = rejected
        self._limit = pending_limit
        self._next = 0
        self._recipes: dict[int, Job | Sum] = {}
        self._values: dict[int, Tensor] = {}
        self._losses: dict[int, float] = {}
        self._memories: dict[int, Tensor] = {}
        self._initials: dict[int, int] = {}
        #: names given since the current event began: a node may hold them in its hand
        self.young: set[int] = set()
        self.ordered = 0
        self.computed = 0

    # -- the store's algebra -------------------------------------------------------------------------

    def initial(self, index: int = 0) -> Ref:
        """Return the ``index``-th initial model."""
        if index not in self._initials or self._initials[index] not in self._values:
            self._initials[index] = int(self.put(self._initial(index)))
        return Ref(self._initials[index])

    def put(self, vector: Tensor) -> Ref:
        """Keep a vector."""
        if vector.shape != (self.spec.size,):
            raise TrainingError(f"A model has {self.spec.size} numbers; got a tensor of shape {tuple(vector.shape)}.")
        ref = self._name()
        self._values[int(ref)] = vector
        return ref

    def combine(self, terms: Sequence[tuple[float, Ref]], fallback: Ref | None = None) -> Ref:
        """Write down a weighted sum."""
        if not terms:
            raise TrainingError("A merge needs at least one model.")
        if len(terms) == 1 and terms[0][0] == 1.0:
            return terms[0][1]
        ref = self._name()
        ordered = tuple(sorted(((float(c), r) for c, r in terms), key=lambda term: int(term[1])))
        self._recipes[int(ref)] = Sum(ordered, fallback)
        return ref

    def submit(self, job: Job) -> Ref:
        """Write down a training."""
        ref = self._name()
        self._recipes[int(ref)] = job
        self.ordered += 1
        return ref

    def vectors(self, refs: Sequence[Ref]) -> Tensor:
        """Return models as rows, computing what is missing."""
        self.flush(refs)
        return torch.stack([self._values[int(r)] for r in refs])

    def vector(self, ref: Ref) -> Tensor:
        """Return one model, computing it if need be."""
        self.flush([ref])
        return self._values[int(ref)]

    def loss(self, ref: Ref) -> float:
        """Return the mean training loss of the training that made a model."""
        self.flush([ref])
        return self._losses.get(int(ref), math.nan)

    def _name(self) -> Ref:
        ref = Ref(self._next)
        self._next += 1
        self.young.add(int(ref))
        if len(self._recipes) >= self._limit:
            self._relieve()
        return ref

    def _relieve(self) -> None:
        """Bound the number of open recipes: forget the unreachable, compute the rest's oldest half."""
        reachable = self._mark([])
        if len(reachable) >= self._limit // 2:
            self.flush([Ref(r) for r in sorted(reachable)[: len(reachable) // 2]])

    # -- computing -------------------------------------------------------------------------------------

    def flush(self, refs: Iterable[Ref]) -> None:
        """Compute the given models and everything they depend on."""
        asked = [int(r) for r in refs]
        targets = [r for r in asked if r not in self._values]
        if not targets:
            return
        held: set[int] = set()
        reachable = self._mark(asked, held)
        needed = self._needed(targets)
        for name in reachable - needed:
            held.update(self._recipes[name].inputs)
        held.update(asked)
        uses: dict[int, int] = {}
        users: dict[int, list[int]] = {}
        for name in sorted(needed):
            for i in set(self._recipes[name].inputs):
                uses[i] = uses.get(i, 0) + 1
                users.setdefault(i, []).append(name)
        running: dict[int, Running] = {}
        handed: dict[int, Handed] = {}
        finished: set[int] = set()
        ready: list[int] = []

        def release(name: int) -> None:
            uses[name] -= 1
            if uses[name] == 0 and name not in held:
                self._forget(name)
                handed.pop(name, None)

        def advance(name: int, recipe: Sum) -> Tensor | None:
            """Add to a sum all terms that are there, in order; return it once none is missing."""
            if name not in running:
                # A sum in the making is as large as two models: with fewer terms at hand it is not begun.
                if not all(int(r) in self._values or int(r) in handed for _, r in recipe.terms[:WORTH]):
                    return None
                running[name] = Running(self.spec, len(recipe.terms))
            at = running[name]
            while at.next < len(recipe.terms):
                coefficient, ref = recipe.terms[at.next]
                there, away = self._values.get(int(ref)), handed.get(int(ref))
                if there is not None:
                    good = at.add(coefficient, there)
                elif away is not None:
                    good = at.count(coefficient, away.fit, away.parts.get((name, at.next)))
                else:
                    return None
                if not good:
                    self._rejected(int(ref))
                again = at.next < len(recipe.terms) and recipe.terms[at.next][1] == ref
                if not again and recipe.fallback != ref:
                    release(int(ref))
            fallback = None if recipe.fallback is None else self._values.get(int(recipe.fallback))
            if at.empty and recipe.fallback is not None and fallback is None:
                return None
            del running[name]
            finished.add(name)
            total = at.result(fallback)
            if recipe.fallback is not None:
                release(int(recipe.fallback))
            return total

        def settle(names: list[int]) -> None:
            """Go through recipes that may have become computable; sums at once, jobs into ``ready``."""
            todo = list(names)
            while todo:
                name = todo.pop()
                recipe = self._recipes[name]
                if name in finished:
                    continue
                if isinstance(recipe, Job):
                    if all(i in self._values for i in recipe.inputs):
                        finished.add(name)
                        ready.append(name)
                    continue
                total = advance(name, recipe)
                if total is not None:
                    self._values[name] = total
                    todo.extend(users.get(name, ()))

        settle(sorted(needed, reverse=True))
        while ready:
            wave, ready = sorted(ready), []
            jobs = [self._job(n) for n in wave]
            for name, job, outcome in zip(wave, jobs, self._outcomes(wave, jobs, users, held), strict=True):
                self.computed += 1
                self._losses[name] = outcome.loss
                if outcome.memory is not None:
                    self._memories[name] = outcome.memory
                if isinstance(outcome, Handed):
                    handed[name] = outcome
                else:
                    self._values[name] = outcome.vector
                settle(users.get(name, []))
                for i in set(job.inputs):
                    release(i)
        for name in needed:
            self._recipes.pop(name, None)

    def _outcomes(
        self, wave: list[int], jobs: list[Job], users: Mapping[int, list[int]], held: AbstractSet[int]
    ) -> Iterator[Outcome | Handed]:
        """Compute the jobs of a wave in their order; where that is possible, without bringing every model here."""

        def vector(ref: Ref) -> Tensor:
            return self._values[int(ref)]

        def memory(ref: Ref) -> Tensor | None:
            return self._memories.get(int(ref))

        if not isinstance(self._compute, Summing):
            return self._compute(jobs, vector, memory)
        sums: dict[int, Sum] = {}
        free: set[int] = set()
        for name in wave:
            recipes = {user: self._recipes[user] for user in users.get(name, ())}
            mine = {user: recipe for user, recipe in recipes.items() if isinstance(recipe, Sum)}
            sums |= mine
            if name not in held and len(mine) == len(recipes) and all(r.fallback != name for r in mine.values()):
                free.add(name)
        return self._compute.summed(dict(zip(wave, jobs, strict=True)), sums, free, vector, memory)

    def _job(self, name: int) -> Job:
        job = self._recipes[name]
        assert isinstance(job, Job)
        return job

    def _needed(self, targets: Iterable[int]) -> set[int]:
        needed: set[int] = set()
        todo = list(targets)
        while todo:
            name = todo.pop()
            if name in needed or name in self._values:
                continue
            if name not in self._recipes:
                raise TrainingError(f"Model {name} is unknown: it was dropped because no node held it any more.")
            needed.add(name)
            todo.extend(self._recipes[name].inputs)
        return needed

    def _mark(self, extra: Iterable[int], held: set[int] | None = None) -> set[int]:
        """Forget what no node can reach; return the open recipes that can be reached."""
        live: set[int] = set() if held is None else held
        self._roots(live)
        live.update(self._initials.values(), self.young)
        reachable: set[int] = set()
        keep: set[int] = set()
        todo = [*live, *extra]
        while todo:
            name = todo.pop()
            if name in keep:
                continue
            keep.add(name)
            if name in self._recipes:
                reachable.add(name)
                todo.extend(self._recipes[name].inputs)
        for table in (self._values, self._recipes, self._losses, self._memories):
            for name in [n for n in table if n not in keep]:
                del table[name]
        return reachable

    def _forget(self, name: int) -> None:
        self._values.pop(name, None)
        self._memories.pop(name, None)

    # -- saving ----------------------------------------------------------------------------------------

    def save(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the open recipes as plain data, and the computed vectors by name."""
        self._mark([])
        plain = {
            "next": self._next,
            "recipes": dict(self._recipes),
            "losses": dict(self._losses),
            "initials": dict(self._initials),
            "ordered": self.ordered,
            "computed": self.computed,
        }
        tensors = {f"v{n}": t for n, t in self._values.items()}
        tensors |= {f"m{n}": t for n, t in self._memories.items()}
        return plain, tensors

    def restore(self, plain: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Become the ledger that :meth:`save` described."""
        self._next = plain["next"]
        self._recipes = dict(plain["recipes"])
        self._losses = dict(plain["losses"])
        self._initials = dict(plain["initials"])
        self.ordered, self.computed = plain["ordered"], plain["computed"]
        self._values = {int(k[1:]): t for k, t in tensors.items() if k[0] == "v"}
        self._memories = {int(k[1:]): t for k, t in tensors.items() if k[0] == "m"}
