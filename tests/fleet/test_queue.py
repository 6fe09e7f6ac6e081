"""What a standing fleet keeps on disk: the cloud's queue of runs, and a member's folders; and who waits at a door."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from espalier.core.errors import ConfigError, ProtocolError
from espalier.fleet.coordinator.enrolment import Registry, RunFull
from espalier.fleet.coordinator.queue import RunQueue
from espalier.fleet.coordinator.submission import JudgingData, Submissions
from espalier.fleet.links.door import WaitingRoom
from espalier.fleet.links.link import Link
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.node.folders import RunFolders
from tests.fleet.net import manifest


def test_runs_go_one_after_another_and_outlive_the_process(tmp_path: Path) -> None:
    queue = RunQueue(tmp_path)
    for name in ("a", "b"):
        queue.add(name, manifest(2, 1, 3), 2, "alice")
    first = queue.begin_next()
    assert first is not None
    assert (first.name, first.state, first.directory) == ("a", "running", tmp_path / "runs" / "a")
    queue.close()
    queue = RunQueue(tmp_path)
    # killed in the middle of it: it goes on, before any other
    again = queue.begin_next()
    assert again is not None
    assert (again.name, again.manifest.run) == ("a", "run")
    queue.ended(again, "finished", round=3)
    assert (queue.find("a").state, queue.find("a").summary["round"]) == ("finished", 3)
    second = queue.begin_next()
    assert second is not None
    assert second.name == "b"
    queue.ended(second, "failed", "out of luck")
    assert queue.begin_next() is None
    assert stat.S_IMODE((tmp_path / "queue.sqlite").stat().st_mode) == 0o600


def test_names_of_runs(tmp_path: Path) -> None:
    queue = RunQueue(tmp_path)
    queue.add("mine", manifest(2, 1, 3), 2, "alice")
    assert queue.free_name("mine", exactly=False) == "mine-2"
    assert queue.free_name("../A run!", exactly=False) == "A-run"
    assert queue.free_name("", exactly=False) == "run"
    with pytest.raises(ConfigError, match="has a run of that name already"):
        queue.free_name("mine", exactly=True)
    with pytest.raises(ConfigError, match="must be letters, digits"):
        queue.free_name("../mine", exactly=True)
    with pytest.raises(ConfigError, match="no run 'other'; its latest: mine"):
        queue.find("other")


def test_a_node_has_its_number_again(tmp_path: Path) -> None:
    queue, registry = RunQueue(tmp_path), Registry(3, 5)
    for name, role in (("x", "device"), ("y", "device"), ("e", "edge")):
        registry.enrol(name, role)
    queue.remember(registry.numbers())
    # a larger fleet: edges have other addresses, and the same places among edges
    larger = Registry(8, 10, before=queue.numbers())
    assert [larger.enrol(name, role) for name, role in (("e", "edge"), ("y", "device"), ("x", "device"))] == [8, 1, 0]
    small = Registry(1, 2, before=queue.numbers())
    assert small.enrol("y", "device") == 0
    with pytest.raises(RunFull):
        small.enrol("x", "device")


def test_a_members_folders(tmp_path: Path) -> None:
    folders = RunFolders(tmp_path)
    assert folders.current is None
    for number in range(5):
        folders.enter(f"run-{number}")
        (tmp_path / "runs" / f"run-{number}" / "node.sqlite").write_text("state")
    assert folders.current == "run-4"
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["run-2", "run-3", "run-4"]
    folders.leave()
    assert folders.current is None
    # a name comes over the wire
    for name in ("../run", "", ".", "a/b", "x" * 101):
        with pytest.raises(ProtocolError):
            folders.of(name)
    (tmp_path / "current").write_text("../../etc")
    assert folders.current is None
    assert RunFolders(None).of("run") is None


def test_who_waits(tmp_path: Path) -> None:
    room, device, edge = WaitingRoom(), Link("device"), Link("edge")
    room.enter(device, pb.Waiter(name="d", role="device", parent="cloud"))
    room.told(edge, pb.Waiting(waiters=[pb.Waiter(name="e-d", role="device", parent="e")]))
    assert [w.name for w in room.everybody()] == ["d", "e-d"]
    for wrong in ({"role": "cloud"}, {"role": "device", "name": "x" * 65}, {"role": "device", "why": "x" * 501}):
        with pytest.raises(ProtocolError):
            room.told(edge, pb.Waiting(waiters=[pb.Waiter(**wrong)]))
    room.release()
    assert not device.open
    assert edge.open, "it has a run"
    room.leave(device)
    room.leave(edge)
    assert not room.everybody()


@pytest.mark.parametrize(
    ("table", "why"),
    [
        # every node with --data share opened it
        (
            {"partition": {"kind": "explicit", "file": "/etc/passwd"}},
            r"partition\.file = '/etc/passwd': names a file of the fleet's machines",
        ),
        # a tree of eight gigabytes at every node: the cloud ended, and after each restart again
        ({"fleet": {"devices": 10**9, "edges": 1}}, "fleet: 1,000,000,000 devices and 1 servers; at most"),
        ({"fleet": {"devices": 10**5, "edges": 10**5}}, "100,000 servers; at most"),
        # neither SQLite nor letters hold it: the cloud ended when it wrote an order
        ({"stop": {"rounds": 10**30}}, r"stop\.rounds: must be a whole number of at most 64 bits"),
        # the cloud was out of memory, or out of time, before it had looked
        ({"task": {"model_options": {"hidden": [10**9]}}}, r"task\.model = 'mlp': a model of 300,000,000,040 bytes"),
        # no frame holds it: nobody could be welcomed
        ({"name": "x" * (9 << 20)}, "What every node must be told of this experiment has"),
    ],
)
def test_what_would_end_the_nodes_is_not_queued(tmp_path: Path, table: dict[str, Any], why: str) -> None:
    queue = RunQueue(tmp_path)
    base = {"methods": ["hierfavg"], "fleet": {"devices": 2, "edges": 1}, "stop": {"rounds": 2}}
    with pytest.raises(ConfigError, match=why):
        Submissions(queue, JudgingData()).submit({"experiment": {**base, **table}}, "operator")
    assert not queue.all()
