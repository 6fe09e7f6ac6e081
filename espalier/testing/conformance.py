"""What every method must stand: a public suite that third parties run on their own methods.

    import pytest
    from espalier.testing import CHECKS, check

    @pytest.mark.parametrize("name", CHECKS)
    def test_my_method(name):
        check("my_method", name)

Each check runs the method on a small fleet of real digits under a world made for the occasion, and raises
:class:`AssertionError` with what went wrong.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from espalier.core.codec import pack, unpack
from espalier.core.errors import EspalierError
from espalier.core.method import Method
from espalier.data import registry
from espalier.data.dataset import Dataset
from espalier.experiment import Experiment
from espalier.simulator.runner import Runner

_PACKAGE = Path(__file__).parents[1]
_HINTS = {"FrozenInstanceError": "; what a policy remembers is its State, reached with view.state(self)"}
Target = str | Method | dict[str, Any]

#: a fleet small enough that a run takes about a second
BASE: dict[str, Any] = {
    "name": "conformance",
    "task": {"dataset": "digits", "model": "mlp", "model_options": {"hidden": [16]}},
    "partition": {"kind": "two_level", "fraction": 0.4, "val_fraction": 0.1},
    "fleet": {"devices": 12, "edges": 3, "fraction": 0.75},
    "training": {"batch_size": 10, "updates": 2, "lr": 0.1},
    "world": {"compute": {"kind": "rate", "low": 1.0, "high": 8.0}},
    "stop": {"rounds": 4},
}
#: the same with two servers between the edges and the cloud
DEEP: dict[str, Any] = {**BASE["fleet"], "edges": 4, "tiers": [2]}


@cache
def _digits() -> Dataset:
    return registry.load("digits")


def _runner(target: Target, **changes: Any) -> Runner:
    return Runner(Experiment.build({**BASE, **changes}).only(target, 3), None, dataset=_digits())


def _rows(runner: Runner) -> dict[str, list[tuple[Any, ...]]]:
    runner.recorder.commit()
    return {
        table: runner.recorder.connection.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall()
        for table in ("metrics", "arrays", "traffic", "spans", "moves", "events")
    }


def _run(target: Target, **changes: Any) -> Runner:
    runner = _runner(target, **changes)
    runner.run()
    return runner


def runs(target: Target, rounds: int) -> None:
    """Run a method for some rounds on the suite's fleet."""
    _ended_well(_run(target, stop={"rounds": rounds}), rounds)


def _ended_well(runner: Runner, rounds: int) -> None:
    sim = runner.simulation
    why = sim.stalled or "nobody had anything left to do"
    assert sim.round >= rounds, (
        f"the run stopped in round {sim.round} of {rounds} at {sim.now:.1f} s: {why.rstrip('.')}"
    )
    for name, vector in runner.final_models().items():
        assert torch.isfinite(vector).all(), f"the model {name} has numbers that are not finite"


def determinism(target: Target) -> None:
    """The same seed gives the same rows twice."""
    first, second = _rows(_run(target)), _rows(_run(target))
    for table, rows in first.items():
        assert rows == second[table], (
            f"two runs of one seed differ in {table}: draw with view.env.rng, and remember nothing outside a State"
        )


def resume(target: Target, often: Sequence[int] = (7, 61), **changes: Any) -> None:
    """A run that is saved and restored at any event ends with the rows of one that is not."""
    world = {
        "compute": {"kind": "noise", "of": {"kind": "rate", "low": 1.0, "high": 8.0}, "sigma": 0.3},
        "mobility": {"kind": "markov", "stay": 0.7},
        "churn": {"kind": "two_state", "working": 0.8, "mean_stay": 60},
    }
    changes = {"world": world, **changes}
    whole = _run(target, **changes)
    _ended_well(whole, changes.get("stop", BASE["stop"])["rounds"])
    for every in often:
        runner = _runner(target, **changes)
        runner.simulation.start()
        steps = 0
        while runner.simulation.step():
            steps += 1
            if steps % every == 0:
                plain, tensors = runner.simulation.save()
                fresh = _runner(target, **changes)
                runner.recorder.commit()
                runner.recorder.connection.backup(fresh.recorder.connection)
                fresh.simulation.restore(unpack(pack(plain)), {k: v.clone() for k, v in tensors.items()})
                runner = fresh
        found = _rows(runner)
        for table, rows in _rows(whole).items():
            assert found[table] == rows, (
                f"saving and restoring every {every} events changes {table}: what is remembered must be in a State"
            )


def empty_edge(target: Target) -> None:
    """All devices of one edge leave at once and come back later: the others go on."""
    gone = [{"time": 2.0, "host": d, "event": "leave"} for d in range(4)]
    back = [{"time": 40.0, "host": d, "event": "join"} for d in range(4)]
    world = {**BASE["world"], "churn": {"kind": "scheduled", "events": gone + back}}
    _ended_well(_run(target, world=world), BASE["stop"]["rounds"])


