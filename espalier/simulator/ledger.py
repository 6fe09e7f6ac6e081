"""The lazy ledger: models that exist only as recipes until someone looks at them.

A training is written down as a :class:`Job` when it is ordered, a merge as a :class:`Sum`. Both are small
descriptors that may depend on each other to any depth. When a vector is wanted (an evaluation, a policy
that asks for vectors), everything it depends on is computed in waves: all jobs whose inputs are there run
together in one batch, however asynchronous the method was; each result streams into the sums that want it
and is dropped. What nobody wants (abandoned work) is never computed.

The numbers do not depend on when a job is computed, nor on which others are computed with it: a job's result is
a function of its descriptor, and a sum adds its terms in the order of their names, in float64, along a tree whose
shape their number decides. So parts of sums may be made where the jobs are computed (:class:`SummingCompute`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from espalier.core.errors import TrainingError
from espalier.core.params import ParamSpec, Spans
from espalier.core.store import Ref
from espalier.simulator.jobs import Compute, Job, Splice, Sum
from espalier.simulator.wave import Tables, Wave

#: what a written-down training takes in memory, about (`benchmarks/ray_overhead.py --facts` measures it)
RECIPE_BYTES = 420


class Ledger:
    """The simulator's model store.

    Recipes may take ``pending_bytes``; beyond them the older half is computed. That bounds nothing where a model is
    larger than its recipe, as nearly all are: so the limit is beyond a round of a million devices.
    """

    def __init__(
        self,
        spec: ParamSpec,
        compute: Compute,
        initial: Callable[[int], Tensor],
        roots: Callable[[set[int]], None],
        rejected: Callable[[int], None] = lambda ref: None,
        pending_bytes: int = 512 << 20,
    ) -> None:
        self.spec = spec
        self._compute = compute
        self._initial = initial
        self._roots = roots
        self._rejected = rejected
        self._limit = pending_bytes // RECIPE_BYTES
        self._next = 0
        self._tables = Tables()
        self._initials: dict[int, int] = {}
        #: models named since the current event began: the node that takes the event may hold them in variables, where
        #: the search for models in use does not see them
        self.young: set[int] = set()
        self.ordered = 0

    @property
    def computed(self) -> int:
        """Trainings computed so far."""
        return self._tables.computed

    # -- the store's algebra -------------------------------------------------------------------------

    def initial(self, index: int = 0) -> Ref:
        """Return the ``index``-th initial model."""
        if index not in self._initials or self._initials[index] not in self._tables.values:
            self._initials[index] = int(self.put(self._initial(index)))
        return Ref(self._initials[index])

    def put(self, vector: Tensor) -> Ref:
        """Keep a vector."""
        if vector.shape != (self.spec.size,):
            raise TrainingError(f"A model has {self.spec.size} numbers; got a tensor of shape {tuple(vector.shape)}.")
        ref = self._name()
        self._tables.values[int(ref)] = vector
        return ref

    def combine(self, terms: Sequence[tuple[float, Ref]], fallback: Ref | None = None) -> Ref:
        """Write down a weighted sum."""
        if not terms:
            raise TrainingError("A merge needs at least one model.")
        if len(terms) == 1 and terms[0][0] == 1.0:
            return terms[0][1]
        ref = self._name()
        ordered = tuple(sorted(((float(c), r) for c, r in terms), key=lambda term: int(term[1])))
        self._tables.recipes[int(ref)] = Sum(ordered, fallback)
        return ref

    def splice(self, base: Ref, part: Ref, spans: Spans) -> Ref:
        """Write down a model that is another but for some places."""
        if not spans or base == part:
            return base
        ref = self._name()
        self._tables.recipes[int(ref)] = Splice(base, part, spans)
        return ref

    def submit(self, job: Job) -> Ref:
        """Write down a training."""
        ref = self._name()
        self._tables.recipes[int(ref)] = job
        self.ordered += 1
        return ref

    def vectors(self, refs: Sequence[Ref]) -> Tensor:
        """Return models as rows, computing what is missing."""
        self.flush(refs)
        return torch.stack([self._tables.values[int(r)] for r in refs])

    def vector(self, ref: Ref) -> Tensor:
        """Return one model, computing it if need be."""
        self.flush([ref])
        return self._tables.values[int(ref)]

    def loss(self, ref: Ref) -> float:
        """Return the mean training loss of the training that made a model, or of those it is the average of."""
        self.flush([ref])
        return self._tables.losses.get(int(ref), math.nan)

    def _name(self) -> Ref:
        ref = Ref(self._next)
        self._next += 1
        self.young.add(int(ref))
        if len(self._tables.recipes) >= self._limit:
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
        targets = [r for r in asked if r not in self._tables.values]
        if not targets:
            return
        held: set[int] = set()
        reachable = self._mark(asked, held)
        needed = self._needed(targets)
        for name in reachable - needed:
            held.update(self._tables.recipes[name].inputs)
        held.update(asked)
        Wave(self.spec, self._tables, needed, held, self._compute, self._rejected).run()

    def _needed(self, targets: Iterable[int]) -> set[int]:
        needed: set[int] = set()
        todo = list(targets)
        while todo:
            name = todo.pop()
            if name in needed or name in self._tables.values:
                continue
            if name not in self._tables.recipes:
                raise TrainingError(
                    f"Model {name} is unknown: it was dropped because no node held it any more. A policy keeps "
                    "models in its State (view.state(self)), nowhere else."
                )
            needed.add(name)
            todo.extend(self._tables.recipes[name].inputs)
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
            if name in self._tables.recipes:
                reachable.add(name)
                todo.extend(self._tables.recipes[name].inputs)
        self._tables.keep_only(keep)
        return reachable

    # -- saving ----------------------------------------------------------------------------------------

    def save(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the open recipes as plain data, and the computed vectors by name."""
        self._mark([])
        plain = {
            "next": self._next,
            "recipes": dict(self._tables.recipes),
            "losses": dict(self._tables.losses),
            "initials": dict(self._initials),
            "ordered": self.ordered,
            "computed": self.computed,
        }
        tensors = {f"v{n}": t for n, t in self._tables.values.items()}
        tensors |= {f"m{n}": t for n, t in self._tables.optimizer_states.items()}
        return plain, tensors

    def restore(self, plain: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Become the ledger that :meth:`save` described."""
        self._next = plain["next"]
        self._initials = dict(plain["initials"])
        self.ordered = plain["ordered"]
        self._tables = Tables(
            recipes=dict(plain["recipes"]),
            values={int(k[1:]): t for k, t in tensors.items() if k[0] == "v"},
            losses=dict(plain["losses"]),
            optimizer_states={int(k[1:]): t for k, t in tensors.items() if k[0] == "m"},
            computed=plain["computed"],
        )
