"""What operators look at: ``/healthz`` and Prometheus metrics on loopback, a control socket in the node's directory.

The HTTP server answers GET only and listens on loopback unless told otherwise. The control socket takes one JSON
object per line (``{"do": "status"}``, ``{"do": "fleet"}`` at the cloud, ``{"do": "move", "parent":
"edge-1@host:port"}``, ``{"do": "stop"}``);
whoever may write in the node's directory may use it, nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from espalier.core.errors import ConfigError, EspalierError
from espalier.fleet.coordinator.coordinator import Coordinator
from espalier.fleet.links.admission import parse_parent
from espalier.fleet.node.host import Host
from espalier.fleet.node.service import Service
from espalier.fleet.overview import GONE, LINKED, LOST, WAITING, overview

#: bytes of a request's head that are read at most
REQUEST_BYTES = 8192


def status(host: Host) -> dict[str, Any]:
    """Return how a node is: its place, links, round, and what waits."""
    engine, conduct = host.engine, host.conduct
    found: dict[str, Any] = {
        "name": host.identity.name,
        "role": host.identity.role,
        "address": host.me if engine is not None else None,
        "run": host.run_name,
        "linked": host.registry is not None or host.routes.parent is not None or host.idle,
        "waiting": host.idle and engine is None,
        "children": sorted(c.name for c in host.routes.children.values()),
        "endpoint": host.endpoint,
        "letters": host.transmitter.pending() if host.transmitter is not None else 0,
        "time": round(host.clock.now(), 3),
        "refused": host.refusals.count,
    }
    if isinstance(conduct, Coordinator):
        found |= {"round": conduct.round, "started": conduct.started, "finished": conduct.finished}
        found["devices"] = sum(m.role == "device" for m in list(conduct.engine.directory.members.values()))
    return found


class Collector:
    """Turns a host's state into Prometheus metrics when they are asked for."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        host = self._service.host
        now, engine, relay, transmitter = status(host), host.engine, host.relay, host.transmitter
        gauges = {
            "linked": ("1 if the node has its parent (the cloud: always)", float(now["linked"])),
            "children": ("Links from below", float(len(now["children"]))),
            "letters_waiting": ("Letters that are not acknowledged", float(now["letters"])),
            "models_held": ("Models in memory", float(len(engine.store)) if engine else 0.0),
            "works_waiting": ("Trainings and other work under way", float(len(engine.jobs.waiting)) if engine else 0.0),
        }
        if isinstance(host.conduct, Coordinator):
            gauges["round"] = ("The run's round", float(now["round"]))
            gauges["devices"] = ("Devices in the fleet", float(now["devices"]))
            for name, value in host.conduct.last.items():
                gauges[re.sub(r"\W", "_", f"score_{name}", flags=re.ASCII)] = ("A figure of the last evaluation", value)
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"espalier_{name}", text, value=value)
        if "round" in now:
            yield from _of_members(overview(self._service)["members"])
        counters = {
            "refused": ("Links and letters that were refused", float(host.refusals.count)),
            "frames_relayed": ("Frames passed on for others", float(relay.relayed) if relay else 0.0),
            "frames_lost": ("Frames for nobody who is linked; they come again", float(relay.lost) if relay else 0.0),
            "letters_resent": ("Letters that went out again", float(transmitter.resent) if transmitter else 0.0),
            "parent_links": ("Links made to a parent", float(host.parent_link.made) if host.parent_link else 0.0),
            "work_seconds": ("Seconds spent training, measuring and scoring", host.work_seconds),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"espalier_{name}", text, value=value)
        sent = CounterMetricFamily("espalier_sent_bytes", "Bytes sent", labels=["tier", "direction", "kind"])
        for (tier, direction, kind), count in sorted(host.sent_bytes.total().items()):
            sent.add_metric([tier, direction, kind], float(count))
        yield sent


