"""A sound device without hardware: pulls frames at absolute due times and remembers what was audible when.

What `say` and the benchmarks measure against. A frame's first sample sounds at its due time, or when it was really
pulled if the loop was late.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from voxagent.model import Pcm
from voxagent.output import VoiceOutput

AUDIBLE = 10 ** (-50 / 20)
"""Samples at or above this (-50 dBFS) count as audible."""


@dataclass(frozen=True, slots=True)
class Played:
    """One frame as it sounded.

    Attributes:
        at_s: When its first sample sounded, on the loop's clock.
        pcm: Mono float32.
        speech_samples: How many of its samples are speech.
    """

    at_s: float
    pcm: Pcm
    speech_samples: int


class PacedDevice:
    """Plays an output in real time and records it.

    Args:
        output: Where the frames come from.
        write: Takes each frame as well, e.g. into a real player.
    """

    def __init__(self, output: VoiceOutput, write: Callable[[Pcm], Awaitable[None]] | None = None) -> None:
        self.played: list[Played] = []
        self._output = output
        self._write = write
        self._rate = output.playout.sample_rate
        self._stopped = False

    async def run(self) -> None:
        """Plays until `stop`."""
        loop = asyncio.get_running_loop()
        frame_s = self._output.playout.frame_samples / self._rate
        start_s, frames = loop.time(), 0
        while not self._stopped:
            due_s = start_s + frames * frame_s
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            frame = self._output.pull()
            self.played.append(Played(max(due_s, loop.time()), frame.pcm, frame.speech_samples))
            frames += 1
            if self._write is not None:
                await self._write(frame.pcm)

    def stop(self) -> None:
        """Ends `run` after the frame in progress."""
        self._stopped = True

    @property
    def pcm(self) -> Pcm:
        """Everything that was played, silence included; shape (n,)."""
        return np.concatenate([np.zeros(0, np.float32), *(frame.pcm for frame in self.played)])

    def first_audible_s(self, after_s: float = 0.0) -> float | None:
        """When the first audible sample of speech sounded, of the frames begun after a moment; a fade is no speech."""
        first = bisect_left(self.played, after_s, key=lambda frame: frame.at_s)
        for frame in islice(self.played, first, None):
            if not frame.speech_samples:
                continue
            loud = np.flatnonzero(np.abs(frame.pcm) >= AUDIBLE)
            if len(loud):
                return frame.at_s + int(loud[0]) / self._rate
        return None

    def last_audible_s(self, before_s: float = float("inf")) -> float | None:
        """When the last audible sample of the frames begun before a moment stopped sounding."""
        for frame in reversed(self.played):
            if frame.at_s > before_s:
                continue
            loud = np.flatnonzero(np.abs(frame.pcm) >= AUDIBLE)
            if len(loud):
                return frame.at_s + (int(loud[-1]) + 1) / self._rate
        return None
