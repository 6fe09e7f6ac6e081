"""One experiment: methods × seeds under one task, fleet and world. One TOML file, or the same objects.

name = "two-level"
seeds = [0, 1, 2]
methods = ["hierfavg", { name = "fedprox", mu = 0.1, label = "FedProx 0.1" }]

[task]      dataset, model and their options
[partition] kind = "two_level" …
[fleet]     devices, edges, tiers, fraction
[training]  batch_size, updates, lr …
[world]     compute, links, mobility, churn, drift …
[stop]      rounds, seconds, budget
[evaluate]  every, seconds, by_source, prior, share
[record]    spans, checkpoint_rounds, checkpoint_seconds
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any, get_args

from torch import nn

from espalier.core.errors import ConfigError, nearest
from espalier.core.method import PARTS, Level, Method, Plan, Setting, make, override
from espalier.core.run_rounds import EvaluationSchedule, RunLimits
from espalier.data import registry
from espalier.data.dataset import Dataset
from espalier.data.partition import Partition, partition
from espalier.data.partitions import partition_spec
from espalier.experiments import bundled
from espalier.settings import FleetSpec, RecordSpec, TaskSpec, Training
from espalier.training.models import build as build_model
from espalier.world.world import World, everyday

NO_METHOD = "methods = []: name at least one, such as hierfavg; `espalier methods` lists them."
#: what is said where data have owners and rows are dealt at random all the same
OWNERS_UNUSED = (
    "The data say whose each row is, but rows are dealt to devices at random, as long as there is no [partition]: "
    "kind = 'owner' there makes every owner a device."
)
#: the method of whoever names none
DEFAULT_METHOD = "trellis"


@dataclass(frozen=True)
class MethodEntry:
    """A method of an experiment: its label in tables, its options, and policies put in place of its own."""

    method: Method
    label: str
    overrides: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def build(value: object) -> MethodEntry:
        """Make an entry from a name or a table (``name`` first)."""
        if isinstance(value, MethodEntry):
            return value
        if isinstance(value, Method):
            return MethodEntry(value, value.title or value.kind)
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, Mapping) or "name" not in value:
            raise ConfigError(f"methods: {value!r} must be a method's name or a table with a name.")
        table = dict(value)
        name, label = table.pop("name"), table.pop("label", None)
        overrides = {k: table.pop(k) for k in PARTS if isinstance(table.get(k), Mapping)}
        method = make(name, **table)
        return MethodEntry(method, label or method.title or name, overrides)

    def plan(self, setting: Setting) -> Plan:
        """Return the method's plan with the entry's own policies in place."""
        plan = self.method.plan(setting)
        if not isinstance(plan, Plan):
            raise ConfigError(f"method {self.method.kind!r}: plan returned {plan!r}; it must return a Plan.")
        if plan.serves not in get_args(Level):
            known = ", ".join(get_args(Level))
            raise ConfigError(f"method {self.method.kind!r}: its plan serves {plan.serves!r}; accepted: {known}.")
        return override(plan, self.overrides)

    def to_plain(self) -> dict[str, Any]:
        """Return the entry as a plain table."""
        options = self.method.to_plain()
        options.pop("kind")
        return {"name": self.method.kind, "label": self.label, **options, **self.overrides}


@dataclass(frozen=True)
class Experiment:
    """Everything that decides a run's numbers, but the seed."""

    name: str = "experiment"
    methods: tuple[MethodEntry, ...] = ()
    seeds: tuple[int, ...] = (0,)
    task: TaskSpec = field(default_factory=TaskSpec)
    partition: dict[str, Any] = field(default_factory=lambda: {"kind": "iid"})
    fleet: FleetSpec = field(default_factory=FleetSpec)
    training: Training = field(default_factory=Training)
    world: World = field(default_factory=everyday)
    stop: RunLimits = field(default_factory=RunLimits)
    evaluate: EvaluationSchedule = field(default_factory=EvaluationSchedule)
    record: RecordSpec = field(default_factory=RecordSpec)
    #: the labels of all methods that are to be compared; of an experiment of one of them, too (not configured)
    planned: tuple[str, ...] = field(default=(), compare=False)

    @staticmethod
    def build(table: Mapping[str, Any]) -> Experiment:
        """Make an experiment from a plain table, checking every key and value."""
        known = [name for name in Experiment.__dataclass_fields__ if name != "planned"]
        for key in table:
            if key not in known:
                raise ConfigError(f"{key}: unknown key; accepted: {', '.join(known)}.{nearest(key, known)}")
        parts: dict[str, Any] = {name: kind.build(table[name], name) for name, kind in _PARTS.items() if name in table}
        listed = table.get("methods", [DEFAULT_METHOD])
        methods = () if listed == [] else method_entries(listed)  # a table for any method names none
        seeds = table.get("seeds", [0])
        seeds = checked_seeds([seeds] if isinstance(seeds, int) else seeds)
        split = table.get("partition", {"kind": "iid"})
        if isinstance(split, str):
            split = {"kind": split}
        if not isinstance(split, Mapping):
            raise ConfigError(f"partition = {split!r}: must be a table with a kind.")
        found = Experiment(str(table.get("name", "experiment")), methods, seeds, partition=dict(split), **parts)
        found.partition_spec()
        return found

    def partition_spec(self) -> Any:
        """Return the partition's description, checked."""
        options = dict(self.partition)
        return partition_spec(str(options.pop("kind", "iid")), options)

    def dataset(self, data_dir: Path | None = None) -> Dataset:
        """Read the dataset; for choosing settings, with held-out training data in the place of the test data."""
        data = registry.load(self.task.dataset, data_dir, **self.task.dataset_options)
        return data.for_validation() if self.task.judged_on == "validation" else data

    def module(self, dataset: Dataset) -> nn.Module:
        """Build the model for a dataset."""
        return self.module_for(dataset.input_shape, dataset.n_classes, dataset.vocabulary)

    def module_for(self, input_shape: tuple[int, ...], n_classes: int, vocabulary: int | None = None) -> nn.Module:
        """Build the model for inputs of a shape (``vocabulary``: token ids) and so many outputs."""
        options = dict(self.task.model_options)
        if vocabulary is not None:
            options.setdefault("vocabulary", vocabulary)
        return build_model(self.task.model, input_shape=input_shape, n_classes=n_classes, **options)

    def split(self, dataset: Dataset, seed: int) -> Partition:
        """Deal the dataset to devices and edges."""
        return partition(
            dataset, self.partition_spec(), n_devices=self.fleet.devices, n_edges=self.fleet.edges, seed=seed
        )

    def only(self, method: object, seed: int) -> Experiment:
        """Return the experiment of one method (an entry, a name, a table or a method object) and one seed."""
        entry, planned = MethodEntry.build(method), self.planned or tuple(e.label for e in self.methods)
        planned = planned if entry.label in planned else ()
        return replace(self, methods=(entry,), seeds=checked_seeds([seed]), planned=planned)

    def ending_with(self, leader_seconds: float | None) -> Experiment:
        """Return the experiment with the virtual time that the comparison's first method took as its end.

        None, or no time (an ideal world): the same experiment.
        """
        if self.stop.budget != "time" or not leader_seconds:
            return self
        limits = [s for s in (self.stop.seconds, leader_seconds) if s is not None]
        return replace(self, stop=RunLimits(seconds=min(limits)))

    def to_plain(self) -> dict[str, Any]:
        """Return the experiment as a plain table; :meth:`build` makes an equal one of it."""
        return {
            "name": self.name,
            "seeds": list(self.seeds),
            "methods": [e.to_plain() for e in self.methods],
            "partition": dict(self.partition),
            **{name: getattr(self, name).to_plain() for name in _PARTS},
        }


