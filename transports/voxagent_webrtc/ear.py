"""`Ear`: the caller's audio as its packets arrive, without a jitter buffer.

A jitter buffer trades 80 ms for smoothness that only a human ear needs. Here a machine listens: packets are decoded
the moment they come, put in order if that costs no more than two packets, and what is lost becomes silence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

import av
import numpy as np
from aiortc.rtcrtpparameters import RTCRtpCodecParameters

from voxagent.pcm import G711, Pcm16

RATE = 16000
"""What it hands on, Hz."""
# A packet that has not come when two later ones have is taken for lost: 40 ms, less than the shortest word.
_REORDER_PACKETS = 2
# Longer holes are no loss but a sender that was silent (RFC 3389 and the like), or somebody else's stream.
_FILL_S = 0.2

OnAudio = Callable[[Pcm16], None]


class Packet(Protocol):
    """What an ear needs of an RTP packet."""

    sequence_number: int
    timestamp: int
    payload_type: int
    payload: bytes


class Decoder(Protocol):
    """One codec's decoder: a packet in, 16 kHz mono out."""

    clock_rate: int

    def decode(self, payload: bytes) -> Pcm16: ...


class _AvDecoder:
    """Opus and G.722 by FFmpeg, down to 16 kHz by one resampler for the whole stream."""

    def __init__(self, name: str, clock_rate: int, sample_rate: int) -> None:
        self.clock_rate = clock_rate
        self._codec = cast(av.AudioCodecContext, av.CodecContext.create(name, "r"))
        self._codec.layout = "mono"
        self._codec.sample_rate = sample_rate
        self._resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE)

    def decode(self, payload: bytes) -> Pcm16:
        return _resampled(self._resampler, self._codec.decode(av.Packet(payload)))


class _G711Decoder:
    """G.711, each sample twice: a detector and a recogniser need no more of 8 kHz telephony."""

    clock_rate = 8000

    def __init__(self, law: str) -> None:
        self._law = G711(law)
        self._resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE)

    def decode(self, payload: bytes) -> Pcm16:
        frame = av.AudioFrame.from_ndarray(self._law.decode(payload).reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate = self.clock_rate
        return _resampled(self._resampler, [frame])


def _resampled(resampler: av.AudioResampler, frames: list[av.AudioFrame]) -> Pcm16:
    parts: list[Pcm16] = []
    for frame in frames:
        frame.pts = None
        parts += [out.to_ndarray().ravel().astype(np.int16, copy=False) for out in resampler.resample(frame)]
    return np.concatenate(parts) if parts else np.zeros(0, np.int16)


def decoder_for(codec: RTCRtpCodecParameters) -> Decoder:
    """A decoder for a negotiated codec.

    Raises:
        ValueError: None is known.
    """
    match codec.mimeType.lower():
        case "audio/opus":
            return _AvDecoder("libopus", 48000, 48000)
        case "audio/g722":
            # RFC 3551, section 4.5.2: the clock says 8000 although there are 16000 samples.
            return _AvDecoder("g722", 8000, 16000)
        case "audio/pcmu":
            return _G711Decoder("mulaw")
        case "audio/pcma":
            return _G711Decoder("alaw")
    raise ValueError(f"no decoder for {codec.mimeType}: offer Opus, G.722, PCMU or PCMA")


@dataclass(frozen=True, slots=True)
class EarStats:
    """The counters so far.

    Attributes:
        packets: Decoded.
        lost: Never came, or too late.
        bad: Could not be decoded.
    """

    packets: int
    lost: int
    bad: int


class Ear:
    """Listens to one stream.

    Args:
        codecs: The negotiated codecs by payload type.
        on_audio: Takes 16 kHz mono int16, as it arrives.
    """

    def __init__(self, codecs: dict[int, RTCRtpCodecParameters], on_audio: OnAudio) -> None:
        self._codecs = codecs
        self._on_audio = on_audio
        self._decoders: dict[int, Decoder] = {}
        self._early: dict[int, Packet] = {}
        self._next: int | None = None
        self._end: int | None = None
        self._packets = self._lost = self._bad = 0

    @property
    def stats(self) -> EarStats:
        """The counters so far."""
        return EarStats(self._packets, self._lost, self._bad)

    def packet(self, packet: Packet) -> None:
        """Takes a packet as it arrives."""
        if self._next is None:
            self._next = packet.sequence_number
        ahead = _signed16(packet.sequence_number - self._next)
        if ahead < -100 or ahead > 100:
            # Somebody else's numbering: a stream that started anew.
            self._early.clear()
            self._next, self._end, ahead = packet.sequence_number, None, 0
        if ahead < 0:
            return
        self._early[packet.sequence_number] = packet
        while self._early:
            if (present := self._early.pop(self._next, None)) is not None:
                self._hear(present)
            elif len(self._early) >= _REORDER_PACKETS:
                self._lost += 1
            else:
                return
            self._next = (self._next + 1) & 0xFFFF

    def _hear(self, packet: Packet) -> None:
        decoder = self._decoder(packet.payload_type)
        if decoder is None:
            return
        try:
            pcm = decoder.decode(packet.payload) if packet.payload else np.zeros(0, np.int16)
        except (av.FFmpegError, ValueError):
            self._bad += 1
            return
        self._packets += 1
        self._fill(packet.timestamp, decoder.clock_rate)
        length = len(pcm) * decoder.clock_rate // RATE
        self._end = (packet.timestamp + length) & 0xFFFFFFFF
        if len(pcm):
            self._on_audio(pcm)

    def _fill(self, timestamp: int, clock_rate: int) -> None:
        """Silence in the place of what was lost, so that durations stay true."""
        if self._end is None:
            return
        missing = _signed32(timestamp - self._end)
        # The resampler holds a few samples back, which are no hole.
        if clock_rate // 100 < missing <= clock_rate * _FILL_S:
            self._on_audio(np.zeros(missing * RATE // clock_rate, np.int16))

    def _decoder(self, payload_type: int) -> Decoder | None:
        if payload_type not in self._decoders:
            codec = self._codecs.get(payload_type)
            if codec is None:
                return None
            try:
                self._decoders[payload_type] = decoder_for(codec)
            except ValueError:
                self._bad += 1
                return None
        return self._decoders[payload_type]


def _signed16(value: int) -> int:
    return (value + 0x8000 & 0xFFFF) - 0x8000


def _signed32(value: int) -> int:
    return (value + 0x80000000 & 0xFFFFFFFF) - 0x80000000
