"""`Caller`: a headless WebRTC caller for tests, load and bug reports.

Owns one call: signalling, a microphone on an exact clock, messages, and finding out that the agent is gone. Knows
nothing of the command line; what is heard, and what can be measured in it, is told in `plot`.
"""

from __future__ import annotations

import asyncio
import json
import math
import wave
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, Self

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
from voxagent.pcm import Pcm, Pcm16, resample, to_int16
from voxagent_webrtc.line import packets_received, tap
from voxagent_webrtc.plot import RATE, HeardPacket, Recording, Wire
from voxagent_webrtc.track import OpusEncoder

__all__ = ["CallEnd", "Caller", "HeardPacket", "Message", "Recording", "Utterance", "Wire", "read_wav"]

_FRAME = 960
_FRAME_S = _FRAME / RATE
_TIME_BASE = Fraction(1, RATE)
_NOISE_DBFS = -70.0
_OPUS_BIT_RATE = 64000
_TICK_S = 0.5
# Even an agent that sends no audio reports every 1.5 s. Counted in looks, not on the clock: an event loop that stood
# still for a while must not take the agent for gone before it has read what arrived meanwhile.
_SILENT_TICKS = 6


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
    return resample(mono, rate, RATE)


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

    def __await__(self) -> Generator[Any, None, Utterance]:
        """Waits until it is spoken, or the call is over."""
        yield from self.left.wait().__await__()
        return self


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
        self._opus = OpusEncoder(_OPUS_BIT_RATE)

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

    async def recv(self) -> av.Packet[Any]:
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
        packet = av.Packet(self._opus.encode(pcm))
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


