"""One listener's ear: turns one after another, resampled into a playout that a sender pulls.

Pure: driven by `pull` alone, so that a track, a phone leg, a sound card and a test under virtual time share it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from voxagent.model import Pcm
from voxagent.pcm import Resampler
from voxagent.playout import Frame, Playout
from voxagent.session import AudioChunk, Position

OnChunk = Callable[[AudioChunk], None]


class Speech(Protocol):
    """What an output needs of a session."""

    def take(self) -> AudioChunk | None: ...

    @property
    def exhausted(self) -> bool: ...

    @property
    def starved(self) -> bool: ...

    def heard(self, samples: int) -> None: ...

    def interrupt(self) -> Position: ...


class VoiceOutput:
    """Plays sessions in the order given, each to its end.

    Args:
        sample_rate: Of the frames, Hz.
        frame_ms: Length of a frame.
        headroom_ms: Audio held ready in the playout; the rest stays in the session, where an interruption finds it.
    """

    def __init__(self, sample_rate: int, frame_ms: int = 20, headroom_ms: float = 80.0) -> None:
        self.playout = Playout(sample_rate, frame_ms, headroom_ms)
        self._turns: deque[tuple[Speech, OnChunk | None]] = deque()
        self._turn: Speech | None = None
        self._on_chunk: OnChunk | None = None
        self._generation = 0
        self._resampler: Resampler | None = None
        self._taken = 0
        self._drained = True

    def play(self, turn: Speech, on_chunk: OnChunk | None = None) -> None:
        """Plays the turn after those before it; `on_chunk` sees every chunk on its way into the playout."""
        turn.heard(0)
        self._turns.append((turn, on_chunk))

    @property
    def idle(self) -> bool:
        """Whether everything given was handed over."""
        return self._turn is None and not self._turns and not self.playout.buffered_samples

    def pull(self) -> Frame:
        """Returns the next frame and tells the session how much of it was handed over."""
        self._fill()
        frame = self.playout.pull()
        if self._turn is not None and frame.speech_samples:
            self._turn.heard(self._turn_position())
        if self._drained and not self.playout.buffered_samples:
            self._turn = None
        return frame

    def interrupt(self) -> Position | None:
        """Ends the turn that plays and those that wait, with a fade; returns how far the first was heard."""
        self.playout.interrupt()
        turns = [turn for turn in (self._turn, *(turn for turn, _ in self._turns)) if turn is not None]
        positions = [turn.interrupt() for turn in turns]
        self._turn, self._drained = None, True
        self._turns.clear()
        if self._resampler is not None:
            self._resampler.flush()
        return positions[0] if positions else None

    def _turn_position(self) -> int:
        """Samples of the turn handed over, at the session's own rate."""
        if self._resampler is None or (self._resampler.empty and not self.playout.buffered_samples):
            return self._taken
        scaled = self.playout.turn_samples * self._resampler.source_rate // self._resampler.target_rate
        return min(scaled, self._taken)

    def _fill(self) -> None:
        if self._turn is None and self._turns:
            self._turn, self._on_chunk = self._turns.popleft()
            self._drained, self._taken = False, 0
            self._generation = self.playout.begin()
        while self._turn is not None and not self._drained and self.playout.wants:
            chunk = self._turn.take()
            if chunk is not None:
                self._taken += len(chunk.pcm)
                self.playout.push(self._resampled(chunk), self._generation)
                if self._on_chunk is not None:
                    self._on_chunk(chunk)
            elif self._turn.exhausted or self._turn.starved:
                self._close_stretch()
                self._drained = self._turn.exhausted
                break
            else:
                break

    def _close_stretch(self) -> None:
        """Nothing more comes for now, and not for want of the model: silence is no underrun."""
        if self._resampler is not None:
            self.playout.push(self._resampler.flush(), self._generation)
        self.playout.finish()

    def _resampled(self, chunk: AudioChunk) -> Pcm:
        if self._resampler is None or self._resampler.source_rate != chunk.sample_rate:
            self._resampler = Resampler(chunk.sample_rate, self.playout.sample_rate)
        return self._resampler.push(chunk.pcm)
