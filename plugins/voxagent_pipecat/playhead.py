"""`Playhead`: what a transport was given to play, and how much of it was handed to the network.

A source for a WebRTC track, fed with blocks of PCM. Frames that follow audio in Pipecat's order are released when that
audio has been handed over, and not before: words, the end of a reply, the bot's falling silent. Knows no transport.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from pipecat.frames.frames import Frame, SystemFrame, TextFrame, TTSStoppedFrame
from pipecat.processors.frame_processor import FrameDirection

from voxagent.pcm import Pcm, Resampler, to_float32
from voxagent.playout import Frame as VoiceFrame
from voxagent.playout import Playout
from voxagent.session import Position

RATE = 48000
IN_ORDER = "voxagent.in_order"
"""In the metadata of a frame: it stands behind the audio that it belongs to, whatever its time says."""

_AT = "voxagent.at_samples"
# What resamplers give beyond what was announced is less; two blocks of 20 ms.
_MOST_ODD = RATE // 25


class PlayheadListener(Protocol):
    """Whose speech is played."""

    @property
    def hungry(self) -> bool:
        """Whether it waits for its model: silence is an underrun."""
        ...

    def handed(self, key: str, seconds: float) -> None:
        """So much more of a context's audio was handed to the network."""
        ...

    def silenced(self) -> None:
        """What was on its way was dropped, and no interruption has come to say so."""
        ...

    def hung_up(self) -> None:
        """Nobody listens any more: what was not handed over never will be."""
        ...


@dataclass
class PlayheadFrame(SystemFrame):
    """Goes upstream when a transport starts: it tells what it really plays.

    Parameters:
        playhead: The transport's.
    """

    playhead: Playhead | None = None


@dataclass(slots=True)
class _Span:
    """A stretch of one context's audio, in 48 kHz samples; `owed` were announced with it and never came."""

    key: str | None
    samples: int
    interruptible: bool
    owed: int = 0


@dataclass(frozen=True, slots=True)
class _Due:
    """A frame that is pushed on when everything before it was handed over."""

    at_samples: int
    frame: Frame
    direction: FrameDirection


