"""The agent's web server over loopback: page, signalling, admission, draining; with real peers where one is needed."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import uvicorn
from aiortc import RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import AudioStreamTrack

from tests.conftest import eventually
from voxagent.playout import Playout
from voxagent_agent.app import create_app, drain
from voxagent_agent.settings import AgentSettings
from voxagent_webrtc import MAX_BODY_BYTES, Connection, Ended, Ends

JSON = {"Content-Type": "application/json"}


class Silence:
    """A bot that has nothing to say."""

    def __init__(self) -> None:
        self.playout = Playout(48000)
        self.pull = self.playout.pull

    def interrupt(self) -> None: ...


@dataclass
class Patient:
    """A conversation that says nothing and waits for its end."""

    started: list[tuple[Connection, Any]] = field(default_factory=list)
    log: list[object] = field(default_factory=list)
    heard_samples: int = 0

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...

    async def converse(self, connection, data):
        self.started.append((connection, data))
        over = asyncio.Event()
        connection.line.plug(Ends(Silence(), self._hear))
        connection.listen(_Ear(self.log, over))
        await over.wait()

    def _hear(self, pcm):
        self.heard_samples += len(pcm)


@dataclass
class _Ear:
    log: list[object]
    over: asyncio.Event

    def connected(self) -> None:
        self.log.append("connected")

    def lost(self) -> None: ...

    def message(self, message: object) -> None: ...

    def ended(self, reason: Ended) -> None:
        self.log.append(reason)
        self.over.set()


@dataclass
class Served:
    """A running server."""

    url: str
    app: Any
    agent: Patient
    http: aiohttp.ClientSession

    @property
    def calls(self):
        return self.app.state.signalling.calls

    async def ask(self, method, path, body=None, headers=JSON):
        """Status, JSON and headers of the answer."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        async with self.http.request(method, self.url + path, data=data, headers=headers if data else {}) as answer:
            return answer.status, await answer.json(), answer.headers

    async def offer(self, sdp, path="/api/offer", **more):
        return await self.ask("POST", path, {"sdp": sdp, "type": "offer", **more})


@asynccontextmanager
async def served(**settings):
    """A server on a free port; checks at its end that nothing is left of it."""
    before = asyncio.all_tasks()
    agent = Patient()
    app = create_app(agent, AgentSettings(drain_s=0.0, **settings))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2))
        serving = asyncio.create_task(server.serve([listener]))
        await eventually(lambda: server.started)
        idle_files = _files()
        try:
            async with aiohttp.ClientSession() as http:
                yield Served(f"http://127.0.0.1:{listener.getsockname()[1]}", app, agent, http)
            await drain(app, 0.0)
            await eventually(lambda: not server.server_state.connections and _files() <= idle_files)
        finally:
            server.should_exit = True
            await serving
    assert app.state.signalling.calls == 0
    await eventually(lambda: asyncio.all_tasks() <= before | {asyncio.current_task()})


def _files():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@asynccontextmanager
async def peer():
    """A caller with a microphone; closed at the end."""
    pc = RTCPeerConnection()
    pc.addTrack(AudioStreamTrack())
    try:
        yield pc
    finally:
        await pc.close()
        pc.remove_all_listeners()


async def sdp_of(pc):
    await pc.setLocalDescription(await pc.createOffer())
    return pc.localDescription.sdp


async def some_sdp():
    async with peer() as pc:
        return await sdp_of(pc)


async def dial(call, pc, path="/api/offer", **more):
    status, answer, _ = await call.offer(await sdp_of(pc), path, **more)
    assert status == 200, answer
    await pc.setRemoteDescription(RTCSessionDescription(answer["sdp"], answer["type"]))
    return answer["pc_id"]


# --- pages ------------------------------------------------------------------------------------------------------------


async def test_the_page_its_files_and_its_configuration_are_served():
    ice = [{"urls": "turn:127.0.0.1:3478", "username": "me", "credential": "sesame"}, {"urls": "stun:127.0.0.1:3478"}]
    async with served(name="Front desk", calls=7, ice_servers=ice) as call:
        async with call.http.get(call.url) as page:
            assert (page.status, page.content_type) == (200, "text/html")
            assert "default-src 'self'" in page.headers["Content-Security-Policy"]
            assert "Access-Control-Allow-Origin" not in page.headers
            text = await page.text()
        for name, kind in (("app.js", "javascript"), ("style.css", "text/css")):
            assert f"page/{name}" in text
            async with call.http.get(f"{call.url}/page/{name}") as part:
                assert (part.status, kind in part.content_type) == (200, True)
                assert part.headers["X-Content-Type-Options"] == "nosniff"
        _, config, _ = await call.ask("GET", "/api/config")
        assert (await call.ask("POST", "/start", {}))[1]["iceConfig"] == {"iceServers": ice}
        assert config == {"name": "Front desk", "ice_servers": ice, "calls": 0, "limit": 7}
        status, health, _ = await call.ask("GET", "/health")
        assert (status, health["status"], health["calls"]) == (200, "ready", 0)