class CallEnd(Enum):
    """Why a call ended."""

    HUNG_UP = "we hung up"
    AGENT_LEFT = "the agent hung up"
    SILENT = "the agent vanished: nothing came from it any more"
    NO_WAY = "no packets get through to the agent"


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
        wire: The bot's voice: `by_arrival` for latencies, `by_timestamp` for gaps and waveforms.
        messages: What the agent sent over the data channel.
        call_id: The agent's name for the call.
        connect_ms: From the offer to the first packet.
        ice_ms: From the offer to the end of ICE.
        rtt_ms: Round trip by RTCP, when known.
        ended: Why the call is over, if it is.
    """

    def __init__(
        self,
        url: str,
        ice_servers: Sequence[RTCIceServer] = (),
        on_message: Callable[[Message], None] | None = None,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/api/offer")
        self.call_id = ""
        self.connect_ms = 0.0
        self.ice_ms: float | None = None
        self.rtt_ms: float | None = None
        self.messages: list[Message] = []
        self.ended: CallEnd | None = None
        self._on_message = on_message
        self._offered_s = self._ended_s = 0.0
        self._news, self._over = asyncio.Event(), asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self.wire = Wire(self._news.set)
        self._microphone = Microphone()
        self._pc = RTCPeerConnection(RTCConfiguration(list(ice_servers), bundlePolicy=RTCBundlePolicy.MAX_BUNDLE))
        self._audio = self._pc.addTransceiver(self._microphone)
        codecs = RTCRtpSender.getCapabilities("audio").codecs
        self._audio.setCodecPreferences([codec for codec in codecs if codec.mimeType.lower() == "audio/opus"])
        tap(self._audio.receiver, self.wire)
        self._channel = self._pc.createDataChannel("chat")
        self._channel.on("message", self._receive)
        self._pc.on("connectionstatechange", self._look)
        self._pc.on("iceconnectionstatechange", self._look)

    @classmethod
    async def connect(
        cls,
        url: str,
        ice_servers: Sequence[RTCIceServer] = (),
        timeout_s: float = 10.0,
        on_message: Callable[[Message], None] | None = None,
    ) -> Self:
        """Calls an agent.

        Args:
            url: Of the agent's page, or of its /api/offer.
            ice_servers: STUN and TURN servers.
            timeout_s: For everything up to the first packet of the bot's voice.
            on_message: Called with every JSON message as it comes.

        Raises:
            ValueError: The URL or a server's address is malformed.
            RemoteError: Nobody answers there, or the agent refuses, or no audio comes; in words.
            EngineFull: The agent is full; `retry_after_s` tells when to try again.
        """
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} is no address of an agent: give one like http://127.0.0.1:7860")
        caller = cls(url, ice_servers, on_message)
        try:
            async with asyncio.timeout(timeout_s):
                await caller._dial()
        except TimeoutError:
            reason = caller._missing(timeout_s)
            await caller.hang_up()
            raise RemoteError(reason) from None
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

    def say(self, speech: Pcm | Path, at_s: float | None = None) -> Utterance:
        """Says something, at a time on the event loop's clock or else after all that was said before.

        Args:
            speech: 48 kHz mono; or a WAV file, read at once (use `read_wav` before the call where milliseconds count).
            at_s: When its sample 0 is spoken.

        Returns:
            When it is spoken exactly; awaiting it waits until it left.
        """
        return self._microphone.say(read_wav(speech) if isinstance(speech, Path) else speech, at_s)

    @property
    def spoken(self) -> Recording:
        """What the caller said, noise included."""
        return self._microphone.recording

    def send(self, message: Mapping[str, object]) -> None:
        """Sends a JSON message, if the channel is open."""
        if self._channel.readyState == "open":
            self._channel.send(json.dumps(message))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition holds, or the call is over. Looks with every packet and ten times a second."""
        while self.ended is None and not condition():
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await self._news.wait()
            self._news.clear()

    async def over(self) -> CallEnd:
        """Waits until the call is over and everything is freed."""
        await self._over.wait()
        assert self.ended is not None
        return self.ended

    async def hang_up(self) -> None:
        """Ends the call and frees everything. May be called twice."""
        await asyncio.shield(self._end(CallEnd.HUNG_UP))

    @property
    def duration_s(self) -> float:
        """From the first packet on."""
        now_s = self._ended_s or asyncio.get_running_loop().time()
        return now_s - self._offered_s - self.connect_ms / 1000

    @property
    def first_audible_ms(self) -> float | None:
        """From the offer to the first audible sound of the bot."""
        return 1000 * (self.wire.replies[0].start_s - self._offered_s) if self.wire.replies else None

    @property
    def mic_late_ms_max(self) -> float:
        """The latest a packet of ours left; above 20 this machine is too busy to measure others."""
        return 1000 * self._microphone.late_s_max

    async def _dial(self) -> None:
        await self._pc.setLocalDescription(await self._pc.createOffer())
        self._offered_s = asyncio.get_running_loop().time()
        answer = await _post(f"{self.url}/api/offer", self._offer())
        self.call_id = str(answer.get("pc_id", ""))
        try:
            await self._pc.setRemoteDescription(RTCSessionDescription(answer["sdp"], "answer"))
        except (InvalidStateError, InvalidAccessError, InternalError, OperationError) as error:
            raise RemoteError(f"{self.url} sent an answer that does not fit: {error}") from error
        except (LookupError, ValueError, AssertionError, AttributeError, TypeError) as error:
            # aiortc's parser takes well-formed SDP for granted.
            raise RemoteError(f"{self.url} sent no WebRTC answer: is it the address of an agent?") from error
        await self.until(lambda: bool(self.wire.packets) and self._microphone.started.is_set())
        if self.ended is not None:
            raise RemoteError(
                f"the call was not set up: {self.ended.value}{_FIREWALL * (self.ended is CallEnd.NO_WAY)}"
            )
        self.connect_ms = 1000 * (self.wire.packets[0].arrived_s - self._offered_s)
        self._keeper = asyncio.create_task(self._keep())

    def _offer(self) -> dict[str, object]:
        # Pipecat's own messages are spared a client that does not understand them.
        return {"sdp": self._pc.localDescription.sdp, "type": "offer", "requestData": {"client": "voxagent"}}

    def _missing(self, timeout_s: float) -> str:
        if self._pc.signalingState != "stable":
            return f"{self.url} took the call but did not answer it within {timeout_s:g} s"
        if self._pc.connectionState != "connected":
            state = self._pc.iceConnectionState
            return f"{CallEnd.NO_WAY.value} within {timeout_s:g} s (ICE is {state}){_FIREWALL}"
        return f"connected, but no audio came within {timeout_s:g} s: does the agent send its voice on this call?"

    async def _keep(self) -> None:
        """Sends pings, and notices when nothing comes any more."""
        silent = number = received = 0
        while silent < _SILENT_TICKS:
            await asyncio.sleep(_TICK_S)
            before, received = received, packets_received(self._audio.receiver)
            for stats in (await self._audio.sender.getStats()).values():
                if stats.type == "remote-inbound-rtp":
                    self.rtt_ms = None if stats.roundTripTime is None else 1000 * stats.roundTripTime
            silent, number = 0 if received > before else silent + 1, number + 1
            if number % 2 and self._channel.readyState == "open":
                self._channel.send(f"ping {number // 2}")
        self._end(CallEnd.SILENT)

    def _receive(self, text: str | bytes) -> None:
        with suppress(ValueError):
            body = json.loads(text)
            if isinstance(body, dict):
                self.messages.append(Message(asyncio.get_running_loop().time(), body))
                self._news.set()
                if self._on_message is not None:
                    self._on_message(self.messages[-1])

    def _look(self) -> None:
        if self.ice_ms is None and self._pc.iceConnectionState == "completed":
            self.ice_ms = 1000 * (asyncio.get_running_loop().time() - self._offered_s)
        if self._pc.connectionState in ("closed", "failed"):
            self._end(CallEnd.AGENT_LEFT if self.ice_ms is not None else CallEnd.NO_WAY)

    def _end(self, reason: CallEnd) -> asyncio.Task[None]:
        if self._closing is None:
            self.ended, self._ended_s = reason, asyncio.get_running_loop().time()
            self._closing = asyncio.create_task(self._close())
        return self._closing

    async def _close(self) -> None:
        self._news.set()
        if self._keeper is not None:
            self._keeper.cancel()
        self._microphone.stop()
        await self._pc.close()
        self._pc.remove_all_listeners()
        self._over.set()


