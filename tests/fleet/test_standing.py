"""A fleet that stays up: nodes are services that take one run after another; operators submit, stop and fetch runs."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from espalier.cli.main import main
from espalier.core.errors import ConfigError
from espalier.experiment import Experiment
from espalier.fleet import certs
from espalier.fleet.certs import Bundle
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.links.wire import VERSIONS, WireVersions
from espalier.fleet.local import LocalFleet
from espalier.fleet.operator import Operator, Unreachable
from espalier.record.run import Run
from tests.fleet import counting
from tests.fleet.test_rogue_member import Rogue

DEVICES, ROUNDS = 4, 4
MADE = counting.experiment(DEVICES, 2, ROUNDS)
#: goes on until it is stopped
ENDLESS = counting.experiment(DEVICES, 2, 100_000)


def intact(run: Path, rounds: int = ROUNDS, devices: int = DEVICES) -> None:
    """Check that every update of a run was merged once: none lost, none twice."""
    found = counting.counts(run, devices, counting.weights_of(MADE))
    torch.testing.assert_close(found, torch.full((devices,), rounds / devices, dtype=torch.float64), atol=1e-5, rtol=0)
    times = counting.merged(Run(run))
    assert (sum(times.values()), set(times.values())) == (rounds * devices, {1})


def until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    with counting.fleet(MADE, tmp_path_factory.mktemp("standing"), standing=True) as fleet:
        fleet.start("cloud", "edge-0", "edge-1", "device-0", "device-1")
        # an older one cannot wait on its link: it asks again and again
        fleet.launch("device-2", versions=WireVersions(VERSIONS.oldest, VERSIONS.oldest))
        fleet.launch("device-3")
        yield fleet


@pytest.fixture
def operator(standing: LocalFleet) -> Iterator[Operator]:
    with standing.operator() as found:
        yield found


def row(operator: Operator, run: str) -> dict[str, object]:
    return next(r for r in operator.runs() if r["run"] == run)


def test_two_runs_in_a_row_with_an_edge_killed_in_between(
    standing: LocalFleet, operator: Operator, tmp_path: Path
) -> None:
    first = operator.submit(MADE, patience=30.0)
    assert operator.wait(first, 60) == "finished"
    standing.kill("edge-0")
    second = operator.submit(MADE, patience=30.0)
    standing.launch("edge-0")
    assert operator.wait(second, 60) == "finished"
    assert second == f"{first}-2"
    for name in (first, second):
        operator.fetch(name, tmp_path / name)
        intact(tmp_path / name)
        assert Run(tmp_path / name).status == {"state": "finished"}
    # nobody is in a run any more
    assert all(not (standing.directory / f"device-{i}" / "current").exists() for i in range(DEVICES))
    # what reports on any run reports on these
    told = CliRunner().invoke(main, ["report", str(tmp_path / first), "-o", str(tmp_path / "report.html")])
    assert told.exit_code == 0, told.output


def test_the_cloud_is_killed_with_a_run_under_way_and_another_queued(
    standing: LocalFleet, operator: Operator, tmp_path: Path
) -> None:
    longer = counting.experiment(DEVICES, 2, 12)
    first = operator.submit(longer, name="interrupted", patience=30.0)
    second = operator.submit(MADE, name="waiting", patience=30.0)
    until(lambda: row(operator, first)["round"] in range(2, 12))
    assert row(operator, second)["state"] == "queued"
    standing.kill("cloud")
    with pytest.raises(Unreachable):
        operator.runs()
    standing.launch("cloud")
    assert operator.wait(first, 60) == "finished"
    assert operator.wait(second, 60) == "finished"
    for name, rounds in ((first, 12), (second, ROUNDS)):
        operator.fetch(name, tmp_path / name)
        intact(tmp_path / name, rounds)


def test_runs_are_stopped(standing: LocalFleet, operator: Operator, tmp_path: Path) -> None:
    first, second = (operator.submit(ENDLESS, name=name) for name in ("endless", "never"))
    until(lambda: int(str(row(operator, first)["round"])) >= 2)
    # a run that goes on can be looked at elsewhere
    operator.fetch(first, tmp_path / "half")
    assert len(Run(tmp_path / "half").frame()) >= 2
    operator.stop(second)
    assert (row(operator, second)["state"], row(operator, second)["why"]) == ("stopped", "stopped by operator")
    operator.stop(first)
    assert operator.wait(first, 60) == "stopped"
    operator.fetch(first, tmp_path / "whole")
    assert Run(tmp_path / "whole").status == {"state": "stopped", "stopped": "stopped by operator"}
    assert (tmp_path / "whole" / "models" / "global.safetensors").exists()
    with pytest.raises(ConfigError, match="endless is stopped; only a run that waits or goes on can be stopped"):
        operator.stop(first)
    with pytest.raises(ConfigError, match="never is stopped and has no results yet"):
        operator.fetch(second, tmp_path / "nothing")
    with pytest.raises(ConfigError, match="has no run 'other'"):
        operator.stop("other")
    # one that waits for devices that will never come
    large = operator.submit(replace(MADE, fleet=replace(MADE.fleet, devices=50)), name="large")
    until(lambda: operator.status()["state"] == "waiting for devices")
    operator.stop(large)
    assert operator.wait(large, 60) == "stopped"


def test_who_is_away_joins_when_it_comes_back_and_who_is_too_many_waits(
    standing: LocalFleet, operator: Operator, tmp_path: Path
) -> None:
    standing.kill("device-3")
    run = operator.submit(ENDLESS, name="away", start_with=3)
    until(lambda: int(str(row(operator, run)["round"])) >= 2)
    standing.launch("device-3")
    until(lambda: operator.status()["devices"] == DEVICES)
    operator.stop(run)
    assert operator.wait(run, 60) == "stopped"
    # a run with fewer devices than there are: the others wait for the next one
    small = replace(ENDLESS, fleet=replace(ENDLESS.fleet, devices=2))
    run = operator.submit(small, name="small")
    why = "All 2 devices of fleet.devices have enrolled"
    # (an older one is not seen while it waits)
    until(lambda: any(why in m["why"] for m in operator.status()["members"] if m["state"] == "waiting"))
    until(lambda: int(str(row(operator, run)["round"])) >= 1)
    operator.stop(run)
    operator.wait(run, 60)
    # and they are there for it
    assert operator.wait(operator.submit(MADE, name="all-again"), 60) == "finished"
    assert all(p.is_alive() for p in standing.processes.values())


def test_a_device_that_cannot_take_part_waits_for_the_next_run(standing: LocalFleet, operator: Operator) -> None:
    standing.kill("device-0")
    standing.launch("device-0", client="tests.fleet.counting:Absent")
    run = operator.submit(ENDLESS, name="without", start_with=3)
    until(lambda: int(str(row(operator, run)["round"])) >= 1)
    until(lambda: any("Absent" in m["why"] for m in operator.status()["members"]))
    operator.stop(run)
    operator.wait(run, 60)
    assert standing.processes["device-0"].is_alive()
    standing.kill("device-0")
    standing.launch("device-0")


def test_what_cannot_be_run_is_refused_in_one_sentence(standing: LocalFleet, operator: Operator) -> None:
    assert operator.wait(operator.submit(MADE, name="taken", patience=30.0), 60) == "finished"
    with pytest.raises(ConfigError, match="--name taken: this fleet has a run of that name already"):
        operator.submit(MADE, name="taken")
    for table, why in (
        ({"task": {"model": "os:getcwd"}}, "task.model = 'os:getcwd': this cloud imports no code but its operator's"),
        # whatever the importing takes for a module's name: these were imported, and failed only then
        ({"task": {"model": "some-file:Model"}}, "task.model = 'some-file:Model': this cloud imports no code"),
        ({"task": {"model": "this:\xe9-"}}, "this cloud imports no code"),
        # the refusal told what the first line of the cloud's file was
        ({"task": {"dataset": {"kind": "csv", "path": "/etc/hostname", "label": "y"}}}, "names a file of the fleet's"),
        ({"task": {"dataset": "../private.npz"}}, "names a file of the fleet's"),
        ({"seeds": [0, 1]}, "a fleet runs one method with one seed; this has 1 and 2"),
        (
            {"methods": [{"name": "hierfavg", "edge": {"merge": {"kind": "secure"}, "guard": {"kind": "median"}}}]},
            "looks at single models",
        ),
    ):
        with pytest.raises(ConfigError, match=why):
            operator.submit(Experiment.build({**MADE.to_plain(), **table}))
    assert not [r for r in operator.runs() if r["state"] in ("queued", "running")]


def test_members_cannot_submit_and_operators_are_no_members(standing: LocalFleet, operator: Operator) -> None:
    ca = standing.directory / "ca"
    with pytest.raises(ConfigError, match="the certificate of device-0 is a device's"):
        Operator(Bundle.read(ca / "device-0"), standing.address("cloud"))
    # one that does not ask itself is refused by the cloud
    member = Operator(Bundle.read(ca / "operator"), standing.address("cloud"))
    member._bundle = Bundle.read(ca / "device-0")
    with pytest.raises(ConfigError, match="The first frame is 'request'; a greeting is accepted"):
        member.stop("anything")
    with pytest.raises(ConfigError, match="operators talk to the cloud"):
        Operator(Bundle.read(ca / "operator"), standing.address("edge-0")).runs()
    known = sqlite3.connect(standing.directory / "cloud" / "queue.sqlite").execute("SELECT submitter FROM runs")
    assert {name for (name,) in known} <= {"operator"}


def test_who_is_revoked_keeps_no_link(standing: LocalFleet, operator: Operator) -> None:
    # Only children of a run lost theirs: an operator went on submitting over its open link, and who waited, waited.
    ca = standing.directory / "ca"
    for name, role in (("eve", "operator"), ("mallory", "device")):
        certs.issue(ca, name, role)
    assert not [r for r in operator.runs() if r["state"] in ("queued", "running")]
    eve = Operator(Bundle.read(ca / "eve"), standing.address("cloud"))
    eve.runs()

    async def waits() -> str:
        mallory = Rogue(Bundle.read(ca / "mallory"), standing.endpoint("cloud"), name="cloud")
        await mallory.say(pb.Frame(hello=pb.Hello(version=VERSIONS.newest, member=pb.Member(), wish=-1)))
        first = await mallory.hear()
        assert first is not None
        assert first.welcome.standing
        for name in ("eve", "mallory"):
            certs.revoke(ca, name)
        (ca / "cloud" / "crl.pem").write_bytes((ca / "crl.pem").read_bytes())
        frame = await mallory.hear()
        await mallory.close()
        return "" if frame is None else frame.refusal.why

    assert asyncio.run(waits()) == "the certificate of mallory is revoked"
    with pytest.raises(ConfigError, match="the certificate of eve is revoked"):
        eve._ask("runs")  # over the link that there was
    eve.close()
    assert operator.runs() is not None


def test_the_commands(standing: LocalFleet, tmp_path: Path) -> None:
    standing.operator().close()
    env = {"ESPALIER_CLOUD": standing.address("cloud"), "ESPALIER_CERTS": str(standing.directory / "ca" / "operator")}
    path = tmp_path / "exp.toml"
    path.write_text('name = "typed"\nmethods = ["hierfavg"]\n[fleet]\ndevices = 4\nedges = 2\n[stop]\nrounds = 1\n')

    def call(*words: str) -> str:
        told = CliRunner().invoke(main, ["fleet", *words], env=env)
        assert told.exit_code == 0, told.output
        return told.stdout

    assert call("submit", str(path), "--wait", "-q", "-o", str(tmp_path / "out")) == "typed\n"
    assert Run(tmp_path / "out").status == {"state": "finished"}
    rows = json.loads(call("runs", "--json"))
    assert (rows[-1]["run"], rows[-1]["state"], rows[-1]["round"]) == ("typed", "finished", 1)
    assert "typed" in call("runs")
    # between two runs everybody is there and waits
    assert "waiting for a run" in call("status")
    told = CliRunner().invoke(main, ["fleet", "status"], env=env)
    assert told.stderr == f"connecting to {standing.address('cloud')}\n"
    until(lambda: "device-0" in call("status", str(standing.directory / "cloud")))
    assert call("fetch", "typed", "-o", str(tmp_path / "again")).strip() == str(tmp_path / "again")
    told = CliRunner().invoke(main, ["fleet", "submit", str(path), "--set", "stop.rounds=-1"], env=env)
    assert told.exit_code == 2
    assert len(told.stderr.strip().splitlines()) == 1
