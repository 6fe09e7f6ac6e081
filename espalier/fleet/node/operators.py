"""Operators at the cloud: whoever has an operator's certificate submits runs, looks at them, stops and fetches them.

An operator's link carries requests and nothing else. Who may ask for what is part of the one table
(`espalier.fleet.authority.rules`), and is checked before anything is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from espalier.core.errors import ConfigError, EspalierError, ProtocolError
from espalier.fleet.authority.check import check_request
from espalier.fleet.coordinator.coordinator import Coordinator
from espalier.fleet.coordinator.queue import QueuedRun
from espalier.fleet.coordinator.submission import Submissions
from espalier.fleet.links.link import Link
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.node.events import Call
from espalier.fleet.node.service import Service
from espalier.fleet.overview import overview

#: bytes of a file that travel in one frame
PIECE_BYTES = 1 << 20


class Operators:
    """Does what operators ask for."""

    def __init__(self, service: Service, submissions: Submissions) -> None:
        self._service, self._submissions = service, submissions
        self._one_at_a_time = asyncio.Lock()

    async def take(self, link: Link, frame: pb.Frame) -> None:
        """Take a frame of an operator's link.

        Raises:
            ProtocolError: It is no request.
        """
        if not frame.HasField("request") or link.peer is None:
            raise ProtocolError(f"An operator sends {frame.WhichOneof('kind')!r}; requests are accepted.")
        what = frame.request.what
        try:
            try:
                data = json.loads(frame.request.data or b"{}")
            except ValueError as error:
                raise ProtocolError(f"The request {what[:64]!r} is not JSON: {error}.") from error
            check_request(link.peer.role, what, data)
            found = await self._do(what, data, link)
        except EspalierError as error:
            self._service.host.log(
                "request refused", level="warning", who=link.peer.name, what=what[:64], why=str(error)
            )
            await link.send(pb.Frame(answer=pb.Answer(refused=str(error))))
        else:
            # not ahead of the pieces that it ends
            await link.send(pb.Frame(answer=pb.Answer(data=json.dumps(found).encode())))

    async def _do(self, what: str, data: dict[str, Any], link: Link) -> dict[str, Any]:
        assert link.peer is not None
        service, queue, who = self._service, self._submissions.queue, link.peer.name
        match what:
            case "submit":
                async with self._one_at_a_time:
                    run = await asyncio.to_thread(self._submissions.submit, data, who)
                service.host.log("run submitted", run=run.name, by=who)
                service.look_for_runs()
                return {"run": run.name}
            case "runs":
                return {"runs": [self._row(run) for run in queue.all()]}
            case "status":
                return overview(service)
            case "stop":
                return self._stop(queue.find(data["run"]), who)
            case _:
                run = queue.find(data["run"])
                with tempfile.TemporaryDirectory(prefix="espalier-") as folder:
                    copy = Path(folder) / "run.sqlite"
                    for path, source in await asyncio.to_thread(lambda: list(_files(run, copy))):
                        await _send(link, path, source)
                return {"run": run.name, "state": run.state}

    def _row(self, run: QueuedRun) -> dict[str, Any]:
        """Return what is known of a run."""
        row = {
            "run": run.name, "state": run.state, "why": run.why, "submitter": run.submitter,
            "submitted": round(run.submitted, 3), **run.summary,
        }  # fmt: skip
        current, conduct = self._service.current, self._service.host.conduct
        if current is not None and current.name == run.name and isinstance(conduct, Coordinator):
            row |= conduct.summary()
        return row

    def _stop(self, run: QueuedRun, who: str) -> dict[str, Any]:
        service = self._service
        why = f"stopped by {who}"
        current, conduct = service.current, service.host.conduct
        if run.state == "queued":
            self._submissions.queue.ended(run, "stopped", why)
        elif current is None or current.name != run.name or not isinstance(conduct, Coordinator):
            raise ConfigError(f"{run.name} is {run.state}; only a run that waits or goes on can be stopped.")
        else:
            service.host.put(Call(lambda: conduct.stop(why)))
        service.host.log("run stopped", run=run.name, by=who)
        return {"run": run.name}


def _files(run: QueuedRun, copy: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a run directory that make a readable one elsewhere: (path in it, where it is now).

    The record of a run that goes on is copied as it is now.

    Raises:
        ConfigError: The run has not begun.
    """
    record = run.directory / "run.sqlite"
    if not record.exists():
        raise ConfigError(f"{run.name} is {run.state} and has no results yet.")
    with contextlib.closing(sqlite3.connect(record)) as source, contextlib.closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    yield from (("run.toml", run.directory / "run.toml"), ("run.sqlite", copy))
    for path in sorted((run.directory / "models").glob("*.safetensors")):
        yield f"models/{path.name}", path


async def _send(link: Link, path: str, source: Path) -> None:
    """Send a file, piece by piece."""
    with source.open("rb") as file:
        while data := await asyncio.to_thread(file.read, PIECE_BYTES):
            if not await link.send(pb.Frame(piece=pb.Piece(path=path, data=data))):
                return
