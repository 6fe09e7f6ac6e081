"""The deployed model store: vectors that are there, named by numbers of this host's own.

Arithmetic is the simulator's: sums in float64 in the order of the names, a term that is not finite left out.

A model that its sender has masked is 64-bit words. It can be kept and be in a sum
(`espalier.fleet.secure.aggregator`); whoever asks for its numbers is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from espalier.core.address import Address
from espalier.core.errors import ConfigError, TrainingError
from espalier.core.params import ParamSpec, Spans, spliced
from espalier.core.store import Ref
from espalier.fleet.node.journal import Journal
from espalier.policies.secure_sum import Total
from espalier.secure.masks import Words


class EagerStore:
    """Implements :class:`espalier.core.store.ModelStore` over vectors in memory, mirrored in the journal."""

    def __init__(
        self,
        spec: ParamSpec,
        initial: Callable[[int], Tensor],
        journal: Journal,
        rejected: Callable[[int], None] = lambda ref: None,
    ) -> None:
        self.spec = spec
        self._initial = initial
        self._journal = journal
        self._rejected = rejected
        plain: dict[str, Any] = journal.get("store") or {"next": 1, "losses": {}, "initials": {}}
        self._next: int = plain["next"]
        self._losses: dict[int, float] = plain["losses"]
        #: whose report brought a model
        self._senders: dict[int, Address] = plain.get("senders", {})
        self._initials: dict[int, int] = plain["initials"]
        self._values, self._memories = journal.models()
        self._on_disk = {*self._values, *(-m for m in self._memories)}
        #: sums up what children have masked; set by the engine
        self.sums: Callable[[Mapping[Address, Ref]], Total]

    def initial(self, index: int = 0) -> Ref:
        """Return the ``index``-th initial model."""
        if self._initials.get(index) not in self._values:
            self._initials[index] = int(self.put(self._initial(index)))
        return Ref(self._initials[index])

    def put(self, vector: Tensor) -> Ref:
        """Keep a vector; it must not be changed afterwards."""
        if vector.shape != (self.spec.size,):
            raise TrainingError(f"A model has {self.spec.size} numbers; got a tensor of shape {tuple(vector.shape)}.")
        return self._named(vector)

    def _named(self, vector: Tensor) -> Ref:
        ref = Ref(self._next)
        self._next += 1
        self._values[int(ref)] = vector
        return ref

    def seal(self, words: Words) -> Ref:
        """Keep what a child has masked."""
        return self._named(torch.from_numpy(words.view(np.int64)))

    def words(self, ref: Ref) -> Words:
        """Return what a child has masked."""
        return self._values[int(ref)].numpy().view(np.uint64)

    def masked_sum(self, models: Mapping[Address, Ref]) -> Total:
        """Return the sum of what children have masked; see :class:`espalier.policies.secure_sum.HiddenModels`."""
        return self.sums(models)

    def learnt(self, vector: Tensor, loss: float, memory: Tensor | None) -> Ref:
        """Keep what a training left: the model, its mean loss, and the optimiser's state if it is carried on."""
        ref = self.put(vector)
        self._losses[int(ref)] = loss
        if memory is not None:
            self._memories[int(ref)] = memory
        return ref

    def combine(self, terms: Sequence[tuple[float, Ref]], fallback: Ref | None = None) -> Ref:
        """Return ``sum(c * w)``; see :meth:`espalier.core.store.ModelStore.combine`."""
        if not terms:
            raise TrainingError("A merge needs at least one model.")
        if len(terms) == 1 and terms[0][0] == 1.0:
            return terms[0][1]
        floats = self.spec.n_float
        total: Tensor | None = None
        kept = lost = 0.0
        largest, tail = -math.inf, None
        dtype = torch.float32
        for coefficient, ref in sorted(((float(c), r) for c, r in terms), key=lambda term: int(term[1])):
            vector = self.vector(ref)
            if not math.isfinite(float(vector.sum())):
                self._rejected(int(ref))
                lost += coefficient
                continue
            if total is None:
                total, dtype = torch.zeros(floats, dtype=torch.float64), vector.dtype
            total.add_(vector[:floats], alpha=coefficient)
            kept += coefficient
            if self.spec.size > floats and coefficient > largest:
                largest, tail = coefficient, vector[floats:]
        if total is None:
            if fallback is None:
                raise TrainingError(
                    "Every model of a merge has non-finite numbers and there is no earlier model to fall back on. "
                    "Lower the learning rate, or check the data for NaN."
                )
            return fallback
        if lost and kept:
            total *= (kept + lost) / kept
        head = total.to(dtype)
        ref = self.put(head if tail is None else torch.cat([head, tail]))
        self._average_loss(ref, terms)
        return ref

    def _average_loss(self, ref: Ref, terms: Sequence[tuple[float, Ref]]) -> None:
        """Keep the average of the terms' losses as that of their average."""
        losses = [(c, self._losses[int(r)]) for c, r in terms if int(r) in self._losses]
        if len(losses) == len(terms) and all(c >= 0 for c, _ in losses):
            self._losses[int(ref)] = sum(c * loss for c, loss in losses) / max(1e-300, sum(c for c, _ in losses))

    def splice(self, base: Ref, part: Ref, spans: Spans) -> Ref:
        """Return ``base`` with the numbers of ``part`` in some places."""
        return base if not spans or base == part else self.put(spliced(self.vector(base), self.vector(part), spans))

    def vectors(self, refs: Sequence[Ref]) -> Tensor:
        """Return models as rows."""
        return torch.stack([self.vector(r) for r in refs])

    def vector(self, ref: Ref) -> Tensor:
        """Return one model."""
        if int(ref) not in self._values:
            raise TrainingError(f"Model {int(ref)} is unknown here: no node held it any more.")
        found = self._values[int(ref)]
        if found.dtype == torch.int64:
            raise ConfigError(
                "merge.kind = 'secure': another policy of this aggregator looks at single models, and they are masked. "
                "Use a method whose policies do not, or another merge."
            )
        return found

    def memory(self, ref: Ref) -> Tensor | None:
        """Return the optimiser's state that a training left."""
        return self._memories.get(int(ref))

    def told_loss(self, ref: Ref, loss: float) -> None:
        """Keep the loss that a child told of a model of its."""
        self._losses[int(ref)] = loss

    def told_by(self, ref: Ref, sender: Address) -> None:
        """Keep who has reported a model."""
        self._senders[int(ref)] = sender

    def sender(self, ref: int) -> Address | None:
        """Return who has reported a model (None: nobody)."""
        return self._senders.get(ref)

    def loss(self, ref: Ref) -> float:
        """Return the mean training loss of the training that made a model."""
        return self._losses.get(int(ref), math.nan)

    def keep_only(self, held: set[int]) -> None:
        """Forget what nobody holds, and bring the journal up to date (it is not committed here)."""
        live = held | set(self._initials.values())
        for table in (self._values, self._memories, self._losses, self._senders):
            for name in [n for n in table if n not in live]:
                del table[name]
        wanted = {*self._values, *(-m for m in self._memories)}
        for name in wanted - self._on_disk:
            self._journal.keep(name, self._values[name] if name > 0 else self._memories[-name])
        self._journal.forget(self._on_disk - wanted)
        self._on_disk = wanted
        told = {"losses": self._losses, "senders": self._senders}
        self._journal.put("store", {"next": self._next, "initials": self._initials, **told})

    def __len__(self) -> int:
        return len(self._values)
