"""What the suite says of methods with a mistake in them: a sentence each."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from espalier import (
    Arrival,
    Contribution,
    Local,
    LocalView,
    Merge,
    Method,
    Order,
    Pace,
    Plan,
    Ref,
    Rules,
    Selection,
    Setting,
    Train,
    View,
)
from espalier.core.errors import ConfigError, EspalierError
from espalier.testing import check


@dataclass(frozen=True)
class Mistaken(Method, kind="mistaken"):
    """HierFAVG with another policy in it."""

    case: int = 0

    def plan(self, setting: Setting) -> Plan:
        plan = replace(super().plan(setting), edge=Rules(pace=Pace(setting.updates)))
        match CASES[self.case][0]:
            case Merge() as merge:
                return replace(plan, root=Rules(merge=merge))
            case Local() as local:
                return replace(plan, local=local)
            case Selection() as selection:
                return replace(plan, edge=Rules(selection=selection, pace=Pace(setting.updates)))
            case Pace() as pace:
                return replace(plan, edge=Rules(pace=pace))
            case None:
                return None  # type: ignore[return-value]
            case "devices":
                return replace(plan, serves="devices")  # type: ignore[arg-type]
        return replace(plan, serves="device")


def merging(number: int, merge: Callable[..., Any]) -> Merge:
    @dataclass(frozen=True)
    class Wrong(Merge, kind=f"mistaken_{number}"):
        def merge(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
            found: dict[str, Ref] = merge(self, view, arrivals)
            return found

    return Wrong()


def models(arrivals: Sequence[Arrival]) -> list[Ref]:
    return [a.report.models[""] for a in arrivals]


def remembering(policy: Merge, view: View, arrivals: Sequence[Arrival]) -> Any:
    policy.last = Merge.merge(policy, view, arrivals)  # type: ignore[attr-defined]
    return policy.last  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Endless(Local, kind="mistaken_endless"):
    def then(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Train | None:
        return Train(start=order.models[""], updates=1, clock=order.clock, name="again")


@dataclass(frozen=True)
class Plain(Local, kind="mistaken_plain"):
    def done(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Contribution:
        return dict(models)  # type: ignore[return-value]


@dataclass(frozen=True)
class Elsewhere(Local, kind="mistaken_elsewhere"):
    def done(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Contribution:
        return Contribution({"mine": next(iter(models.values()))})


@dataclass(frozen=True)
class Idle(Local, kind="mistaken_idle"):
    def train(self, view: LocalView, order: Order) -> Train:
        return None  # type: ignore[return-value]


@dataclass(frozen=True)
class Nobody(Selection, kind="mistaken_nobody"):
    def pick(self, view: View) -> list[int]:
        return []


@dataclass(frozen=True)
class Strangers(Selection, kind="mistaken_strangers"):
    def pick(self, view: View) -> list[int]:
        return [0, 1, 999]


@dataclass(frozen=True)
class Counting(Pace, kind="mistaken_counting"):
    def assign(self, view: View, chosen: Sequence[int]) -> Mapping[int, int]:  # type: ignore[override]
        return dict.fromkeys(chosen, 2)


@dataclass(frozen=True)
class Numbers(Local, kind="mistaken_numbers"):
    def train(self, view: LocalView, order: Order) -> Train:
        return replace(super().train(view, order), correction=torch.zeros(3))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Lottery(Merge, kind="mistaken_lottery"):
    def weight(self, view: View, arrival: Arrival, group: str) -> float:
        return random.random()


CASES: list[tuple[Any, str, str]] = [
    (Lottery(), "determinism", r"two runs of one seed differ in metrics: draw with view.env.rng"),
    (None, "determinism", "method 'mistaken': plan returned None; it must return a Plan"),
    ("own", "learns", r'serves="device", but no device ever used a model of its own: Contribution\(uses'),
    (merging(1, lambda p, v, a: models(a)), "determinism", r"merge returned \[Ref.*it must return a Ref by group"),
    (merging(2, lambda p, v, a: None), "determinism", "merge returned None; it must return a Ref by group"),
    (merging(3, lambda p, v, a: {"": v.store.vectors(models(a)).mean(0)}), "determinism", r"store.put\(vector\)"),
    (merging(4, lambda p, v, a: {"": v.store.combine([(1.0, m) for m in models(a)])}), "fixed_point", "must sum to 1"),
    (merging(5, remembering), "determinism", r"policy.last = .*what a policy remembers is its State"),
    (merging(6, lambda p, v, a: {"": 1 // 0}), "determinism", r"ZeroDivisionError.*test_mistakes.py, line"),
    (Endless(), "determinism", "then returned Train.*with a name of its own, or None"),
    (Plain(), "determinism", "done returned .*it must return a Contribution"),
    (Elsewhere(), "learns", "all devices still use an initial model"),
    (Idle(), "determinism", "train returned None; it must return a Train"),
    (Nobody(), "determinism", r"pick returned \[\]; it must return 1 or more of view.children"),
    (Strangers(), "determinism", r"pick returned \[0, 1, 999\]; it must return 1 or more of view.children"),
    (Counting(), "determinism", "assign returned {0: 2.*it must return an Assignment for each child"),
    (Numbers(), "determinism", "train returned Train.*models are Refs"),
    ("devices", "determinism", "its plan serves 'devices'; accepted: root, edge, device"),
]


def unregister() -> None:
    """Let nobody else find these classes."""
    for family in (Method, Merge, Local, Selection, Pace):
        for kind in [k for k in family.kinds if k.startswith("mistaken")]:
            del family.kinds[kind]


unregister()


@pytest.mark.parametrize("case", range(len(CASES)))
def test_a_mistake_is_a_sentence(case: int) -> None:
    _, name, said = CASES[case]
    with pytest.raises((AssertionError, EspalierError), match=said) as found:
        check(Mistaken(case), name)
    assert "\n" not in str(found.value)


def test_what_is_wrong_with_a_class_is_said_when_it_is_defined_or_used() -> None:
    class Undecorated(Method, kind="mistaken_undecorated"):
        beta: float = 0.5

    with pytest.raises(ConfigError, match=r"beta: the class must be decorated @dataclass\(frozen=True\)"):
        check("mistaken_undecorated", "determinism")
    unregister()
    with pytest.raises(ConfigError, match=r"State\.seen needs a default"):

        @dataclass(frozen=True)
        class Bare(Merge, kind="mistaken_bare"):
            @dataclass
            class State:
                seen: int

    unregister()
