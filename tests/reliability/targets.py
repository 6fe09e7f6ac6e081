"""What is fuzzed: configuration, partitions, messages, dataset files, traces, checkpoints, databases, the command."""

from __future__ import annotations

import functools
import shutil
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from click.testing import CliRunner
from hypothesis import strategies as st

from espalier.cli.main import main
from espalier.core.codec import pack, unpack
from espalier.core.errors import ConfigError, DataError, EspalierError, RunError, WorldError
from espalier.core.store import Ref
from espalier.data import registry
from espalier.data.dataset import Dataset
from espalier.data.partition import partition
from espalier.data.partitions import partition_spec
from espalier.experiment import Experiment, bundled, read
from espalier.record.run import Run
from espalier.simulator import checkpoint
from espalier.simulator.directory import without_none
from espalier.simulator.runner import Runner, Stopped, resume
from espalier.world.protocols import Shape
from espalier.world.world import World
from tests.data.loaders import test_cifar, test_femnist, test_har, test_idx, test_images, test_newsgroups, test_svhn
from tests.reliability.fuzzing import CHANGE, DAMAGE, JUNK, Target, changed, damaged, folder
from tests.reliability.runs import DIGITS, runner, stop_after

# -- configuration -----------------------------------------------------------------------------------------

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


def small(experiment: Experiment) -> bool:
    """Tell whether an experiment is small enough to be tried."""
    fleet, training = experiment.fleet, experiment.training
    return (
        fleet.devices <= 60
        and training.updates <= 3
        and (experiment.stop.rounds or 1) <= 10
        and experiment.task.model == "mlp"
        and all(isinstance(h, int) and abs(h) <= 64 for h in _hidden(experiment))
    )


def _hidden(experiment: Experiment) -> list[Any]:
    found = experiment.task.model_options.get("hidden", [])
    return found if isinstance(found, list | tuple) else []


def configuration(case: list[Any]) -> None:
    """A configuration is built, and then run for a while, or refused."""
    try:
        experiment = Experiment.build(changed(FULL, case))
        again = Experiment.build(without_none(experiment.to_plain()))
    except EspalierError as error:
        assert str(error)
        return
    assert without_none(again.to_plain()) == without_none(experiment.to_plain()) or "nan" in str(experiment.to_plain())
    if not experiment.methods or not small(experiment):
        return
    try:
        one = Runner(experiment.only(experiment.methods[-1], experiment.seeds[0]), None, dataset=DIGITS)
        one.simulation.start()
        for _ in range(60):
            if not one.simulation.step():
                break
    except EspalierError as error:
        assert str(error)


def configuration_text(damage: list[Any]) -> None:
    """A configuration file is read or refused."""
    text = damaged(bundled()["demo"].read_bytes(), damage)
    with folder() as place:
        (place / "x.toml").write_bytes(text)
        try:
            read(place / "x.toml")
        except ConfigError as error:
            assert str(error)


SETTING = st.one_of(
    st.tuples(st.sampled_from([f"{a}.{b}" for a in FULL if isinstance(FULL[a], dict) for b in FULL[a]]), JUNK).map(
        lambda pair: f"{pair[0]}={pair[1]!r}"
    ),
    st.text(max_size=12),
)


def command(case: tuple[list[str], list[Any]]) -> None:
    """The command prints one line and exits with a documented code; a mistake leaves no directory behind."""
    settings, changes = case
    table = changed({**FULL, "methods": ["hierfavg"], "record": {"spans": False}}, changes)
    with folder() as place:
        try:
            (place / "x.toml").write_text(tomli_w.dumps(without_none(table)))
        except (TypeError, ValueError, UnicodeEncodeError):
            return
        try:
            planned = read(place / "x.toml", settings)
        except EspalierError:
            planned = None
        if planned is not None and not (small(planned) and len(planned.seeds) <= 2 and len(planned.methods) <= 2):
            return
        arguments = ["run", str(place / "x.toml"), "--out", str(place / "out"), "--quiet"]
        result = CliRunner().invoke(main, [*arguments, *(f"--set={s}" for s in settings)])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code in (0, 2, 3, 4, 5, 6, 7), result.output
        assert "Traceback" not in result.output, result.output
        if planned is None:
            assert result.exit_code != 0
            assert not (place / "out").exists()
        left = list((place / "out").rglob("run.lock"))
        for lock in left:  # whatever is there is a whole run directory
            assert Run(lock.parent).status["state"] in ("finished", "failed")


# -- partitions --------------------------------------------------------------------------------------------


