"""The agent's web server: page, signalling, health. What a call does is none of its business."""

from __future__ import annotations

import asyncio
import gc
import json
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, Protocol
from uuid import uuid4

from aiortc import RTCIceServer
from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

import voxagent
from voxagent.benchmarks.figures import memory_mb
from voxagent_agent.settings import AgentSettings, IceServer
from voxagent_webrtc import MAX_BODY_BYTES, Connection, Patience, Refused, Signalling

# An offer takes the event loop 6 ms (keys, candidates, SDP; measured), a malformed one 1 ms. More of them at once than
# this would be heard in the calls in progress.
_OFFERS_AT_ONCE = 4
_BUSY_RETRY_S = 2
_BODY_S = 10.0
# Of `/start`, waiting for their offers; the oldest gives way.
_SESSIONS = 256
_SECURITY = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; media-src 'self' blob:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "microphone=(self), camera=()",
}


Offer = Callable[[dict[str, Any]], Awaitable[dict[str, str]]]
"""Answers the body of an offer."""


class Conversation(Protocol):
    """What holds the calls' conversations."""

    async def start(self) -> None:
        """Loads what the calls share."""
        ...

    async def converse(self, connection: Connection, data: object) -> None:
        """Runs one call to its end."""
        ...

    async def aclose(self) -> None:
        """Frees everything."""
        ...


def create_app(agent: Conversation, settings: AgentSettings) -> FastAPI:
    """The server's application; `app.state.signalling` holds its calls.

    Args:
        agent: Holds the conversations; it is started and closed elsewhere.
        settings: See `AgentSettings`.
    """
    signalling = Signalling(_connect(settings), agent.converse, settings.calls)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await drain(app, settings.drain_s)

    app = FastAPI(title=settings.name, docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.state.signalling, app.state.draining = signalling, False
    app.middleware("http")(_secure)
    app.exception_handler(Refused)(_refused)
    app.exception_handler(HTTPException)(_failed)
    app.exception_handler(Exception)(_broken)
    if settings.allow_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allow_origins,
            allow_methods=["GET", "POST", "PATCH"],
            allow_headers=["Content-Type", "Authorization"],
            expose_headers=["Retry-After"],
        )
    offer = _add_signalling(app, signalling)
    _add_sessions(app, settings, offer)
    _add_page(app, signalling, settings)
    return app


async def drain(app: FastAPI, patience_s: float) -> None:
    """Refuses new calls, and waits for those in progress; what is left then is closed. May be called twice."""
    app.state.draining = True
    await app.state.signalling.drain(patience_s)


def ice_servers(servers: list[IceServer]) -> list[RTCIceServer]:
    """As aiortc takes them."""
    return [
        RTCIceServer(one.urls, one.username, one.credential.get_secret_value() if one.credential else None)
        for one in servers
    ]


def _for_browsers(servers: list[IceServer]) -> list[dict[str, Any]]:
    """As `RTCPeerConnection` takes them. Whoever may call must know the credentials."""
    return [
        {"urls": one.urls, "username": one.username, "credential": one.credential.get_secret_value()}
        if one.credential
        else {"urls": one.urls}
        for one in servers
    ]


def _connect(settings: AgentSettings) -> Callable[[], Connection]:
    patience = Patience(settings.connect_s, settings.silent_s, settings.return_s)
    servers = ice_servers(settings.ice_servers)
    return lambda: Connection(servers, patience)


def _add_signalling(app: FastAPI, signalling: Signalling) -> Offer:
    gate = _Gate(_OFFERS_AT_ONCE)

    async def admit(body: dict[str, Any]) -> dict[str, str]:
        # Pipecat's Python clients write it so.
        body.setdefault("requestData", body.get("request_data"))
        async with gate.place():
            return await signalling.offer(body)

    @app.post("/api/offer")
    async def offer(request: Request) -> dict[str, str]:
        return await admit(await _body(request))

    @app.patch("/api/offer")
    @app.patch("/sessions/{session}/api/offer")
    async def candidates(request: Request) -> dict[str, str]:
        return await signalling.candidates(await _body(request))

    return admit


def _add_sessions(app: FastAPI, settings: AgentSettings, admit: Offer) -> None:
    """The way in that Pipecat's clients know from its cloud and its runner."""
    sessions: OrderedDict[str, object] = OrderedDict()

    @app.post("/start")
    async def start(request: Request) -> dict[str, Any]:
        body = await _body(request, optional=True)
        if body.get("transport", "webrtc") != "webrtc":
            raise Refused(400, "transport must be 'webrtc': this agent speaks nothing else")
        if app.state.draining:
            raise Refused(503, "the agent is shutting down", _BUSY_RETRY_S)
        session = uuid4().hex
        sessions[session] = body.get("body")
        if len(sessions) > _SESSIONS:
            sessions.popitem(last=False)
        return {"sessionId": session, "iceConfig": {"iceServers": _for_browsers(settings.ice_servers)}}

    @app.post("/sessions/{session}/api/offer")
    async def offer(session: str, request: Request) -> dict[str, str]:
        body = await _body(request)
        if session not in sessions:
            raise Refused(404, "no such session: POST /start begins one")
        sessions.move_to_end(session)
        body["requestData"] = body.get("requestData") or body.get("request_data") or sessions[session]
        return await admit(body)


def _add_page(app: FastAPI, signalling: Signalling, settings: AgentSettings) -> None:
    page = str(files("voxagent_agent").joinpath("page"))

    @app.get("/")
    async def index() -> FileResponse:
        return FileResponse(os.path.join(page, "index.html"))

    @app.get("/api/config")
    async def config() -> dict[str, Any]:
        servers = _for_browsers(settings.ice_servers)
        return {"name": settings.name, "ice_servers": servers, "calls": signalling.calls, "limit": settings.calls}

    @app.get("/health")
    async def health() -> JSONResponse:
        # 503 takes a draining agent out of a load balancer.
        draining = app.state.draining
        body = {"status": "draining" if draining else "ready", "version": voxagent.__version__}
        return JSONResponse({**body, "calls": signalling.calls, **resources()}, 503 if draining else 200)

    app.mount("/page", StaticFiles(directory=page), name="page")


def resources() -> dict[str, Any]:
    """What the process holds: memory in MB, tasks of the event loop, open files and sockets."""
    return {
        "memory_mb": round(memory_mb(), 1),
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


async def _body(request: Request, *, optional: bool = False) -> dict[str, Any]:
    """The JSON object of a request; with `optional` an empty body is an empty object.

    Raises:
        Refused: It is none, or too long, or too slow.
    """
    if optional and request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers:
        return {}
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, f"the body must be application/json, not {kind or 'unknown'}")
    data = bytearray()
    try:
        async with asyncio.timeout(_BODY_S):
            async for chunk in request.stream():
                data += chunk
                if len(data) > MAX_BODY_BYTES:
                    raise Refused(413, f"the body is longer than {MAX_BODY_BYTES} bytes")
    except TimeoutError:
        raise Refused(408, f"the body did not come within {_BODY_S:g} s") from None
    except ClientDisconnect:
        raise Refused(400, "the body broke off") from None
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
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": str(error.detail).lower()}, error.status_code, headers=dict(error.headers or {}))


async def _broken(_: Request, __: Exception) -> JSONResponse:
    return JSONResponse({"detail": "the agent failed: its log tells why"}, 500, headers=_SECURITY)
