"""A fleet and a store small enough to reason about: models are single numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from espalier.core.address import Address
from espalier.core.messages import Action, Arrived, Order, Report, Send
from espalier.core.params import ParamSpec, Spans
from espalier.core.seeds import stream
from espalier.core.store import Ref


class NumberStore:
    """Models are numbers; combining is arithmetic."""

    def __init__(self) -> None:
        self.numbers: list[float] = [0.0]
        self.spec = ParamSpec.of(nn.Linear(1, 1, bias=False))

    def initial(self, index: int = 0) -> Ref:
        return Ref(0)

    def number(self, value: float) -> Ref:
        self.numbers.append(value)
        return Ref(len(self.numbers) - 1)

    def combine(self, terms: Sequence[tuple[float, Ref]], fallback: Ref | None = None) -> Ref:
        return self.number(sum(c * self.numbers[r] for c, r in terms))

    def splice(self, base: Ref, part: Ref, spans: Spans) -> Ref:
        return part if spans else base

    def put(self, vector: Tensor) -> Ref:
        return self.number(float(vector[0]))

    def vectors(self, refs: Sequence[Ref]) -> Tensor:
        return torch.tensor([[self.numbers[r]] for r in refs])

    def loss(self, ref: Ref) -> float:
        return 0.0


class SmallFleet:
    """Devices 0–9 with device + 1 samples each; who reports to whom is a dict."""

    def __init__(self, parents: dict[Address, Address]) -> None:
        self.parents = parents
        self.store = NumberStore()
        self.groups: dict[Address, str] = {}
        self.at_work: set[Address] = set()

    def parent(self, node: Address) -> Address | None:
        return self.parents.get(node)

    def children(self, node: Address) -> Sequence[Address]:
        return sorted(c for c, p in self.parents.items() if p == node)

    def devices(self) -> Sequence[Address]:
        return sorted(d for d in self.parents if d < 10)

    def samples(self, node: Address) -> int:
        return node + 1 if node < 10 else sum(self.samples(c) for c in self.children(node))

    def group(self, device: Address) -> str:
        return self.groups.get(device, "")

    def may_aggregate(self, device: Address) -> bool:
        return True

    def is_device(self, node: Address) -> bool:
        return node < 10

    def busy(self, node: Address) -> bool:
        return node in self.at_work

    def credible(self, seconds: Any) -> Any:
        return seconds

    def rng(self, *path: str | int) -> np.random.Generator:
        return stream(0, *path)

    def accuracy(self, refs: Sequence[Ref], where: str, node: Address) -> list[float]:
        return [0.5 for _ in refs]

    def losses(self, refs: Sequence[Ref], where: str, node: Address) -> list[float]:
        return [0.5 for _ in refs]

    @property
    def places(self) -> Any:
        return self

    @property
    def speeds(self) -> Any:
        return self

    @property
    def links(self) -> Any:
        return self

    @property
    def training(self) -> Any:
        return self

    @property
    def trials(self) -> Any:
        return self

    def update_batches(self, device: Address) -> int:
        return 2

    def lr_at(self, clock: int) -> float:
        return 0.1


def orders(actions: list[Action]) -> dict[Address, Order]:
    """Return the orders among actions by receiver."""
    return {a.message.to: a.message for a in actions if isinstance(a, Send) and isinstance(a.message, Order)}


def reports(actions: list[Action]) -> list[Report]:
    """Return the reports among actions."""
    return [a.message for a in actions if isinstance(a, Send) and isinstance(a.message, Report)]


def answer(order: Order, model: Ref | None, samples: int, now: float, **changes: Any) -> Arrived:
    """Return the arrival of a report that answers an order."""
    models = {} if model is None else {next(iter(order.models)): model}
    fields: dict[str, Any] = {
        "order": order.id, "dispatcher": order.sender, "sender": order.to, "to": order.sender, "models": models,
        "samples": dict.fromkeys(models, samples), "updates": 1, "round": order.round, "sent": now,
    }  # fmt: skip
    return Arrived(Report(**{**fields, **changes}))