@functools.cache
def blobs() -> Dataset:
    """Return a small dataset with owners."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 5, size=240)
    x = rng.normal(size=(240, 4)).astype(np.float32)
    cells, owners = y[:200].astype(np.int64), rng.integers(0, 12, size=200)
    return Dataset(
        "blobs", torch.from_numpy(x[:200]), torch.from_numpy(y[:200]), torch.from_numpy(x[200:]),
        torch.from_numpy(y[200:]), "classification", 5, cells, y[200:].astype(np.int64), 5, owners.astype(np.int64),
    )  # fmt: skip


OPTIONS = [
    "alpha", "classes", "per_device", "edge_fraction", "device_fraction", "fraction", "sigma", "sizes", "layout", "edges",
    "size", "shards", "val_fraction", "min_size", "concepts", "balance", "mean", "spread", "samples", "k",
]  # fmt: skip

PARTITION = st.tuples(
    st.sampled_from(["classes", "dirichlet", "explicit", "iid", "owner", "phefl", "pool", "sized", "two_level", "x"]),
    st.dictionaries(st.sampled_from(OPTIONS), JUNK, max_size=3),
    st.integers(-1, 60),
    st.integers(-1, 12),
    st.integers(0, 3),
)


def splitting(case: tuple[str, dict[str, Any], int, int, int]) -> None:
    """A partition deals every device rows of the dataset, or is refused."""
    kind, options, devices, edges, seed = case
    known = set(partition_fields(kind))
    options = {k: v for k, v in options.items() if k in known or len(options) == 1}
    data = blobs()
    try:
        found = partition(data, partition_spec(kind, options), n_devices=devices, n_edges=edges, seed=seed)
    except EspalierError as error:
        assert str(error)
        return
    assert found.n_devices == devices
    assert (found.sizes >= 1).all()
    assert found.indices.min() >= 0 and found.indices.max() < 200
    assert found.edge.min() >= 0 and found.edge.max() < edges
    assert np.allclose(found.test_mix.sum(1), 1, atol=1e-4)


def partition_fields(kind: str) -> list[str]:
    """Return the options that a partition takes."""
    from espalier.data.partitions.base import PartitionSpec

    cls = PartitionSpec.kinds.get(kind)
    return list(getattr(cls, "__dataclass_fields__", {}))


# -- messages ----------------------------------------------------------------------------------------------

PLAIN = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**80), 2**80), st.floats(allow_nan=False), st.text(max_size=8),
        st.binary(max_size=8), st.integers(0, 99).map(Ref),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.integers(-5, 5), st.text(max_size=3)), inner, max_size=3),
        st.frozensets(st.integers(-9, 9), max_size=3).map(set),
    ),
    max_leaves=12,
)  # fmt: skip


def message(case: Any) -> None:
    """Plain data come back as they were."""
    assert unpack(pack(case)) == case


@functools.cache
def state_bytes() -> bytes:
    """Return a whole simulation's state as bytes."""
    one = runner(None, stop={"rounds": 2})
    one.simulation.start()
    for _ in range(40):
        one.simulation.step()
    return pack(one.simulation.save()[0])


def broken_message(case: Any) -> None:
    """Bytes that nobody sent are refused, or are some other plain data."""
    data = case if isinstance(case, bytes) else damaged(state_bytes(), case)
    try:
        unpack(data)
    except RunError as error:
        assert str(error)


# -- dataset files -----------------------------------------------------------------------------------------

WRITERS: dict[str, Any] = {
    "mnist": test_idx.write_mnist,
    "cifar10": lambda place: test_cifar.put(place / "cifar-10-batches-py", test_cifar.pickles(False)),
    "svhn": test_svhn.write,
    "har": test_har.write,
    "femnist": test_femnist.write,
    "20newsgroups": lambda place: test_newsgroups.write(place, "bydate"),
    "ham10000": test_images.write_ham,
}


@functools.cache
def pristine(name: str) -> Path:
    """Return a folder with a small copy of a dataset in its published format."""
    place = Path(tempfile.mkdtemp(prefix="espalier-fuzz-data-"))
    own = place / registry.find(name).folders[0]
    WRITERS[name](own)
    return place


def dataset_file(case: tuple[str, float, list[Any]]) -> None:
    """A dataset is read, or refused with the file's name."""
    name, which, damage = case
    with folder() as place:
        shutil.copytree(pristine(name), place / "data")
        files = sorted(p for p in (place / "data").rglob("*") if p.is_file())
        chosen = files[int(which * len(files))]
        chosen.write_bytes(damaged(chosen.read_bytes(), damage))
        try:
            found = registry.load(name, place / "data")
        except DataError as error:
            assert str(error)
            return
        assert len(found.x_train) == len(found.y_train) > 0


def arrays_file(case: tuple[dict[str, Any], list[Any]]) -> None:
    """A user's own arrays are taken, or refused."""
    arrays, damage = case
    with folder() as place:
        np.savez(place / "own.npz", **arrays)
        if damage:
            (place / "own.npz").write_bytes(damaged((place / "own.npz").read_bytes(), damage))
        try:
            registry.load(str(place / "own.npz"))
        except EspalierError as error:
            assert str(error)


ARRAY = st.one_of(
    st.builds(
        lambda shape, kind, seed: (np.random.default_rng(seed).normal(size=shape) * 3).astype(kind),
        st.lists(st.integers(0, 6), max_size=3).map(tuple),
        st.sampled_from(["f4", "f8", "i8", "u1", "?", "U3", "c8", "i2"]),
        st.integers(0, 9),
    ),
    st.just(np.array([np.nan, np.inf, 1.0])),
)
ARRAYS = st.dictionaries(
    st.sampled_from(["x", "y", "x_train", "y_train", "x_test", "y_test", "owner", "owner_train", "test", "z"]), ARRAY
)