def _of_members(rows: list[dict[str, Any]]) -> Iterator[Metric]:
    """Yield what the cloud knows of every member: labels are its name, role and parent."""
    count = GaugeMetricFamily("espalier_members", "Members of the fleet", labels=["role", "state"])
    for role in ("edge", "device"):
        for state in (LINKED, LOST, GONE, WAITING):
            count.add_metric([role, state], float(sum(r["role"] == role and r["state"] == state for r in rows)))
    yield count
    labels = ["name", "role", "parent"]
    linked = GaugeMetricFamily("espalier_member_linked", "1 if the member's link is there", labels=labels)
    samples = GaugeMetricFamily("espalier_member_samples", "Training samples that the member holds", labels=labels)
    silent = GaugeMetricFamily("espalier_member_report_age_seconds", "Seconds since its last report", labels=labels)
    late = CounterMetricFamily("espalier_member_late", "Rounds that were closed without the member", labels=labels)
    refused = CounterMetricFamily("espalier_member_refused", "Refused letters and links of the member", labels=labels)
    for row in rows:
        if row["role"] == "cloud":
            continue
        values = [row["name"], row["role"], row["parent"] or ""]
        linked.add_metric(values, float(row["state"] == LINKED))
        samples.add_metric(values, float(row["samples"]))
        late.add_metric(values, float(row["late"]))
        refused.add_metric(values, float(row["refused"]))
        if row["seconds_since_report"] is not None:
            silent.add_metric(values, row["seconds_since_report"])
    yield from (linked, samples, silent, late, refused)


class Ops:
    """The HTTP server and the control socket of one node."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._registry = CollectorRegistry()
        self._registry.register(Collector(service))
        self._servers: list[asyncio.Server] = []
        self._socket: Path | None = None
        self.port = 0
        #: where the fleet's page is served, token included ("": nowhere)
        self.page = ""

    async def start(self, listen: str | None, directory: Path | None) -> None:
        """Begin to answer."""
        if listen is not None:
            name, _, port = listen.rpartition(":")
            try:
                server = await asyncio.start_server(self._http, name or "127.0.0.1", int(port), limit=REQUEST_BYTES)
            except (OSError, ValueError) as error:
                raise ConfigError(f"--ops {listen}: cannot listen there ({error}); give [host:]port.") from error
            self.port = server.sockets[0].getsockname()[1]
            self._servers.append(server)
        if directory is not None:
            self._socket = directory / "control.sock"
            self._socket.unlink(missing_ok=True)
            mask = os.umask(0o177)
            try:
                self._servers.append(await asyncio.start_unix_server(self._control, self._socket, limit=REQUEST_BYTES))
            except OSError as error:
                raise ConfigError(f"{self._socket}: {error}; choose a directory with a shorter path.") from error
            finally:
                os.umask(mask)

    async def stop(self) -> None:
        """Stop answering."""
        for server in self._servers:
            server.close()
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)

    async def _http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            async with asyncio.timeout(5.0):
                head = await reader.readuntil(b"\r\n\r\n")
            words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
            path = words[1].partition("?")[0] if len(words) == 3 and words[0] == "GET" else ""
            code, kind, body = "404 Not Found", "text/plain", b"/healthz and /metrics are here\n"
            if path == "/healthz":
                now = status(self._service.host)
                ready = now["linked"] and (now["address"] is not None or now["waiting"])
                code = "200 OK" if ready else "503 Service Unavailable"
                kind, body = "application/json", json.dumps(now).encode() + b"\n"
            elif path == "/metrics":
                code, kind = "200 OK", "text/plain; version=0.0.4; charset=utf-8"
                body = generate_latest(self._registry)
            answer = (
                f"HTTP/1.1 {code}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(answer.encode() + body)
            await writer.drain()
        writer.close()

    async def _control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError):
            line = await reader.readline()
            try:
                answer = self._do(json.loads(line))
            except (ValueError, KeyError, TypeError, EspalierError) as error:
                answer = {"error": str(error)}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    def _do(self, request: dict[str, Any]) -> dict[str, Any]:
        service = self._service
        host = service.host
        match request["do"]:
            case "status":
                return status(host)
            case "fleet":
                return overview(service) | {"page": self.page}
            case "move":
                if host.parent_link is None:
                    raise ConfigError("The cloud has no parent to leave.")
                service.move(*parse_parent(str(request["parent"])))
                return {"done": True}
            case "stop":
                service.stop("told to over the control socket")
                return {"done": True}
        raise ConfigError(f"do = {request['do']!r}: must be status, fleet, move or stop.")


def ask(directory: Path, **request: Any) -> dict[str, Any]:
    """Say something to the node of a directory; return its answer."""
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(10)
        try:
            link.connect(str(directory / "control.sock"))
        except OSError as error:
            raise ConfigError(f"No node runs in {directory} ({error.strerror}).") from error
        link.sendall(json.dumps(request).encode() + b"\n")
        answer: dict[str, Any] = json.loads(link.makefile().readline() or "{}")
    if "error" in answer:
        raise ConfigError(str(answer["error"]))
    return answer
