"""Hostile members against processes of a cloud, an edge and devices, with certificates of the fleet and over its links.

They take their orders and answer them as they should, or nearly so, and at last write to another device; none of their
models can change the others' numbers: they hand back what they got, or what no merge can take. So the result is that of
the two honest devices.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import Any

import grpc
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from espalier.core.messages import Order, Report
from espalier.core.store import Ref
from espalier.fleet.certs import Bundle
from espalier.fleet.links import wire
from espalier.fleet.links.framing import Assembler, LetterPart
from espalier.fleet.links.limits import Limits
from espalier.fleet.local import LocalFleet
from espalier.record.run import Run
from tests.fleet import counting
from tests.fleet.hostile import changed, controls, messages, unusable
from tests.fleet.test_authority import Places
from tests.fleet.test_rogue_member import Rogue

HONEST, ROGUES, ROUNDS = 2, 4, 25
EDGE = HONEST + ROGUES
CLOUD = EDGE + 1

#: what a member does next: how it deviates from its answer, a number that says where, to whom; or something made up
Deed = tuple[str, int, int, bytes | None, tuple[LetterPart, ...]]
deeds: st.SearchStrategy[Deed] = st.tuples(
    st.sampled_from(["true"] * 3 + ["again", "changed", "shifted", "readdressed", "elsewhere", "model", "any"]),
    st.integers(0, 1 << 16), st.sampled_from([EDGE, CLOUD]), st.one_of(controls(), messages()), unusable,
)  # fmt: skip


class Deviant(Rogue):
    """A member that knows its orders."""

    def __init__(self, bundle: Bundle, target: str, address: int) -> None:
        super().__init__(bundle, target, address)
        self.order: Order | None = None
        self.model: tuple[LetterPart, ...] = ()
        self.said = 0
        self._letters = Assembler(Limits())

    async def listen(self) -> None:
        """Take letters until the link ends, and remember the newest order."""
        with contextlib.suppress(TimeoutError):
            while (frame := await self.hear()) is not None:
                letter = None
                if frame.HasField("head"):
                    letter = self._letters.head(frame.head)
                elif frame.HasField("chunk"):
                    letter = self._letters.chunk(frame.chunk)
                found = wire.unpack(letter.content) if letter is not None else None
                if isinstance(found, Order) and letter is not None:
                    self.order, self.model = found, tuple(letter.parts)

    def answer(self, order: Order) -> bytes:
        given: dict[str, Any] = {"models": {"": Ref(0)}, "samples": {"": 10}, "updates": 1, "sent": order.sent}
        return wire.pack(
            Report(order.id, order.sender, self.address, order.sender, round=order.round, **given), Places()
        )

    async def do(self, deed: Deed) -> None:
        how, number, dest, made_up, other = deed
        for _ in range(25):
            if self.order is not None or how == "any":
                break
            await asyncio.sleep(0.02)
        if how == "any" or self.order is None:
            if made_up is not None:
                await self._say(dest, made_up, other)
            return
        content, parts, to = self.answer(self.order), self.model, self.order.sender
        if how == "model":
            parts = other
        elif how == "elsewhere":
            to = dest
        elif how in ("changed", "shifted", "readdressed"):
            to = dest if how == "readdressed" else to
            content = changed(content, how, number, dest) or content
        await self._say(to, content, parts)
        if how != "again":
            self.order = None

    async def _say(self, dest: int, content: bytes, parts: tuple[LetterPart, ...]) -> None:
        self.said += 1
        await self.letter(dest, content, parts)

    async def live(self, life: list[Deed]) -> None:
        """Do one thing after the other, until the link is closed: that is what happens to those who offend often."""
        ears = asyncio.create_task(self.listen())
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError, asyncio.CancelledError):
            for deed in life:
                if ears.done():
                    break
                await self.do(deed)
            await self.control(0, "start", at=0.0)  # that ends its link: devices do not write to each other here
        await asyncio.sleep(0.3)
        ears.cancel()
        await asyncio.gather(ears, return_exceptions=True)
        await self.close()


async def entered(bundle: Bundle, target: str, address: int) -> Deviant:
    """Return a member that was let in: on a busy machine the edge may tell it to try again soon."""
    while True:
        rogue = Deviant(bundle, target, address)
        frame = await rogue.enter()
        if frame.HasField("welcome"):
            return rogue
        assert not frame.refusal.final, frame.refusal.why
        await rogue.close()
        await asyncio.sleep(1.0)


async def visit(fleet: LocalFleet, folder: Path, lives: list[list[Deed]]) -> int:
    """Let the hostile members join and live; return how many letters they said."""
    target = fleet.endpoint("edge-0")
    rogues = [
        await entered(Bundle.read(folder / "ca" / f"device-{n}"), target, n) for n in range(HONEST, HONEST + len(lives))
    ]
    await asyncio.gather(*(rogue.live(life) for rogue, life in zip(rogues, lives, strict=True)))
    return sum(rogue.said for rogue in rogues)


def varied(lives: list[list[Deed]]) -> bool:
    """Tell whether they do more than the simplest thing, which is what is drawn first."""
    return all(len({how for how, *_ in life}) >= 6 for life in lives)


@settings(
    max_examples=1, deadline=None, suppress_health_check=list(HealthCheck), database=None, phases=[Phase.generate]
)
@given(lives=st.lists(st.lists(deeds, min_size=16, max_size=16), min_size=ROGUES, max_size=ROGUES).filter(varied))
def test_processes_survive_members_that_deviate(quick: Path, lives: list[list[Deed]]) -> None:
    made = counting.experiment(HONEST + ROGUES, 1, ROUNDS, "hierfavg")
    folder = Path(tempfile.mkdtemp(dir=quick))
    # the run begins when all have joined; a member that does not report holds a round up for half a second
    with counting.fleet(made, folder, round_deadline=0.5, patience=0.5) as fleet:
        fleet.start("cloud", "edge-0", *(f"device-{n}" for n in range(HONEST)))
        said = asyncio.run(visit(fleet, folder, lives))
        # every process goes on to the end of the run, and ends in good order
        fleet.wait(90)
    assert said >= 30
    run = Run(folder / "cloud")
    assert run.status["state"] == "finished"
    weights = load_file(folder / "cloud" / "models" / "global.safetensors")["1.weight"].reshape(-1)
    added = weights.double() - counting.weights_of(made).double()
    assert 0 < float(added[0]) <= ROUNDS + 1e-3
    # where the machine stands still for half a second, a round goes on without an honest device too
    honest = [{who[0] for who in e["who"]} & {0, 1} for e in run.events("merged") if e["node"] == EDGE]
    lone = sum(len(found) == 1 for found in honest)
    assert lone < len(honest) / 2
    assert abs(float(added[0] - added[1])) <= lone + 1e-3
    assert float(added[HONEST:].abs().max()) < 1e-4
    # a member may note that it refused somebody: the record says that it was its word
    blamed = {e["who"] for e in run.events("refused") if e.get("by") in ("cloud", "edge-0", "device-0", "device-1")}
    assert blamed
    assert blamed <= {f"{what}{n}" for what in ("host ", "device-") for n in range(HONEST, EDGE)}
