"""`VoiceTrack`: the bot's voice as WebRTC's sender pulls it, one 20 ms frame at its due time.

Owns the pace. What is played, and every control over it, belongs to the source that it pulls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import av
import numpy as np
from aiortc.mediastreams import MediaStreamError, MediaStreamTrack

from voxagent.pcm import Pcm16, to_int16
from voxagent.playout import Frame, Playout
from voxagent.session import Position

RATE = 48000
FRAME_SAMPLES = 960
_FRAME_S = FRAME_SAMPLES / RATE
_TIME_BASE = Fraction(1, RATE)
# Up to this late the track catches up, frame by frame. After a longer stall it goes on from now: a burst would only
# fill the listener's jitter buffer, and delay everything after it.
_CATCH_UP_S = 0.06
# Transparent for one voice; browsers offer themselves 32.
_OPUS_BIT_RATE = 48000
# Of 10. The last steps take a quarter of the work, and a voice at this rate does not need them.
_OPUS_COMPLEXITY = 5
# After so many silent frames the codec has come to rest: its next packet would be like the last.
_SETTLED_FRAMES = 5


class Source(Protocol):
    """What a track pulls: `voxagent.output.VoiceOutput`, or anything else with a 48 kHz playout of 20 ms frames."""

    @property
    def playout(self) -> Playout: ...

    def pull(self) -> Frame: ...

    def interrupt(self) -> Position | None: ...


class OpusEncoder:
    """Opus as the voice needs it: mono, 20 ms, on the event loop.

    aiortc encodes on a thread of the default executor, in stereo, and computes the level of every sample in Python:
    twice the work (0.35 ms of it for the level alone), and two changes of thread a frame. Silence, half of every call,
    is encoded once and repeated.

    Args:
        bit_rate: In bit/s.
    """

    def __init__(self, bit_rate: int = _OPUS_BIT_RATE) -> None:
        self._codec = av.CodecContext.create("libopus", "w")
        self._codec.sample_rate, self._codec.layout, self._codec.format = RATE, "mono", "s16"
        self._codec.bit_rate = bit_rate
        self._codec.options = {"application": "voip", "compression_level": str(_OPUS_COMPLEXITY)}
        self._pts = self._silent_frames = 0
        self._packet = b""

    def encode(self, pcm: Pcm16) -> bytes:
        """Twenty milliseconds of 48 kHz mono int16 to one packet's payload (it holds them 6.5 ms late)."""
        self._silent_frames = 0 if pcm.any() else self._silent_frames + 1
        if self._silent_frames <= _SETTLED_FRAMES:
            frame = av.AudioFrame.from_ndarray(pcm.reshape(1, -1), format="s16", layout="mono")
            frame.sample_rate, frame.pts = RATE, self._pts
            self._pts += FRAME_SAMPLES
            self._packet = b"".join(bytes(packet) for packet in self._codec.encode(frame))
        return self._packet


@dataclass(frozen=True, slots=True)
class TrackStats:
    """The counters so far.

    Attributes:
        frames: Handed to the sender.
        late_ms_max: The latest a frame was, against its due time.
        skipped_ms: Time jumped over after stalls of the event loop; the speech goes on where it was.
        stalls: How often.
    """

    frames: int
    late_ms_max: float
    skipped_ms: float
    stalls: int


class VoiceTrack(MediaStreamTrack):
    """An audio track of 48 kHz mono in 20 ms frames, paced to absolute due times on the event loop's clock.

    A track serves one sender; after a reconnection a new one pulls the same source, and speech goes on at the sample
    after the last one handed over.

    Args:
        source: What it plays.
        on_frame: Sees every frame handed to the sender, and how late it was in seconds.
        opus: Encodes for a sender that negotiated Opus; without it the sender encodes.

    Raises:
        ValueError: The source has another rate or frame length.
    """

    kind = "audio"

    def __init__(
        self,
        source: Source,
        on_frame: Callable[[Frame, float], None] | None = None,
        opus: OpusEncoder | None = None,
    ) -> None:
        playout = source.playout
        if playout.sample_rate != RATE or playout.frame_samples != FRAME_SAMPLES:
            raise ValueError(f"a WebRTC track needs a playout of {RATE} Hz and 20 ms frames")
        super().__init__()
        self.markers: deque[bool] = deque(maxlen=8)
        """Of the frames whose packets are still to be sent: whether speech starts in it (RFC 3551, section 4.1)."""
        self._source = source
        self._on_frame = on_frame
        self._opus = opus
        self._due_s: float | None = None
        self._pts = 0
        self._frames = self._stalls = 0
        self._late_s_max = self._skipped_s = 0.0

    @property
    def position_samples(self) -> int:
        """Speech of the current turn that was handed to the sender, at 48 kHz."""
        return self._source.playout.turn_samples

    @property
    def stats(self) -> TrackStats:
        """The counters so far."""
        return TrackStats(self._frames, 1000 * self._late_s_max, 1000 * self._skipped_s, self._stalls)

    def interrupt(self) -> Position | None:
        """Silence from the next frame on, but for a fade of 10 ms; what waits is dropped."""
        return self._source.interrupt()

    def pause(self) -> None:
        """Holds speech back from the next frame on."""
        self._source.playout.pause()

    def resume(self) -> None:
        """Goes on at the sample after the last one handed over."""
        self._source.playout.resume()

    def duck(self, db: float) -> None:
        """Sets the level from the next frame on; 0 dB is normal."""
        self._source.playout.duck(db)

    async def recv(self) -> av.AudioFrame | av.Packet[Any]:
        """Returns the next frame when it is due. Called by the sender."""
        if self.readyState != "live":
            raise MediaStreamError
        late_s = await self._wait()
        frame = self._source.pull()
        self.markers.append(frame.speaks_again)
        self._frames += 1
        if self._on_frame is not None:
            self._on_frame(frame, late_s)
        pcm = to_int16(frame.pcm)
        sent: av.AudioFrame | av.Packet[Any]
        sent = av.Packet(self._opus.encode(pcm)) if self._opus is not None else _as_frame(pcm)
        sent.pts, sent.time_base = self._pts, _TIME_BASE
        self._pts += FRAME_SAMPLES
        return sent

    async def _wait(self) -> float:
        """Waits until the next frame is due; returns how late it is."""
        loop = asyncio.get_running_loop()
        if self._due_s is None:
            self._due_s = loop.time()
        else:
            self._due_s += _FRAME_S
        left_s = self._due_s - loop.time()
        if left_s > 0:
            await asyncio.sleep(left_s)
        late_s = max(0.0, loop.time() - self._due_s)
        self._late_s_max = max(self._late_s_max, late_s)
        if late_s > _CATCH_UP_S:
            frames = int(late_s / _FRAME_S)
            self._stalls += 1
            self._skipped_s += frames * _FRAME_S
            self._due_s += frames * _FRAME_S
            self._pts += frames * FRAME_SAMPLES
        return late_s


def _as_frame(pcm: Pcm16) -> av.AudioFrame:
    # Both channels: made stereo by FFmpeg, as a sender's Opus encoder would, mono loses 3 dB.
    frame = av.AudioFrame.from_ndarray(np.repeat(pcm, 2).reshape(1, -1), format="s16", layout="stereo")
    frame.sample_rate = RATE
    return frame
