"""Fuzzed settings: configuration tables and files, the command, partitions."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tomli_w
import torch
from click.testing import CliRunner
from hypothesis import strategies as st

from espalier.cli.main import main
from espalier.core.errors import ConfigError, EspalierError
from espalier.core.spec import without_none
from espalier.data.dataset import Dataset
from espalier.data.partition import partition
from espalier.data.partitions import partition_spec
from espalier.data.partitions.base import PartitionSpec
from espalier.experiment import Experiment, read
from espalier.experiments import bundled
from espalier.record.run import Run
from espalier.simulator.runner import Runner
from tests.reliability.fuzzing import CHANGE, DAMAGE, JUNK, Target, changed, damaged, folder
from tests.reliability.runs import DIGITS

#: a table with every part in it, so that changes have something to hit
FULL: dict[str, Any] = {
    "name": "fuzz",
    "seeds": [0],
    "methods": [
        "hierfavg",
        {"name": "fedprox", "mu": 0.1, "label": "p"},
        {"name": "hierfavg", "label": "r", "edge": {"merge": {"kind": "trimmed_mean", "share": 0.2}}},
    ],
    "task": {"dataset": "digits", "model": "mlp", "model_options": {"hidden": [8]}, "target": 0.5},
    "partition": {"kind": "two_level", "edge_fraction": 0.5, "device_fraction": 0.2},
    "fleet": {"devices": 12, "edges": 3, "fraction": 0.5},
    "training": {"batch_size": 10, "updates": 1, "lr": 0.1, "momentum": 0.5},
    "world": {
        "compute": {"kind": "noise", "of": {"kind": "rate", "low": 1.0, "high": 8.0}, "sigma": 0.3},
        "links": {"kind": "per_tier", "dev_edge": {"latency": 0.1}},
        "mobility": {"kind": "markov", "stay": 0.7},
        "churn": {"kind": "failures", "rate": 0.01, "hosts": ["devices", "edges"], "restart": 5.0},
        "drift": {"kind": "permute_labels", "at_round": 1, "fraction": 0.5},
        "capability": {"kind": "fraction", "fraction": 0.5},
        "faults": {"kind": "random", "dev_edge": {"loss": 0.1}, "outages": [{"a": 0, "start": 1.0, "end": 2.0}]},
        "attackers": {"kind": "sign_flip", "fraction": 0.2},
        "notice": 5.0,
    },
    "stop": {"rounds": 1, "seconds": 50.0},
    "evaluate": {"every": 1},
    "record": {"spans": True, "checkpoint_rounds": 1},
}
SETTINGS = [f"{part}.{name}" for part, table in FULL.items() if isinstance(table, dict) for name in table]


def small(experiment: Experiment) -> bool:
    """Tell whether an experiment is small enough to be tried."""
    hidden = experiment.task.model_options.get("hidden", [])
    widths = hidden if isinstance(hidden, list | tuple) else []
    return (
        experiment.fleet.devices <= 60
        and experiment.training.updates <= 3
        and (experiment.stop.rounds or 1) <= 10
        and experiment.task.model == "mlp"
        and all(isinstance(w, int) and abs(w) <= 64 for w in widths)
        and 1 <= len(experiment.methods) <= 3
        and len(experiment.seeds) <= 2
    )


def configuration(case: list[Any]) -> None:
    """Build a configuration, write it down and build it again, then run it for a while."""
    experiment = Experiment.build(changed(FULL, case))
    plain = without_none(experiment.to_plain())
    assert without_none(Experiment.build(plain).to_plain()) == plain
    if small(experiment):
        one = Runner(experiment.only(experiment.methods[-1], experiment.seeds[0]), None, dataset=DIGITS)
        one.simulation.start()
        for _ in range(60):
            if not one.simulation.step():
                break


def configuration_text(damage: list[Any]) -> None:
    """Read a damaged configuration file."""
    with folder() as place:
        (place / "x.toml").write_bytes(damaged(bundled()["demo"].read_bytes(), damage))
        read(place / "x.toml")


def command(case: tuple[list[str], list[Any]]) -> None:
    """Run the command: it exits with a documented code, and a mistake leaves no directory behind."""
    settings, changes = case
    table = changed({**FULL, "methods": ["hierfavg"], "record": {"spans": False}}, changes)
    with folder() as place:
        file, out = place / "x.toml", place / "out"
        try:
            file.write_text(tomli_w.dumps(without_none(table)))
        except (TypeError, ValueError):  # not to be said in TOML
            return
        mistake: EspalierError | None = None
        try:
            if not small(read(file, settings)):
                return
        except EspalierError as error:
            mistake = error
        result = CliRunner().invoke(
            main, ["run", str(file), "--out", str(out), "--quiet", *(f"--set={s}" for s in settings)]
        )
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code in (0, 2, 3, 4, 5, 6, 7), result.output
        assert "Traceback" not in result.output, result.output
        for lock in out.rglob("run.lock"):  # whatever is there is a whole run directory
            assert Run(lock.parent).status["state"] in ("finished", "failed")
        if mistake is not None:
            assert result.exit_code == mistake.exit_code
            assert not out.exists()
            raise mistake


SETTING = st.one_of(
    st.tuples(st.sampled_from(SETTINGS), JUNK).map(lambda pair: f"{pair[0]}={pair[1]!r}"), st.text(max_size=12)
)


@functools.cache
def blobs() -> Dataset:
    """Return a small dataset with owners."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 5, size=240)
    x = torch.from_numpy(rng.normal(size=(240, 4)).astype(np.float32))
    return Dataset.from_arrays(
        x[:200], y[:200], x[200:], y[200:], owner_train=rng.integers(0, 12, size=200),
        owner_test=rng.integers(0, 12, size=40),
    )  # fmt: skip


@st.composite
def partitions(draw: st.DrawFn) -> tuple[str, dict[str, Any], int, int, int]:
    """Draw a partition's kind, some of its options, and a fleet."""
    kind = draw(st.sampled_from([*sorted(PartitionSpec.kinds), "x"]))
    known = list(getattr(PartitionSpec.kinds.get(kind), "__dataclass_fields__", {"x": None}))
    values = st.one_of(st.floats(0, 1), st.integers(1, 6), JUNK)
    options = draw(st.dictionaries(st.sampled_from(known or ["x"]), values, max_size=2))
    devices = draw(st.one_of(st.integers(5, 40), st.integers(5, 40), st.integers(-1, 300)))
    edges = draw(st.one_of(st.integers(1, 5), st.integers(1, 5), st.integers(-1, 50)))
    return kind, options, devices, edges, draw(st.integers(0, 3))


def splitting(case: tuple[str, dict[str, Any], int, int, int]) -> None:
    """Deal a dataset's rows to devices; every device has some."""
    kind, options, devices, edges, seed = case
    found = partition(blobs(), partition_spec(kind, options), n_devices=devices, n_edges=edges, seed=seed)
    assert found.n_devices == devices
    assert (found.sizes >= 1).all()
    assert found.indices.min() >= 0 and found.indices.max() < 200
    assert found.edge.min() >= 0 and found.edge.max() < edges
    assert np.allclose(found.test_mix.sum(1), 1, atol=1e-4)


TARGETS = (
    Target("configuration", st.lists(CHANGE, min_size=1, max_size=3), configuration, share=200),
    Target("configuration text", DAMAGE, configuration_text, (ConfigError,), share=80),
    Target("command", st.tuples(st.lists(SETTING, max_size=2), st.lists(CHANGE, max_size=2)), command, share=40),
    Target("partition", partitions(), splitting, share=160),
)