class Playhead:
    """Plays blocks of PCM in order (a `voxagent_webrtc.track.Source`).

    Args:
        headroom_ms: Audio held ready: 60 rides out a stall of 40 ms, more only delays nothing but a pause's memory.
    """

    def __init__(self, headroom_ms: float = 80.0) -> None:
        self.playout = Playout(RATE, 20, headroom_ms)
        self._generation = self.playout.begin()
        self._listeners: list[PlayheadListener] = []
        self._entered: deque[_Span] = deque()
        self._spans: deque[_Span] = deque()
        self._due: deque[_Due] = deque()
        self._written = self._handed = self._shift = 0
        self._fraction = 0.0
        self._resampler: Resampler | None = None
        self._room = asyncio.Event()
        self._ready = asyncio.Event()
        self._stale = self._mute = self._closed = False
        self._audible = False

    # --- what is to be played ------------------------------------------------------------------------------------

    def listen(self, listener: PlayheadListener) -> None:
        """Tells `listener` what is handed over, until `leave`."""
        if listener not in self._listeners:
            self._listeners.append(listener)
            if self._closed:
                listener.hung_up()

    def leave(self, listener: PlayheadListener) -> None:
        """Tells it no more."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def enter(self, key: str | None, seconds: float, interruptible: bool) -> None:
        """Audio of a context is on its way; `write` will bring it, in this order."""
        if self._stale and interruptible:
            return
        exact = seconds * RATE + self._fraction
        self._fraction = exact - round(exact)
        self._entered.append(_Span(key, round(exact), interruptible))

    def mark(self, frame: Frame) -> None:
        """The frame belongs behind everything that is on its way; blocks that wait to be filled come later still."""
        frame.metadata[_AT] = self._written + sum(span.samples for span in self._entered) + self._shift

    async def write(self, pcm: bytes, sample_rate: int, interruptible: bool) -> bool:
        """Plays a block of 16-bit mono PCM; returns when it is in the playout, False if it will never sound."""
        while not self.playout.wants and not self._closed and not (self._mute and interruptible):
            self._room.clear()
            await self._room.wait()
        if self._closed or (self._mute and interruptible):
            return False
        block = self._resampled(to_float32(np.frombuffer(pcm, np.int16)), sample_rate)
        self._place(len(block))
        self.playout.push(block, self._generation)
        self._written += len(block)
        return True

    def follow(self, frame: Frame, direction: FrameDirection) -> None:
        """Releases a frame when everything written so far was handed over."""
        if self._mute and frame.interruptible and not isinstance(frame, SystemFrame):
            return
        at_samples = self._written
        if _AT in frame.metadata:
            at_samples = frame.metadata[_AT] - self._shift
            if isinstance(frame, TTSStoppedFrame) and not self._closed:
                at_samples = self._settle(at_samples)
        at_samples = max(self._written, at_samples, self._due[-1].at_samples if self._due else 0)
        self._due.append(_Due(at_samples, frame, direction))
        self._ready.set()

    def _settle(self, at_samples: int) -> int:
        """A stretch of speech ends here: everything of it that will ever be written was.

        Resamplers owe and give a few samples more or less than the lengths that were announced. What follows must wait
        for no sample that does not come.
        """
        if self._resampler is not None and len(tail := self._resampler.flush()):
            self._place(len(tail))
            self.playout.push(tail, self._generation)
            self._written += len(tail)
        missing = at_samples - self._written
        if missing < -_MOST_ODD:
            # Audio that lay behind this frame was taken back by an interruption: nothing is owed.
            return self._written
        self._shift += missing
        if missing < 0 and self._entered:
            self._entered[0].samples -= missing
        while missing > 0 and self._entered:
            head = self._entered[0]
            taken = min(missing, head.samples)
            head.samples, missing = head.samples - taken, missing - taken
            if not head.samples:
                self._entered.popleft()
            if self._spans and self._spans[-1].key == head.key:
                self._spans[-1].owed += taken
            else:
                self._tell(head.key, taken)
        self._due = deque(replace(one, at_samples=min(one.at_samples, self._written)) for one in self._due)
        return self._written

    # --- what is played ------------------------------------------------------------------------------------------

    def pull(self) -> VoiceFrame:
        """The next frame, for the sender."""
        if not any(listener.hungry for listener in self._listeners):
            self.playout.finish()
        frame = self.playout.pull()
        if frame.speech_samples:
            self._advance(frame.speech_samples)
        self._audible = frame.speech_samples > 0 or (self.playout.paused and self._audible)
        if self.playout.wants:
            self._room.set()
        return frame

    @property
    def audible(self) -> bool:
        """Whether the bot has the floor: it sounds, or would if it were not held back."""
        return self._audible or self.playout.buffered_samples > 0

    @property
    def interruptible(self) -> bool:
        """Whether what sounds now may be interrupted."""
        return all(span.interruptible for span in self._spans)

    @property
    def closed(self) -> bool:
        """Whether nobody pulls any more."""
        return self._closed

    @property
    def drained(self) -> bool:
        """Whether everything written was handed over."""
        return not self.playout.buffered_samples

    def interrupt(self) -> Position | None:
        """Silence now, and until `reopen` for everything interruptible; uninterruptible speech goes on.

        Returns:
            How much was handed over since the last silence, or None when nothing was cut.
        """
        self._stale = self._mute = True
        before = sum(span.samples for span in self._entered)
        self._entered = deque(span for span in self._entered if not span.interruptible)
        self._shift += before - sum(span.samples for span in self._entered)
        self._room.set()
        self._ready.set()
        position = None
        if self.interruptible:
            position = Position(self.playout.interrupt(), RATE)
            self._generation = self.playout.begin()
            self._spans.clear()
            self._shift += self._written - self._handed
            self._written = self._handed
            if self._resampler is not None:
                self._resampler.flush()
        # Without a cut `_written` is still to be heard.
        self._due = deque(one for one in self._due if one.at_samples <= self._written or _survives(one.frame))
        if position is not None:
            self._due = deque(replace(one, at_samples=min(one.at_samples, self._handed)) for one in self._due)
        return position

    def renew(self) -> None:
        """The interruption has come down the pipeline: what enters from now on is new."""
        self._stale = False

    def reopen(self) -> None:
        """Everything that entered before the interruption has been refused: what is written from now on is new."""
        self._stale = self._mute = False

    def go_on(self) -> None:
        """The interruption was swallowed on its way: whose speech it cut learns of it here."""
        self.reopen()
        for listener in list(self._listeners):
            listener.silenced()

    def hold(self, held: bool) -> None:
        """While the peer is lost nothing is handed over: what it did not hear would count as heard."""
        self.playout.held = held

    def close(self) -> None:
        """Nobody pulls any more: whoever waits is let go."""
        if self._closed:
            return
        self._closed = True
        self._room.set()
        self._ready.set()
        for listener in list(self._listeners):
            listener.hung_up()

    # --- frames that follow --------------------------------------------------------------------------------------

    def take_due(self) -> list[tuple[Frame, FrameDirection]]:
        """The frames whose audio was handed over, in order; at the end of the call the others too, but words."""
        due: list[tuple[Frame, FrameDirection]] = []
        while self._due and (self._due[0].at_samples <= self._handed or self._closed):
            one = self._due.popleft()
            if one.at_samples <= self._handed or not isinstance(one.frame, TextFrame):
                due.append((one.frame, one.direction))
        return due

    async def wait_due(self) -> None:
        """Waits until there may be something to take."""
        await self._ready.wait()
        self._ready.clear()

    # --- inside --------------------------------------------------------------------------------------------------

    def _resampled(self, pcm: Pcm, sample_rate: int) -> Pcm:
        if sample_rate == RATE:
            return pcm
        if self._resampler is None or self._resampler.source_rate != sample_rate:
            self._resampler = Resampler(sample_rate, RATE)
        return self._resampler.push(pcm)

    def _place(self, samples: int) -> None:
        """Notes whose the next samples are."""
        while samples:
            if not self._entered:
                self._spans.append(_Span(None, samples, True))
                return
            head = self._entered[0]
            taken = min(samples, head.samples)
            if taken == head.samples:
                self._entered.popleft()
            else:
                head.samples -= taken
            if taken:
                self._spans.append(_Span(head.key, taken, head.interruptible))
            samples -= taken

    def _advance(self, samples: int) -> None:
        self._handed += samples
        while samples and self._spans:
            head = self._spans[0]
            taken = min(samples, head.samples)
            head.samples, samples = head.samples - taken, samples - taken
            self._tell(head.key, taken)
            if not head.samples:
                self._tell(head.key, head.owed)
                self._spans.popleft()
        if (self._due and self._due[0].at_samples <= self._handed) or self.drained:
            self._ready.set()

    def _tell(self, key: str | None, samples: int) -> None:
        if key is not None and samples:
            for listener in self._listeners:
                listener.handed(key, samples / RATE)


def _survives(frame: Frame) -> bool:
    """Whether a frame that waits for audio outlives the interruption that cut the audio."""
    return isinstance(frame, SystemFrame) or not frame.interruptible
