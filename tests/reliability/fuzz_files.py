"""Fuzzed files: messages and saved states, datasets, traces, run directories."""

from __future__ import annotations

import functools
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from espalier.core.codec import pack, unpack
from espalier.core.errors import ConfigError, DataError, RunError, WorldError
from espalier.core.store import Ref
from espalier.data import registry
from espalier.record.run import Run
from espalier.simulator import checkpoint
from espalier.simulator.runner import Stopped, resume
from espalier.world.shape import Shape
from espalier.world.world import World
from tests.data.loaders import test_cifar, test_femnist, test_har, test_idx, test_images, test_newsgroups, test_svhn
from tests.reliability.fuzzing import DAMAGE, Target, damaged, folder
from tests.reliability.runs import DIGITS, runner, stop_after

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
    """Pack plain data: they come back as they were."""
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
    """Unpack bytes that nobody packed, or that were damaged on the way."""
    unpack(case if isinstance(case, bytes) else damaged(state_bytes(), case))


# -- datasets ----------------------------------------------------------------------------------------------

WRITERS: dict[str, Any] = {
    "mnist": test_idx.write_mnist,
    "cifar10": lambda place: test_cifar.put(place, test_cifar.pickles(False)),
    "svhn": test_svhn.write,
    "har": test_har.write,
    "femnist": test_femnist.write,
    "20newsgroups": lambda place: test_newsgroups.write(place.parent, "folders"),
    "ham10000": test_images.write_ham,
}


@functools.cache
def pristine(name: str) -> Path:
    """Return a folder with a small copy of a dataset in its published format."""
    place = Path(tempfile.mkdtemp(prefix="espalier-fuzz-data-"))
    WRITERS[name](place / registry.find(name).folders[0])
    registry.load(name, place)  # undamaged it can be read
    return place


def dataset_file(case: tuple[str, float, list[Any]]) -> None:
    """Read a dataset of which one file is damaged."""
    name, which, damage = case
    with folder() as place:
        shutil.copytree(pristine(name), place / "data")
        files = sorted(p for p in (place / "data").rglob("*") if p.is_file())
        chosen = files[int(which * len(files))]
        chosen.write_bytes(damaged(chosen.read_bytes(), damage))
        found = registry.load(name, place / "data")
        assert len(found.x_train) == len(found.y_train) > 0


def own_arrays(case: tuple[dict[str, Any], list[Any]]) -> None:
    """Read a user's own arrays."""
    arrays, damage = case
    with folder() as place:
        np.savez(place / "own.npz", **arrays)
        if damage:
            (place / "own.npz").write_bytes(damaged((place / "own.npz").read_bytes(), damage))
        registry.load(str(place / "own.npz"))


def numbers(shape: tuple[int, ...], kind: str, seed: int) -> Any:
    """Return an array of some shape and type."""
    return (np.random.default_rng(seed).uniform(0, 5, size=shape)).astype(kind)


KINDS = st.sampled_from(["f4", "f8", "i8", "u1", "?", "U3", "c8", "i2"])
ANY = st.builds(numbers, st.lists(st.integers(0, 6), max_size=3).map(tuple), KINDS, st.integers(0, 9))
X = st.one_of(st.just(numbers((6, 3), "f4", 0)), st.just(numbers((6, 3), "f4", 0)), ANY)
Y = st.one_of(st.just(numbers((6,), "i8", 1)), st.just(numbers((6,), "i8", 1)), ANY)
ARRAY = st.one_of(X, Y)
NAMES = ["x_train", "y_train", "x_test", "y_test"]
ARRAYS = st.one_of(
    st.fixed_dictionaries(dict(zip(NAMES, (X, Y, X, Y), strict=True)), optional={"owner_train": Y, "owner_test": Y}),
    st.fixed_dictionaries({"x": X, "y": Y, "test": Y}, optional={"owner": Y, "classes": Y}),
    st.dictionaries(st.sampled_from([*NAMES, "x", "owner", "z"]), ARRAY, max_size=4),
)

# -- traces ------------------------------------------------------------------------------------------------