def late_updates(target: Target) -> None:
    """Run times vary wildly and devices move while they train: the run goes on, nothing counts twice."""
    world = {
        "compute": {"kind": "noise", "of": {"kind": "rate", "low": 0.5, "high": 8.0}, "sigma": 1.0},
        "mobility": {"kind": "markov", "stay": 0.5, "when": "mid_round"},
    }
    runner = _run(target, world=world)
    _ended_well(runner, BASE["stop"]["rounds"])
    ledger = runner.simulation.ledger
    assert ledger.computed <= ledger.ordered, "more trainings were computed than ordered"


def join_and_leave(target: Target) -> None:
    """Devices come and go, announced and silently, also while messages are under way to them: the run goes on."""
    announced = {"kind": "two_state", "working": 0.7, "mean_stay": 20}
    silent = {"kind": "failures", "rate": 0.02, "restart": 15.0}
    moving = {"mobility": {"kind": "markov", "stay": 0.7}, "links": {"kind": "uniform", "latency": 0.5}}
    for churn, more in ((announced, {}), (silent, {}), (announced, moving)):
        world = {**BASE["world"], "churn": churn, **more}
        _ended_well(_run(target, world=world), BASE["stop"]["rounds"])


def faults(target: Target) -> None:
    """Messages are lost, doubled, late and damaged, links vanish, edges and the cloud die: it goes on.

    ``join`` brings a server back with its state, ``restart`` without; 10 seconds of silence are noticed.
    """
    odds = {"loss": 0.05, "duplicate": 0.05, "reorder": 0.05, "corrupt": 0.02}
    trouble = {"kind": "random", "dev_edge": odds, "edge_cloud": odds, "dev_dev": odds}
    gone = {"outages": [{"a": 0, "start": 5.0, "end": 30.0}], "vanish_every": 40.0, "vanish_mean": 4.0}
    scripts: list[tuple[dict[str, Any], list[tuple[float, str, str]]]] = [
        (trouble, [(3.0, "edge:1", "die"), (60.0, "edge:1", "restart"), (5.0, "edge:2", "die")]),
        (trouble, [(2.0, "edge:0", "die"), (6.0, "edge:0", "restart"), (9.0, "cloud", "die"), (40.0, "cloud", "join")]),
        ({**trouble, **gone}, [(4.0, "cloud", "die"), (9.0, "cloud", "restart"), (12.0, "edge:1", "leave")]),
        ({"kind": "none"}, [(8.0, "cloud", "die"), (50.0, "cloud", "restart"), (20.0, "edge:0", "die")]),
    ]
    for messages, script in scripts:
        events = [{"time": t, "host": h, "event": e} for t, h, e in script]
        world = {**BASE["world"], "churn": {"kind": "scheduled", "events": events}, "faults": messages}
        _ended_well(_run(target, world=world), BASE["stop"]["rounds"])


def fixed_point(target: Target) -> None:
    """If training changes nothing, every model in use stays an initial model."""
    runner = _run(target, training={**BASE["training"], "lr": 1e-30})
    sim = runner.simulation
    initials = torch.stack([sim.task.initial(sim.seed, i) for i in range(8)])
    for address, models in sim.served.items():
        for group, ref in models.items():
            gap = (initials - sim.ledger.vector(ref)).abs().amax(1).min()
            assert gap <= 1e-6, (
                f"node {address}, group {group!r}: merging equal models moved them by {gap:.2e}: coefficients "
                "must sum to 1"
            )


def learns(target: Target, **changes: Any) -> None:
    """Devices come to use models that training has changed; where they are to use their own, they do."""
    runner = _run(target, **changes)
    _ended_well(runner, BASE["stop"]["rounds"])
    sim = runner.simulation
    own = [device for device in range(sim.fleet.n_devices) if sim.served.get(device)]
    assert own or sim.plan.serves != "device", (
        'the plan says serves="device", but no device ever used a model of its own: Contribution(uses=…) says which'
    )
    initials = torch.stack([sim.task.initial(sim.seed, i) for i in range(8)])
    used = [sim.ledger.vector(ref) for ref in sim.meter.in_use()[1]]
    assert any(float((initials - vector).abs().amax(1).min()) > 1e-6 for vector in used), (
        "all devices still use an initial model: is what they report merged, in the group that is handed down?"
    )


def deep_tree(target: Target) -> None:
    """The same with servers between the edges and the cloud."""
    learns(target, fleet=DEEP)


_ALL = (determinism, resume, empty_edge, late_updates, join_and_leave, faults, fixed_point, learns, deep_tree)
CHECKS: dict[str, Callable[[Target], None]] = {c.__name__: c for c in _ALL}


def check(target: Target, name: str) -> None:
    """Run one check on a method (its name, a table with options, or an object).

    Raises:
        AssertionError: What the method lacks, in a sentence; an error in its own code with the line.
        EspalierError: What of the method is refused.
    """
    try:
        CHECKS[name](target)
    except (AssertionError, EspalierError):
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [f for f in frames if f.line and not Path(f.filename).is_relative_to(_PACKAGE)]
        own = theirs[-1] if theirs else None
        where = "" if own is None else f" ({own.filename}, line {own.lineno}: {own.line})"
        hint = _HINTS.get(type(error).__name__, "")
        raise AssertionError(f"{type(error).__name__}: {error}{where}{hint}") from error