# -- traces ------------------------------------------------------------------------------------------------

COLUMNS = {
    ("compute", "trace"): "device,time,seconds_per_batch",
    ("links", "trace"): "device,time,bandwidth,latency",
    ("links", "pairs"): "a,b,seconds",
    ("links", "graph_trace"): "a,b,bandwidth,latency",
    ("mobility", "trace"): "device,time,edge",
    ("churn", "scheduled"): "time,device,event",
}
CELL = st.one_of(
    st.integers(-1, 4).map(str),
    st.floats().map(str),
    st.sampled_from(["", "die", "join", "leave", "restart", "edge:0", "edge:9", "cloud", "x", "²", '"', "é", "1e999"]),
)
TRACE = st.tuples(
    st.sampled_from(sorted(COLUMNS)),
    st.lists(st.lists(CELL, min_size=1, max_size=5), max_size=6),
    st.one_of(st.none(), st.binary(max_size=20)),
    st.booleans(),
)


def trace(case: tuple[tuple[str, str], list[list[str]], bytes | None, bool]) -> None:
    """A trace is followed, or refused with its line."""
    (part, kind), rows, raw, cycle = case
    with folder() as place:
        path = place / "trace.csv"
        text = "\n".join([COLUMNS[part, kind], *(",".join(r) for r in rows)])
        path.write_bytes(text.encode() if raw is None else text.encode()[: len(raw) * 3] + raw)
        table: dict[str, Any] = {"kind": kind, "file": str(path)}
        if cycle and (part, kind) in (("compute", "trace"), ("links", "trace")):
            table["cycle"] = True
        try:
            world = World.build({part: table}).bind(Shape(3, 2, 0, np.array([2, 2, 2]), 1000))
            for now in (0.0, 1.5, 1e6):
                world.compute.duration(1, 3.0, now, 0)
                world.links.time(0, 3, 1000, now, 3)
            world.churn.window(0.0, 100.0)
            if world.mobility.when == "time":
                world.mobility.window(0.0, 100.0)
        except (WorldError, ConfigError) as error:
            assert str(error)


# -- run directories ---------------------------------------------------------------------------------------


@functools.cache
def stopped_run() -> Path:
    """Return a run that was stopped in the middle."""
    place = Path(tempfile.mkdtemp(prefix="espalier-fuzz-run-")) / "run"
    try:
        stop_after(runner(place), 2)
    except Stopped:
        return place
    raise AssertionError("the run ended before it was stopped")


def saved_state(damage: list[Any]) -> None:
    """A checkpoint is whole, or refused."""
    path = sorted((stopped_run() / "checkpoints").iterdir())[-1]
    true, vectors = checkpoint.read(path)
    with folder() as place:
        copy = place / path.name
        copy.write_bytes(damaged(path.read_bytes(), damage))
        try:
            plain, tensors = checkpoint.read(copy)
        except RunError as error:
            assert str(error)
            return
        assert pack(plain) == pack(true)
        assert all(torch.equal(tensors[k], v) for k, v in vectors.items())


def run_directory(case: tuple[str, list[Any]]) -> None:
    """A damaged run directory is read or refused, gone on with or refused; it never crashes."""
    name, damage = case
    with folder() as place:
        copy = Path(shutil.copytree(stopped_run(), place / "run"))
        target = sorted(copy.rglob("state-*"))[-1] if name == "state" else copy / name
        target.write_bytes(damaged(target.read_bytes(), damage))
        try:
            run = Run(copy)
            run.frame(), run.events(), run.status
        except RunError as error:
            assert str(error)
        try:
            one = resume(copy, dataset=DIGITS)
        except EspalierError as error:
            assert str(error)
            return
        one.simulation.limits = type(one.simulation.limits)(rounds=3)
        try:
            one.run()
        except EspalierError as error:
            assert str(error)


TARGETS = {
    t.name: t
    for t in (
        Target("configuration", st.lists(CHANGE, min_size=1, max_size=3), configuration, share=220),
        Target("configuration text", DAMAGE, configuration_text, share=80),
        Target("command", st.tuples(st.lists(SETTING, max_size=2), st.lists(CHANGE, max_size=2)), command, share=40),
        Target("partition", PARTITION, splitting, share=200),
        Target("message", PLAIN, message, share=100),
        Target("broken message", st.one_of(st.binary(max_size=60), DAMAGE), broken_message, share=100),
        Target(
            "dataset file",
            st.tuples(st.sampled_from(sorted(WRITERS)), st.floats(0, 0.999), DAMAGE),
            dataset_file,
            share=80,
        ),
        Target("own arrays", st.tuples(ARRAYS, st.one_of(st.just([]), DAMAGE)), arrays_file, share=60),
        Target("trace", TRACE, trace, share=60),
        Target("checkpoint", DAMAGE, saved_state, share=50),
        Target(
            "run directory",
            st.tuples(st.sampled_from(["run.sqlite", "run.toml", "state"]), DAMAGE),
            run_directory,
            share=10,
        ),
    )
}

assert sum(t.share for t in TARGETS.values()) == 1000
_ = tomllib