async def test_what_is_not_there_is_told_in_json():
    async with served() as call:
        for method, path, status in (
            ("GET", "/nothing", 404),
            ("GET", "/page/nothing.js", 404),
            ("GET", "/page/..%2Fsettings.py", 404),
            ("GET", "/api/offer", 405),
            ("DELETE", "/api/config", 405),
            ("GET", "/docs", 404),
        ):
            got, body, headers = await call.ask(method, path)
            assert (path, got, list(body)) == (path, status, ["detail"])
            assert "Content-Security-Policy" in headers


async def test_other_origins_may_call_only_when_they_are_named():
    preflight = {"Origin": "https://shop.example", "Access-Control-Request-Method": "POST"}
    async with served() as call, call.http.options(f"{call.url}/api/offer", headers=preflight) as answer:
        assert answer.status == 405
    async with served(allow_origins=["https://shop.example"]) as call:
        async with call.http.options(f"{call.url}/api/offer", headers=preflight) as answer:
            assert answer.headers["Access-Control-Allow-Origin"] == "https://shop.example"
        evil = {**preflight, "Origin": "https://evil.example"}
        async with call.http.options(f"{call.url}/api/offer", headers=evil) as answer:
            assert "Access-Control-Allow-Origin" not in answer.headers


# --- bad requests -----------------------------------------------------------------------------------------------------


_BAD_OFFERS = (
    (b"v=0", {"Content-Type": "application/sdp"}, 415, "application/json"),
    (b"{", JSON, 400, "no JSON"),
    (b"[" * 5000, JSON, 400, "no JSON"),
    (b"\xff\xfe", JSON, 400, "no JSON"),
    (b"[]", JSON, 422, "object"),
    (b"{}", JSON, 422, "sdp"),
    (b'{"sdp": "v=0", "type": "answer"}', JSON, 422, "must be 'offer'"),
    (b'{"sdp": "hello", "type": "offer"}', JSON, 400, "malformed|no audio"),
    (b'{"sdp": "v=0\\r\\nm=audio x", "type": "offer"}', JSON, 400, "malformed"),
    (b" " * (MAX_BODY_BYTES + 1), JSON, 413, f"longer than {MAX_BODY_BYTES}"),
)


async def test_bad_offers_are_refused_with_a_reason():
    async with served() as call:
        for body, headers, status, reason in _BAD_OFFERS:
            got, answer, _ = await call.ask("POST", "/api/offer", body, headers)
            assert (body[:40], got) == (body[:40], status)
            assert re.search(reason, answer["detail"]), answer
        assert call.calls == 0
        assert call.agent.started == []


