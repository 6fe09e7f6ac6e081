"""A member joins: what happens around it in that very moment does not end it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from espalier.fleet import certs
from espalier.fleet.node.host import Host
from espalier.record.run import Run
from tests.fleet.net import OneMore, Serving, manifest
from tests.fleet.test_rogue_member import Scene


async def look_around(host: Host) -> None:
    """Tick, and let the engine's queue be served."""
    host._look_around()
    for _ in range(5):
        await asyncio.sleep(0.01)


def test_a_tick_in_the_moment_of_joining_ends_nobody(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # every member ticks right when its conduct is there, in the engine's thread, before anything else is done
    ticked = []

    def tick_at_once(host: Host, name: str, value: Any) -> None:
        object.__setattr__(host, name, value)
        if name == "conduct" and value is not None and host.settings.parents:
            ticked.append(host.identity.name)
            asyncio.run_coroutine_threadsafe(look_around(host), loops[0]).result(10)

    monkeypatch.setattr(Host, "__setattr__", tick_at_once)
    loops: list[asyncio.AbstractEventLoop] = []
    certs.init(quick / "ca")
    for name, role in (("cloud", "cloud"), ("edge-0", "edge"), ("d0", "device")):
        certs.issue(quick / "ca", name, role, ["127.0.0.1"])

    async def play() -> None:
        loops.append(asyncio.get_running_loop())
        scene = Scene(quick / "ca", quick)
        here = "127.0.0.1:0"
        cloud = await scene.start("cloud", Serving(), listen=here, manifest=manifest(1, 1, 3), start_with=1)
        edge = await scene.start("edge-0", Serving(), parents=(("cloud", cloud.endpoint),), listen=here)
        await scene.start("d0", OneMore(), parents=(("edge-0", edge.endpoint),))
        try:
            await asyncio.wait_for(asyncio.gather(*scene.tasks.values()), 60)
        finally:
            await scene.end()

    asyncio.run(play())
    assert sorted(ticked) == ["d0", "edge-0"]
    assert Run(quick / "cloud").status["state"] == "finished"
