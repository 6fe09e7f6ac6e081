"""What policies remember and hand to each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import espalier
from espalier.core.codec import pack, unpack
from espalier.core.device import Device, DeviceState
from espalier.core.errors import ConfigError
from espalier.core.memory import Memory, Policy, Product, providers
from espalier.core.method import Setting, available, override
from espalier.core.policies import Local, Merge, Pace
from espalier.core.statistics import LABEL_HISTOGRAMS
from espalier.core.store import Ref
from espalier.experiment import Experiment

SETTING = Setting(10, 2, 10)


@dataclass(frozen=True)
class Tally(Merge, kind="test_tally"):
    @dataclass
    class State:
        seen: dict[int, Ref] = field(default_factory=dict)
        count: int = 0


@dataclass(frozen=True)
class TallyMore(Tally, kind="test_tally_more"):
    @dataclass
    class State(Tally.State):
        more: float = 0.0


def test_a_state_belongs_to_its_policy_and_survives_being_saved() -> None:
    memory = Memory()
    assert not memory
    one, other = memory.state(Tally()), memory.state(TallyMore())
    one.seen[3] = Ref(7)
    other.more = 0.5
    assert memory.state(Tally()) is one and other.count == 0
    again = unpack(pack(memory))
    assert again == memory and isinstance(again.state(TallyMore()), TallyMore.State)
    assert type(again.state(Tally()).seen[3]) is Ref


def test_a_device_whose_policies_have_forgotten_may_be_forgotten() -> None:
    device = Device(0, Local(), Pace(), env=None, state=DeviceState())  # type: ignore[arg-type]
    assert device.idle
    device.state.memory.state(Tally()).count = 1
    assert not device.idle
    device.state.memory.drop_state(Tally())
    assert device.idle


def test_a_state_that_could_not_be_saved_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Sloppy\.State must be a dataclass"):

        class Sloppy(Merge):
            class State:
                pass


def test_a_product_is_fresh_until_it_is_provided() -> None:
    memory, lengths = Memory(), Product("lengths", dict[int, float])
    memory.product(lengths)[3] = 1.5
    assert memory.product(lengths) == {3: 1.5}
    memory.provide(lengths, {})
    assert memory.product(lengths) == {}


def test_a_policy_without_what_it_needs_is_refused_when_the_run_is_built() -> None:
    plan = available()["hierfavg"]().plan(SETTING)
    with pytest.raises(ConfigError) as caught:
        override(plan, {"root": {"merge": {"kind": "distribution"}}})
    assert str(caught.value) == (
        "root.merge: merge 'distribution' needs the label histograms, which no policy of this node provides; "
        "provided by: structure 'balanced', structure 'subspace', structure 'time_sharing'."
    )
    # With a policy that provides them, or where they are not needed, it is accepted.
    override(plan, {"root": {"merge": {"kind": "distribution"}, "structure": {"kind": "subspace"}}})
    override(plan, {"root": {"merge": {"kind": "distribution", "by": "samples"}}})
    experiment = Experiment.build({"methods": [{"name": "csahfl", "edge": {"merge": "median"}}]})
    with pytest.raises(ConfigError, match=r"edge\.hand_down: hand_down 'group_models' needs the reporters"):
        experiment.methods[0].plan(SETTING)


def test_a_part_of_a_policy_may_need_what_the_whole_provides() -> None:
    plan = available()["hierfavg"]().plan(SETTING)
    override(plan, {"edge": {"pace": {"kind": "aaf", "abandon": {"kind": "adaptive"}}}})
    with pytest.raises(ConfigError, match=r"edge\.pace: abandon 'adaptive' needs the predicted time of the round"):
        override(plan, {"edge": {"pace": {"kind": "raf", "abandon": {"kind": "adaptive"}}}})


def test_every_method_has_what_its_policies_need() -> None:
    for method in available().values():
        override(method().plan(SETTING), {})


def policies() -> Iterator[tuple[type[Policy], ast.ClassDef]]:
    """Yield every policy of the package with its source."""
    root = Path(espalier.__file__).parent
    for package in ("core", "policies", "methods"):
        for path in sorted((root / package).rglob("*.py")):
            module = ".".join(("espalier", *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    cls: Any = getattr(import_module(module), node.name)
                    if isinstance(cls, type) and issubclass(cls, Policy):
                        yield cls, node


def test_what_a_policy_takes_and_gives_is_declared() -> None:
    """Names of products in a policy's calls are in its declarations, or in those of what it inherits."""
    found = 0
    for cls, source in policies():
        declared = {
            name.id
            for base in cls.__mro__
            for other, node in DECLARATIONS.get(base, [])
            for name in ast.walk(node)
            if isinstance(name, ast.Name) and other in ("needs", "uses", "provides")
        }
        for call in ast.walk(source):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            if call.func.attr in ("product", "provide") and call.args and isinstance(call.args[0], ast.Name):
                found += 1
                assert call.args[0].id in declared, f"{cls.__qualname__} does not declare {call.args[0].id}"
    assert found > 20


def declarations() -> dict[type, list[tuple[str, ast.AST]]]:
    """Return the nodes of each policy that say what it needs, uses and provides."""
    table: dict[type, list[tuple[str, ast.AST]]] = {}
    for cls, source in policies():
        for node in source.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                table.setdefault(cls, []).append((node.targets[0].id, node.value))
            elif isinstance(node, ast.FunctionDef):
                table.setdefault(cls, []).append((node.name, node))
    return table


DECLARATIONS = declarations()


def test_providers_are_named() -> None:
    assert {cls.kind for cls in providers(LABEL_HISTOGRAMS)} == {"subspace", "balanced", "time_sharing"}