DEVICE = st.sampled_from(["0", "1", "2"])
COUNT = st.integers(0, 2).map(str)
NUMBER = st.floats(0.001, 1000).map(lambda x: f"{x:.4g}")
EVENT = st.sampled_from(["die", "join", "leave", "restart"])
COLUMNS: dict[tuple[str, str], dict[str, st.SearchStrategy[str]]] = {
    ("compute", "trace"): {"device": DEVICE, "time": NUMBER, "seconds_per_batch": NUMBER},
    ("links", "trace"): {"device": DEVICE, "time": NUMBER, "bandwidth": NUMBER, "latency": NUMBER},
    ("links", "pairs"): {"round": COUNT, "a": DEVICE, "b": DEVICE, "throughput": NUMBER},
    ("links", "graph_trace"): {"a": DEVICE, "b": DEVICE, "bandwidth": NUMBER, "latency": NUMBER},
    ("mobility", "trace"): {"device": DEVICE, "time": NUMBER, "edge": st.sampled_from(["0", "1"])},
    ("churn", "scheduled"): {"time": NUMBER, "device": st.one_of(DEVICE, st.just("edge:1")), "event": EVENT},
}
ODD = st.sampled_from(["", "-1", "9", "x", "²", '"', "é", "nan", "inf", "-inf", "1e999", "0", "1,2", "cloud"])


@st.composite
def traces(draw: st.DrawFn) -> tuple[str, dict[str, Any], bytes]:
    """Draw a CSV file that is almost right, and what it is for."""
    part, kind = draw(st.sampled_from(sorted(COLUMNS)))
    columns = COLUMNS[part, kind]
    rows = draw(st.lists(st.tuples(*columns.values()), min_size=1, max_size=7))
    lines = [",".join(columns), *(",".join(row) for row in rows)]
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        at = draw(st.integers(0, len(lines) - 1))
        cells = lines[at].split(",")
        cells[draw(st.integers(0, len(cells) - 1))] = draw(ODD)
        lines[at] = ",".join(cells)
    data = "\n".join(lines).encode()
    if draw(st.integers(0, 9)) == 0:
        data = damaged(data, draw(DAMAGE))
    table: dict[str, Any] = {"kind": kind}
    if kind == "trace" and part != "mobility":
        table["cycle"] = draw(st.booleans())
    return part, table, data


def trace(case: tuple[str, dict[str, Any], bytes]) -> None:
    """Follow a trace for a while."""
    part, table, data = case
    with folder() as place:
        (place / "trace.csv").write_bytes(data)
        spec = World.build({part: {**table, "file": str(place / "trace.csv")}})
        world = spec.bind(Shape(3, 2, 0, np.array([2, 2, 2]), 1000))
        for now in (0.0, 1.5, 1e6):
            assert world.compute.duration(1, 3.0, now, 0) >= 0
            assert world.links.time(0, 3, 1000, now, 3) >= 0
        world.churn.window(0.0, 100.0)
        if world.mobility.when == "time":
            world.mobility.window(0.0, 100.0)


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
    """Read a damaged checkpoint: it is what it was, or refused."""
    path = sorted((stopped_run() / "checkpoints").iterdir())[-1]
    true, vectors = checkpoint.read(path)
    with folder() as place:
        copy = place / path.name
        copy.write_bytes(damaged(path.read_bytes(), damage))
        plain, tensors = checkpoint.read(copy)
        assert pack(plain) == pack(true)
        assert all(torch.equal(tensors[k], v) for k, v in vectors.items())


def run_directory(case: tuple[str, list[Any]]) -> None:
    """Read a damaged run directory, and go on with it."""
    name, damage = case
    with folder() as place:
        copy = Path(shutil.copytree(stopped_run(), place / "run"))
        target = sorted(copy.rglob("state-*"))[-1] if name == "state" else copy / name
        target.write_bytes(damaged(target.read_bytes(), damage))
        unreadable: RunError | None = None
        try:
            run = Run(copy)
            assert run.status["state"] and run.rounds >= 0
            run.frame()
            run.events()
        except RunError as error:
            unreadable = error
        one = resume(copy, dataset=DIGITS)
        one.simulation.limits = replace(one.simulation.limits, rounds=3)
        one.run()
        if unreadable is not None:
            raise unreadable


TARGETS = (
    Target("message", PLAIN, message, (), share=100),
    Target("broken message", st.one_of(st.binary(max_size=60), DAMAGE), broken_message, (RunError,), share=100),
    Target(
        "dataset file",
        st.tuples(st.sampled_from(sorted(WRITERS)), st.floats(0, 0.999), DAMAGE),
        dataset_file,
        (DataError,),
        share=80,
    ),
    Target("own arrays", st.tuples(ARRAYS, st.one_of(st.just([]), DAMAGE)), own_arrays, (DataError,), share=60),
    Target("trace", traces(), trace, (WorldError, ConfigError), share=60),
    Target("checkpoint", DAMAGE, saved_state, (RunError,), share=50),
    Target(
        "run directory",
        st.tuples(st.sampled_from(["run.sqlite", "run.toml", "state"]), DAMAGE),
        run_directory,
        share=10,
    ),
)
