"""A parent that lies to those who link to it: they end nothing, believe nothing impossible, and go elsewhere."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from espalier.core.errors import ConfigError
from espalier.fleet.links import wire
from espalier.fleet.links.children import ChildLinks
from espalier.fleet.links.link import Link
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.node.host import Host
from espalier.record.run import Run
from tests.fleet.net import OneMore, Serving, manifest
from tests.fleet.test_rogue_member import CLOUD, EDGE, Scene, ca, until

__all__ = ["ca"]


@asynccontextmanager
async def beginning(ca: Path, folder: Path) -> AsyncIterator[tuple[Scene, Host]]:
    """A cloud that waits for two devices, and an edge that is linked to it."""
    scene = Scene(ca, folder)
    made = manifest(3, 1, 3)
    cloud = await scene.start("cloud", Serving(), listen="127.0.0.1:0", manifest=made, start_with=2)
    edge = await scene.start("edge-0", Serving(), parents=(("cloud", cloud.endpoint),), listen="127.0.0.1:0")
    await until(lambda: edge.routes.parent is not None)
    try:
        yield scene, edge
    finally:
        for host in scene.hosts.values():
            host.stop()
        await asyncio.gather(*scene.tasks.values(), return_exceptions=True)
        for host in scene.hosts.values():
            host.log.close()


async def join(scene: Scene, *above: Host) -> None:
    """Let two devices look for a parent among these."""
    parents = tuple((host.identity.name, host.endpoint) for host in above)
    for number in (0, 1):
        await scene.start(f"d{number}", OneMore(), parents=parents, wish=number)


@pytest.mark.parametrize(
    ("mine", "above"), [(EDGE, EDGE), (CLOUD, EDGE), ((1 << 32) - 1, EDGE), (0, 0), (0, 1)]
)  # fmt: skip
def test_a_number_that_cannot_be_is_not_taken(ca: Path, quick: Path, mine: int, above: int) -> None:
    # a device that was told its edge's own number ended with an error
    async def play() -> None:
        async with beginning(ca, quick) as (scene, edge):
            honest = edge.welcome

            def lie(address: int, version: int) -> pb.Welcome:
                found = honest(address, version)
                found.address, found.parent.address = mine, above
                return found

            edge.welcome = lie  # type: ignore[method-assign]
            await join(scene, edge)
            await until(lambda: "is not followed: it says that this device" in (quick / "d0" / "log").read_text())
            assert not scene.tasks["d0"].done()
            edge.welcome = honest  # type: ignore[method-assign]
            await asyncio.wait_for(asyncio.gather(*scene.tasks.values()), 30)
        assert Run(quick / "cloud").status["state"] == "finished"

    asyncio.run(play())


def test_a_time_that_cannot_be_is_not_believed(ca: Path, quick: Path) -> None:
    # the device said that time in all its letters to the cloud, which refused them, and had its link closed
    async def play() -> None:
        async with beginning(ca, quick) as (scene, edge):
            honest = edge.clock.now
            edge.clock.now = lambda: 1e300  # type: ignore[method-assign]
            await join(scene, edge)
            await until(lambda: "o'clock" in (quick / "d0" / "log").read_text())
            edge.clock.now = honest  # type: ignore[method-assign]
            await asyncio.wait_for(asyncio.gather(*scene.tasks.values()), 30)
        assert not Run(quick / "cloud").events("refused")

    asyncio.run(play())


@pytest.mark.parametrize("how", ["refused", "version"])
def test_one_parents_refusal_is_not_anothers(ca: Path, quick: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    # an edge's word, "for good", ended the nodes of its devices, whatever other parents they had
    accept = ChildLinks.accept

    async def turn_away(self: ChildLinks, link: Link) -> Any:
        if self._hub.identity.name == "cloud" or how != "refused":
            return await accept(self, link)
        self.refuse(link, "no", final=True)
        return None

    async def play() -> None:
        monkeypatch.setattr(ChildLinks, "accept", turn_away)
        async with beginning(ca, quick) as (scene, edge):
            if how == "version":
                edge.welcome = lambda a, v: pb.Welcome(version=wire.VERSIONS.newest + 9)  # type: ignore[method-assign]
            # who has no other ends, and says why
            await scene.start("d2", OneMore(), parents=(("edge-0", edge.endpoint),))
            with pytest.raises(ConfigError, match="refuses this node"):
                await scene.tasks["d2"]
            await join(scene, edge, scene.hosts["cloud"])
            await asyncio.wait_for(asyncio.gather(scene.tasks["d0"], scene.tasks["d1"]), 30)
        assert Run(quick / "cloud").status["state"] == "finished"

    asyncio.run(play())


def test_a_parent_does_not_fill_the_memory_of_a_busy_child(ca: Path, quick: Path) -> None:
    # links that a node makes are not metered: what its parent said faster than its engine takes it was all kept
    async def play() -> None:
        async with beginning(ca, quick) as (scene, edge):
            assert edge.parent_link is not None and edge.relay is not None and edge.routes.parent is not None
            busy, link, taken = threading.Event(), edge.routes.parent, 0
            engine = asyncio.create_task(edge.call(busy.wait))
            envelope = pb.Envelope(origin=EDGE, dest=CLOUD, series=1, number=1)

            async def flood() -> None:
                nonlocal taken
                while True:
                    taken += 1
                    await edge.parent_link._take(link, pb.Frame(ack=pb.Ack(envelope=envelope)))

            flooding = asyncio.create_task(flood())
            await asyncio.sleep(0.3)
            held = taken
            busy.set()
            await engine
            await until(lambda: taken > 4 * held)
            flooding.cancel()
            assert held < 100
            await join(scene, edge)
            await asyncio.wait_for(asyncio.gather(*scene.tasks.values()), 30)

    asyncio.run(play())
