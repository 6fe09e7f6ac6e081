"""The live page's server: the same page as a report's, its parts over HTTP, news as server-sent events. Read-only."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import URL
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from espalier.report.endpoint import Endpoint, is_loopback
from espalier.report.live_parts import LiveParts
from espalier.report.page import html

#: seconds between two looks at the databases, and between two signs of life to a viewer
POLL_SECONDS, KEEPALIVE_SECONDS = 0.5, 10.0
#: of every answer: nothing is kept, and no other site learns the address
HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}


class AccessControl:
    """Lets in who may look: everybody on this machine, elsewhere whoever has the token.

    On loopback the address asked for must be this machine's too; otherwise a web page that the user visits could
    reach the server under a name of its own (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http":
            request = Request(scope)
            if self.token is None:
                # not request.url: without a name in the request that has the server's own
                allowed = is_loopback(URL(f"//{request.headers.get('host', '')}").hostname or "")
            else:
                allowed = secrets.compare_digest(request.query_params.get("token", "").encode(), self.token.encode())
            if not allowed:
                text = "This page needs the token in its address, as the command printed it."
                await PlainTextResponse(text, 403)(scope, receive, send)
                return
        await self.app(scope, receive, send)


class Viewers:
    """Everybody who looks at the page; the databases are read only while there is someone."""

    def __init__(self, board: LiveParts, ended: Callable[[], bool]) -> None:
        self.board, self.ended = board, ended
        self.count = 0
        self._news = ""
        self._changed = asyncio.Event()

    async def look(self) -> None:
        """Look at the databases now, and wake the viewers if there is news."""
        found = json.dumps(await run_in_threadpool(self.board.news))
        if found != self._news:
            self._news = found
            waking, self._changed = self._changed, asyncio.Event()
            waking.set()

    async def keep_looking(self) -> None:
        """Look again and again while anybody is there."""
        while not self.ended():
            if self.count:
                await self.look()
            await asyncio.sleep(POLL_SECONDS)

    async def stream(self) -> AsyncIterator[str]:
        """Yield server-sent events for one viewer: all news at once, then whatever changes."""
        self.count += 1
        try:
            await self.look()
            told, quiet = "", 0.0
            yield "retry: 2000\n\n"
            while not self.ended():
                if told != self._news:
                    told, quiet = self._news, 0.0
                    yield f"event: news\ndata: {told}\n\n"
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), 0.5)
                quiet += 0.5
                if quiet >= KEEPALIVE_SECONDS:
                    quiet = 0.0
                    yield ": still here\n\n"
        finally:
            self.count -= 1


def application(board: LiveParts, token: str | None = None, ended: Callable[[], bool] = lambda: False) -> Starlette:
    """Return the live page as an ASGI application; ``ended`` says that it is time to let the viewers go."""
    viewers = Viewers(board, ended)
    page = html({}, "espalier", live=True)

    async def index(request: Request) -> Response:
        return HTMLResponse(page, headers=HEADERS)

    async def events(request: Request) -> Response:
        return StreamingResponse(viewers.stream(), media_type="text/event-stream", headers=HEADERS)

    async def section(request: Request) -> Response:
        text = await run_in_threadpool(board.part, request.path_params["name"])
        return _answer(text)

    async def window(request: Request) -> Response:
        try:
            start, stop = float(request.query_params["start"]), float(request.query_params["stop"])
        except (KeyError, ValueError):
            return PlainTextResponse("start and stop must be numbers: virtual seconds", 400)
        text = await run_in_threadpool(board.window, request.path_params["key"], start, stop)
        return _answer(text)

    @contextlib.asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(viewers.keep_looking())
        yield
        task.cancel()

    routes = [
        Route("/", index),
        Route("/events", events),
        Route("/section/timeline/{key}", window),
        Route("/section/{name:path}", section),
    ]
    guards = [Middleware(AccessControl, token=token), Middleware(GZipMiddleware)]
    app = Starlette(routes=routes, lifespan=life, middleware=guards)
    app.state.viewers = viewers
    return app


def _answer(text: bytes | None) -> Response:
    if text is None:
        return PlainTextResponse("there is no such part", 404)
    return Response(text, media_type="application/json", headers=HEADERS)


class LivePage:
    """A live page that is being served, from a thread of its own."""

    def __init__(self, roots: list[Path], endpoint: Endpoint) -> None:
        """Start to serve the runs at or below ``roots``."""
        self._endpoint = endpoint
        app = application(LiveParts(roots), endpoint.token, lambda: self._server.should_exit)
        self._viewers: Viewers = app.state.viewers
        self._server = uvicorn.Server(
            uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=3)
        )
        # in a thread uvicorn leaves signals alone: they belong to the command
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [endpoint.socket]}, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Serve until the process is interrupted."""
        while self._thread.is_alive():
            self._thread.join(1.0)

    def close(self, *, show_the_end: bool = False) -> None:
        """Let the viewers go and stop; ``show_the_end`` gives them time to see what the runs wrote last."""
        if show_the_end and self._viewers.count:
            time.sleep(3.0)
        self._server.should_exit = True
        self._thread.join(10.0)
        self._endpoint.socket.close()
