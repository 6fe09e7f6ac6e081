"""CSV files: whatever they hold, a world or a clear error."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from espalier.core.errors import EspalierError, WorldError
from espalier.world import Shape
from espalier.world.churn import Scheduled
from espalier.world.compute import Trace as ComputeTrace
from espalier.world.links import MeasuredGraph, Pairs
from espalier.world.links import Trace as LinkTrace
from espalier.world.mobility import Waypoints
from espalier.world.traces import Steps, index, number, read

SHAPE = Shape(3, 2, 0, model_bytes=100)
HEADERS = {
    "compute": "device,time,seconds_per_batch",
    "cycled": "device,time,seconds_per_batch",
    "links": "device,time,bandwidth,latency",
    "pairs": "round,a,b,throughput",
    "graph": "a,b,bandwidth,latency",
    "moves": "device,time,edge",
    "churn": "time,device,event",
}


def bind(kind: str, file: Path) -> object:
    match kind:
        case "compute" | "cycled":
            return ComputeTrace(file, cycle=kind == "cycled").bind(SHAPE)
        case "links":
            return LinkTrace(file).bind(SHAPE)
        case "pairs":
            return Pairs(file=file).bind(SHAPE)
        case "graph":
            return MeasuredGraph(file).bind(SHAPE)
        case "moves":
            return Waypoints(file).bind(SHAPE)
    return Scheduled(file=file).bind(SHAPE)


cells = st.sampled_from(
    ["0", "1", "2", "3", "-1", "0.5", "1e3", "inf", "nan", "", " 1", "join", "die", "edge:0", "cloud", '"', "9" * 5000]
)
lines = st.lists(st.lists(cells, max_size=5).map(",".join), max_size=6).map("\n".join)
texts = st.tuples(st.sampled_from([*HEADERS.values(), "", "a", "device,,time"]), lines).map("\n".join)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(HEADERS)), texts, st.booleans())
def test_any_text_is_a_world_or_a_clear_error(tmp_path: Path, kind: str, text: str, proper: bool) -> None:
    file = tmp_path / "trace.csv"
    body = text.partition("\n")[2]
    file.write_text(f"{HEADERS[kind]}\n{body}" if proper else text)
    try:
        bind(kind, file)
    except EspalierError as error:
        assert len(str(error)) > 10


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60))
def test_any_bytes_too(tmp_path: Path, blob: bytes) -> None:
    file = tmp_path / "trace.csv"
    file.write_bytes(b"device,time,edge\n" + blob)
    try:
        bind("moves", file)
    except EspalierError:
        return


def test_other_columns_blanks_and_a_byte_order_mark_do_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_bytes("\ufeffextra, a ,b\r\nx, 3 ,0.5\r\n".encode())
    assert read(file, {"a": index(4, "thing"), "b": number(0, 1)}) == {"a": [3], "b": [0.5]}


def test_the_nearest_column_is_named(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("devise,time,edge\n0,0,0\n")
    with pytest.raises(WorldError, match=r"no column 'device'.*Did you mean 'devise'"):
        bind("moves", file)


def test_steps_hold_until_the_next() -> None:
    steps = Steps.of(Path("x.csv"), 2, [1, 0, 0], [0.0, 5.0, 2.0], [7.0, 9.0, 8.0])
    assert [steps.at(0, t) for t in (0.0, 2.0, 4.9, 5.0)] == [(8.0, 2.0), (8.0, 5.0), (8.0, 5.0), (9.0, float("inf"))]
    assert steps.at(1, 100.0) == (7.0, float("inf"))
