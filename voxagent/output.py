"""One listener's ear: turns one after another, resampled into a playout that a sender pulls.

Pure: driven by `pull` alone, so that a track, a phone leg, a sound card and a test under virtual time share it.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from voxagent.model import Pcm
from voxagent.pcm import Resampler
from voxagent.playout import Frame, Playout
from voxagent.session import Position


class _Chunk(Protocol):
    @property
    def pcm(self) -> Pcm: ...

    @property
    def sample_rate(self) -> int: ...


class Speech(Protocol):
    """What an output needs of a session."""

    def take(self) -> _Chunk | None: ...

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
        self._turns: deque[Speech] = deque()
        self._turn: Speech | None = None
        self._generation = 0
        self._resampler: Resampler | None = None
        self._taken = 0
        self._drained = True

    def play(self, turn: Speech) -> None:
        """Plays the turn after those before it."""
        self._turns.append(turn)

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
        turns = [turn for turn in (self._turn, *self._turns) if turn is not None]
        positions = [turn.interrupt() for turn in turns]
        self._turn, self._drained = None, True
        self._turns.clear()
        if self._resampler is not None:
            self._resampler.flush()
        return positions[0] if positions else None

    def _turn_position(self) -> int:
        """Samples of the turn handed over, at the session's own rate."""
        if self._resampler is None or (self._drained and not self.playout.buffered_samples):
            return self._taken
        scaled = self.playout.turn_samples * self._resampler.source_rate // self._resampler.target_rate
        return min(scaled, self._taken)

    def _fill(self) -> None:
        if self._turn is None and self._turns:
            self._turn, self._drained, self._taken = self._turns.popleft(), False, 0
            self._generation = self.playout.begin()
        while self._turn is not None and not self._drained and self.playout.wants:
            chunk = self._turn.take()
            if chunk is not None:
                self._taken += len(chunk.pcm)
                self.playout.push(self._resampled(chunk), self._generation)
            elif self._turn.exhausted:
                if self._resampler is not None:
                    self.playout.push(self._resampler.flush(), self._generation)
                self.playout.finish()
                self._drained = True
            else:
                if self._turn.starved:
                    self.playout.finish()  # Nothing is left to say for now: silence is no underrun.
                break

    def _resampled(self, chunk: _Chunk) -> Pcm:
        if self._resampler is None or self._resampler.source_rate != chunk.sample_rate:
            self._resampler = Resampler(chunk.sample_rate, self.playout.sample_rate)
        return self._resampler.push(chunk.pcm)
