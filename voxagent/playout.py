"""The last buffer before a sender: fixed frames, exact position, and instant control.

Pure: no sockets, no clocks. Whoever sends pulls a frame when it is due; everything that changes what is heard
(interrupt, pause, duck) acts on the next frame pulled, never in queue order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from voxagent.pcm import Pcm
from voxagent.stats import PlayoutStats

# Dead silence in mid-word sounds like a broken line; this is the noise of a quiet room.
_COMFORT_DBFS = -68.0


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame to send.

    Attributes:
        pcm: Mono float32, exactly the frame's length.
        speech_samples: How many of them are speech; the rest is silence, a fade or concealment.
        speaks_again: Speech starts in this frame after silence (an RTP marker belongs on it).
    """

    pcm: Pcm
    speech_samples: int
    speaks_again: bool


class Playout:
    """Bounded PCM buffer, pulled in frames of `frame_ms`.

    A turn is announced with `begin`, fed with `push` and closed with `finish`; between its first sample and `finish`
    an empty buffer is an underrun: counted, and concealed by letting the last 10 ms decay in mirror image into the
    noise of a quiet room.

    Args:
        sample_rate: Hz.
        frame_ms: Length of a frame.
        headroom_ms: `wants` is true below this much audio; what is buffered never exceeds it by more than one push.
        fade_ms: Fade on interrupt, pause and underrun.
    """

    def __init__(self, sample_rate: int, frame_ms: int = 20, headroom_ms: float = 100.0, fade_ms: float = 10.0) -> None:
        if sample_rate * frame_ms % 1000:
            raise ValueError(f"a {frame_ms} ms frame at {sample_rate} Hz is no whole number of samples")
        if headroom_ms < frame_ms:
            raise ValueError(f"headroom_ms must hold at least one frame ({frame_ms} ms), not {headroom_ms}")
        self.sample_rate = sample_rate
        self.frame_samples = sample_rate * frame_ms // 1000
        self.generation = 0
        self.turn_samples = 0
        self.held = False
        """Nothing is handed over, whoever has the floor: set while there is nobody at the other end."""
        self._headroom = int(sample_rate * headroom_ms / 1000)
        self._fade = max(1, int(sample_rate * fade_ms / 1000))
        self._blocks: deque[Pcm] = deque()
        self._buffered = 0
        self._tail = np.zeros(0, np.float32)
        noise = np.random.default_rng(0).standard_normal(self.frame_samples)
        self._comfort: Pcm = (noise * 10 ** (_COMFORT_DBFS / 20)).astype(np.float32)
        self._past = np.zeros(self._fade, np.float32)
        self._live = False
        self._paused = False
        self._silent = True
        self._gain = self._target = 1.0
        self._handed = self._peak = self._underruns = self._underrun_samples = self._refused = self._dropped = 0

    @property
    def buffered_samples(self) -> int:
        """Speech that waits."""
        return self._buffered

    @property
    def wants(self) -> bool:
        """Whether there is room for another push."""
        return self._buffered < self._headroom

    @property
    def paused(self) -> bool:
        """Whether speech is held back."""
        return self._paused

    @property
    def stats(self) -> PlayoutStats:
        """The counters so far."""
        return PlayoutStats(
            handed_samples=self._handed,
            buffered_samples=self._buffered,
            peak_samples=self._peak,
            underruns=self._underruns,
            underrun_samples=self._underrun_samples,
            refused_samples=self._refused,
            dropped_samples=self._dropped,
        )

    def begin(self) -> int:
        """Announces a turn and returns its generation.

        Audio of earlier generations is refused from now on; a duck belongs to the turn it was meant for.
        """
        self.generation += 1
        self.turn_samples = 0
        self._live = False
        self._gain = self._target = 1.0
        return self.generation

    def push(self, pcm: Pcm, generation: int) -> bool:
        """Appends speech, shape (n,). Returns False, and counts, when `generation` is no longer the current one."""
        if generation != self.generation:
            self._refused += len(pcm)
            return False
        if len(pcm):
            self._blocks.append(pcm)
            self._buffered += len(pcm)
            self._peak = max(self._peak, self._buffered)
            self._live = True
        return True

    def finish(self) -> None:
        """The turn has no more audio: running empty from here on is no underrun."""
        self._live = False

    def interrupt(self) -> int:
        """Silence, now: drops what waits but a fade, and refuses late audio.

        Returns:
            Samples of the turn that were handed over, the fade not counted.
        """
        position = self.turn_samples
        if self._buffered and not self._paused and not self._silent:
            self._tail = self._faded(self._take(min(self._fade, self._buffered)) * self._gain)
        else:
            self._decay()
        self._dropped += self._buffered
        self._blocks.clear()
        self._buffered = 0
        self.generation += 1
        self._live = self._paused = False
        return position

    def pause(self) -> None:
        """Holds speech back from the next frame on; no sample is lost."""
        if not self._paused:
            self._paused = True
            self._decay()

    def resume(self) -> None:
        """Goes on at the sample after the last one handed over."""
        self._paused = False

    def duck(self, db: float) -> None:
        """Sets the level of everything from the next frame on, with a short ramp. 0 dB is normal."""
        self._target = float(10 ** (db / 20))

    def pull(self) -> Frame:
        """Returns the next frame and counts its speech as handed over."""
        wanted = self.frame_samples
        tail, self._tail = self._tail[:wanted], self._tail[wanted:]
        space = wanted - len(tail)
        waits = self._paused or self.held
        speech = np.zeros(0, np.float32) if waits else self._take(min(space, self._buffered))
        starts = self._silent and len(speech) > 0
        speech = self._levelled(speech, ramp_in=starts)
        missing = space - len(speech)
        if len(speech):
            self._remember(speech)
            self._silent = False
        runs_dry = bool(missing) and self._live and not waits
        if runs_dry:
            self._underrun_samples += missing
            if not self._silent:
                self._underruns += 1
        if missing:
            self._decay()
        decay, self._tail = self._tail[:missing], self._tail[missing:]
        rest = missing - len(decay)
        silence = self._comfort[:rest] if runs_dry else np.zeros(rest, np.float32)
        self.turn_samples += len(speech)
        self._handed += len(speech)
        return Frame(np.concatenate((tail, speech, decay, silence)), len(speech), starts)

    def _take(self, count: int) -> Pcm:
        parts: list[Pcm] = []
        left = count
        while left:
            block = self._blocks.popleft()
            if len(block) > left:
                self._blocks.appendleft(block[left:])
                block = block[:left]
            parts.append(block)
            left -= len(block)
        self._buffered -= count
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def _levelled(self, speech: Pcm, ramp_in: bool) -> Pcm:
        """Applies the duck and a 2 ms ramp where speech starts out of silence in mid-wave (after a pause)."""
        if not len(speech):
            return speech
        if self._gain != self._target:
            ramp = np.minimum(np.arange(1, len(speech) + 1) / self._fade, 1.0)
            speech = (speech * (self._gain + (self._target - self._gain) * ramp)).astype(np.float32)
            self._gain += (self._target - self._gain) * float(ramp[-1])
        elif self._gain != 1.0:
            speech = (speech * self._gain).astype(np.float32)
        if ramp_in and self.turn_samples:
            head = min(len(speech), max(1, self._fade // 5))
            speech = speech.copy()
            speech[:head] *= np.linspace(0, 1, head, endpoint=False, dtype=np.float32)
        return speech

    def _remember(self, speech: Pcm) -> None:
        self._past = np.concatenate((self._past, speech))[-self._fade :]

    def _decay(self) -> None:
        """After speech stopped in mid-wave: the last samples in mirror image, fading, so that there is no click."""
        if not self._silent:
            self._tail = self._faded(self._past[::-1])
            self._silent = True

    def _faded(self, pcm: Pcm) -> Pcm:
        ramp = np.cos(np.linspace(0, np.pi / 2, len(pcm), dtype=np.float32))
        self._silent = True
        return (pcm * ramp).astype(np.float32)