async def test_a_body_without_end_is_not_read_to_its_end():
    async with served() as call:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(call.url.rsplit(":", 1)[1]))
        writer.write(b"POST /api/offer HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        writer.write(b"Content-Length: 9000000000\r\n\r\n" + b" " * (MAX_BODY_BYTES + 1))
        assert b" 413 " in await asyncio.wait_for(reader.readline(), 10)
        writer.close()
        await writer.wait_closed()


async def test_a_caller_who_leaves_in_the_middle_of_a_body_harms_nobody(caplog):
    async with served() as call:
        _, writer = await asyncio.open_connection("127.0.0.1", int(call.url.rsplit(":", 1)[1]))
        writer.write(
            b"POST /api/offer HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await call.ask("GET", "/health"))[0] == 200
    assert "Exception" not in caplog.text


async def test_offers_we_cannot_take_are_refused_in_words():
    async with served() as call:
        pc = RTCPeerConnection()
        pc.createDataChannel("chat")
        status, answer, _ = await call.offer(await sdp_of(pc))
        await pc.close()
        assert (status, "no audio" in answer["detail"]) == (400, True)
        sdp = (await some_sdp()).replace("opus/48000/2", "amr/8000").replace("PCMU/8000", "evs/16000")
        sdp = sdp.replace("PCMA/8000", "evrc/8000").replace("G722/8000", "gsm/8000").replace(" 0 8", " 111 112")
        status, answer, _ = await call.offer(sdp)
        assert (status, "codec" in answer["detail"]) == (400, True)
        assert call.calls == 0


async def test_candidates_find_their_call_and_bad_ones_are_refused():
    good = {"candidate": "candidate:1 1 udp 2130706431 127.0.0.1 9 typ host", "sdp_mid": "0", "sdp_mline_index": 0}
    async with served() as call:
        _, answer, _ = await call.offer(await some_sdp())
        known = answer["pc_id"]
        for body, status in (
            ({"pc_id": known, "candidates": [good]}, 200),
            ({"pc_id": known, "candidates": [{**good, "candidate": "nonsense"}]}, 400),
            ({"pc_id": known, "candidates": [good] * 101}, 422),
            ({"pc_id": known}, 422),
            ({"pc_id": "nobody", "candidates": [good]}, 404),
        ):
            assert (await call.ask("PATCH", "/api/offer", body))[0] == status
        assert (await call.ask("PATCH", "/sessions/x/api/offer", {"pc_id": known, "candidates": [good]}))[0] == 200
        assert call.calls == 1


# --- calls ------------------------------------------------------------------------------------------------------------


async def test_a_call_begins_and_ends_with_its_caller():
    async with served() as call, peer() as pc:
        await dial(call, pc, requestData={"customer": 7})
        await eventually(lambda: call.agent.log == ["connected"])
        assert call.agent.started[0][1] == {"customer": 7}
        assert (await call.ask("GET", "/api/config"))[1]["calls"] == 1
        await pc.close()
        await eventually(lambda: call.agent.log == ["connected", Ended.HUNG_UP] and call.calls == 0)


async def test_a_caller_who_never_connects_frees_the_line():
    async with served(calls=1, connect_s=0.5) as call:
        assert (await call.offer(await some_sdp()))[0] == 200
        await eventually(lambda: call.agent.log == [Ended.NEVER_CONNECTED] and call.calls == 0)
        assert (await call.offer(await some_sdp()))[0] == 200


async def test_a_crowd_is_told_to_come_again_and_the_call_in_progress_goes_on():
    async with served(calls=2) as call, peer() as pc:
        await dial(call, pc)
        await eventually(lambda: call.agent.log == ["connected"])
        sdp = await some_sdp()
        answers = await asyncio.gather(*(call.offer(sdp) for _ in range(50)))
        assert sorted(status for status, _, _ in answers) == [200] + [503] * 49
        for status, body, headers in answers:
            if status == 503:
                assert int(headers["Retry-After"]) > 0
                assert "busy" in body["detail"] or "at once" in body["detail"]
        assert call.calls == 2
        heard = call.agent.heard_samples
        await eventually(lambda: call.agent.heard_samples > heard + 16000)
        assert call.agent.log == ["connected"]


async def test_pipecats_clients_come_in_by_their_own_door():
    async with served() as call, peer() as pc:
        status, session, _ = await call.ask("POST", "/start", {"transport": "webrtc", "body": {"customer": 7}})
        assert (status, session["iceConfig"]) == (200, {"iceServers": []})
        path = f"/sessions/{session['sessionId']}/api/offer"
        assert (await call.offer("v=0", path, restart_pc=False, pc_id=None))[0] == 400
        assert (await call.ask("POST", "/sessions/nobody/api/offer", {"sdp": "v=0", "type": "offer"}))[0] == 404
        assert (await call.ask("POST", "/start", {"transport": "daily"}))[0] == 400
        assert (await call.ask("POST", "/start"))[0] == 200
        await dial(call, pc, path)
        await eventually(lambda: call.agent.log == ["connected"])
        assert call.agent.started[0][1] == {"customer": 7}
        status, _, _ = await call.offer(await some_sdp(), path, request_data={"customer": 8})
        assert (status, call.agent.started[1][1]) == (200, {"customer": 8})


async def test_sessions_that_nobody_takes_up_give_way(monkeypatch):
    monkeypatch.setattr("voxagent_agent.app._SESSIONS", 2)
    async with served() as call:
        first, *rest = [(await call.ask("POST", "/start", {}))[1]["sessionId"] for _ in range(3)]
        assert (await call.offer("v=0", f"/sessions/{first}/api/offer"))[0] == 404
        assert (await call.offer("v=0", f"/sessions/{rest[0]}/api/offer"))[0] == 400


async def test_draining_takes_no_new_calls_and_waits_for_the_others():
    async with served() as call, peer() as pc:
        known = await dial(call, pc)
        await eventually(lambda: call.agent.log == ["connected"])
        draining = asyncio.create_task(drain(call.app, 30.0))
        await eventually(lambda: call.app.state.draining)
        status, body, headers = await call.offer(await some_sdp())
        assert (status, "shutting down" in body["detail"], "Retry-After" in headers) == (503, True, True)
        assert (await call.ask("POST", "/start", {}))[0] == 503
        status, health, _ = await call.ask("GET", "/health")
        assert (status, health["status"], health["calls"]) == (503, "draining", 1)
        end = {"candidate": "", "sdp_mid": "0", "sdp_mline_index": 0}
        assert (await call.ask("PATCH", "/api/offer", {"pc_id": known, "candidates": [end]}))[0] == 200
        assert not draining.done()
        await pc.close()
        await draining
        assert call.agent.log == ["connected", Ended.HUNG_UP]


# --- the process ------------------------------------------------------------------------------------------------------

_SERVE = """
import asyncio, sys
from rich.console import Console
from tests.test_agent_app import Patient
from voxagent_agent.run_command import serve
from voxagent_agent.settings import load_settings

settings = load_settings(host=sys.argv[1], port=int(sys.argv[2]), drain_s=float(sys.argv[3]))
asyncio.run(serve(Console(stderr=True), settings, Patient()))
"""
_RUN = "import typer; from voxagent_agent.run_command import run; typer.run(run)"


@asynccontextmanager
async def process(*arguments):
    """`voxagent run` around a conversation that waits; gives the process and its URL."""
    made = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _SERVE, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        line = await asyncio.wait_for(made.stdout.readline(), 60)
        assert line, (await made.stderr.read()).decode()
        yield made, line.decode().strip().rstrip("/")
    finally:
        if made.returncode is None:
            made.kill()
        await made.communicate()


@asynccontextmanager
async def called(url):
    """A call in progress at another process."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        pc = await stack.enter_async_context(peer())
        await dial(Served(url, None, Patient(), http), pc)
        connected = asyncio.Event()
        pc.on("connectionstatechange", lambda: pc.connectionState == "connected" and connected.set())
        if pc.connectionState != "connected":
            await asyncio.wait_for(connected.wait(), 20)
        yield Served(url, None, Patient(), http), pc


async def test_sigterm_drains_and_goes_with_the_last_caller():
    async with process("127.0.0.1", "0", "60") as (server, url), called(url) as (call, pc):
        server.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            while (await call.ask("GET", "/health"))[1]["status"] == "ready":
                pass
        assert (await call.offer(await some_sdp()))[0] == 503
        assert server.returncode is None
        await pc.close()
        await call.http.close()
        assert await asyncio.wait_for(server.wait(), 20) == 0
        stderr = (await server.stderr.read()).decode()
        assert "Ctrl+C ends" in stderr
        assert "Traceback" not in stderr


async def test_a_second_signal_ends_at_once():
    async with (
        process("0.0.0.0", "0", "60") as (server, url),
        called(url.replace("localhost", "127.0.0.1")) as (call, _),
    ):
        server.send_signal(signal.SIGINT)
        async with asyncio.timeout(20):
            while (await call.ask("GET", "/health"))[1]["status"] == "ready":
                pass
        server.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(server.wait(), 20) == 128 + signal.SIGINT
        assert "put TLS and a login" in " ".join((await server.stderr.read()).decode().split())


async def _run(*arguments, **environment):
    made = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _RUN, *arguments,
        env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(made.communicate(), 60)
    return made.returncode, out.decode(), err.decode()


async def test_a_taken_port_and_bad_settings_are_told_in_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, _, err = await _run("--port", port)
    assert (code, err.count("\n")) == (2, 1)
    assert f"cannot listen on 127.0.0.1:{port}" in err
    assert "--port" in err
    code, _, err = await _run(VOXAGENT_CALLS="none")
    assert (code, err.count("\n")) == (2, 1)
    assert "VOXAGENT_CALLS" in err


async def test_the_settings_are_printed_as_a_file_without_secrets(tmp_path):
    code, out, _ = await _run("--print-config", "--calls", "3", VOXAGENT_LLM_KEY="sesame")
    assert code == 0
    assert "calls = 3" in out
    assert "sesame" not in out
    path = tmp_path / "agent.toml"
    path.write_text(out, encoding="utf-8")
    assert (await _run("--config", str(path), "--print-config"))[1].count("calls = 3") == 1
