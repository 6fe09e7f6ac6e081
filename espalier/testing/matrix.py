"""What each method is, read from its plan and from a short run: the table of docs/methods.md.

``espalier methods --table > docs/methods.md`` renews it.
"""

from __future__ import annotations

from dataclasses import dataclass

from espalier.core.errors import ConfigError
from espalier.core.learning import TrainingFacts
from espalier.core.method import Method, Plan, Setting, available
from espalier.core.policies import Pace
from espalier.testing.conformance import CHECKS, runs

_HEAD = """# Methods

What each bundled method is, read from the policies that it plans for a fleet with edges (`espalier methods --table`).

- **pace**: how rounds close at the cloud and, where they merge, at the edges: `barrier` waits for all, `buffer` for
  some reports, `solo` for one child; other words are policies of the method's own (`espalier config pace`).
- **tree**: `any` depth, `flat` (devices report to the cloud; edges pass on), or `own` nodes that make their tree.
- **uses**: whose model a device uses in the end.
- **needs**: the optimiser, where not every one will do.
- **private**: whether it begins with noise on models and on the statistics that devices tell, or refuses.

Every method stands the conformance suite
({checks})
and gives on a fleet of processes what it gives simulated: tests hold each to both, so that runs can be resumed and
deployed with all of them. A merge, a pace or a selection of another method's can
take the place of its own ([parts](parts.md)).

| method | about | pace | tree | uses | needs | private |
| --- | --- | --- | --- | --- | --- | --- |
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
    private: str


def _setting(training: TrainingFacts) -> Setting:
    return Setting(12, 3, 10, 2, 0.75, training=training)


def _pace(pace: Pace) -> str:
    return "solo" if pace.solo else "buffer" if pace.buffer is not None else pace.kind


def _plans(method: Method, training: TrainingFacts) -> bool:
    """Tell whether it takes a training as it is set."""
    try:
        method.plan(_setting(training))
    except ConfigError:
        return False
    return True


def _needs(method: Method) -> str:
    """Return what optimiser it wants: other ones are refused when it plans."""
    if not _plans(method, TrainingFacts(momentum=0.9)):
        return "plain SGD"
    return "" if _plans(method, TrainingFacts(optimizer="adam")) else "SGD"


def _tree(plan: Plan) -> str:
    if plan.node is not None or plan.root.structure.peers:
        return "own"
    return "flat" if plan.root.structure.flat else "any"


def facts(name: str) -> Facts:
    """Return what a method is."""
    cls = available()[name]
    method = cls()
    plan = method.plan(_setting(TrainingFacts()))
    tree = _tree(plan)
    levels = [plan.root.pace] if tree == "flat" else [plan.root.pace, plan.edge.pace]
    pace = ", ".join(dict.fromkeys(map(_pace, levels)))
    private = {"kind": "private", "clip": 1.0, "noise": 0.1, "statistics": 0.1}
    try:
        runs({"name": name, "local": private}, rounds=1)
    except ConfigError:
        hidden = "no"
    else:
        hidden = "yes"
    return Facts(cls.category, pace, tree, plan.serves, _needs(method), hidden)


def markdown() -> str:
    """Return docs/methods.md."""
    rows = []
    for name, cls in available().items():
        if cls.__module__.startswith("espalier."):
            found = facts(name)
            cells = (f"`{name}`", found.category, found.pace, found.tree, found.uses, found.needs, found.private)
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