def method_entries(values: object) -> tuple[MethodEntry, ...]:
    """Make the entries of one method or several, each with a label of its own."""
    several = values if isinstance(values, Iterable) and not isinstance(values, str | Mapping) else [values]
    entries = tuple(MethodEntry.build(value) for value in several)
    if not entries:
        raise ConfigError(NO_METHOD)
    labels = [e.label for e in entries]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f'methods: two are labelled {label!r}; give them labels (label = "…").')
    return entries


def checked_seeds(seeds: object) -> tuple[int, ...]:
    """Return seeds as whole numbers; each stands there once."""
    listed = list(seeds) if isinstance(seeds, Iterable) and not isinstance(seeds, str) else []
    if not listed or not all(isinstance(s, Integral) and not isinstance(s, bool) for s in listed):
        raise ConfigError(f"seeds = {seeds!r}: must be a list of whole numbers, such as [0, 1, 2] or range(3).")
    if len(set(listed)) < len(listed):
        raise ConfigError(f"seeds = {listed}: each must stand there once; a seed that is run twice gives the same run.")
    return tuple(int(s) for s in listed)


def experiment_of(value: object) -> Experiment:
    """Return the experiment that a caller means: one, a plain table, a file or a bundled name, or None for defaults."""
    match value:
        case None:
            return Experiment()
        case Experiment():
            return value
        case str() | Path():
            return read(value)
        case Mapping():
            return Experiment.build(value)
    raise ConfigError(
        f"The experiment is a {type(value).__name__}; give a table ({{'fleet': {{…}}, …}}) or the path of a TOML file."
    )


_PARTS: dict[str, Any] = {
    "task": TaskSpec,
    "fleet": FleetSpec,
    "training": Training,
    "world": World,
    "stop": RunLimits,
    "evaluate": EvaluationSchedule,
    "record": RecordSpec,
}


def read(name: str | Path, changes: Iterable[str] = ()) -> Experiment:
    """Read an experiment from a file or by its bundled name; ``changes`` are ``key=value`` in TOML."""
    path = Path(name)
    if not path.suffix and str(name) in bundled():
        path = bundled()[str(name)]
    if not path.is_file():
        known = ", ".join(bundled())
        raise ConfigError(f"There is no file {str(name)!r} and no bundled experiment of that name; known: {known}.")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error
    table.pop("about", None)  # a run's own run.toml says how it came to be
    for change in changes:
        _set(table, change)
    found = Experiment.build(table)
    if not found.methods:
        raise ConfigError(NO_METHOD)
    return found


def value_of(text: str, what: str) -> Any:
    """Read a value of the command line (``what`` it is, for messages): TOML, or a plain word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        word = text.strip()
        if word[:1] in ("{", "[", '"', "'"):  # no plain word, such as in task.dataset=digits
            raise ConfigError(f"{what} is not valid TOML: {error}.") from error
        return word


def _set(table: dict[str, Any], change: str) -> None:
    """Apply one ``a.b.c=value`` to a nested table."""
    key, sign, text = change.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"--set {change!r}: must be key=value, such as training.lr=0.1.")
    value = value_of(text, f"--set {change!r}: the value")
    *parents, last = key.strip().split(".")
    at: Any = table
    for parent in parents:
        at = at.setdefault(parent, {})
        if not isinstance(at, dict):
            raise ConfigError(f"--set {change!r}: {parent} is not a table.")
    at[last] = value
