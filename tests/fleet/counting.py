"""A fleet that counts: device i's training adds one to weight i, so a model tells whose updates are in it.

With equal samples, a barrier and a merge after every edge round, a round in which every device is merged exactly once
adds exactly 1/N to each of the first N weights: a lost update or one that counts twice shows.
"""

from __future__ import annotations

import random
import time
from collections import Counter as Counts
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from espalier.core.policies import Merge
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.experiment import Experiment
from espalier.fleet.local import LocalFleet
from espalier.fleet.node.clients import Work
from espalier.record.run import Run
from espalier.simulator.task import Task


@dataclass(frozen=True)
class Audited(Merge, kind="audited"):
    """The average by samples, which notes whose reports it is made of."""

    def merge(self, view: View, arrivals: Sequence[Arrival]) -> dict[str, Ref]:
        reports = [a.report for a in arrivals]
        view.note("merged", who=[[r.sender, r.dispatcher, r.order] for r in reports], round=view.round)
        return super().merge(view, arrivals)


class Counter:
    """Adds one to the weight of its number; takes a little time for it."""

    seconds = 0.03

    def __init__(self, device: int) -> None:
        self.device = device

    def samples(self) -> int:
        return 10

    def fit(self, state: dict[str, Tensor], work: Work) -> dict[str, Tensor]:
        time.sleep(self.seconds)
        state["1.weight"].view(-1)[self.device] += 1.0
        return state

    def evaluate(self, state: dict[str, Tensor]) -> dict[str, float]:
        return {}


class Slow(Counter):
    """Takes a second: time to be killed in."""

    seconds = 1.0


class Quitter(Counter):
    """Fails every other time."""

    def fit(self, state: dict[str, Tensor], work: Work) -> dict[str, Tensor]:
        if work.round % 2:
            raise ValueError("out of luck")
        return super().fit(state, work)


def experiment(devices: int, edges: int, rounds: int, method: Any = "hierfavg", **tables: Any) -> Experiment:
    """A counting experiment; its model is a logistic regression of 650 weights."""
    audited = {"name": method, "edge": {"merge": "audited"}} if isinstance(method, str) else method
    return Experiment.build(
        {
            "methods": [audited], "seeds": [0], "task": {"dataset": "digits", "model": "logistic"},
            "fleet": {"devices": devices, "edges": edges},
            "stop": {"rounds": rounds}, **tables,
        }
    )  # fmt: skip


def counts(run: Path, devices: int, initial: Tensor) -> Tensor:
    """What a run has added to each device's weight."""
    model = load_file(run / "models" / "global.safetensors")
    return model["1.weight"].reshape(-1)[:devices].double() - initial[:devices].double()


def weights_of(made: Experiment) -> Tensor:
    """The initial weights of an experiment's model."""
    data = made.dataset()
    task = Task.of(made, data)
    return task.spec.views(task.initial(made.seeds[0], 0))["1.weight"].reshape(-1)


def fleet(
    made: Experiment,
    folder: Path,
    client: Callable[[int], str] = lambda number: "Counter",
    *,
    kind: type[LocalFleet] = LocalFleet,
    listen: Mapping[int, str] | None = None,
    dishonest: str = "",
    only: int | None = None,
    **options: Any,
) -> LocalFleet:
    """A local fleet whose devices count.

    ``listen`` says where edges listen, if not on loopback; ``dishonest`` is a plugin that makes them (or the ``only``
    one of this number) misbehave.
    """
    places = {number: {"listen": place} for number, place in (listen or {}).items()}
    wicked = {"plugins": ("tests.fleet.counting", dishonest)} if dishonest else {}

    def wicked_if(number: int) -> Mapping[str, Any]:
        return wicked if only in (None, number) else {}

    return kind(
        made, folder, device=lambda number: {"data": None, "client": f"tests.fleet.counting:{client(number)}"},
        edge=lambda number: {"data": None, **wicked_if(number), **places.get(number, {})},
        plugins=("tests.fleet.counting",), **options,
    )  # fmt: skip


def after_kills(made: Experiment, folder: Path, names: Sequence[str], seed: int) -> Tensor:
    """Kill nodes at random moments of a run's rounds and start them again at once; return what was counted."""
    rng, rounds = random.Random(seed), made.stop.rounds
    assert rounds is not None
    with fleet(made, folder, patience=30.0) as nodes:
        nodes.start()
        for name in names:
            next_one = min(nodes.until("cloud", lambda s: "round" in s)["round"] + 1, rounds - 2)
            nodes.until("cloud", lambda s, least=next_one: s.get("round", -1) >= least)  # type: ignore[misc]
            time.sleep(rng.uniform(0, 0.08))
            nodes.kill(name)
            nodes.launch(name)
        nodes.wait(60)
    return counts(folder / "cloud", made.fleet.devices, weights_of(made))


def merged(run: Run) -> Counts[tuple[int, int, int]]:
    """How often each report was merged: (device, dispatcher, order) -> times."""
    found: Counts[tuple[int, int, int]] = Counts()
    for event in run.events("merged"):
        found.update((sender, dispatcher, order) for sender, dispatcher, order in event["who"])
    return found
