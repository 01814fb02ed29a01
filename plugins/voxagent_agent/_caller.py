"""`Caller`: a headless WebRTC caller for tests, load and bug reports.

Owns one call: signalling, a microphone on an exact clock, packets as they arrive, messages, and finding out that the
agent is gone. Knows nothing of the command line; what can be measured in a recording is told in `plot`.
"""

from __future__ import annotations

import asyncio
import json
import math
import wave
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, cast

import aiohttp
import av
import numpy as np
from aiortc import (
    RTCBundlePolicy,
    RTCConfiguration,
    RTCIceServer,
    RTCPeerConnection,
    RTCRtpSender,
    RTCSessionDescription,
)
from aiortc.exceptions import InternalError, InvalidAccessError, InvalidStateError, OperationError
from aiortc.mediastreams import MediaStreamError, MediaStreamTrack

from voxagent.errors import EngineFull, RemoteError
from voxagent.pcm import Pcm, Pcm16, Resampler, to_float32, to_int16
from voxagent_agent._plot import AUDIBLE_DBFS, BLOCK_S, RATE, Recording, Span, loudness

__all__ = ["CallEnd", "Caller", "Figures", "HeardPacket", "Message", "Recording", "Utterance", "Wire", "read_wav"]

_FRAME = 960
_FRAME_S = _FRAME / RATE
_TIME_BASE = Fraction(1, RATE)
_NOISE_DBFS = -70.0
_JITTER_BUFFER = "_RTCRtpReceiver__jitter_buffer"
_TICK_S = 0.5
# Even an agent that sends no audio reports every 1.5 s. Counted in looks, not on the clock: an event loop that stood
# still for a while must not take the agent for gone before it has read what arrived meanwhile.
_SILENT_TICKS = 6
# A timestamp that leaves the clock by more belongs to a stream that started anew.
_JUMP_SAMPLES = 5 * RATE
_JUMP_PACKETS = 1000
# Pauses between sentences are shorter, pauses between replies longer.
_REPLY_PAUSE_S = 0.8


