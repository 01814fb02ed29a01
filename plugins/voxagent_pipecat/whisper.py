"""`EmbeddedSTTService`: recognition that works offline, begun before the detector has called the speech ended.

Owns which audio belongs to what was said; recognising is the recogniser's business.
"""

# mypy: disallow-untyped-calls=False
# Much of Pipecat is not annotated.

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pipecat.frames.frames import (
    Frame,
    InputAudioRawFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessorSetup
from pipecat.services.settings import STTSettings
from pipecat.services.stt_service import SegmentedSTTService
from pipecat.transcriptions.language import Language
from pipecat.utils.time import time_now_iso8601

from voxagent.pcm import resample, to_float32
from voxagent_pipecat.recogniser import LONGEST_S, RATE, Recogniser, RecogniserLease, Source
from voxagent_pipecat.vad import QUIET_DBFS, Loudness

_FRAME_MS = 20
# A guess starts after this much silence: the detector needs 200 ms to call the speech ended.
_GUESS_AFTER_MS = 80
# So much sound means that the caller goes on; less is a click.
_GOES_ON_MS = 60
# What is kept from before the detector calls the speech begun: it takes 100 ms and more.
_PRE_ROLL_S = 0.4
# Speech that lasts longer than one pass is cut where it is quietest within this.
_CUT_WITHIN_S = 6.0
_CUT_S = 0.1
# From the end of speech to the transcript, beside a busy neighbour. Pipecat waits so long for words that never come.
_P99_S = 0.8


@dataclass(frozen=True, slots=True)
class RecognitionStats:
    """The counters so far.

    Attributes:
        segments: Stretches of speech that the detector called ended.
        guesses: Recognitions begun before that.
        used: Guesses that turned out to be right.
        empty: Segments without words.
    """

    segments: int = 0
    guesses: int = 0
    used: int = 0
    empty: int = 0


@dataclass(frozen=True, slots=True)
class _Guess:
    """A recognition of the first `length` bytes of a segment."""

    length: int
    text: Future[str]


class EmbeddedSTTService(SegmentedSTTService):
    """Recognises English, offline.

    It begins 80 ms after the last sound, before the detector has called the speech ended; if the caller goes on, what
    it found is thrown away. Calls share one model, and guess only while it is idle.

    Event handlers:
        on_no_words: (service) when what was heard held no words.

    Args:
        model_path: Folder of a CTranslate2 Whisper model; by default the bundled tiny.en.
        cpu_threads: Of one recognition.
        sample_rate: Of the audio, Hz; by default the pipeline's.

    Raises:
        ValueError: A package or the folder is missing, with the cure.
    """

    def __init__(
        self, *, model_path: str | Path | None = None, cpu_threads: int = 2, sample_rate: int | None = None
    ) -> None:
        lease = _lease(model_path, cpu_threads)
        super().__init__(
            sample_rate=sample_rate,
            # The recogniser knows better how much it needs.
            trailing_silence_secs=0.0,
            ttfs_p99_latency=_P99_S,
            settings=STTSettings(model=str(model_path or "tiny.en"), language=Language.EN),
        )
        self._lease = lease
        self._recogniser: Recogniser | None = None
        self._stats = RecognitionStats()
        self._loudness = Loudness(QUIET_DBFS, _FRAME_MS)
        self._unheard = b""
        self._silent_ms = self._sound_ms = 0
        self._guess: _Guess | None = None
        self._pieces: list[Future[str]] = []
        self._ended: deque[list[Future[str]]] = deque()
        self._register_event_handler("on_no_words")

    @staticmethod
    async def warm_up(model_path: str | Path | None = None, *, cpu_threads: int = 2) -> RecogniserLease:
        """Loads the model ahead of the first call, and keeps it between calls.

        Returns:
            Whose `release` ends that.

        Raises:
            ValueError: It is missing or damaged, with the cure.
        """
        lease = _lease(model_path, cpu_threads)
        await lease.acquire()
        return lease

    @property
    def stats(self) -> RecognitionStats:
        """The counters so far."""
        return self._stats

    @property
    def wants_wav_segments(self) -> bool:
        """No: raw PCM."""
        return False

    def can_generate_metrics(self) -> bool:
        """Yes."""
        return True

    # --- life --------------------------------------------------------------------------------------------------------

    async def setup(self, setup: FrameProcessorSetup) -> None:  # type: ignore[override]
        """Loads the model, or joins the services that have.

        Raises:
            ValueError: It is missing or damaged, with the cure.
        """
        await super().setup(setup)
        self._audio_buffer_size_1s = int(self.sample_rate * _PRE_ROLL_S) * 2
        self._recogniser = await self._lease.acquire()

    async def cleanup(self) -> None:
        """Forgets what is under way, and the model if nobody else uses it. May be called twice."""
        await self._cancel_segment_task()
        self._forget_guess()
        for future in (*self._pieces, *(future for pieces in self._ended for future in pieces)):
            future.cancel()
        self._pieces = []
        self._ended.clear()
        self._recogniser = None
        self._lease.release()
        await super().cleanup()

    async def _update_settings(self, delta: STTSettings) -> dict[str, Any]:  # type: ignore[override]
        changed = await super()._update_settings(delta)
        self._warn_unhandled_updated_settings(changed)
        return changed

    # --- audio in ----------------------------------------------------------------------------------------------------

    async def process_audio_frame(self, frame: InputAudioRawFrame, direction: FrameDirection) -> None:
        """Collects audio, and guesses that the speech is over when it is quiet for a moment."""
        if self.is_muted:
            return
        await super().process_audio_frame(frame, direction)
        self._unheard += frame.audio
        size = 2 * (self.sample_rate * _FRAME_MS // 1000)
        while len(self._unheard) >= size:
            block, self._unheard = self._unheard[:size], self._unheard[size:]
            self._listen(self._loudness.sounds(np.frombuffer(block, np.int16)))
        if self._user_speaking:
            self._foresee()
            self._cut()

    def _listen(self, sounds: bool) -> None:
        self._silent_ms = 0 if sounds else self._silent_ms + _FRAME_MS
        self._sound_ms = self._sound_ms + _FRAME_MS if sounds else 0
        if self._sound_ms >= _GOES_ON_MS:
            self._forget_guess()

    def _foresee(self) -> None:
        """Begins with what there is, unless that is done, or somebody else waits for the recogniser."""
        assert self._recogniser is not None, "setup comes first"
        if self._silent_ms >= _GUESS_AFTER_MS and self._guess is None and self._recogniser.idle and self.is_usable:
            self._stats = replace(self._stats, guesses=self._stats.guesses + 1)
            self._guess = _Guess(len(self._audio_buffer), self._submit(bytes(self._audio_buffer)))

    def _cut(self) -> None:
        """Recognises the beginning of speech that goes on for longer than one pass takes."""
        if len(self._audio_buffer) < 2 * int(self.sample_rate * LONGEST_S):
            return
        step = int(self.sample_rate * _CUT_S)
        pcm = np.frombuffer(bytes(self._audio_buffer), np.int16).astype(np.float32)
        start = len(pcm) - int(self.sample_rate * _CUT_WITHIN_S)
        blocks = pcm[start : start + (len(pcm) - start) // step * step].reshape(-1, step)
        cut = start + int(np.argmin((blocks**2).mean(1))) * step + step // 2
        self._pieces.append(self._submit(bytes(self._audio_buffer[: 2 * cut])))
        del self._audio_buffer[: 2 * cut]
        self._forget_guess()

    def _submit(self, audio: bytes) -> Future[str]:
        assert self._recogniser is not None, "setup comes first"
        return self._recogniser.submit(resample(to_float32(np.frombuffer(audio, np.int16)), self.sample_rate, RATE))

    def _forget_guess(self) -> None:
        """A thread that has begun with it cannot be stopped; its result is not waited for."""
        if self._guess is not None:
            self._guess.text.cancel()
            self._guess = None

    # --- words out ---------------------------------------------------------------------------------------------------

    async def _handle_user_started_speaking(self, frame: VADUserStartedSpeakingFrame) -> None:
        await super()._handle_user_started_speaking(frame)
        self._forget_guess()

    async def _handle_user_stopped_speaking(self, frame: VADUserStoppedSpeakingFrame) -> None:
        guess, self._guess = self._guess, None
        if self.is_usable and self._audio_buffer:
            # The detector has heard no voice for `stop_secs`: what the guess did not cover is silence or noise.
            missed = len(self._audio_buffer) - guess.length if guess is not None else 0
            spare = 2 * self.sample_rate * (frame.stop_secs + _FRAME_MS / 1000)
            if guess is not None and missed <= spare:
                self._stats = replace(self._stats, used=self._stats.used + 1)
                last = guess.text
            else:
                last = self._submit(bytes(self._audio_buffer))
            self._ended.append([*self._pieces, last])
        self._pieces = []
        await super()._handle_user_stopped_speaking(frame)

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        """Waits for the words of a segment.

        Args:
            audio: 16-bit mono PCM at the service's rate. What the pipeline's detector called ended is under way
                already, and this is not looked at.

        Yields:
            The transcript, if there are words.
        """
        await self.start_processing_metrics()
        pieces = self._ended.popleft() if self._ended else [self._submit(audio)]
        texts = [await asyncio.wrap_future(piece) for piece in pieces]
        await self.stop_processing_metrics()
        text = " ".join(filter(None, texts))
        self._stats = replace(self._stats, segments=self._stats.segments + 1, empty=self._stats.empty + (not text))
        if text:
            yield TranscriptionFrame(text, self._user_id, time_now_iso8601(), Language.EN, finalized=True)
        else:
            await self._call_event_handler("on_no_words")


def _lease(model_path: str | Path | None, cpu_threads: int) -> RecogniserLease:
    folder = None if model_path is None else Path(model_path).expanduser().resolve()
    return RecogniserLease(Source(folder, cpu_threads))
