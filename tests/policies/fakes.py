"""A store that holds vectors and an environment made of tables, to look at a policy alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from espalier.core.memory import Memory
from espalier.core.messages import ALL, Order, Report
from espalier.core.params import ParamSpec
from espalier.core.policies import LocalView
from espalier.core.seeds import stream
from espalier.core.store import Ref
from espalier.core.view import Arrival, View


class FakeStore:
    """Computes at once, in float64."""

    def __init__(self, size: int) -> None:
        self.spec = ParamSpec.of(nn.Linear(size, 1, bias=False))
        self.table: dict[int, Tensor] = {}

    def put(self, vector: Any) -> Ref:
        ref = Ref(len(self.table))
        self.table[int(ref)] = torch.as_tensor(vector, dtype=torch.float64)
        return ref

    def initial(self, index: int = 0) -> Ref:
        return self.put(torch.full((self.spec.size,), float(index)))

    def combine(self, terms: Sequence[tuple[float, Ref]], fallback: Ref | None = None) -> Ref:
        return self.put(sum((c * self.table[int(r)] for c, r in terms), torch.zeros(self.spec.size)))

    def vectors(self, refs: Sequence[Ref]) -> Tensor:
        return torch.stack([self.table[int(r)] for r in refs])

    def loss(self, ref: Ref) -> float:
        return float("nan")


class FakeEnv:
    def __init__(self, size: int = 2, devices: Iterable[int] = (), **samples: int) -> None:
        self.store = FakeStore(size)
        self.known = sorted(devices)
        self.counts = {int(k.removeprefix("n")): v for k, v in samples.items()}
        self.groups: dict[int, str] = {}
        self.parents: dict[int, int] = {}

    def parent(self, node: int) -> int | None:
        return self.parents.get(node)

    def children(self, node: int) -> list[int]:
        return sorted(c for c, p in self.parents.items() if p == node)

    def devices(self) -> list[int]:
        return self.known

    def samples(self, node: int) -> int:
        return self.counts.get(node, 1)

    def group(self, device: int) -> str:
        return self.groups.get(device, ALL)

    def is_device(self, node: int) -> bool:
        return node < 100

    def rng(self, *path: str | int) -> np.random.Generator:
        return stream(0, *path)

    @property
    def places(self) -> FakeEnv:
        return self

    def edges(self) -> list[int]:
        return list(range(100, 110))


def view(
    env: Any, models: dict[str, Ref], *, clock: int = 0, memory: Memory | None = None, order: Order | None = None
) -> View:
    return View(0.0, 200, clock, clock, "", models, order, Memory() if memory is None else memory, env)


def local_view(env: Any = None, memory: Memory | None = None) -> LocalView:
    return LocalView(0.0, 7, Memory() if memory is None else memory, env)


def order(models: dict[str, Ref], *, updates: int = 1, **args: Any) -> Order:
    return Order(1, 200, 100, models, updates, 0, 0, 0.0, args=args)


def arrival(sender: int, models: dict[str, Ref], samples: int = 1, **stats: Any) -> Arrival:
    report = Report(1, 200, sender, 200, models, dict.fromkeys(models, samples), 1, 0, 0.0, stats=stats)
    return Arrival(report, 0.0)
