"""Some hundred letters of a hostile member (`benchmarks/hostile.py` plays as many as it is told)."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from espalier.fleet.links.admission import Refusals
from espalier.fleet.links.framing import LetterPart
from espalier.record.run import Run
from tests.fleet.hostile import HostileMember, controls, messages, unusable
from tests.fleet.test_rogue_member import CLOUD, EDGE, ROGUE, ca, fleet

__all__ = ["TestHostileMember", "ca"]

TestHostileMember = HostileMember.TestCase
TestHostileMember.settings = settings(
    max_examples=8, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)

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
        asyncio.run(play())
    assert {e["who"] for e in Run(folder / "cloud").events("refused")} == {f"host {ROGUE}"}
