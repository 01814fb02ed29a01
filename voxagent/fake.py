"""A deterministic model for tests and examples: scripted times, stalls and failures, audio that knows its place.

Every sample encodes the session's seed and its own position, so that a test can prove from the PCM alone that
nothing was lost, repeated, or left over from an older turn.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxagent.model import ModelSpec, Pcm, SpeechOptions, Step, Voice, WordTime
from voxagent.phrases import Phrase

_PERIOD = 8000
_BANDS = 4
_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class FakeVoice:
    """A voice with nothing but a name."""

    name: str = "fake"
    language: str | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """The call takes this long; a cancel cuts it short unless `deaf`."""

    seconds: float
    deaf: bool = False


@dataclass(frozen=True, slots=True)
class Raise:
    """The call raises this."""

    error: Exception


Action = Wait | Raise


@dataclass(frozen=True, slots=True)
class FakeScript:
    """What a fake model does and how long it takes.

    Attributes:
        prefill_s: Time a prefill takes.
        step_s: Time a step takes, whatever the batch.
        samples_per_character: Speech rate; a character of the spoken text is this many samples.
        on_step: Extra actions by step number within a session, from 0.
        on_prefill: The same by prefill number.
        on_open: Extra action when a slot is opened.
    """

    prefill_s: float = 0.0
    step_s: float = 0.0
    samples_per_character: int = 1600
    on_step: Mapping[int, Action] = field(default_factory=dict)
    on_prefill: Mapping[int, Action] = field(default_factory=dict)
    on_open: Action | None = None


@dataclass(slots=True, eq=False)
class FakeSlot:
    """All the state of one session."""

    seed: int
    speed: float
    cancelled: threading.Event = field(default_factory=threading.Event)
    position: int = 0
    left: int = 0
    words: tuple[WordTime, ...] = ()
    steps: int = 0
    prefills: int = 0


class FakeModel:
    """Speaks `samples_per_character` samples a character, in chunks of 160 ms.

    Args:
        spec: Rates and limits; 16 kHz, chunks of 2,560 samples and 64 slots by default.
        script: Times and accidents.
        sleep: How to spend time; by default it waits, and a cancelled slot wakes it.
    """

    def __init__(
        self,
        spec: ModelSpec | None = None,
        script: FakeScript | None = None,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._spec = spec or ModelSpec(
            "fake", 16000, 2560, slots=64, max_batch=8, languages=(), times_words=True, foresees=True
        )
        self.script = script or FakeScript()
        self.open_slots = 0
        self._sleep = sleep

    @property
    def spec(self) -> ModelSpec:
        """Rates and limits."""
        return self._spec

    def load_voice(self, source: str | None) -> Voice:
        """Any name is a voice, but `missing`."""
        if source == "missing":
            raise ValueError("there is no voice named 'missing': the fake model has every other one")
        return FakeVoice(source or "fake")

    def open(self, voice: Voice, options: SpeechOptions, seed: int) -> FakeSlot:
        """Takes a slot."""
        slot = FakeSlot(seed, options.speed)
        self._act(slot, self.script.on_open)
        if self.open_slots >= self._spec.slots:
            raise RuntimeError("the engine opened more sessions than there are slots")
        self.open_slots += 1
        return slot

    def prefill(self, slot: FakeSlot, phrase: Phrase) -> bool:
        """Computes how long the phrase sounds and when its words do."""
        self._spend(slot, self.script.prefill_s)
        self._act(slot, self.script.on_prefill.get(slot.prefills))
        slot.prefills += 1
        rate = self.script.samples_per_character / slot.speed
        slot.left = int(len(phrase.spoken) * rate)
        slot.words = tuple(
            WordTime(m.start(), m.end(), int(m.start() * rate), int(m.end() * rate))
            for m in _WORD.finditer(phrase.spoken)
        )
        return True

    def step(self, slots: Sequence[FakeSlot], ahead_s: Sequence[float] = ()) -> list[Step | Exception]:
        """One chunk each; the latents are the positions themselves."""
        self._spend(slots[0], self.script.step_s)
        return [self._advance(slot) for slot in slots]

    def _advance(self, slot: FakeSlot) -> Step | Exception:
        try:
            self._act(slot, self.script.on_step.get(slot.steps))
        except Exception as error:
            return error
        slot.steps += 1
        count = min(self._spec.chunk_samples, slot.left)
        slot.left -= count
        start, slot.position = slot.position, slot.position + count
        words, slot.words = slot.words, ()
        latents = (start, count) if count else None
        return Step(latents, last=slot.left == 0, words=words if self._spec.times_words else ())

    def decode(self, slots: Sequence[FakeSlot], latents: Sequence[Any]) -> list[Pcm]:
        """Positions to PCM."""
        return [encode(slot.seed, start, count) for slot, (start, count) in zip(slots, latents, strict=True)]

    def cancel(self, slot: FakeSlot) -> None:
        """Wakes the slot's sleep."""
        slot.cancelled.set()

    def close(self, slot: FakeSlot) -> None:
        """Gives the slot back."""
        self.open_slots -= 1

    def _act(self, slot: FakeSlot, action: Action | None) -> None:
        match action:
            case Wait(seconds, deaf):
                self._spend(slot, seconds, deaf)
            case Raise(error):
                raise error

    def _spend(self, slot: FakeSlot, seconds: float, deaf: bool = False) -> None:
        if seconds <= 0:
            return
        if self._sleep is not None:
            self._sleep(seconds)
        elif deaf:
            threading.Event().wait(seconds)
        else:
            slot.cancelled.wait(seconds)


def encode(seed: int, start: int, count: int) -> Pcm:
    """PCM whose int16 values are ``1 + position % 8000 + 8000 * (seed % 4)``: shape (count,), float32."""
    positions = np.arange(start, start + count)
    values = 1 + positions % _PERIOD + _PERIOD * (seed % _BANDS)
    return (values / 32768.0).astype(np.float32)


def places(pcm: Pcm) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Reads PCM of `encode` back: position modulo 8,000, and seed modulo 4, of every sample that is not silence."""
    values = np.rint(pcm * 32768.0).astype(np.int64)
    values = values[values > 0] - 1
    return values % _PERIOD, values // _PERIOD


def create(source: str | None, options: Mapping[str, object]) -> FakeModel:
    """The entry point `fake`; takes the options `step_ms` and `prefill_ms`."""
    unknown = set(options) - {"step_ms", "prefill_ms"}
    if unknown:
        raise ValueError(f"the fake model takes the options step_ms and prefill_ms, not {', '.join(sorted(unknown))}")
    times = {name: float(str(options.get(name, 0))) / 1000 for name in ("step_ms", "prefill_ms")}
    return FakeModel(script=FakeScript(prefill_s=times["prefill_ms"], step_s=times["step_ms"]))
