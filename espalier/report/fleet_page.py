"""The page of a real fleet: its members, the tree, rounds and scores, served by its cloud. Read-only, with a token."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from espalier.core.errors import ConfigError, EspalierError, RunError
from espalier.report.endpoint import kept_token, listen
from espalier.report.page import asset, dumps
from espalier.report.server import HEADERS, AccessControl

#: the page may load nothing from elsewhere, and nothing may embed it
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: where, in a cloud's directory, its page's token is kept: bookmarks survive a restart
TOKEN_FILE = "status-page.token"

#: tells how the fleet is, as plain data; called from threads of the page's server
Look = Callable[[], dict[str, Any]]


def application(look: Look, token: str) -> Starlette:
    """Return the page as an ASGI application."""
    page = asset("fleet.html").replace("/*STYLE*/", asset("page.css"))

    async def index(request: Request) -> Response:
        return HTMLResponse(page, headers={**HEADERS, "Content-Security-Policy": _POLICY})

    async def status(request: Request) -> Response:
        try:
            found = dumps(await run_in_threadpool(look))
        except (EspalierError, TimeoutError) as error:
            return JSONResponse({"error": str(error) or "the cloud is busy"}, 503, headers=HEADERS)
        return Response(found, media_type="application/json", headers=HEADERS)

    routes = [Route("/", index), Route("/status.json", status)]
    return Starlette(routes=routes, middleware=[Middleware(AccessControl, token=token)])


@contextlib.contextmanager
def served(where: str, directory: Path, look: Look) -> Iterator[str]:
    """Serve the page at ``[host:]port`` (loopback by default) while the block lasts; gives its address with the token.

    Raises:
        ConfigError: It is no address, or nothing can listen there.
    """
    host, _, port = where.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--status-page {where}: must be [host:]port.")
    token = kept_token(directory / TOKEN_FILE)
    try:
        endpoint = listen(host.strip("[]") or "127.0.0.1", int(port), token)
    except RunError as error:
        raise ConfigError(f"--status-page {where}: cannot listen there ({error.__cause__}).") from error
    app = application(look, token)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=1))
    # in a thread uvicorn leaves signals alone: they belong to the node
    thread = threading.Thread(target=server.run, kwargs={"sockets": [endpoint.socket]}, daemon=True)
    thread.start()
    try:
        yield endpoint.url
    finally:
        server.should_exit = True
        thread.join(5.0)
        endpoint.socket.close()
