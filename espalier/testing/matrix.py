"""What each method is, read from its plan and from a short run: the table of docs/methods.md.

``espalier methods --table > docs/methods.md`` renews it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from espalier.core.errors import ConfigError
from espalier.core.method import Plan, Setting, available
from espalier.core.policies import Pace
from espalier.testing.conformance import BASE, CHECKS, DEEP, resume, runs

_HEAD = """# Methods

What each bundled method is, read from the policies that it plans for a fleet with edges (`espalier methods --table`).

- **pace**: how rounds close at the cloud and, where they merge, at the edges: `barrier` waits for all, `buffer` for
  some reports, `solo` for one child; other words are policies of the method's own (`espalier config pace`).
- **tree**: `any` depth, `flat` (devices report to the cloud, however many servers pass their messages on), `edges`
  (right below the cloud, no servers between), or `own` nodes that make their tree.
- **uses**: whose model a device uses in the end.
- **needs**: what not every experiment has and it refuses to do without.
- **resume**: whether a run that was saved and restored again and again has the rows of one that was not.
- **private**: whether it begins with noise on models and on the statistics that devices tell, or refuses.

Every method stands the conformance suite
({checks})
and gives on a fleet of processes what it gives simulated: tests hold each to both, so that there is no column for
fleets. Where the tree is of `edges` alone, a deeper one is refused. A merge, a pace or a selection of another method's
can take the place of its own ([parts](parts.md)).

| method | about | pace | tree | uses | needs | resume | private |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


_TAIL = """
## What is not there

- **FedHiSyn** (Li et al., ICPP 2022): devices of like speed hand their models on around a ring between two reports to
  the server. Here a device trains what its parent hands it, and the public texts that we found do not say in which
  order a ring is gone round, what becomes of a model that comes while its receiver works, and how the server weighs
  rings. `fedat` and `tifl` group devices by speed; in `d2d` models travel between devices.
- **SHARE** (Deng et al., ICDCS 2021): chooses edges, and devices for them, by what messages cost and how far edges'
  label mixes are from the whole's. The public texts that we found do not give its two algorithms. `hiflash` and
  `feduc` place devices by label mixes and times.
- **Robust merges** (median, trimmed mean, Krum, multi-Krum, geometric median, clipping) are no methods but parts that
  go with any of these: `espalier config merge`; what they do is [measured](results/robustness.md).
"""


@dataclass(frozen=True)
class Facts:
    """One method's row."""

    category: str
    pace: str
    tree: str
    uses: str
    needs: str
    resume: str
    private: str


def _pace(pace: Pace) -> str:
    return "solo" if pace.cohort_per_child else "buffer" if pace.buffer is not None else pace.kind


def _resumes(name: str, fleet: Mapping[str, Any]) -> bool:
    """Tell whether a short run in such a tree can be saved and restored.

    Raises:
        ConfigError: The method refuses the tree.
    """
    try:
        resume(name, often=(31,), fleet=fleet, stop={"rounds": 2})
    except AssertionError:
        return False
    return True


def _tree(plan: Plan, deep: bool) -> str:
    if not deep:
        return "edges"
    if plan.node is not None or plan.root.structure.peers:
        return "own"
    return "flat" if plan.root.structure.flat else "any"


def facts(name: str) -> Facts:
    """Return what a method is."""
    cls = available()[name]
    plan = cls().plan(Setting(12, 3, 10, 2, 0.75))
    try:
        deep, resumed = True, _resumes(name, DEEP)
    except ConfigError:
        deep, resumed = False, _resumes(name, BASE["fleet"])
    tree = _tree(plan, deep)
    levels = [plan.root.pace] if tree == "flat" else [plan.root.pace, plan.edge.pace]
    pace = ", ".join(dict.fromkeys(map(_pace, levels)))
    private = {"kind": "private", "clip": 1.0, "noise": 0.1, "statistics": 0.1}
    try:
        runs({"name": name, "local": private}, rounds=1)
    except ConfigError:
        hidden = "no"
    else:
        hidden = "yes"
    return Facts(cls.category, pace, tree, plan.serves, cls.needs, "yes" if resumed else "no", hidden)


def markdown() -> str:
    """Return docs/methods.md."""
    rows = []
    for name, cls in available().items():
        if cls.__module__.startswith("espalier."):
            found = facts(name)
            cells = (f"`{name}`", *astuple(found))
            rows.append("| " + " | ".join(cells).replace("|  |", "| |") + " |")
    return _HEAD.format(checks=", ".join(CHECKS)) + "\n".join([*rows, "", *_citations()]) + "\n" + _TAIL


def _citations() -> list[str]:
    """Return the list of what each method is called and where it comes from."""
    lines = ["## Where they come from", "", "| name | method | citation |", "| --- | --- | --- |"]
    for name, cls in available().items():
        if cls.__module__.startswith("espalier."):
            mark = " (reconstruction)" if cls.reconstruction else ""
            lines.append(f"| `{name}` | {cls.title}{mark} | {cls.citation} |")
    return lines