_FIREWALL = ": let UDP through to the agent, or give a TURN server with --ice-server"


async def _post(url: str, body: Mapping[str, object]) -> dict[str, Any]:
    """Posts JSON and returns the JSON of the answer.

    Raises:
        RemoteError: With what went wrong, in words.
        EngineFull: On 503.
    """
    try:
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
            text = await response.text(errors="replace")
            status, retry = response.status, response.headers.get("Retry-After", "")
    except aiohttp.InvalidURL as error:
        raise ValueError(f"{url!r} is no address: give one like http://127.0.0.1:7860") from error
    except aiohttp.ClientConnectorError as error:
        raise RemoteError(f"nobody listens at {url} ({error.strerror}): start the agent, or mind the port") from error
    except (aiohttp.ClientError, OSError) as error:
        raise RemoteError(f"{url} broke off ({error or type(error).__name__}): look at the agent's log") from error
    with suppress(ValueError):
        answer = json.loads(text)
        if isinstance(answer, dict):
            if status == 200:
                return answer
            text = str(answer.get("detail", text))
    reason = " ".join(text.split())[:200]
    if status == 503:
        retry_s = float(retry) if retry.isdigit() else 1.0
        raise EngineFull(f"the agent takes no call now ({reason}): try again in {retry_s:g} s", retry_s)
    raise RemoteError(f"{url} answered {status}, which is no WebRTC answer: {reason or 'nothing'}")
