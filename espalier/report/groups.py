"""Runs put together: one group per method and setting, over its seeds.

Only runs of one setting (task, partition, fleet, world) may be ranked together; each setting has a verdict of its own.
How a method is configured and how devices train is the user's choice: runs that differ in it are methods of their own,
and their labels say what sets them apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from espalier.record.measures import lower_is_better
from espalier.report.reading import Reading

#: parts of an experiment that decide what may be compared; names, seeds, limits and schedules do not
PARTS = ("task", "partition", "fleet", "world")
#: how parts of a world are written that take no time
FREE = ({"kind": "constant", "seconds": 0.0}, {"kind": "uniform", "bandwidth": float("inf"), "latency": 0.0})


@dataclass(frozen=True)
class CommonSetting:
    """What several runs have in common: the configuration, and what sets it apart from the others here."""

    experiment: dict[str, Any]
    name: str


@dataclass(frozen=True)
class Group:
    """One method under one setting.

    Attributes:
        number: Its place among all that were planned; decides its colour, which therefore stays when others begin.
        label: The method's label, with the setting's name where there are several.
        setting: The setting's place.
        readings: One per seed, by seed.
    """

    number: int
    label: str
    setting: int
    readings: tuple[Reading, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, ascending."""
        return tuple(r.seed for r in self.readings)

    @property
    def reconstruction(self) -> str:
        """What of the method is reconstructed; empty if nothing is."""
        return self.readings[0].reconstruction

    @property
    def face(self) -> Reading:
        """The run that is shown in detail: the first that was evaluated."""
        return next((r for r in self.readings if len(r.frame)), self.readings[0])


@dataclass(frozen=True)
class Groups:
    """All that a report shows: settings, groups, and what the reader must know of how they were put together."""

    settings: tuple[CommonSetting, ...]
    groups: tuple[Group, ...]
    notes: tuple[str, ...] = ()

    @property
    def score(self) -> str:
        """The main score's name."""
        return next((r.score for g in self.groups for r in g.readings if len(r.frame)), "acc")

    @property
    def lower(self) -> bool:
        """Whether a small main score is a good one."""
        return lower_is_better(self.score)

    @property
    def readings(self) -> list[Reading]:
        """Every run, group by group."""
        return [r for g in self.groups for r in g.readings]


def compare(readings: Sequence[Reading]) -> Groups:
    """Put runs together by setting, method and choices: in the order that was planned, else that of appearance."""
    keys: dict[str, Reading] = {}
    numbers: dict[tuple[object, ...], int] = {}
    places: dict[tuple[int, str, str], int] = {}
    found: dict[tuple[int, str, str], dict[int, Reading]] = {}
    notes: list[str] = []
    for reading in readings:
        key = json.dumps({p: reading.experiment.get(p) for p in PARTS}, sort_keys=True)
        keys.setdefault(key, reading)
        setting = list(keys).index(key)
        group = (setting, reading.label, json.dumps(choices_of(reading), sort_keys=True))
        for label in reading.planned:  # places of those to come are kept free
            numbers.setdefault((setting, label), len(numbers))
        if group not in found:  # the first of a label has the place that was kept
            first = not any(other[:2] == group[:2] for other in found)
            places[group] = numbers.setdefault(group[:2] if first else group, len(numbers))
        seeds = found.setdefault(group, {})
        if reading.seed in seeds:
            one, other = seeds[reading.seed], reading
            kept, left = (other, one) if _written(other) >= _written(one) else (one, other)
            notes.append(f"{reading.title} is there twice; {kept.directory} is shown, {left.directory} is not.")
            seeds[reading.seed] = kept
        else:
            seeds[reading.seed] = reading
    settings = _named([r.experiment for r in keys.values()])
    groups = []
    for group in sorted(found, key=lambda g: places[g]):
        (setting, label, choices), seeds = group, found[group]
        rivals = [json.loads(c) for s, other, c in found if (s, other) == (setting, label)]
        full = label + _told_apart(json.loads(choices), rivals)
        full = f"{full} · {settings[setting].name}" if len(settings) > 1 else full
        groups.append(Group(places[group], full, setting, tuple(seeds[s] for s in sorted(seeds))))
    return Groups(tuple(settings), tuple(groups), tuple(notes))


def choices_of(reading: Reading) -> dict[str, Any]:
    """Return what the user chose for a run: the method's options, and how devices train."""
    methods = reading.experiment.get("methods") or [None]
    options = methods[0] if isinstance(methods[0], Mapping) else {}
    return flat({"method": options, "training": reading.experiment.get("training", {})})


def _told_apart(choices: dict[str, Any], rivals: Sequence[dict[str, Any]]) -> str:
    """Return what sets choices apart from those of other groups under the same label, as an ending of the label."""
    keys = dict.fromkeys(k for rival in rivals for k in rival)
    differing = [k for k in keys if len({json.dumps(rival.get(k)) for rival in rivals}) > 1]
    text = ", ".join(f"{k.split('.')[-1]} {choices.get(k, 'default')}" for k in differing)
    return f" ({text})" if text else ""


def _written(reading: Reading) -> float:
    """Return when a run was last written to, in seconds of this machine."""
    if reading.directory is None:
        return 0.0
    return (reading.directory / "run.sqlite").stat().st_mtime


def _named(experiments: Sequence[dict[str, Any]]) -> list[CommonSetting]:
    if len(experiments) == 1:
        return [CommonSetting(experiments[0], "")]
    names = [str(e.get("name", "")) for e in experiments]
    if len(set(names)) == len(names):
        return [CommonSetting(e, n) for e, n in zip(experiments, names, strict=True)]
    tables = [flat({p: e.get(p) for p in PARTS}) for e in experiments]
    keys = list(dict.fromkeys(k for t in tables for k in t))
    differing = [k for k in keys if len({json.dumps(t.get(k)) for t in tables}) > 1]
    found = []
    for number, (experiment, table) in enumerate(zip(experiments, tables, strict=True), 1):
        text = ", ".join(f"{k.split('.')[-1]} {table.get(k, 'default')}" for k in differing)
        found.append(CommonSetting(experiment, text if len(text) <= 40 else f"setting {number}"))
    texts = [s.name for s in found]
    if len(set(texts)) < len(texts):
        found = [CommonSetting(s.experiment, f"setting {i}") for i, s in enumerate(found, 1)]
    return found


def flat(table: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return a nested table with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        where = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping):
            found |= flat(value, where)
        else:
            found[where] = value
    return found


def describe(experiment: Mapping[str, Any]) -> str:
    """Say in one line what was learnt, by whom, in which world."""
    task, split, fleet, world = (experiment.get(part, {}) for part in PARTS)
    there = {n: v for n, v in world.items() if isinstance(v, Mapping) and v.get("kind") not in (None, "none", "all")}
    parts = [f"{name} {'free' if v in FREE else v['kind']}" for name, v in there.items()]
    options = ", ".join(f"{k} {v}" for k, v in split.items() if k != "kind")
    return (
        f"{fleet.get('devices', '?')} devices at {fleet.get('edges', '?')} edges learn {task.get('dataset', '?')} "
        f"({task.get('model', '?')}), partition {split.get('kind', 'iid')}{f' ({options})' if options else ''}; "
        f"world: {', '.join(parts) if any(v not in FREE for v in there.values()) else 'ideal'}"
    )
