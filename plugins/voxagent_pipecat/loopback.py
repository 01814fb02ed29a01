"""A transport without a network: plays into memory, in real time, and remembers what sounded when.

For tests, benchmarks and demonstrations of any Pipecat pipeline.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from pipecat.frames.frames import OutputAudioRawFrame, StartFrame
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.transports.base_input import BaseInputTransport
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import BaseTransport, TransportParams

# A device takes the next block when the last 10 ms of the one before begin to play, as a WebRTC track does.
_HEADROOM_S = 0.01


@dataclass(frozen=True, slots=True)
class Stamp:
    """One write.

    Attributes:
        written_s: When it was given to the device, on the event loop's clock.
        start_s: When its first sample plays.
        end_s: When its last sample has played.
        first_sample: Its place in `LoopbackTransport.pcm`.
        samples: Its length.
    """

    written_s: float
    start_s: float
    end_s: float
    first_sample: int
    samples: int


class LoopbackTransport(BaseTransport):
    """Plays into memory.

    Args:
        sample_rate: Of the output; by default the pipeline's.
        chunk_ms: Length of a write; a multiple of 10.
        params: Everything else; audio out is on in any case.
    """

    def __init__(
        self, *, sample_rate: int | None = None, chunk_ms: int = 40, params: TransportParams | None = None
    ) -> None:
        if chunk_ms < 10 or chunk_ms % 10:
            raise ValueError(f"chunk_ms must be a multiple of 10, not {chunk_ms}")
        super().__init__()
        base = params or TransportParams(audio_out_end_silence_secs=0)
        self._params = base.model_copy(
            update={
                "audio_out_enabled": True,
                "audio_out_sample_rate": sample_rate or base.audio_out_sample_rate,
                "audio_out_10ms_chunks": chunk_ms // 10,
            }
        )
        self._input = LoopbackInput(self._params)
        self._output = LoopbackOutput(self._params)

    def input(self) -> FrameProcessor:
        """The microphone nobody speaks into; push frames into the pipeline instead."""
        return self._input

    def output(self) -> LoopbackOutput:
        """The loudspeaker."""
        return self._output

    @property
    def sample_rate(self) -> int:
        """Of the output, Hz; 0 before the pipeline starts."""
        return self._output.sample_rate

    @property
    def stamps(self) -> tuple[Stamp, ...]:
        """Every write so far."""
        return tuple(self._output.stamps)

    @property
    def pcm(self) -> NDArray[np.int16]:
        """Everything written so far, shape (samples,); the silence in between is not part of it."""
        return np.frombuffer(bytes(self._output.audio), np.int16)

    def played_samples(self, at_s: float | None = None) -> int:
        """How many samples of `pcm` have sounded at a time on the event loop's clock; by default now."""
        if at_s is None:
            at_s = asyncio.get_running_loop().time()
        for stamp in reversed(self._output.stamps):
            if stamp.start_s <= at_s:
                return stamp.first_sample + min(stamp.samples, round((at_s - stamp.start_s) * self.sample_rate))
        return 0

    def last_audible_s(self, threshold: int = 32) -> float | None:
        """When the last sample louder than `threshold` of 32,768 played; None if none did."""
        loud = np.flatnonzero(np.abs(self.pcm.astype(np.int32)) > threshold)
        if not len(loud):
            return None
        last = int(loud[-1])
        stamp = next(s for s in reversed(self._output.stamps) if s.first_sample <= last)
        return stamp.start_s + (last - stamp.first_sample + 1) / self.sample_rate

    def silences(self, at_least_s: float = 0.0005) -> list[tuple[float, float]]:
        """The gaps between writes: when each began, and its length in seconds."""
        stamps = self._output.stamps
        gaps = [(a.end_s, b.start_s - a.end_s) for a, b in pairwise(stamps)]
        return [gap for gap in gaps if gap[1] >= at_least_s]


class LoopbackInput(BaseInputTransport):
    """Starts the pipeline, and hears nothing."""

    async def start(self, frame: StartFrame) -> None:
        """Is ready."""
        await super().start(frame)
        await self.set_transport_ready(frame)


class LoopbackOutput(BaseOutputTransport):
    """Plays into memory. Every write is due at an absolute time, so that delays do not add up."""

    def __init__(self, params: TransportParams) -> None:
        super().__init__(params)
        self.stamps: list[Stamp] = []
        self.audio = bytearray()
        self._samples = 0
        self._free_s = 0.0

    async def start(self, frame: StartFrame) -> None:
        """Is ready."""
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        """Plays a block; returns when there is room for the next one."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        samples = len(frame.audio) // 2 // frame.num_channels
        start_s = max(self._free_s, now_s)
        self._free_s = start_s + samples / frame.sample_rate
        self.stamps.append(Stamp(now_s, start_s, self._free_s, self._samples, samples))
        self.audio += frame.audio
        self._samples += samples
        await asyncio.sleep(max(0.0, self._free_s - _HEADROOM_S - loop.time()))
        return True
