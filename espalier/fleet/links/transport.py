"""Streams of frames over gRPC with mutual TLS: one from each child to its parent, and between peers.

Each end has a :class:`~espalier.fleet.links.link.Link`; frames come in through a callback. Keep-alive pings notice a
frozen or cut-off peer within about two seconds; a closed connection is noticed at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from espalier.core.errors import ConfigError, ProtocolError
from espalier.fleet.certs import Bundle, Identity, identity_of
from espalier.fleet.links.link import Link
from espalier.fleet.links.protocol import espalier_pb2 as pb

SERVICE, METHOD = "espalier.v1.Fleet", "Link"
#: a frame is a head with its content, or a chunk
FRAME_BYTES = 8 << 20
#: milliseconds in which a connection must have shown its certificate
HANDSHAKE_MS = 5000
#: seconds in which the first frame must have come
GREETING_SECONDS = 10.0
#: files that are kept free of connections: the journal, the record, the control socket, the log
FILES_KEPT_FREE = 128


def options(patience_ms: int = 2000) -> list[tuple[str, int]]:
    """Return the channel options of both sides. Without ``ping_timeout_ms`` a frozen peer goes unnoticed."""
    return [
        ("grpc.keepalive_time_ms", 1000),
        ("grpc.keepalive_timeout_ms", patience_ms),
        ("grpc.http2.ping_timeout_ms", patience_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 500),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", 1000),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.max_receive_message_length", FRAME_BYTES),
        ("grpc.max_send_message_length", FRAME_BYTES),
        ("grpc.so_reuseport", 0),
    ]


#: what a link's owner does with a frame; raising ends the link
Take = Callable[[Link, pb.Frame], Awaitable[None]]


def _parse(data: bytes) -> pb.Frame | None:
    """Read a frame; None if it is none (an exception here would kill the call without a word)."""
    try:
        frame: pb.Frame = pb.Frame.FromString(data)
    except DecodeError:
        return None
    return frame


class LinkServer:
    """Listens for children and peers."""

    def __init__(
        self,
        bundle: Bundle,
        accept: Callable[[Link], Awaitable[Take | None]],
        lost: Callable[[Link], None],
        malformed: Callable[[Link, str], None],
    ) -> None:
        """Prepare to listen.

        Args:
            bundle: This node's certificates.
            accept: Called with a new link; returns what takes its frames, or None if it is refused.
            lost: Called when an accepted link is over.
            malformed: Called when a link sent what is no frame, or none may send it; the link ends.
        """
        self._bundle, self._accept, self._lost, self._malformed = bundle, accept, lost, malformed
        self._server: grpc.aio.Server | None = None
        self._links: set[Link] = set()
        self.port = 0

    async def start(self, listen: str) -> None:
        """Listen at ``host:port`` (port 0: any that is free; see :attr:`port`)."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = 1 << 20 if files == resource.RLIM_INFINITY else max(FILES_KEPT_FREE, files - FILES_KEPT_FREE)
        doors: list[tuple[str, int]] = [
            # who opens connections and says nothing must not keep others out
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
            ("grpc.max_allowed_incoming_connections", most),
        ]
        server = grpc.aio.server(options=options() + doors)
        handler = grpc.stream_stream_rpc_method_handler(
            self._serve, request_deserializer=_parse, response_serializer=pb.Frame.SerializeToString
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        credentials = grpc.ssl_server_credentials(
            [(self._bundle.key, self._bundle.cert)], self._bundle.ca, require_client_auth=True
        )
        try:
            self.port = server.add_secure_port(listen, credentials)
        except RuntimeError as error:
            raise ConfigError(f"--listen {listen}: cannot listen there ({error}); choose a free port.") from error
        await server.start()
        # grpc stops listening when nobody holds the server object any more
        self._server = server

    async def stop(self) -> None:
        """End every link and stop listening."""
        for link in list(self._links):
            link.close()
        if self._server is not None:
            await self._server.stop(grace=0.5)
            self._server = None

    async def _serve(self, requests: object, context: grpc.aio.ServicerContext) -> None:
        link = Link(context.peer(), _peer(context))
        self._links.add(link)
        take = await self._accept(link)
        pump = asyncio.create_task(link.pump(context.write))
        try:
            if take is not None:
                reading = asyncio.create_task(self._read(link, context, take))
                try:
                    await asyncio.wait({reading, pump}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    reading.cancel()
                    with contextlib.suppress(asyncio.CancelledError, grpc.aio.AbortError, grpc.RpcError):
                        await reading
            link.close()
            await asyncio.wait({pump}, timeout=1.0)
        finally:
            # first what others must know: whoever ends this stream may do so once more, while its last frames go out
            self._links.discard(link)
            link.over()
            if take is not None:
                self._lost(link)
            await _ended(pump)

    async def _read(self, link: Link, context: grpc.aio.ServicerContext, take: Take) -> None:
        patience: float | None = GREETING_SECONDS
        while True:
            try:
                async with asyncio.timeout(patience):
                    frame = await context.read()
            except TimeoutError:
                self._malformed(link, f"no greeting in {GREETING_SECONDS:g} s")
                return
            patience = None
            if frame is grpc.aio.EOF:
                return
            if frame is None:
                self._malformed(link, "what it sent is no frame of this protocol")
                return
            if link.unread:
                self._malformed(link, "it does not read what it is answered")
                return
            try:
                await take(link, link.whole(frame))
            except ProtocolError as error:
                self._malformed(link, str(error))
                return
            except Exception as error:  # whatever a frame does to our code, only its link ends
                self._malformed(link, f"a frame that cannot be taken: {error!r}")
                return


async def _ended(task: asyncio.Task[None]) -> None:
    """End a task; what it failed with (the stream is over) is of no interest."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _peer(context: grpc.aio.ServicerContext) -> Identity | None:
    """Return who is at the other end, from its certificate alone."""
    auth = context.auth_context()
    pem = auth.get("x509_pem_cert", [b""])[0]
    try:
        found = identity_of(pem)
    except ValueError:
        return None
    # what TLS verified and what we parsed must be one name
    return found if auth.get("x509_common_name", [b""])[0].decode(errors="replace") == found.name else None


async def dial(
    bundle: Bundle, target: str, name: str | None, hello: pb.Hello, take: Take, *, connected: Callable[[Link], None]
) -> str:
    """Open a link to a parent or peer and serve it until it is over; return why it ended.

    Args:
        bundle: This node's certificates.
        target: ``host:port``.
        name: The name that the other's certificate must have; None checks the host instead.
        hello: The first frame.
        take: Takes the frames.
        connected: Called when the link is there (not yet welcomed).
    """
    credentials = grpc.ssl_channel_credentials(bundle.ca, bundle.key, bundle.cert)
    named: list[tuple[str, int | str]] = [*options()]
    if name is not None:
        named.append(("grpc.ssl_target_name_override", name))
    link = Link(target)
    channel = grpc.aio.secure_channel(target, credentials, options=named)
    call = None
    pump: asyncio.Task[None] | None = None
    try:
        method = channel.stream_stream(
            f"/{SERVICE}/{METHOD}", request_serializer=pb.Frame.SerializeToString, response_deserializer=_parse
        )
        call = method(wait_for_ready=False)
        await call.write(pb.Frame(hello=hello))
        connected(link)
        pump = asyncio.create_task(link.pump(call.write))
        reading = asyncio.create_task(_read_call(link, call, take))
        try:
            done, _ = await asyncio.wait({reading, pump}, return_when=asyncio.FIRST_COMPLETED)
            if reading not in done and pump.exception() is None:
                # this side ends it: the last frames go out before the stream does
                await call.done_writing()
                await asyncio.wait({reading}, timeout=0.5)
        finally:
            reading.cancel()
        return _why_it_ended(done, reading)
    except grpc.RpcError as error:
        return f"{error.code().name.lower()}: {error.details()}"
    except asyncio.InvalidStateError:
        return "the stream ended"
    finally:
        link.close()
        if pump is not None:
            await asyncio.wait({pump}, timeout=0.5)
            await _ended(pump)
        link.over()
        if call is not None:
            # since grpc 1.83 a call that is only dropped is never collected
            call.cancel()
        await channel.close()


def _why_it_ended(done: set[asyncio.Task[Any]], reading: asyncio.Task[str]) -> str:
    """Return why a link is over; what the other end is not to blame for is raised."""
    for task in done:
        error = task.exception()
        if isinstance(error, ProtocolError):
            return str(error)
        if error is not None and not isinstance(error, grpc.RpcError | asyncio.InvalidStateError):
            raise error
    if reading in done and not reading.cancelled() and reading.exception() is None:
        return reading.result()
    return "the stream ended"


async def _read_call(link: Link, call: grpc.aio.StreamStreamCall, take: Take) -> str:
    while True:
        frame = await call.read()
        if frame is grpc.aio.EOF:
            code, details = await call.code(), await call.details()
            return f"{code.name.lower()}: {details}" if details else code.name.lower()
        if frame is None:
            return "what it sent is no frame of this protocol"
        await take(link, link.whole(frame))
