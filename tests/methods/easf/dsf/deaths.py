"""Kill devices of a serverless fleet at random moments, the root among them: the training must go on.

    outcome = play(7, "easf")
    assert not outcome.wrong

A script kills up to half of a fleet on digits, one after another or several at once: anybody, a central node, or
whoever is the root at that moment, with or without a word; some come back. Then the tree must be whole within the
time that it takes to notice and to vote, rounds must go on, and the accuracy must go on rising.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from espalier.core.address import host_of, level_of
from espalier.core.seeds import stream
from espalier.data import registry
from espalier.data.dataset import Dataset
from espalier.experiment import Experiment
from espalier.simulator.clock import WORLD, ToWorld
from espalier.simulator.runner import Runner
from espalier.simulator.simulation import Simulation

#: until a silent death is noticed
NOTICE_SECONDS = 2.0
#: in which a tree heals thereafter
HEALING_SECONDS = 4.0
#: in which devices are killed
KILLING_SECONDS = 20.0
#: of training after the last kill
TRAINING_SECONDS = 20.0
#: an accuracy from which on it need not rise any more
HIGH_ACCURACY = 0.9


@dataclass
class DeathsOutcome:
    """What a script did, and what came of it.

    Attributes:
        victims: Who was killed, when, and as what.
        devices: Of the fleet at first.
        rounds: Of the root until the tree had healed, and at the end.
        accuracies: At first, when the tree had healed, at the end.
        pause: The longest time between two closed rounds, in virtual seconds.
        wrong: What should not have happened.
    """

    devices: int
    victims: list[tuple[float, int, str]] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    pause: float = 0.0
    wrong: list[str] = field(default_factory=list)


@cache
def _digits() -> Dataset:
    return registry.load("digits")


def _simulation(method: str | dict[str, Any], devices: int, seed: int) -> Simulation:
    table = {
        "task": {"dataset": "digits", "model": "mlp", "model_options": {"hidden": [32]}},
        "partition": {"kind": "iid", "samples_per_device": [50, 80]},
        "fleet": {"devices": devices, "edges": 1},
        "training": {"batch_size": 10, "lr": 0.05},
        "world": {
            "compute": {"kind": "uniform", "low": 0.05, "high": 0.2},
            "links": {"kind": "graph", "degree": 5.0, "bandwidth": [2e4, 2e5]},
            "notice": NOTICE_SECONDS,
        },
        "stop": {"seconds": 1e6},
        "evaluate": {"every": 10**9},
        "record": {"spans": False},
        "methods": [],
    }
    return Runner(Experiment.build(table).only(method, seed), None, dataset=_digits()).simulation


def flaws(sim: Simulation) -> list[str]:
    """Say what is wrong with a tree that devices keep: everybody must reach the one root, through able parents."""
    found, tree = [], sim.fleet.tree
    for device in np.flatnonzero(sim.fleet.alive).tolist():
        path = list(tree.path(device))
        if path[-1] != tree.root:
            end, root = path[-1], tree.root
            found.append(f"{device} ends at {host_of(end)} level {level_of(end)}, not at the root {host_of(root)}")
        for child, parent in pairwise(path):
            if level_of(parent) != level_of(child) + 1:
                found.append(f"{device}: a parent of level {level_of(parent)} for level {level_of(child)}")
            if not sim.presence.alive(host_of(parent)):
                found.append(f"{device}: its parent {host_of(parent)} is gone")
            if not sim.fleet.capable[host_of(parent)]:
                found.append(f"{device}: its parent {host_of(parent)} may not aggregate")
    return found


def play(number: int, method: str | dict[str, Any] = "easf") -> DeathsOutcome:
    """Play script ``number``."""
    rng = stream(number, "deaths")
    devices = int(rng.integers(6, 17))
    sim, outcome = _simulation(method, devices, number), DeathsOutcome(devices)
    sim.start()
    outcome.accuracies.append(_accuracy(sim))
    closed = [0.0]
    for moment in np.sort(rng.uniform(0.0, KILLING_SECONDS, int(rng.integers(1, devices // 2 + 1)))).tolist():
        _advance(sim, moment, closed)
        _kill(sim, moment, rng, outcome)
    # Whoever comes back does so within 8 s.
    healing = KILLING_SECONDS + 8.0 + NOTICE_SECONDS + HEALING_SECONDS - sim.now
    for seconds in (healing, TRAINING_SECONDS):
        _advance(sim, sim.now + seconds, closed)
        outcome.wrong += flaws(sim)
        outcome.rounds.append(sim.round)
        outcome.accuracies.append(_accuracy(sim))
    outcome.pause = max(b - a for a, b in pairwise([*closed, sim.now]))
    _first, healed, last = outcome.accuracies
    if outcome.rounds[1] <= outcome.rounds[0]:
        outcome.wrong.append(f"no round has closed after {outcome.rounds[0]}")
    if last <= healed and last < HIGH_ACCURACY:
        outcome.wrong.append(f"the accuracy does not rise: {healed:.3f}, then {last:.3f}")
    return outcome


def _advance(sim: Simulation, until: float, closed: list[float]) -> None:
    rounds = sim.round
    while sim.clock.next_time <= until and sim.step():
        if sim.round > rounds:
            rounds = sim.round
            closed.append(sim.now)
    sim.clock.now = max(sim.now, until)


def _kill(sim: Simulation, now: float, rng: np.random.Generator, outcome: DeathsOutcome) -> None:
    """End somebody who is there (never the last two), and perhaps let it come back."""
    alive = np.flatnonzero(sim.fleet.alive).tolist()
    if len(alive) <= 2:
        return
    tree = sim.fleet.tree
    heads = sorted({host_of(a) for a in tree.aggregators() if tree.children(a)} & set(alive))
    kind = str(rng.choice(["anybody", "central node", "root"]))
    root = host_of(tree.root)
    if kind == "root" and root in alive:
        victim = root
    elif kind == "central node" and heads:
        victim = int(rng.choice(heads))
    else:
        kind, victim = "anybody", int(rng.choice(alive))
    goes = {"host": victim, "alive": False, "silent": bool(rng.random() < 0.5), "forgets": False}
    sim.clock.push(now, WORLD, ToWorld("churn", goes))
    if rng.random() < 0.3:
        comes = {"host": victim, "alive": True, "silent": False, "forgets": False}
        sim.clock.push(now + float(rng.uniform(0.1, 8.0)), WORLD, ToWorld("churn", comes))
    outcome.victims.append((now, victim, kind))


def _accuracy(sim: Simulation) -> float:
    sim.meter.measure()
    return float(sim.meter.last["acc_global"])
