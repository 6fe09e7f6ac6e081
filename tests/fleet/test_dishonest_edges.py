"""Edges that are processes of a fleet, with its certificates, and alter or make up what they should pass on."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from espalier.fleet.links.framing import Letter, LetterPart, frames
from espalier.fleet.links.greetings import Greetings
from espalier.fleet.links.link import Link
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.links.signing import LetterSignatures
from espalier.fleet.node.folders import RunFolders
from espalier.record.run import Run
from tests.fleet import counting
from tests.fleet.net import credentials
from tests.fleet.test_rogue_member import CLOUD, ROGUE, ca, fleet, until

__all__ = ["ca"]
ROLES = {"d0": "device", "d1": "device", "e": "edge", "c": "cloud"}
SECURE = {"name": "hierfavg", "edge": {"merge": {"kind": "secure"}}}


def log_of(folder: Path, name: str) -> str:
    path = folder / name / "node.log"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def wait_for(folder: Path, name: str, text: str) -> None:
    """Wait until a node's log says something."""
    until = time.monotonic() + 60
    while text not in log_of(folder, name):
        assert time.monotonic() < until, f"{name} does not log {text!r}"
        time.sleep(0.05)


def test_an_edge_cannot_speak_for_the_cloud(tmp_path: Path) -> None:
    # Its devices were told in the first round that the run is over, and ended; the run waited for ever.
    made = counting.experiment(2, 1, 6)
    with counting.fleet(made, tmp_path, dishonest="tests.fleet.edge_that_forges") as nodes:
        nodes.start()
        nodes.wait(60)
    assert counting.counts(tmp_path / "cloud", 2, counting.weights_of(made)).tolist() == pytest.approx([3, 3])
    refused = [e for e in Run(tmp_path / "cloud").events("refused") if "is not signed by host 3" in e["why"]]
    assert {e["by"] for e in refused} == {"device-0", "device-1"}


def test_an_edge_cannot_take_another_ones_devices(tmp_path: Path) -> None:
    # The cloud believed it, had the other edge close its links, and heard nobody with a smaller stamp any more.
    made = counting.experiment(4, 2, 12)
    with counting.fleet(made, tmp_path, dishonest="tests.fleet.edge_that_takes", patience=30.0) as nodes:
        nodes.start()
        nodes.until("cloud", lambda status: status.get("round", -1) >= 1)
        # it says so whenever it links
        nodes.kill("edge-0")
        nodes.launch("edge-0")
        nodes.wait(60)
    assert counting.counts(tmp_path / "cloud", 4, counting.weights_of(made)).tolist() == pytest.approx([3] * 4)
    refused = [e for e in Run(tmp_path / "cloud").events("refused") if e["by"] == "cloud"]
    assert {e["who"] for e in refused} == {"edge-0"}
    assert "has not said so itself" in refused[0]["why"]


def test_an_edge_that_closes_no_round_does_not_keep_the_run_going(tmp_path: Path) -> None:
    # Rounds are the edges'. It gave its devices work and reported: the run went on until it was stopped.
    made = counting.experiment(4, 2, 4, {"name": "hierfavg", "clock": "edge", "edge": {"merge": "audited"}})
    wicked = "tests.fleet.edge_that_counts_nothing"
    with counting.fleet(made, tmp_path, dishonest=wicked, only=0, round_deadline=1.0) as nodes:
        nodes.start()
        nodes.wait(60)
    run = Run(tmp_path / "cloud")
    assert [e["children"] for e in run.events("overdue")] == [[4]]
    assert {e["parent"] for e in run.events("late")} == {6}, "it was told"
    assert run.events("refused") == []
    counted = counting.counts(tmp_path / "cloud", 4, counting.weights_of(made))
    assert counted.min() >= 1.0, "its devices' work counts as before"


def test_an_edge_cannot_change_what_a_run_does(tmp_path: Path) -> None:
    # It tells its devices of a run in which models are not hidden: they took part in it, and sent theirs as they were.
    made = counting.experiment(2, 1, 2, SECURE)
    with counting.fleet(made, tmp_path, dishonest="tests.fleet.edge_that_alters") as nodes:
        nodes.start()
        for number in (0, 1):
            wait_for(tmp_path, f"device-{number}", "is not signed by this fleet's cloud")
            assert nodes.processes[f"device-{number}"].is_alive()
            assert "takes part" not in log_of(tmp_path, f"device-{number}")


