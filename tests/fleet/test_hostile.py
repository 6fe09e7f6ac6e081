"""Some hundred letters of a hostile member (`benchmarks/hostile.py` plays as many as it is told)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
from pathlib import Path

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from espalier.core.messages import Report
from espalier.fleet.certs import Bundle
from espalier.fleet.links.admission import Admission, Refusals
from espalier.fleet.links.framing import LetterPart
from espalier.fleet.node import host
from espalier.fleet.node.inbox import plausible
from espalier.record.run import Run
from tests.fleet.hostile import HostileMember, any_frame, controls, messages, unusable
from tests.fleet.test_rogue_member import CLOUD, EDGE, ROGUE, Rogue, ca, fleet, until

__all__ = ["TestHostileMember", "ca"]

TestHostileMember = HostileMember.TestCase
TestHostileMember.settings = settings(
    max_examples=8, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_a_model_that_was_on_its_way_for_thirty_years_stops_nobody() -> None:
    # A round was planned to last twice as long as a head said that its model had been on its way.
    play = HostileMember()
    play.begin(method="d2d")
    try:
        play.answer(pick=0, how="changed", dest=1, keep=False, number=725, other=())  # a download of 1e9 s
        for _ in range(6):
            play.answer(pick=0, how="true", dest=1, keep=False, number=0, other=())
            play.only_the_member_is_blamed()
        assert play.net.now < 1e6
    finally:
        play.teardown()


def test_who_hears_of_its_new_place_before_its_head_does_is_not_blamed() -> None:
    # Device 3 hands the head at host 1, which was started anew, what it had been ordered by the head before.
    play = HostileMember()
    play.begin(method="d2d")
    try:
        play.restart(host=3)
        play.answer(pick=33, how="true", dest=5, keep=True, number=0, other=())
        for what, number in ((7, 1), (1, 7), (2, 4), (2, 9)):
            play.claim(what=what, number=number)
        play.answer(pick=10, how="true", dest=5, keep=True, number=0, other=())
        play.restart(host=1)
        play.go_on(count=32)
        play.claim(what=1, number=7)
        play.answer(pick=7, how="true", dest=6, keep=True, number=0, other=())
        play.go_on(count=9)
        play.restart(host=5)
        play.go_on(count=24)
        play.only_the_member_is_blamed()
    finally:
        play.teardown()


def test_times_of_a_report_add_up_to_no_more_than_it_took() -> None:
    def told(download: float, compute: float, sent: float = 9.0) -> tuple[float, float, float]:
        report = Report(1, 5, 0, 5, {}, {}, 1, 0, sent, download=download, compute=compute)
        found = plausible(report, now=10.0, took=6.0)
        return found.download, found.compute, found.sent

    assert told(2.0, 3.0) == (2.0, 3.0, 9.0)  # and one second back: six
    assert told(1e9, 3.0) == (2.0, 3.0, 9.0)
    assert told(0.0, 1e9) == (0.0, 7.0, 10.0)
    # A clock that lags: the order seems to have come at once, and the report to have been nine seconds on its way.
    assert told(0.0, 0.5, sent=1.0) == (0.0, 0.5, 4.5)
    # What cannot be true of an honest child is left as it is, and refused where reports are guarded.
    assert told(-50.0, 3.0, sent=-42.0) == (-50.0, 3.0, -42.0)
    assert told(-1e9, 1e9) == (-1e9, 7.0, 9.0)


Letters = list[tuple[int, bytes | None, tuple[LetterPart, ...]]]


@settings(max_examples=1, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    letters=st.lists(
        st.tuples(st.sampled_from([0, 1, EDGE, CLOUD]), st.one_of(controls(), messages()), unusable),
        min_size=100, max_size=100,
    )
)  # fmt: skip
def test_hosts_with_real_links_survive_it(ca: Path, quick: Path, letters: Letters) -> None:
    """The same over TLS, with a certificate: the others' run is theirs, and the record says whose letters were refused.

    None of the member's models could be merged: whatever it answers, the result is that of the others alone.
    """

    async def play() -> None:
        async with fleet(ca, folder) as (scene, rogue):
            for dest, content, parts in letters:
                if content is not None:
                    await rogue.letter(dest, content, parts)
            await scene.until_refused(10)

    folder = Path(tempfile.mkdtemp(dir=quick))
    with pytest.MonkeyPatch.context() as patch:
        # else its link is closed after a few
        patch.setattr(Refusals, "offends", lambda self, who: False)
        # else its link is closed with the first letter to a device: what it says is then for the device to check
        patch.setattr(host, "devices_confer", lambda plan: True)
        asyncio.run(play())
    assert {e["who"] for e in Run(folder / "cloud").events("refused")} == {f"host {ROGUE}"}


@pytest.mark.parametrize("seed", [0, 1])
def test_hosts_survive_frames_of_any_kind(ca: Path, quick: Path, seed: int) -> None:
    # One acknowledgement of letter 2^64 - 1 ended an edge, or by way of it the cloud.
    rng, series = random.Random(seed), [0]

    async def listen(rogue: Rogue) -> None:
        while (frame := await rogue.hear()) is not None:
            if frame.HasField("head"):
                series.append(frame.head.envelope.series)

    async def play() -> None:
        async with fleet(ca, quick) as (scene, rogue):
            ears = asyncio.create_task(listen(rogue))
            await until(lambda: len(series) > 1)
            for _ in range(300):
                if ears.done() or not scene.hosts["edge-0"].routes.children.get(ROGUE):
                    ears.cancel()
                    await rogue.close()
                    rogue = Rogue(Bundle.read(ca / "d2"), scene.hosts["edge-0"].endpoint)
                    if (await rogue.enter()).HasField("refusal"):
                        break
                    ears = asyncio.create_task(listen(rogue))
                with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError, asyncio.CancelledError):
                    await rogue.say(any_frame(rng, ROGUE, [EDGE, CLOUD, 0], series))
            ears.cancel()
            await rogue.close()
        assert scene.hosts["edge-0"].refusals.count

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Admission, "hurries", lambda self, peer: False)
        asyncio.run(play())
