"""`AudioLine`: one call's audio over any number of peer connections, both ways.

Owns what has to be reached inside aiortc: packets before its jitter buffer, and packets on their way out. Everything
that depends on aiortc's private names is in this module.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol

from aiortc import RTCPeerConnection, RTCRtpReceiver, RTCRtpSender, RTCRtpTransceiver
from aiortc.rtp import RtpPacket

from voxagent.pcm import Pcm16
from voxagent.playout import Frame
from voxagent_webrtc.ear import Ear, EarStats, Packet
from voxagent_webrtc.track import OpusEncoder, Source, TrackStats, VoiceTrack

P = ParamSpec("P")

_log = logging.getLogger(__name__)

_CODECS = "_RTCRtpReceiver__codecs"
_JITTER_BUFFER = "_RTCRtpReceiver__jitter_buffer"
_STOP_DECODER = "_RTCRtpReceiver__stop_decoder"
_RTCP_TYPES = range(192, 224)


@dataclass(frozen=True, slots=True)
class SentPacket:
    """One RTP packet of the bot's voice, as it was given to the socket.

    Attributes:
        at_s: When, on the event loop's clock.
        sequence_number: Its number.
        bytes: Its size.
        marker: Speech starts in it after silence.
    """

    at_s: float
    sequence_number: int
    bytes: int
    marker: bool


def audio_of(pc: RTCPeerConnection) -> RTCRtpTransceiver:
    """The first audio transceiver that the peer offered, from now on in both directions.

    Raises:
        ValueError: It offered none.
    """
    transceiver = next((t for t in pc.getTransceivers() if t.kind == "audio"), None)
    if transceiver is None:
        raise ValueError("the offer has no audio: add an audio track or transceiver to it")
    transceiver.direction = "sendrecv"
    return transceiver


def abandon(pc: RTCPeerConnection) -> None:
    """Frees what keeps a process alive in a connection that aiortc cannot close: the threads of its decoders."""
    for transceiver in pc.getTransceivers():
        getattr(transceiver.receiver, _STOP_DECODER)()


class PacketSink(Protocol):
    """Takes packets as they arrive; what it returns keeps aiortc's decoder idle."""

    def add(self, packet: RtpPacket) -> tuple[bool, None]: ...


def tap(receiver: RTCRtpReceiver, sink: PacketSink) -> None:
    """Puts `sink` where the receiver has its jitter buffer."""
    setattr(receiver, _JITTER_BUFFER, sink)


def packets_received(receiver: RTCRtpReceiver) -> int:
    """Every packet that came over the receiver's transport, RTCP too."""
    transport: Any = receiver.transport
    # A renegotiation that failed half way takes it away.
    return 0 if transport is None else sum(int(stats.packetsReceived) for stats in transport._get_stats().values())


class _Tap:
    """Stands where aiortc has a jitter buffer: hands packets to the ear at once, and nothing to aiortc's decoder."""

    def __init__(self, ear: Ear) -> None:
        self._ear = ear

    def add(self, packet: Packet) -> tuple[bool, None]:
        self._ear.packet(packet)
        return False, None


@dataclass(frozen=True, slots=True)
class Ends:
    """What a line connects the peer to.

    Attributes:
        source: What the peer hears.
        on_audio: Takes the caller's audio, 16 kHz mono int16, as its packets arrive.
        on_frame: Sees every frame handed to the sender, and how late it was in seconds.
        on_packet: Sees every packet of the bot's voice as it leaves.
    """

    source: Source
    on_audio: Callable[[Pcm16], None]
    on_frame: Callable[[Frame, float], None] | None = None
    on_packet: Callable[[SentPacket], None] | None = None


def _guarded(callback: Callable[P, None]) -> Callable[P, None]:
    """A callback whose errors do not reach the tasks that send and receive: aiortc would end them."""

    def call(*arguments: P.args, **named: P.kwargs) -> None:
        try:
            callback(*arguments, **named)
        except Exception:
            _log.exception("a listener of the audio failed")

    return call


class AudioLine:
    """Plays a source to the peer, and hears the peer. Silent and deaf until something is plugged in."""

    def __init__(self) -> None:
        self._ends: Ends | None = None
        self._transceiver: RTCRtpTransceiver | None = None
        self._track: VoiceTrack | None = None
        self._ear: Ear | None = None

    @property
    def track_stats(self) -> TrackStats | None:
        """Of the track in use."""
        return self._track.stats if self._track is not None else None

    @property
    def ear_stats(self) -> EarStats | None:
        """Of the stream in use."""
        return self._ear.stats if self._ear is not None else None

    def plug(self, ends: Ends) -> None:
        """Connects the call to what speaks and listens. An error of a listener's is logged, and ends nothing."""
        on_frame, on_packet = ends.on_frame and _guarded(ends.on_frame), ends.on_packet and _guarded(ends.on_packet)
        ends = Ends(ends.source, _guarded(ends.on_audio), on_frame, on_packet)
        self._ends = ends
        if self._transceiver is not None:
            self._speak(self._transceiver, ends)

    def attach(self, pc: RTCPeerConnection) -> None:
        """Takes over the audio of a connection whose offer was answered; the one before falls silent.

        May be called again for the same connection.

        Raises:
            ValueError: The peer offered no audio.
        """
        self._transceiver = audio_of(pc)
        self._listen(self._transceiver)
        if self._ends is not None:
            self._speak(self._transceiver, self._ends)

    def detach(self) -> None:
        """Falls silent and deaf; the source keeps what it has not said."""
        if self._track is not None:
            self._track.stop()
        self._track = self._ear = self._transceiver = self._ends = None

    def _listen(self, transceiver: RTCRtpTransceiver) -> None:
        receiver: Any = transceiver.receiver
        if isinstance(getattr(receiver, _JITTER_BUFFER), _Tap) and self._ear is not None:
            return
        self._ear = Ear(getattr(receiver, _CODECS), self._hear)
        tap(receiver, _Tap(self._ear))
        receiver._enabled = True

    def _hear(self, pcm: Pcm16) -> None:
        if self._ends is not None:
            self._ends.on_audio(pcm)

    def _speak(self, transceiver: RTCRtpTransceiver, ends: Ends) -> None:
        sender = transceiver.sender
        if self._track is not None and sender.track is self._track:
            return
        if self._track is not None:
            self._track.stop()
        private: Any = transceiver
        opus = private._codecs[0].mimeType.lower() == "audio/opus"
        self._track = VoiceTrack(ends.source, ends.on_frame, OpusEncoder() if opus else None)
        sender.replaceTrack(self._track)
        self._watch(sender, self._track, ends.on_packet)

    def _watch(self, sender: RTCRtpSender, track: VoiceTrack, on_packet: Callable[[SentPacket], None] | None) -> None:
        """Sees to the marker bit, which aiortc sets on every packet, and reports what leaves."""
        transport: Any = sender.transport
        send = transport._send_rtp
        ssrc = sender._ssrc.to_bytes(4, "big")

        async def send_rtp(data: bytes) -> None:
            if len(data) < 12 or data[1] in _RTCP_TYPES or data[8:12] != ssrc or sender.track is not track:
                await send(data)
                return
            marker = bool(track.markers) and track.markers.popleft()
            data = bytes((data[0], data[1] & 0x7F | marker << 7)) + data[2:]
            await send(data)
            if on_packet is not None:
                number = int.from_bytes(data[2:4], "big")
                on_packet(SentPacket(asyncio.get_running_loop().time(), number, len(data), marker))

        transport._send_rtp = send_rtp