def read_wav(path: Path) -> Pcm:
    """Reads 16-bit mono or stereo of 8 to 48 kHz as 48 kHz mono.

    Raises:
        OSError: It cannot be read.
        ValueError: It is something else.
    """
    try:
        with wave.open(str(path), "rb") as file:
            channels, rate, width = file.getnchannels(), file.getframerate(), file.getsampwidth()
            data = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise ValueError(f"{path} is no PCM WAV file ({error}): convert it to 16-bit PCM") from error
    if width != 2 or channels not in (1, 2) or not 8000 <= rate <= 48000:
        raise ValueError(
            f"{path} has {8 * width} bits, {channels} channels, {rate} Hz: convert it to 16 bits, 1 or 2 channels, "
            "8000 to 48000 Hz"
        )
    samples = np.frombuffer(data[: len(data) // (2 * channels) * 2 * channels], "<i2").reshape(-1, channels)
    mono = np.asarray(samples.astype(np.float32).mean(axis=1) / 32768, np.float32)
    if not len(mono):
        raise ValueError(f"{path} holds no audio")
    resampler = Resampler(rate, RATE)
    return np.concatenate((resampler.push(mono), resampler.flush()))


@dataclass(frozen=True, slots=True)
class Utterance:
    """Something the caller says.

    Attributes:
        start_s: When its sample 0 is spoken, on the event loop's clock; its packet leaves up to 20 ms later.
        samples: Its length at 48 kHz.
        left: Set when its last packet was handed to the sender, or the call is over.
    """

    start_s: float
    samples: int
    left: asyncio.Event

    @property
    def end_s(self) -> float:
        """When its last sample is spoken."""
        return self.start_s + self.samples / RATE


class Microphone(MediaStreamTrack):
    """A track that speaks on an exact clock, over noise of -70 dBFS.

    A frame leaves when its last sample was spoken. Opus is encoded here, so that no thread comes between the due time
    and the socket; what the other side decodes lags by the codec's 6.5 ms, as with every browser.
    """

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self.started = asyncio.Event()
        self.start_s = 0.0
        self.late_s_max = 0.0
        self._frames: list[Pcm16] = []
        self._speech: list[tuple[int, Pcm, Utterance]] = []
        self._end = 0
        noise = np.random.default_rng(1).normal(0, 10 ** (_NOISE_DBFS / 20), RATE)
        self._noise: Pcm = noise.astype(np.float32)
        self._codec = cast(av.AudioCodecContext, av.CodecContext.create("libopus", "w"))
        self._codec.format = av.AudioFormat("s16")
        self._codec.layout = "mono"
        self._codec.sample_rate = RATE
        self._codec.bit_rate = 64000
        self._codec.options = {"application": "voip"}

    @property
    def recording(self) -> Recording:
        """What left so far."""
        return Recording(self.start_s, np.concatenate([np.zeros(0, np.int16), *self._frames]))

    def say(self, speech: Pcm, at_s: float | None) -> Utterance:
        """Says 48 kHz mono at `at_s`, over whatever else is said then; without it after all that was said before.

        What already left stays as it was: a time that is past becomes the earliest that is possible.
        """
        first = len(self._frames) * _FRAME
        if at_s is None:
            now_s = asyncio.get_running_loop().time()
            first = max(first, self._end, math.ceil((now_s - self.start_s) * RATE))
        else:
            first = max(first, round((at_s - self.start_s) * RATE))
        utterance = Utterance(self.start_s + first / RATE, len(speech), asyncio.Event())
        self._speech.append((first, speech, utterance))
        self._end = max(self._end, first + len(speech))
        return utterance

    async def recv(self) -> av.Packet:
        """Returns the next packet when it is due. Called by the sender."""
        if self.readyState != "live":
            raise MediaStreamError
        loop = asyncio.get_running_loop()
        if not self.started.is_set():
            self.start_s = loop.time()
            self.started.set()
        due_s = self.start_s + (len(self._frames) + 1) * _FRAME_S
        await asyncio.sleep(max(0.0, due_s - loop.time()))
        self.late_s_max = max(self.late_s_max, loop.time() - due_s)
        first = len(self._frames) * _FRAME
        pcm = self._spoken(first)
        self._frames.append(pcm)
        frame = av.AudioFrame.from_ndarray(pcm.reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate = RATE
        (packet,) = self._codec.encode(frame)
        packet.pts, packet.time_base = first, _TIME_BASE
        return packet

    def stop(self) -> None:
        """Falls silent for good."""
        super().stop()
        self.started.set()
        for _, _, utterance in self._speech:
            utterance.left.set()
        self._speech.clear()

    def _spoken(self, first: int) -> Pcm16:
        pcm = self._noise[first % RATE : first % RATE + _FRAME].copy()
        for entry in list(self._speech):
            begin, speech, utterance = entry
            start, end = max(begin, first), min(begin + len(speech), first + _FRAME)
            if start < end:
                pcm[start - first : end - first] += speech[start - begin : end - begin]
            if begin + len(speech) <= first + _FRAME:
                utterance.left.set()
                self._speech = [other for other in self._speech if other is not entry]
        return to_int16(pcm)


class _RtpPacket(Protocol):
    sequence_number: int
    timestamp: int
    marker: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class HeardPacket:
    """One packet of the bot's voice.

    Attributes:
        arrived_s: On the event loop's clock.
        sequence_number: Unwrapped.
        timestamp: Unwrapped, in samples of 48 kHz.
        marker: Its marker bit.
        bytes: Size of the Opus payload.
        pcm: Decoded, 48 kHz mono; empty when it cannot be decoded.
    """

    arrived_s: float
    sequence_number: int
    timestamp: int
    marker: bool
    bytes: int
    pcm: Pcm16


class Wire:
    """The bot's packets as they arrive. Stands where aiortc has a jitter buffer of 80 ms, and keeps its decoder idle.

    Attributes:
        packets: In the order of arrival, without duplicates.
        replies: What the bot said, in stretches 0.8 s and more apart.
        late: Packets that came after a later one.
        bad: Packets that could not be decoded.
    """

    def __init__(self, on_packet: Callable[[], None]) -> None:
        self.packets: list[HeardPacket] = []
        self.replies: list[Span] = []
        self.late = self.bad = 0
        self._on_packet = on_packet
        self._numbers: set[int] = set()
        self._raw = (0, 0)
        self._codec = cast(av.AudioCodecContext, av.CodecContext.create("libopus", "r"))
        self._codec.layout = "mono"
        self._codec.sample_rate = RATE

    def add(self, packet: _RtpPacket) -> tuple[bool, None]:
        """Called by aiortc with every packet."""
        now_s = asyncio.get_running_loop().time()
        number, timestamp = self._unwrap(packet, now_s)
        if number not in self._numbers:
            self.late += bool(self._numbers) and number < max(self._numbers)
            self._numbers.add(number)
            pcm = self._decode(packet.payload)
            heard = HeardPacket(now_s, number, timestamp, bool(packet.marker), len(packet.payload), pcm)
            self.packets.append(heard)
            self._follow(heard)
            self._on_packet()
        return False, None

    @property
    def lost(self) -> int:
        """Packets that never came."""
        return max(self._numbers) - min(self._numbers) + 1 - len(self._numbers) if self._numbers else 0

    def by_arrival(self) -> Recording:
        """The bot's voice as a listener without any buffer hears it: every packet sounds as it arrives."""
        if not self.packets:
            return Recording(0.0, np.zeros(0, np.int16))
        start_s = self.packets[0].arrived_s
        return self._placed(start_s, [round((packet.arrived_s - start_s) * RATE) for packet in self.packets])

    def by_timestamp(self) -> Recording:
        """The bot's voice as it was sent, without the network's jitter; what was lost is silence.

        It lies on the clock so that the most punctual packet sounds as it arrives.
        """
        if not self.packets:
            return Recording(0.0, np.zeros(0, np.int16))
        first = min(packet.timestamp for packet in self.packets)
        offset_s = min(packet.arrived_s - packet.timestamp / RATE for packet in self.packets)
        return self._placed(offset_s + first / RATE, [packet.timestamp - first for packet in self.packets])

    def lateness_s(self) -> list[float]:
        """How much later than the most punctual one each packet came, measured against its timestamp."""
        offsets_s = [packet.arrived_s - packet.timestamp / RATE for packet in self.packets]
        return [offset_s - min(offsets_s) for offset_s in offsets_s] if offsets_s else []

    def jitter_s(self) -> float:
        """RFC 3550, section 6.4.1."""
        jitter_s = 0.0
        for before, packet in zip(self.packets, self.packets[1:], strict=False):
            sent_s = (packet.timestamp - before.timestamp) / RATE
            jitter_s += (abs(packet.arrived_s - before.arrived_s - sent_s) - jitter_s) / 16
        return jitter_s

    def _unwrap(self, packet: _RtpPacket, now_s: float) -> tuple[int, int]:
        raw, self._raw = self._raw, (packet.sequence_number, packet.timestamp)
        if not self.packets:
            return self._raw
        last = self.packets[-1]
        ahead = (packet.sequence_number - raw[0] + 0x8000 & 0xFFFF) - 0x8000
        moved = (packet.timestamp - raw[1] + 0x80000000 & 0xFFFFFFFF) - 0x80000000
        expected = round((now_s - last.arrived_s) * RATE)
        if abs(moved - expected) > _JUMP_SAMPLES or abs(ahead) > _JUMP_PACKETS:
            ahead, moved = 1, expected
        return last.sequence_number + ahead, last.timestamp + moved

    def _decode(self, payload: bytes) -> Pcm16:
        try:
            frames = self._codec.decode(av.Packet(payload)) if payload else []
        except av.FFmpegError:
            self.bad += 1
            frames = []
        parts = [frame.to_ndarray().ravel() for frame in frames]
        return np.concatenate([np.zeros(0, np.int16), *parts]).astype(np.int16, copy=False)

    def _follow(self, packet: HeardPacket) -> None:
        loud = np.flatnonzero(loudness(packet.pcm) > AUDIBLE_DBFS)
        if not len(loud):
            return
        begin_s, end_s = packet.arrived_s + loud[0] * BLOCK_S, packet.arrived_s + (loud[-1] + 1) * BLOCK_S
        if self.replies and begin_s - self.replies[-1].end_s < _REPLY_PAUSE_S:
            self.replies[-1] = Span(self.replies[-1].start_s, float(end_s))
        else:
            self.replies.append(Span(float(begin_s), float(end_s)))

    def _placed(self, start_s: float, places: list[int]) -> Recording:
        length = max(place + len(packet.pcm) for place, packet in zip(places, self.packets, strict=True))
        pcm = np.zeros(length, np.int16)
        for place, packet in zip(places, self.packets, strict=True):
            pcm[place : place + len(packet.pcm)] = packet.pcm
        return Recording(start_s, pcm)


class CallEnd(Enum):
    """Why a call ended."""

    HUNG_UP = "we hung up"
    AGENT_LEFT = "the agent hung up"
    SILENT = "nothing came from the agent any more"


@dataclass(frozen=True, slots=True)
class Message:
    """A JSON message of the agent's.

    Attributes:
        at_s: When it came, on the event loop's clock.
        body: What it says.
    """

    at_s: float
    body: dict[str, Any]


class Caller:
    """One call. Made by `connect`; a context manager that hangs up.

    Attributes:
        wire: The bot's voice.
        messages: What the agent sent over the data channel.
        call_id: The agent's name for the call.
        connect_ms: From the offer to the first packet.
    """

    def __init__(self, url: str, ice_servers: Sequence[RTCIceServer] = ()) -> None:
        self.url = url.rstrip("/")
        self.call_id = ""
        self.connect_ms = 0.0
        self.messages: list[Message] = []
        self.ended: CallEnd | None = None
        self._first = asyncio.Event()
        self._over = asyncio.Event()
        self.wire = Wire(self._first.set)
        self._microphone = Microphone()
        self._pc = RTCPeerConnection(RTCConfiguration(list(ice_servers), bundlePolicy=RTCBundlePolicy.MAX_BUNDLE))
        self._pc.addTrack(self._microphone)
        self._channel = self._pc.createDataChannel("chat")
        self._channel.on("message", self._receive)
        self._pc.on("connectionstatechange", self._look)
        self._keeper: asyncio.Task[None] | None = None

    @classmethod
    async def connect(cls, url: str, ice_servers: Sequence[RTCIceServer] = (), timeout_s: float = 15.0) -> Self:
        """Calls an agent.

        Args:
            url: Of the agent's page.
            ice_servers: STUN and TURN servers.
            timeout_s: For everything up to the first packet of the bot's voice.

        Raises:
            RemoteError: Nobody answers there, or the agent refuses, or no audio comes; in words.
            EngineFull: The agent is full; `retry_after_s` tells when to try again.
        """
        caller = cls(url, ice_servers)
        try:
            await caller._connect(timeout_s)
        except BaseException:
            await caller.hang_up()
            raise
        return caller

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.hang_up()

    def say(self, speech: Pcm, at_s: float | None = None) -> Utterance:
        """Says 48 kHz mono, at a time on the event loop's clock or after all that was said before."""
        return self._microphone.say(speech, at_s)

    @property
    def spoken(self) -> Recording:
        """What the caller said, noise included."""
        return self._microphone.recording

    def send(self, message: Mapping[str, object]) -> None:
        """Sends a JSON message, if the channel is open."""
        if self._channel.readyState == "open":
            self._channel.send(json.dumps(message))

    async def over(self) -> CallEnd:
        """Waits until the call is over."""
        await self._over.wait()
        assert self.ended is not None
        return self.ended

    async def hang_up(self) -> None:
        """Ends the call and frees everything. May be called twice."""
        self._end(CallEnd.HUNG_UP)
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        self._microphone.stop()
        await self._pc.close()
        self._pc.remove_all_listeners()

    async def _connect(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        receiver: Any = self._pc.getTransceivers()[0].receiver
        setattr(receiver, _JITTER_BUFFER, self.wire)
        await self._pc.setLocalDescription(await self._pc.createOffer())
        body = {"sdp": self._pc.localDescription.sdp, "type": "offer"}
        answer = await _post(f"{self.url}/api/offer", body, timeout_s)
        self.call_id = str(answer.get("pc_id", ""))
        try:
            await self._pc.setRemoteDescription(RTCSessionDescription(str(answer["sdp"]), "answer"))
        except (KeyError, ValueError, InvalidStateError, InvalidAccessError, InternalError, OperationError) as error:
            raise RemoteError(f"{self.url} sent no usable answer: {error}") from error
        try:
            async with asyncio.timeout(timeout_s):
                await self._first.wait()
        except TimeoutError:
            state = self._pc.iceConnectionState
            raise RemoteError(f"no audio came within {timeout_s:g} s; ICE is {state}") from None
        self.connect_ms = 1000 * (loop.time() - began_s)
        await self._microphone.started.wait()
        self._keeper = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        """Sends pings, and notices when nothing comes any more."""
        silent = number = count = 0
        while silent < _SILENT_TICKS:
            await asyncio.sleep(_TICK_S)
            silent = 0 if len(self.wire.packets) > count else silent + 1
            count, number = len(self.wire.packets), number + 1
            if number % 2 and self._channel.readyState == "open":
                self._channel.send(f"ping {number // 2}")
        self._end(CallEnd.SILENT)

    def _receive(self, text: str | bytes) -> None:
        with suppress(ValueError):
            body = json.loads(text)
            if isinstance(body, dict):
                self.messages.append(Message(asyncio.get_running_loop().time(), body))

    def _look(self) -> None:
        if self._pc.connectionState in ("closed", "failed"):
            self._end(CallEnd.AGENT_LEFT)

    def _end(self, reason: CallEnd) -> None:
        if self.ended is None:
            self.ended = reason
            self._over.set()


async def _post(url: str, body: Mapping[str, object], timeout_s: float) -> dict[str, Any]:
    """Posts JSON and returns the JSON of the answer.

    Raises:
        RemoteError: With what went wrong, in words.
        EngineFull: On 503.
    """
    try:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.post(url, json=body) as response:
            text = await response.text()
            status, retry = response.status, response.headers.get("Retry-After", "")
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise RemoteError(f"nobody answers at {url}: is the agent running there? ({error})") from error
    try:
        answer = json.loads(text)
    except ValueError:
        answer = {}
    if status == 200 and isinstance(answer, dict):
        return answer
    reason = answer.get("detail", text[:200]) if isinstance(answer, dict) else text[:200]
    if status == 503:
        raise EngineFull(f"the agent is full: {reason}", float(retry) if retry.isdigit() else 1.0)
    raise RemoteError(f"{url} refused the call with {status}: {reason}")
