"""The agent's web server: page, signalling, health. What a call does is none of its business."""

from __future__ import annotations

import asyncio
import gc
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, Protocol
from uuid import uuid4

from aiortc import RTCIceServer
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import HTTPException
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException as StarletteHTTPException

import voxagent
from voxagent_agent.settings import AgentSettings, IceServer
from voxagent_webrtc import MAX_BODY_BYTES, Connection, Patience, Refused, Signalling

# An offer takes the event loop about 10 ms (keys, candidates, SDP). More of them at once than this would be heard in
# the calls in progress.
_OFFERS_AT_ONCE = 4
_BUSY_RETRY_S = 2
_SECURITY = {
    "Content-Security-Policy": "default-src 'self'; media-src 'self' blob:; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "microphone=(self), camera=()",
}


class Conversation(Protocol):
    """What holds the calls' conversations."""

    async def converse(self, connection: Connection, data: object) -> None:
        """Runs one call to its end."""
        ...


def create_app(agent: Conversation, settings: AgentSettings) -> FastAPI:
    """The server's application; `app.state.signalling` holds its calls."""
    signalling = Signalling(_connect(settings), agent.converse, settings.calls)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await signalling.drain(settings.drain_s)

    app = FastAPI(title=settings.name, docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.state.signalling = signalling
    app.middleware("http")(_secure)
    app.exception_handler(Refused)(_refused)
    app.exception_handler(StarletteHTTPException)(_failed)
    _add_signalling(app, signalling)
    _add_page(app, signalling, settings)
    return app


def ice_servers(servers: list[IceServer]) -> list[RTCIceServer]:
    """As aiortc takes them."""
    return [
        RTCIceServer(one.urls, one.username, one.credential.get_secret_value() if one.credential else None)
        for one in servers
    ]


def _connect(settings: AgentSettings) -> Callable[[], Connection]:
    patience = Patience(settings.connect_s, settings.silent_s, settings.return_s)
    servers = ice_servers(settings.ice_servers)
    return lambda: Connection(servers, patience)


def _add_signalling(app: FastAPI, signalling: Signalling) -> None:
    gate = _Gate(_OFFERS_AT_ONCE)

    @app.post("/api/offer")
    async def offer(request: Request) -> dict[str, str]:
        body = await _body(request)
        async with gate.place():
            return await signalling.offer(body)

    @app.patch("/api/offer")
    async def candidates(request: Request) -> dict[str, str]:
        return await signalling.candidates(await _body(request))

    # As Pipecat's clients know it from its cloud and its runner.
    @app.post("/start")
    async def start(request: Request) -> dict[str, Any]:
        wants_ice = (await _body(request)).get("enableDefaultIceServers", False)
        config: dict[str, Any] = {"iceConfig": {"iceServers": []}} if wants_ice else {}
        return {"sessionId": uuid4().hex, **config}

    app.post("/sessions/{session}/api/offer")(offer)
    app.patch("/sessions/{session}/api/offer")(candidates)


def _add_page(app: FastAPI, signalling: Signalling, settings: AgentSettings) -> None:
    page = str(files("voxagent_agent").joinpath("page"))

    @app.get("/")
    async def index() -> FileResponse:
        return FileResponse(os.path.join(page, "index.html"))

    @app.get("/api/config")
    async def config() -> dict[str, Any]:
        servers = [
            {"urls": one.urls, "username": one.username, "credential": one.credential.get_secret_value()}
            if one.credential
            else {"urls": one.urls}
            for one in settings.ice_servers
        ]
        return {"name": settings.name, "ice_servers": servers, "calls": signalling.calls, "limit": settings.calls}

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "version": voxagent.__version__, "calls": signalling.calls, **resources()}

    app.mount("/page", StaticFiles(directory=page), name="page")


def resources() -> dict[str, Any]:
    """What the process holds: memory in MB, tasks of the event loop, open files and sockets."""
    with open("/proc/self/statm", encoding="ascii") as file:
        memory_mb = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return {
        "memory_mb": round(memory_mb, 1),
        "tasks": len(asyncio.all_tasks()),
        "files": len(os.listdir("/proc/self/fd")),
        "objects": gc.get_count()[2],
    }


class _Gate:
    """Lets so many through at a time; the others are told to come again."""

    def __init__(self, places: int) -> None:
        self._free = places

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        if not self._free:
            raise Refused(503, "too many offers at once", _BUSY_RETRY_S)
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object of a request.

    Raises:
        Refused: It is none, or too long.
    """
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, f"the body must be application/json, not {kind or 'unknown'}")
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise Refused(413, f"the body is longer than {MAX_BODY_BYTES} bytes")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is no JSON") from None
    if not isinstance(body, dict):
        raise Refused(422, "the body must be a JSON object")
    return body


async def _secure(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await call_next(request)
    response.headers.update(_SECURITY)
    return response


async def _refused(_: Request, refused: Exception) -> JSONResponse:
    assert isinstance(refused, Refused)
    headers = {"Retry-After": str(refused.retry_after_s)} if refused.retry_after_s is not None else {}
    return JSONResponse({"detail": refused.reason}, refused.status, headers=headers)


async def _failed(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, (HTTPException, StarletteHTTPException))
    return JSONResponse({"detail": str(error.detail).lower()}, error.status_code, headers=dict(error.headers or {}))
