"""What an aggregator remembers of its rounds: plain data, saved with the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from espalier.core.address import Address
from espalier.core.codec import register
from espalier.core.messages import Order
from espalier.core.store import Ref
from espalier.core.view import Arrival

#: the cohort of a survey: its answers go to the structure policy, not to a merge
SURVEY = "?"


@register
@dataclass(slots=True)
class Ticket:
    """An order that is out: to whom, in which cohort and round."""

    child: Address
    cohort: str
    round: int


@register
@dataclass(slots=True)
class Cohort:
    """One round in progress; ``held`` until its deadline, whoever has reported."""

    round: int = 0
    open: bool = False
    opened: float = 0.0
    overdue: bool = False
    held: bool = False
    waiting: dict[Address, int] = field(default_factory=dict)
    arrived: list[Arrival] = field(default_factory=list)


@register
@dataclass(slots=True)
class AggregatorState:
    """All that an aggregator remembers."""

    models: dict[str, Ref] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    cohorts: dict[str, Cohort] = field(default_factory=dict)
    tickets: dict[int, Ticket] = field(default_factory=dict)
    order: Order | None = None
    order_at: float = 0.0
    update_at: float = 0.0
    done: int = 0
    rounds: int = 0
    progress: int = 0
    orders: int = 0
    idle: set[Address] = field(default_factory=set)
    offences: dict[Address, int] = field(default_factory=dict)
    asleep: bool = False
    memory: dict[str, Any] = field(default_factory=dict)
