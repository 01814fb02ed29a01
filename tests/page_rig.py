"""A small agent for the tests of the web page: serves it, answers its offers, sounds, and says what a test tells it."""

from __future__ import annotations

import asyncio
import contextlib
import fractions
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiortc
import av
import numpy as np
from aiohttp import web
from aiortc.sdp import candidate_from_sdp

PAGE = Path(__file__).parent.parent / "plugins" / "voxagent_agent" / "page"
RATE = 48000
CALLER_HZ, AGENT_HZ = 700, 440


def tone(hz, seconds):
    return (0.4 * np.sin(2 * np.pi * hz * np.arange(int(RATE * seconds)) / RATE)).astype(np.float32)


def share_at(hz, pcm):
    """How much of a signal's energy lies within 20 Hz of a frequency."""
    power = np.abs(np.fft.rfft(pcm * np.hanning(len(pcm)))) ** 2
    near = np.abs(np.fft.rfftfreq(len(pcm), 1 / RATE) - hz) < 20
    return power[near].sum() / (power.sum() + 1e-9)


class Tone(aiortc.MediaStreamTrack):
    """The agent's voice."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self._pcm = (tone(AGENT_HZ, 1.0) * 32767).astype(np.int16)
        self._at = 0
        self._begun = 0.0

    async def recv(self) -> Any:
        loop = asyncio.get_running_loop()
        self._begun = self._begun or loop.time()
        await asyncio.sleep(max(0.0, self._begun + self._at / RATE - loop.time()))
        frame = av.AudioFrame.from_ndarray(self._pcm[self._at % RATE :][:960].reshape(1, -1), layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE, self._at, fractions.Fraction(1, RATE)
        self._at += 960
        return frame


@dataclass(slots=True)
class Connection:
    """One peer connection, as the agent sees it."""

    pc: Any
    channel: asyncio.Future = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    pings: asyncio.Queue = field(default_factory=asyncio.Queue)
    frames: asyncio.Queue = field(default_factory=asyncio.Queue)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def heard(self, seconds):
        """The next seconds of the caller, float32 mono."""
        parts = []
        while sum(map(len, parts)) < seconds * RATE:
            frame = await asyncio.wait_for(self.frames.get(), 10)
            parts.append(frame.to_ndarray().reshape(-1, 2)[:, 0] / 32768)
        return np.concatenate(parts)

    async def send(self, *messages):
        channel = await asyncio.wait_for(self.channel, 10)
        for message in messages:
            channel.send(json.dumps(message))


class Agent:
    """Serves the page, answers offers, and says what a test tells it to."""

    def __init__(self) -> None:
        self.connections = asyncio.Queue()
        self.offers, self.candidates, self.tasks = [], [], set()
        self.refusal = None
        self.walled = False
        self.headers = {}
        self.url = ""
        self._open = {}

    async def start(self):
        app = web.Application()
        app.router.add_get("/", self._index)
        app.router.add_static("/page/", PAGE)
        app.router.add_get("/api/config", self._config)
        app.router.add_post("/api/offer", self._offer)
        app.router.add_patch("/api/offer", self._trickle)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/"

    async def stop(self):
        await asyncio.gather(*(pc.close() for pc in self._open.values()))
        for task in self.tasks:
            task.cancel()
        await self._runner.cleanup()

    async def connection(self):
        return await asyncio.wait_for(self.connections.get(), 15)

    async def _index(self, request):
        return web.FileResponse(PAGE / "index.html", headers=self.headers)

    async def _config(self, request):
        return web.json_response({"name": "Front desk", "ice_servers": [], "calls": 2, "limit": 8})

    async def _offer(self, request):
        offer = await request.json()
        self.offers.append(offer)
        if self.refusal is not None:
            status, detail, headers = self.refusal
            return web.json_response({"detail": detail}, status=status, headers=headers)
        pc = aiortc.RTCPeerConnection()
        connection = Connection(pc)
        self._listen(connection)
        await pc.setRemoteDescription(aiortc.RTCSessionDescription(offer["sdp"], offer["type"]))
        pc.addTrack(Tone())
        await pc.setLocalDescription(await pc.createAnswer())
        pc_id = f"call-{len(self.offers)}"
        self._open[pc_id] = pc
        self.connections.put_nowait(connection)
        sdp = pc.localDescription.sdp
        if self.walled:
            sdp = re.sub(r"a=candidate:.*\r\n", "", sdp)
        return web.json_response({"sdp": sdp, "type": "answer", "pc_id": pc_id})

    def _listen(self, connection):
        pc = connection.pc

        async def pump(track):
            with contextlib.suppress(aiortc.mediastreams.MediaStreamError):
                while True:
                    connection.frames.put_nowait(await track.recv())

        @pc.on("track")
        def on_track(track):
            self.tasks.add(asyncio.ensure_future(pump(track)))

        @pc.on("datachannel")
        def on_channel(channel):
            channel.on("message", connection.pings.put_nowait)
            connection.channel.set_result(channel)

        @pc.on("connectionstatechange")
        def on_state():
            if pc.connectionState == "closed":
                connection.closed.set()

    async def _trickle(self, request):
        body = await request.json()
        for entry in [] if self.walled else body["candidates"]:
            self.candidates.append(entry)
            candidate = (
                candidate_from_sdp(entry["candidate"].removeprefix("candidate:")) if entry["candidate"] else None
            )
            if candidate:
                candidate.sdpMid, candidate.sdpMLineIndex = entry["sdp_mid"], entry["sdp_mline_index"]
            await self._open[body["pc_id"]].addIceCandidate(candidate)
        return web.json_response({"status": "success"})