def test_an_old_run_is_not_played_again(tmp_path: Path) -> None:
    folders = RunFolders(tmp_path)
    assert folders.may_follow("plain", 10.0)
    folders.believe("plain", 10.0)
    assert folders.may_follow("plain", 9.0), "an edge may have an earlier signature of the same run"
    folders.believe("secure", 20.0)
    assert not RunFolders(tmp_path).may_follow("plain", 10.0)
    assert RunFolders(tmp_path).may_follow("plain", 30.0), "the cloud has gone on with it, and signed again"


def head_of(origin: int) -> pb.Head:
    return pb.Head(envelope=pb.Envelope(origin=origin, dest=3, series=1, number=1), content=b"anything")


def test_a_letter_is_of_whom_its_certificate_names() -> None:
    names = {0: "d0", 1: "d1"}
    letters = {n: LetterSignatures(credentials(n, r), "run", 2, 9, names.get) for n, r in ROLES.items()}
    for name, origin in (("d0", 0), ("d1", 1), ("e", 5), ("c", 9)):
        head = head_of(origin)
        letters[name].sign(head)
        assert letters["d0"].genuine(head)
        for other in (1 - origin if origin < 2 else 0, 5 if origin == 9 else 9):
            head.envelope.origin = other
            letters[name].sign(head)
            assert not letters["d0"].genuine(head), f"{name} speaks for host {other}"
    head = head_of(0)
    LetterSignatures(credentials("d0", "device"), "another run", 2, 9, names.get).sign(head)
    assert not letters["d1"].genuine(head)


def damaged(number: int, how: str) -> list[pb.Frame]:
    """A device's letter to the cloud whose model is not what its head says."""
    made = list(frames(Letter(CLOUD, 1 << 50, number, b"", (LetterPart.of(bytes(256), 0),)), ROGUE))
    if how == "digest":
        made[0].head.parts[0].digest = bytes(16)
    elif how == "checksum":
        made[1].chunk.checksum ^= 1
    elif how == "size":
        made[0].head.parts[0].size = 1 << 50
    return made


@pytest.mark.parametrize("how", ["digest", "checksum", "size", "unsigned"])
def test_a_device_cannot_cut_its_edge_off(ca: Path, quick: Path, how: str) -> None:
    # The edge passes letters on unread: the cloud closed the edge's link for what a device behind it had written.
    async def play() -> None:
        async with fleet(ca, quick) as (scene, rogue):
            cloud, edge = scene.hosts["cloud"], scene.hosts["edge-0"]
            assert edge.parent_link is not None
            made = edge.parent_link.made
            for number in range(1, 4):
                for frame in damaged(number, how):
                    if how == "unsigned" and frame.HasField("head"):
                        frame.head.signature = b"none"
                    await rogue.say(frame)
                if how in ("size", "unsigned"):
                    break
            if how in ("size", "unsigned"):
                await until(lambda: ROGUE not in edge.routes.children)
            else:
                await until(lambda: cloud.refusals.count >= 3)
            assert edge.parent_link.made == made
            assert edge.routes.parent is not None
        blamed = {e["who"] for e in Run(quick / "cloud").events("refused")}
        assert blamed <= {"d2", f"host {ROGUE}"}
        assert blamed

    asyncio.run(play())


def test_an_edge_does_not_take_the_answer_to_anothers_question() -> None:
    # below a server between edges and cloud: who asked last for a name got the answer, and the other's device waited
    above, honest, other = (Link(name) for name in ("cloud", "edge-0", "edge-1"))
    hub: Any = SimpleNamespace(registry=None, routes=SimpleNamespace(parent=above))
    greetings = Greetings(hub, cast(Any, None), lambda *_, **__: None)

    async def play() -> None:
        for link in (honest, other, other):
            await greetings.enrol_for(link, pb.Enrol(name="d7", role="device"))
        greetings.enrolled(pb.Enrolled(name="d7", address=7))
        for link in (honest, other):
            told: list[int] = []

            async def write(frame: pb.Frame, told: list[int] = told) -> None:
                told.append(frame.enrolled.address)

            link.close()
            await link.pump(write)
            assert told == [7]

    asyncio.run(play())
